"""Resuming runs that are finished, killed, interrupted or in use, and runs that grow or shrink."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from runner.base.errors import JournalError, RunDirectoryError, RunError, UsageError
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import max_spending
from runner.spec.loader import load_spec
from tests.support.processes import interrupt, nip_run_here, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


def test_a_finished_run_is_shown_and_not_played_again(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        first = run_spec(path, tmp_path / "results")
        request_count, first_files = server.requests, derived_files(first.folder.path)
        second = run_spec(path, tmp_path / "results")
        assert server.requests == request_count
        assert second.was_finished
        assert json.dumps(second.metrics, sort_keys=True) == json.dumps(first.metrics, sort_keys=True)
        assert derived_files(second.folder.path) == first_files


def test_a_finished_run_is_shown_without_server_or_key(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        first = run_spec(path, tmp_path / "results")
    done = nip_run_here("spec.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (summary,) = json.loads(done.stdout)
    assert summary["was_finished"]
    assert summary["run_id"] == first.folder.run_id


@pytest.mark.full
def test_again_option_starts_a_new_run_each_time(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        first = run_spec(path, tmp_path / "results")
        request_count = server.requests
        second = run_spec(path, tmp_path / "results", again=True)
        third = run_spec(path, tmp_path / "results", again=True)
        assert server.requests == 3 * request_count
    assert len({first.folder.run_id, second.folder.run_id, third.folder.run_id}) == 3


@pytest.mark.full
@pytest.mark.parametrize(
    ("small", "large"),
    [("rollouts.per_datapoint=1", "rollouts.per_datapoint=2"), ("dataset.limit=5", "dataset.limit=12")],
)
def test_a_longer_run_requests_only_the_missing_calls(tmp_path: Path, small: str, large: str) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        fresh_run = run_spec(path, tmp_path / "fresh", large)
        full_count = server.requests
        small_run = run_spec(path, tmp_path / "grown", small)
        small_count = server.requests - full_count
        grown_run = run_spec(path, tmp_path / "grown", large)
        assert server.requests == 2 * full_count
    assert 0 < small_count < full_count
    assert grown_run.folder == small_run.folder
    assert derived_files(grown_run.folder.path) == derived_files(fresh_run.folder.path)


@pytest.mark.full
@pytest.mark.parametrize("smaller", ["dataset.limit=5", "rollouts.per_datapoint=1"])
def test_a_finished_run_cannot_be_made_smaller(tmp_path: Path, smaller: str) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        larger = "rollouts.per_datapoint=2"
        first = run_spec(path, tmp_path / "results", larger)
        files_before, request_count = derived_files(first.folder.path), server.requests
        with pytest.raises(UsageError, match=rf"run {first.run_id} is finished with .* add --run-id NAME, or --again"):
            run_spec(path, tmp_path / "results", larger, smaller)
        assert server.requests == request_count
    assert derived_files(first.folder.path) == files_before


@pytest.mark.full
def test_regrouping_recomputes_confidence_intervals_and_notes_it(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    first = run_spec(path, tmp_path / "results")
    regrouped = run_spec(path, tmp_path / "results", "dataset.group_by=question")
    assert regrouped.folder == first.folder
    assert f"run {first.run_id}: confidence intervals are recomputed, clustered by group_by=question" in regrouped.notes


@pytest.mark.gate
@pytest.mark.parametrize("moment", [17, *(pytest.param(moment, marks=pytest.mark.full) for moment in (3, 34))])
def test_a_resumed_run_repeats_only_calls_in_flight_at_the_kill(tmp_path: Path, moment: int) -> None:
    with run_chat_server(latency=[0.01, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url)
        complete_run = run_spec(path, tmp_path / "whole", "rollouts.concurrency=4")
        needed = server.requests
        server.change(held_after=needed + moment)
        process = start_nip_run("spec.yaml", "rollouts.concurrency=4", "-q", cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + moment or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        code, _, _ = wait_for_exit(process)
        assert code == -signal.SIGKILL
        server.change(held_after=None)
        recorded_calls = len([r for r in journal_records(only_run(tmp_path / "results")) if r["kind"] == "call"])
        resumed = run_spec(path, tmp_path / "results", "rollouts.concurrency=4")
        requests = server.requests - needed
    assert recorded_calls > 0 or moment < 5
    assert needed <= requests <= needed + 4
    assert derived_files(resumed.folder.path) == derived_files(complete_run.folder.path)
    samples = [tuple(r["sample"]) for r in journal_records(resumed.folder.path) if r["kind"] == "call"]
    assert len(samples) == len(set(samples)) == needed


def test_a_run_resumes_from_a_truncated_journal_and_reports_it(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        expected_files = derived_files(run_spec(path, tmp_path / "results").folder.path)
        run_folder = only_run(tmp_path / "results")
        journal = run_folder / "journal.jsonl"
        data = journal.read_bytes()
        journal.write_bytes(
            data[: len(data) * 2 // 3].rstrip(b"\n")
        )  # a cut between two lines leaves no incomplete line
        manifest = json.loads((run_folder / "manifest.json").read_text())
        (run_folder / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "incomplete line" in done.stderr
    assert derived_files(run_folder) == expected_files


def test_the_resume_command_of_a_first_run_leaves_out_again(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=2, budget={"completions": 1})
        arguments = ("spec.yaml", "--again")
        errors = [nip_run_here(*arguments, cwd=tmp_path).stderr for _ in range(2)]
    command = "Resume with a larger budget: nip-run run spec.yaml budget.completions=N"
    assert errors[0].splitlines()[-1] == command
    assert errors[1].splitlines()[-1] == f"{command} --again"  # of the second run, which only --again selects


def test_a_run_that_has_lost_its_journal_does_not_ask_for_its_answers_again(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        folder = run_spec(path, tmp_path / "results").folder
        request_count, completions = server.requests, folder.manifest().completions
        lost = f"journal.jsonl is missing or empty, so nip-run would ask again for the {completions} answers"
        folder.journal.write_bytes(b"")
        with pytest.raises(RunError, match=lost):
            run_spec(path, tmp_path / "results", "rollouts.per_datapoint=2")
        folder.journal.unlink()
        folder.table("rollouts").unlink()
        with pytest.raises(RunError, match=lost):
            run_spec(path, tmp_path / "results")
        assert server.requests == request_count


def test_the_journal_of_another_run_is_neither_resumed_nor_shown(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        folder = run_spec(path, tmp_path / "results").folder
        other_folder = run_spec(path, tmp_path / "results", "seed=8").folder
        folder.journal.write_bytes(other_folder.journal.read_bytes())
        request_count = server.requests
        resumed = nip_run_here("spec.yaml", "rollouts.per_datapoint=2", cwd=tmp_path)
        assert server.requests == request_count
    show_result = nip_run_here("show", folder.run_id, "p0", cwd=tmp_path)
    for done in (resumed, show_result):
        assert done.returncode == 1
        assert f"journal.jsonl belongs to another run, '{other_folder.run_id}'" in done.stderr
    assert folder.journal.read_bytes() == other_folder.journal.read_bytes()


@pytest.mark.full
def test_a_replay_refuses_the_journal_of_another_run(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    folder = run_spec(path, tmp_path / "results").folder
    other_folder = run_spec(path, tmp_path / "results", "seed=8").folder
    folder.journal.write_bytes(other_folder.journal.read_bytes())
    message = f"journal.jsonl belongs to another run, '{other_folder.run_id}'"
    plan = Plan(load_spec(path))
    with pytest.raises(JournalError, match=message):
        max_spending(plan, folder)
    for options in (("--replay", folder.path), ("models.m.provider=replay", f"models.m.run={folder.path}")):
        done = nip_run_here("spec.yaml", *options, "--results", tmp_path / "replayed", cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    folder.manifest_path.unlink()  # its run is then unknown, as in a folder of version 0.1.0
    assert max_spending(plan, folder).completions == 0


@pytest.mark.full
def test_a_line_from_another_journal_is_reported_as_damage(tmp_path: Path) -> None:
    """The runs share a spec but not their answers, so a line of one journal has a valid number in the other."""
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2, rollouts={"concurrency": 1})
        folder = run_spec(path, tmp_path / "results").folder
        server.change(seed=5)
        other_folder = run_spec(path, tmp_path / "results", again=True).folder
        lines, other_lines = (
            run_folder.journal.read_bytes().splitlines(keepends=True) for run_folder in (folder, other_folder)
        )
        cut = min(len(lines), len(other_lines)) - 1
        folder.journal.write_bytes(b"".join([*lines[:cut], other_lines[cut]]))
        done = nip_run_here("spec.yaml", "rollouts.per_datapoint=2", cwd=tmp_path)
    assert done.returncode == 1
    assert (
        f"is damaged at byte {len(b''.join(lines[:cut]))}: a line there was changed, or is from another log"
        in done.stderr
    )


@pytest.mark.gate
def test_ctrl_c_exits_130_and_prints_the_resume_command(tmp_path: Path) -> None:
    with run_chat_server(held_after=6) as server:
        path = spec_file(tmp_path, server.base_url)
        process = start_nip_run("spec.yaml", "rollouts.concurrency=4", "--results", "here", cwd=tmp_path)
        wait_until(lambda: server.stats()["open"] == 4 or process.poll() is not None)
        early_stderr = interrupt(process)
        server.change(held_after=None)
        code, out, err = wait_for_exit(process)
        err = early_stderr + err
        request_count = server.requests
        assert code == 130, err
        assert "Traceback" not in err
        assert "nip-run run spec.yaml rollouts.concurrency=4 --results here" in err
        assert out == ""
        run_folder = only_run(tmp_path / "here")
        assert json.loads((run_folder / "manifest.json").read_text())["status"] == "interrupted"
        # The answers in flight arrived and were saved.
        assert len([r for r in journal_records(run_folder) if r["kind"] == "call"]) == request_count
        complete_run = run_spec(path, tmp_path / "whole")
        needed = server.requests - request_count
        resumed = run_spec(path, tmp_path / "here")
        assert server.requests == 2 * needed
    assert derived_files(resumed.folder.path) == derived_files(complete_run.folder.path)


@pytest.mark.full
def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    with run_chat_server(held_after=0) as server:
        spec_file(tmp_path, server.base_url)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests >= 4 or process.poll() is not None)
        early_stderr = interrupt(process)
        process.send_signal(signal.SIGINT)
        code, _, err = wait_for_exit(process)
        err = early_stderr + err
    assert code == 130, err
    assert "Traceback" not in err


@pytest.mark.full
def test_a_run_in_use_is_refused_with_its_process_id(tmp_path: Path) -> None:
    with run_chat_server(latency=1.0) as server:
        path = spec_file(tmp_path, server.base_url)
        process = start_nip_run("spec.yaml", "-q", cwd=tmp_path)
        try:
            wait_until(lambda: server.requests >= 1 or process.poll() is not None)
            request_count = server.requests
            with pytest.raises(RunDirectoryError, match=f"in use by process {process.pid} "):
                run_spec(path, tmp_path / "results")
            assert server.requests <= max(request_count, 8)
        finally:
            process.kill()
            wait_for_exit(process)


def test_another_spec_with_the_same_run_id_is_refused_with_the_changed_keys(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        run_spec(path, tmp_path / "results", run_id="mine")
        request_count = server.requests
        with pytest.raises(RunDirectoryError, match=r"models\.m\.temperature.*--run-id") as refused:
            run_spec(path, tmp_path / "results", "models.m.temperature=0.5", run_id="mine")
        assert server.requests == request_count
    assert "base_url" not in str(refused.value)
