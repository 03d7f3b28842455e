"""How a run goes on: finished, longer, shorter, killed, interrupted, in use."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from runner.base.errors import JournalError, RunDirectoryError, UsageError
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
        asked, files = server.requests, derived_files(first.folder.path)
        second = run_spec(path, tmp_path / "results")
        assert server.requests == asked
        assert second.was_finished
        assert json.dumps(second.metrics, sort_keys=True) == json.dumps(first.metrics, sort_keys=True)
        assert derived_files(second.folder.path) == files


def test_a_finished_run_is_shown_without_server_or_key(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        first = run_spec(path, tmp_path / "results")
    done = nip_run_here("spec.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (shown,) = json.loads(done.stdout)
    assert shown["was_finished"]
    assert shown["run_id"] == first.folder.run_id


@pytest.mark.full
def test_again_plays_a_run_of_its_own(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        first = run_spec(path, tmp_path / "results")
        asked = server.requests
        second = run_spec(path, tmp_path / "results", again=True)
        third = run_spec(path, tmp_path / "results", again=True)
        assert server.requests == 3 * asked
    assert len({first.folder.run_id, second.folder.run_id, third.folder.run_id}) == 3


@pytest.mark.full
@pytest.mark.parametrize(
    ("small", "large"),
    [("rollouts.per_datapoint=1", "rollouts.per_datapoint=2"), ("dataset.limit=5", "dataset.limit=12")],
)
def test_a_longer_run_pays_for_the_difference_alone(tmp_path: Path, small: str, large: str) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        fresh = run_spec(path, tmp_path / "fresh", large)
        whole = server.requests
        first = run_spec(path, tmp_path / "grown", small)
        part = server.requests - whole
        grown = run_spec(path, tmp_path / "grown", large)
        assert server.requests == 2 * whole
    assert 0 < part < whole
    assert grown.folder == first.folder
    assert derived_files(grown.folder.path) == derived_files(fresh.folder.path)


@pytest.mark.full
@pytest.mark.parametrize("less", ["dataset.limit=5", "rollouts.per_datapoint=1"])
def test_a_finished_run_is_not_made_smaller(tmp_path: Path, less: str) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        had = "rollouts.per_datapoint=2"
        first = run_spec(path, tmp_path / "results", had)
        files, asked = derived_files(first.folder.path), server.requests
        with pytest.raises(UsageError, match=rf"run {first.run_id} is finished with .* add --run-id NAME, or --again"):
            run_spec(path, tmp_path / "results", had, less)
        assert server.requests == asked
    assert derived_files(first.folder.path) == files


@pytest.mark.full
def test_a_regrouped_run_is_counted_anew_and_says_so(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    first = run_spec(path, tmp_path / "results")
    again = run_spec(path, tmp_path / "results", "dataset.group_by=question")
    assert again.folder == first.folder
    assert f"run {first.run_id}: confidence intervals are recomputed, clustered by group_by=question" in again.notes


@pytest.mark.gate
@pytest.mark.parametrize("moment", [17, *(pytest.param(moment, marks=pytest.mark.full) for moment in (3, 34))])
def test_a_killed_run_goes_on_and_asks_only_what_was_in_flight_again(tmp_path: Path, moment: int) -> None:
    with run_chat_server(latency=[0.01, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url)
        whole = run_spec(path, tmp_path / "whole", "rollouts.concurrency=4")
        needed = server.requests
        server.change(held_after=needed + moment)
        process = start_nip_run("spec.yaml", "rollouts.concurrency=4", "-q", cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + moment or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        code, _, _ = wait_for_exit(process)
        assert code == -signal.SIGKILL
        server.change(held_after=None)
        kept = len([r for r in journal_records(only_run(tmp_path / "results")) if r["kind"] == "call"])
        resumed = run_spec(path, tmp_path / "results", "rollouts.concurrency=4")
        asked = server.requests - needed
    assert kept > 0 or moment < 5
    assert needed <= asked <= needed + 4
    assert derived_files(resumed.folder.path) == derived_files(whole.folder.path)
    samples = [tuple(r["sample"]) for r in journal_records(resumed.folder.path) if r["kind"] == "call"]
    assert len(samples) == len(set(samples)) == needed


def test_a_torn_journal_is_cut_said_so_and_gone_on_from(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        whole = derived_files(run_spec(path, tmp_path / "results").folder.path)
        run_folder = only_run(tmp_path / "results")
        journal = run_folder / "journal.jsonl"
        data = journal.read_bytes()
        journal.write_bytes(data[: len(data) * 2 // 3].rstrip(b"\n"))  # a cut between two lines tears none
        manifest = json.loads((run_folder / "manifest.json").read_text())
        (run_folder / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "incomplete line" in done.stderr
    assert derived_files(run_folder) == whole


def test_the_journal_of_another_run_is_neither_gone_on_with_nor_shown(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        mine = run_spec(path, tmp_path / "results").folder
        theirs = run_spec(path, tmp_path / "results", "seed=8").folder
        mine.journal.write_bytes(theirs.journal.read_bytes())
        asked = server.requests
        more = nip_run_here("spec.yaml", "rollouts.per_datapoint=2", cwd=tmp_path)
        assert server.requests == asked
    shown = nip_run_here("show", mine.run_id, "p0", cwd=tmp_path)
    for done in (more, shown):
        assert done.returncode == 1
        assert f"journal.jsonl belongs to another run, '{theirs.run_id}'" in done.stderr
    assert mine.journal.read_bytes() == theirs.journal.read_bytes()


@pytest.mark.full
def test_a_replay_reads_the_journal_of_the_run_that_it_names_alone(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    mine = run_spec(path, tmp_path / "results").folder
    theirs = run_spec(path, tmp_path / "results", "seed=8").folder
    mine.journal.write_bytes(theirs.journal.read_bytes())
    named = f"journal.jsonl belongs to another run, '{theirs.run_id}'"
    plan = Plan(load_spec(path))
    with pytest.raises(JournalError, match=named):
        max_spending(plan, mine)
    for words in (("--replay", mine.path), ("models.m.provider=replay", f"models.m.run={mine.path}")):
        done = nip_run_here("spec.yaml", *words, "--results", tmp_path / "replayed", cwd=tmp_path)
        assert (done.returncode, named in done.stderr) == (1, True), done.stderr
    mine.manifest_path.unlink()  # what it is cannot be known: as in a folder of 0.1.0
    assert max_spending(plan, mine).completions == 0


@pytest.mark.full
def test_the_tail_of_another_play_changes_no_verdict(tmp_path: Path) -> None:
    """The same spec, played again by a server that answers otherwise: its lines have the numbers that belong there."""
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2, rollouts={"concurrency": 1})
        mine = run_spec(path, tmp_path / "results").folder
        server.change(seed=5)
        theirs = run_spec(path, tmp_path / "results", again=True).folder
        own, other = (folder.journal.read_bytes().splitlines(keepends=True) for folder in (mine, theirs))
        cut = min(len(own), len(other)) - 1
        mine.journal.write_bytes(b"".join([*own[:cut], other[cut]]))
        done = nip_run_here("spec.yaml", "rollouts.per_datapoint=2", cwd=tmp_path)
    assert done.returncode == 1
    assert (
        f"is damaged at byte {len(b''.join(own[:cut]))}: a line there was changed, or is from another log"
        in done.stderr
    )


@pytest.mark.gate
def test_ctrl_c_exits_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    with run_chat_server(held_after=6) as server:
        path = spec_file(tmp_path, server.base_url)
        process = start_nip_run("spec.yaml", "rollouts.concurrency=4", "--results", "here", cwd=tmp_path)
        wait_until(lambda: server.stats()["open"] == 4 or process.poll() is not None)
        said = interrupt(process)
        server.change(held_after=None)
        code, out, err = wait_for_exit(process)
        err = said + err
        asked = server.requests
        assert code == 130, err
        assert "Traceback" not in err
        assert "nip-run run spec.yaml rollouts.concurrency=4 --results here" in err
        assert out == ""
        run_folder = only_run(tmp_path / "here")
        assert json.loads((run_folder / "manifest.json").read_text())["status"] == "interrupted"
        # What was in flight came in and was kept.
        assert len([r for r in journal_records(run_folder) if r["kind"] == "call"]) == asked
        whole = run_spec(path, tmp_path / "whole")
        needed = server.requests - asked
        resumed = run_spec(path, tmp_path / "here")
        assert server.requests == 2 * needed
    assert derived_files(resumed.folder.path) == derived_files(whole.folder.path)


@pytest.mark.full
def test_a_second_ctrl_c_stops_now(tmp_path: Path) -> None:
    with run_chat_server(held_after=0) as server:
        spec_file(tmp_path, server.base_url)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests >= 4 or process.poll() is not None)
        said = interrupt(process)
        process.send_signal(signal.SIGINT)
        code, _, err = wait_for_exit(process)
        err = said + err
    assert code == 130, err
    assert "Traceback" not in err


@pytest.mark.full
def test_a_run_in_use_is_refused_by_the_name_of_its_process(tmp_path: Path) -> None:
    with run_chat_server(latency=1.0) as server:
        path = spec_file(tmp_path, server.base_url)
        process = start_nip_run("spec.yaml", "-q", cwd=tmp_path)
        try:
            wait_until(lambda: server.requests >= 1 or process.poll() is not None)
            asked = server.requests
            with pytest.raises(RunDirectoryError, match=f"in use by process {process.pid} "):
                run_spec(path, tmp_path / "results")
            assert server.requests <= max(asked, 8)
        finally:
            process.kill()
            wait_for_exit(process)


def test_another_spec_under_an_id_is_refused_with_the_changed_keys(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        run_spec(path, tmp_path / "results", run_id="mine")
        asked = server.requests
        with pytest.raises(RunDirectoryError, match=r"models\.m\.temperature.*--run-id") as refused:
            run_spec(path, tmp_path / "results", "models.m.temperature=0.5", run_id="mine")
        assert server.requests == asked
    assert "base_url" not in str(refused.value)
