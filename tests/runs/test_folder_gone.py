"""A results folder that is deleted, moved or replaced during a run: the run stops, and loses no answer."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.base.errors import FolderGoneError
from runner.runs.execution.accounting import Progress
from tests.support.processes import nip_run_here, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import derived_files, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

CONCURRENCY = 8
SIZE = 60
"""Number of datapoints; they need more than 300 calls."""
ANSWERS_BEFORE_CHANGE = 60
"""Number of answers before the folder changes."""
MAX_LATE_CALLS = 3 * CONCURRENCY
"""Calls in flight, calls until the next flush, and calls until the error arrives."""


def write_spec(folder: Path, server: LoopbackServer) -> Path:
    return spec_file(folder, server.base_url, size=SIZE, rollouts={"concurrency": CONCURRENCY})


class OneTimeAction:
    """An action on the results folder after some answers; it stores the number of requests until then."""

    def __init__(self, server: LoopbackServer, act: Callable[[], object]) -> None:
        self._server, self._act = server, act
        self.requests_before: int | None = None

    def __call__(self, progress: Progress) -> None:
        if self.requests_before is None and progress.calls >= ANSWERS_BEFORE_CHANGE:
            self.requests_before = self._server.requests
            self._act()


def run_until_folder_gone(folder: Path, server: LoopbackServer, act: Callable[[], object]) -> FolderGoneError:
    """Play a run, change its results folder during the run, and check that few calls follow."""
    action = OneTimeAction(server, act)
    with pytest.raises(FolderGoneError) as raised:
        run_spec(write_spec(folder, server), folder / "results", watch=action)
    assert action.requests_before is not None
    assert server.requests - action.requests_before <= MAX_LATE_CALLS
    return raised.value


def play_undisturbed(folder: Path, server: LoopbackServer) -> tuple[dict[str, str], int]:
    """Return the files of an undisturbed run and its number of calls."""
    requests_before = server.requests
    run = run_spec(write_spec(folder, server), folder / "clean").folder.path
    return derived_files(run), server.requests - requests_before


@pytest.mark.full
def test_a_moved_folder_stops_the_run_which_resumes_from_the_new_place(tmp_path: Path) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    with run_chat_server(latency=0.01) as server:
        files, calls = play_undisturbed(tmp_path, server)
        requests_before = server.requests
        error = run_until_folder_gone(tmp_path, server, lambda: results.rename(elsewhere))
        assert error.now == only_run(elsewhere) / "journal.jsonl"
        assert f"was moved to {error.now}" in str(error)
        assert not results.exists()
        run = run_spec(write_spec(tmp_path, server), elsewhere).folder.path
        assert derived_files(run) == files
        assert server.requests - requests_before <= calls + MAX_LATE_CALLS


@pytest.mark.full
def test_the_records_of_a_deleted_folder_are_saved_and_can_be_resumed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    with run_chat_server(latency=0.01) as server:
        files, calls = play_undisturbed(tmp_path, server)
        requests_before = server.requests
        error = run_until_folder_gone(tmp_path, server, lambda: shutil.rmtree(results))
        assert error.now is None
        assert not results.exists()
        saved = re.search(r"its records were saved in (\S+);", str(error))
        assert saved is not None
        assert Path(saved[1]).parent == tmp_path
        resume_command = re.search(
            r"to resume with them: (mkdir .* && mv .*), and run the same command again", str(error)
        )
        assert resume_command is not None
        subprocess.run(resume_command[1], shell=True, check=True)
        run = run_spec(write_spec(tmp_path, server), results).folder.path
        assert derived_files(run) == files
        assert server.requests - requests_before <= calls + MAX_LATE_CALLS


def test_files_that_replace_the_folder_are_left_unchanged(tmp_path: Path) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"

    def replace_results() -> None:
        results.rename(elsewhere)
        run = results / only_run(elsewhere).relative_to(elsewhere)
        run.mkdir(parents=True)
        for name in ("journal.jsonl", "manifest.json", ".in_flight", ".lock"):
            (run / name).write_text("another's")

    with run_chat_server(latency=0.01) as server:
        error = run_until_folder_gone(tmp_path, server, replace_results)
        assert error.now == only_run(elsewhere) / "journal.jsonl"
    contents = {path.name: path.read_text() for path in results.rglob("*") if path.is_file()}
    assert contents == dict.fromkeys(("journal.jsonl", "manifest.json", ".in_flight", ".lock"), "another's")


def test_a_copy_that_replaces_the_folder_is_left_unchanged(tmp_path: Path) -> None:
    """The run could read the copy as its own, but does not write to it."""
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    copied: dict[Path, bytes] = {}

    def replace_results() -> None:
        results.rename(elsewhere)
        shutil.copytree(elsewhere, results)
        copied.update({path: path.read_bytes() for path in only_run(results).iterdir() if path.is_file()})

    with run_chat_server(latency=0.01) as server:
        run_until_folder_gone(tmp_path, server, replace_results)
    assert "manifest.json" in {path.name for path in copied}
    assert {path: path.read_bytes() for path in copied} == copied


def test_a_deleted_journal_is_saved_next_to_the_run_folder(tmp_path: Path) -> None:
    results = tmp_path / "results"

    def delete_journal() -> None:
        (only_run(results) / "journal.jsonl").unlink()

    with run_chat_server(latency=0.01) as server:
        error = run_until_folder_gone(tmp_path, server, delete_journal)
    assert "all its records were saved in" in str(error)
    (copy,) = (results / "runs").glob("*.journal.rescued.jsonl")
    assert len(copy.read_bytes().splitlines()) > ANSWERS_BEFORE_CHANGE


def test_a_run_without_paid_calls_stops_too(tmp_path: Path) -> None:
    """Such a run does not flush its journal, but checks for it from time to time."""
    path = spec_file(tmp_path, size=400, rollouts={"per_datapoint": 20})
    results = tmp_path / "results"
    progress_at_move: list[Progress] = []

    def watch(progress: Progress) -> None:
        if progress.calls >= ANSWERS_BEFORE_CHANGE and not progress_at_move:
            progress_at_move.append(progress)
            results.rename(tmp_path / "elsewhere")

    with pytest.raises(FolderGoneError, match="was moved to"):
        run_spec(path, results, watch=watch)
    assert progress_at_move[0].rollouts < 8000


@pytest.mark.full
def test_the_resume_command_names_the_new_folder(tmp_path: Path) -> None:
    with run_chat_server(held_after=ANSWERS_BEFORE_CHANGE) as server:
        write_spec(tmp_path, server)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests >= ANSWERS_BEFORE_CHANGE or process.poll() is not None)
        (tmp_path / "results").rename(tmp_path / "else where")
        requests_before = server.requests
        server.change(held_after=None)
        code, _, stderr = wait_for_exit(process)
        assert code == 1
        assert server.requests - requests_before <= MAX_LATE_CALLS
        resume_command = next(line for line in stderr.splitlines() if line.startswith("Resume with: ")).removeprefix(
            "Resume with: "
        )
        assert shlex.split(resume_command)[-2:] == ["--results", str(tmp_path / "else where")]
        assert nip_run_here(*shlex.split(resume_command)[1:], cwd=tmp_path).returncode == 0
    assert not (tmp_path / "results").exists()


def test_a_truncated_journal_stops_the_run(tmp_path: Path) -> None:
    def truncate_journal() -> None:
        with (only_run(tmp_path / "results") / "journal.jsonl").open("r+b") as file:
            file.truncate(100)

    with run_chat_server() as server:
        error = run_until_folder_gone(tmp_path, server, truncate_journal)
    assert "another program truncated" in str(error)
