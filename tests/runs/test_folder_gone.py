"""A results folder that is deleted, moved or replaced while a run plays: nothing more is bought, nothing is lost."""

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
"""More than 300 calls."""
AFTER = 60
"""How many answers come before the folder goes."""
BOUND = 3 * CONCURRENCY
"""Those in flight, those that go out until the next flush, and those until its news arrives."""


def spec_of(folder: Path, server: LoopbackServer) -> Path:
    return spec_file(folder, server.base_url, size=SIZE, rollouts={"concurrency": CONCURRENCY})


class Once:
    """Does something to the results after so many answers, and remembers how many requests there were by then."""

    def __init__(self, server: LoopbackServer, act: Callable[[], object]) -> None:
        self._server, self._act = server, act
        self.asked: int | None = None

    def __call__(self, progress: Progress) -> None:
        if self.asked is None and progress.calls >= AFTER:
            self.asked = self._server.requests
            self._act()


def stopped(folder: Path, server: LoopbackServer, act: Callable[[], object]) -> FolderGoneError:
    """Play, do that to the results meanwhile, and see that few calls follow."""
    once = Once(server, act)
    with pytest.raises(FolderGoneError) as raised:
        run_spec(spec_of(folder, server), folder / "results", watch=once)
    assert once.asked is not None
    assert server.requests - once.asked <= BOUND
    return raised.value


def clean_files(folder: Path, server: LoopbackServer) -> tuple[dict[str, str], int]:
    """What a run leaves that nothing happens to, and how many calls it makes."""
    before = server.requests
    run = run_spec(spec_of(folder, server), folder / "clean").folder.path
    return derived_files(run), server.requests - before


@pytest.mark.full
def test_a_moved_folder_stops_the_run_which_goes_on_there(tmp_path: Path) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    with run_chat_server(latency=0.01) as server:
        files, calls = clean_files(tmp_path, server)
        before = server.requests
        error = stopped(tmp_path, server, lambda: results.rename(elsewhere))
        assert error.now == only_run(elsewhere) / "journal.jsonl"
        assert f"was moved to {error.now}" in str(error)
        assert not results.exists()
        run = run_spec(spec_of(tmp_path, server), elsewhere).folder.path
        assert derived_files(run) == files
        assert server.requests - before <= calls + BOUND


@pytest.mark.full
def test_the_records_of_a_deleted_folder_are_saved_and_go_on(tmp_path: Path) -> None:
    results = tmp_path / "results"
    with run_chat_server(latency=0.01) as server:
        files, calls = clean_files(tmp_path, server)
        before = server.requests
        error = stopped(tmp_path, server, lambda: shutil.rmtree(results))
        assert error.now is None
        assert not results.exists()
        saved = re.search(r"its records were saved in (\S+);", str(error))
        assert saved is not None
        assert Path(saved[1]).parent == tmp_path
        how = re.search(r"to resume with them: (mkdir .* && mv .*), and run the same command again", str(error))
        assert how is not None
        subprocess.run(how[1], shell=True, check=True)
        run = run_spec(spec_of(tmp_path, server), results).folder.path
        assert derived_files(run) == files
        assert server.requests - before <= calls + BOUND


def test_what_takes_the_place_of_a_folder_is_left_as_it_is(tmp_path: Path) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"

    def replace() -> None:
        results.rename(elsewhere)
        run = results / only_run(elsewhere).relative_to(elsewhere)
        run.mkdir(parents=True)
        for name in ("journal.jsonl", "manifest.json", ".in_flight", ".lock"):
            (run / name).write_text("another's")

    with run_chat_server(latency=0.01) as server:
        error = stopped(tmp_path, server, replace)
        assert error.now == only_run(elsewhere) / "journal.jsonl"
    there = {path.name: path.read_text() for path in results.rglob("*") if path.is_file()}
    assert there == dict.fromkeys(("journal.jsonl", "manifest.json", ".in_flight", ".lock"), "another's")


def test_the_records_of_a_copy_in_the_place_of_a_folder_are_left_as_they_are(tmp_path: Path) -> None:
    """They can be read as the run's own, and yet are not written to."""
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    copied: dict[Path, bytes] = {}

    def replace() -> None:
        results.rename(elsewhere)
        shutil.copytree(elsewhere, results)
        copied.update({path: path.read_bytes() for path in only_run(results).iterdir() if path.is_file()})

    with run_chat_server(latency=0.01) as server:
        stopped(tmp_path, server, replace)
    assert "manifest.json" in {path.name for path in copied}
    assert {path: path.read_bytes() for path in copied} == copied


def test_a_deleted_journal_is_saved_where_the_run_folder_stays(tmp_path: Path) -> None:
    results = tmp_path / "results"

    def delete() -> None:
        (only_run(results) / "journal.jsonl").unlink()

    with run_chat_server(latency=0.01) as server:
        error = stopped(tmp_path, server, delete)
    assert "all its records were saved in" in str(error)
    (copy,) = (results / "runs").glob("*.journal.rescued.jsonl")
    assert len(copy.read_bytes().splitlines()) > AFTER


def test_a_run_that_pays_nothing_stops_too(tmp_path: Path) -> None:
    """It is not flushed, and looks for its journal now and then."""
    path = spec_file(tmp_path, size=400, rollouts={"per_datapoint": 20})
    results = tmp_path / "results"
    once: list[Progress] = []

    def watch(progress: Progress) -> None:
        if progress.calls >= AFTER and not once:
            once.append(progress)
            results.rename(tmp_path / "elsewhere")

    with pytest.raises(FolderGoneError, match="was moved to"):
        run_spec(path, results, watch=watch)
    assert once[0].rollouts < 8000


@pytest.mark.full
def test_the_command_that_goes_on_names_the_new_place(tmp_path: Path) -> None:
    with run_chat_server(held_after=AFTER) as server:
        spec_of(tmp_path, server)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests >= AFTER or process.poll() is not None)
        (tmp_path / "results").rename(tmp_path / "else where")
        asked = server.requests
        server.change(held_after=None)
        code, _, said = wait_for_exit(process)
        assert code == 1
        assert server.requests - asked <= BOUND
        words = next(line for line in said.splitlines() if line.startswith("Resume with: ")).removeprefix(
            "Resume with: "
        )
        assert shlex.split(words)[-2:] == ["--results", str(tmp_path / "else where")]
        assert nip_run_here(*shlex.split(words)[1:], cwd=tmp_path).returncode == 0
    assert not (tmp_path / "results").exists()


def test_a_journal_that_is_cut_stops_the_run(tmp_path: Path) -> None:
    def cut() -> None:
        with (only_run(tmp_path / "results") / "journal.jsonl").open("r+b") as file:
            file.truncate(100)

    with run_chat_server() as server:
        error = stopped(tmp_path, server, cut)
    assert "another program truncated" in str(error)
