"""A run with worker processes writes the files of a single process, even if processes die."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.base.errors import ANSWERS_ARE_SAVED, BudgetExhausted, ProviderRefusal, RunError
from runner.results.folder import RunFolder
from runner.runs.execution.accounting import Progress
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import (
    environment,
    interrupt,
    nip_run,
    nip_run_here,
    python,
    start_nip_run,
    wait_for_exit,
    wait_until,
)
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file
from tests.support.training import training_spec
from tests.support.worker_processes import find_workers, is_worker_running, read_sorted_answers

TWO_PROCESSES = "execution.processes=2"


def wait_for_calls(server: LoopbackServer, count: int, process: subprocess.Popen[str]) -> None:
    """Wait for `count` requests, because three processes start slowly on a busy machine."""
    wait_until(lambda: server.requests >= count or process.poll() is not None)


@pytest.mark.gate
def test_killing_a_worker_loses_no_answer_and_changes_no_file(tmp_path: Path) -> None:
    killed_pids: list[int] = []

    def kill_first_worker(progress: Progress) -> None:
        if progress.calls >= 10 and not killed_pids:
            killed_pids.extend(find_workers(os.getpid())[:1])
            os.kill(killed_pids[0], signal.SIGKILL)

    with run_chat_server(latency=[0.0, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        single_process_run = run_spec(path, tmp_path / "one")
        needed = server.requests
        result = run_spec(path, tmp_path / "two", TWO_PROCESSES, watch=kill_first_worker)
        repeated = server.requests - 2 * needed
    assert killed_pids
    assert derived_files(result.path) == derived_files(single_process_run.path)
    assert read_sorted_answers(result.path) == read_sorted_answers(single_process_run.path)
    lost = [record["charged"][2] for record in journal_records(result.path) if record["kind"] == "lost"]
    assert repeated <= sum(lost) <= 8
    kill_notes = [note for note in result.notes if "SIGKILL" in note]
    assert len(kill_notes) == len(lost)
    assert "SIGKILL" in (result.path / "run.log").read_text()


@pytest.mark.full
def test_workers_exit_with_their_writer_and_a_new_run_resumes(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        single_process_run = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(held_after=needed + 20)
        process = start_nip_run("spec.yaml", TWO_PROCESSES, cwd=tmp_path)
        wait_for_calls(server, needed + 20, process)
        workers = find_workers(process.pid)
        process.kill()
        wait_for_exit(process)
        assert len(workers) == 2
        wait_until(lambda: not any(map(is_worker_running, workers)))
        server.change(held_after=None)
        result = run_spec(path, tmp_path / "results", TWO_PROCESSES)
        (lost,) = (record["charged"][2] for record in journal_records(result.path) if record["kind"] == "lost")
        assert server.requests - 2 * needed <= lost <= 8
    assert derived_files(result.path) == derived_files(single_process_run.path)


@pytest.mark.full
def test_ctrl_c_waits_for_calls_in_flight_and_a_single_process_resumes(tmp_path: Path) -> None:
    with run_chat_server(held_after=0) as server:
        spec_file(tmp_path, server.base_url, size=20)
        process = start_nip_run("spec.yaml", TWO_PROCESSES, cwd=tmp_path)
        wait_for_calls(server, 8, process)
        workers = find_workers(process.pid)
        for pid in workers:  # as a batch system signals all processes of a job
            os.kill(pid, signal.SIGTERM)
        interrupt(process)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 130, err
        assert ANSWERS_ARE_SAVED in err
        assert not any(map(is_worker_running, workers))
        run = only_run(tmp_path / "results")
        calls = [record for record in journal_records(run) if record["kind"] == "call"]
        assert len(calls) == server.requests  # every answer arrived and is recorded
        assert not RunFolder(run).in_flight.exists()
        run_spec(tmp_path / "spec.yaml", tmp_path / "results")
        assert max(server.stats()["bodies"].values()) == 1


@pytest.mark.full
def test_the_second_ctrl_c_leaves_no_process_and_counts_calls_in_flight_as_lost(tmp_path: Path) -> None:
    with run_chat_server(held_after=0) as server:
        spec_file(tmp_path, server.base_url, size=20)
        process = start_nip_run("spec.yaml", TWO_PROCESSES, cwd=tmp_path)
        wait_for_calls(server, 8, process)
        workers = find_workers(process.pid)
        early_stderr = interrupt(process)
        process.send_signal(signal.SIGINT)
        code, _, err = wait_for_exit(process)
        assert code == 130, early_stderr + err
        assert not any(map(is_worker_running, workers))
        server.change(held_after=None)
        result = run_spec(tmp_path / "spec.yaml", tmp_path / "results", TWO_PROCESSES)
    (lost,) = (record["charged"][2] for record in journal_records(result.path) if record["kind"] == "lost")
    assert lost == 8


@pytest.mark.full
def test_workers_share_one_budget(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=40, budget={"completions": 30})
        with pytest.raises(BudgetExhausted, match=r"budget\.completions is used up"):
            run_spec(path, tmp_path / "results", TWO_PROCESSES)
        assert server.requests == 30
        result = run_spec(path, tmp_path / "results", TWO_PROCESSES, "budget.completions=1000")
        single_process_run = run_spec(path, tmp_path / "one", "budget.completions=1000")
    assert derived_files(result.path) == derived_files(single_process_run.path)


@pytest.mark.full
def test_workers_share_one_concurrency_limit(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05) as server:
        path = spec_file(tmp_path, server.base_url, size=24, rollouts={"concurrency": 5})
        run_spec(path, tmp_path / "results", TWO_PROCESSES)
        assert 3 < server.stats()["max_open"] <= 5


@pytest.mark.full
@pytest.mark.parametrize("kind", ["unauthorized", "insufficient_quota", "unknown_model"])
def test_a_provider_refusal_stops_all_workers_with_the_single_process_message(tmp_path: Path, kind: str) -> None:
    with run_chat_server(kind=kind, after=12) as server:
        path = spec_file(tmp_path, server.base_url, size=40)
        with pytest.raises(ProviderRefusal) as alone:
            run_spec(path, tmp_path / "one")
        server.change(after=server.requests + 12)
        with pytest.raises(ProviderRefusal) as together:
            run_spec(path, tmp_path / "two", TWO_PROCESSES)
    assert str(together.value) == str(alone.value)
    assert find_workers(os.getpid()) == []


@pytest.mark.full
def test_malformed_requests_end_their_games_as_in_a_single_process(tmp_path: Path) -> None:
    with run_chat_server(malformed="x + 7.") as server:
        path = spec_file(tmp_path, server.base_url, size=24, rollouts={"max_transport_failed": 0.5})
        alone, together = run_spec(path, tmp_path / "one"), run_spec(path, tmp_path / "two", TWO_PROCESSES)
    assert derived_files(together.path) == derived_files(alone.path)


@pytest.mark.full
def test_a_missing_key_gives_the_single_process_message(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"api_key_env": "NO_SUCH_KEY"}})
    alone = nip_run_here(path, "-q", cwd=tmp_path)
    together = nip_run_here(path, "-q", TWO_PROCESSES, cwd=tmp_path)
    assert (together.returncode, together.stderr.replace(f" {TWO_PROCESSES}", "")) == (alone.returncode, alone.stderr)
    assert alone.returncode == 4


def test_batch_calls_are_refused_with_several_processes(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"batch": True}})
    done = nip_run_here("check", path, TWO_PROCESSES, cwd=tmp_path)
    assert done.returncode == 2
    assert "execution.processes: batches need a single process (models.m.batch)" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"rollouts": {"num_responses_per_timestep": 2}, "protocol": {"max_message_rounds": 3}},
        {"rollouts": {"per_datapoint": 3}, "models": {"m": {"share_prompts": True}}},
        {"stances": "both", "votes": 3},
        {"until": {"width": 0.6}},
        {"protocol": {"use": "debate", "max_message_rounds": None}, "prompts": "prompts/code_validation/debate",
         "agents": {"prover": None, "_default": {"model": "m"}}},
    ],
    ids=["trees", "shared prompts", "votes", "until", "debate"],
)  # fmt: skip
def test_every_kind_of_game_gives_the_single_process_files(tmp_path: Path, changes: dict[str, object]) -> None:
    with run_chat_server(latency=[0.0, 0.02]) as server:
        path = spec_file(tmp_path, server.base_url, size=12, **changes)
        alone = run_spec(path, tmp_path / "one")
        together = run_spec(path, tmp_path / "two", "execution.processes=3")
    assert derived_files(together.path) == derived_files(alone.path)
    if "until" not in changes:  # a stopping rule may start more games than it counts
        assert read_sorted_answers(together.path) == read_sorted_answers(alone.path)


@pytest.mark.full
def test_sweep_points_with_workers_give_the_single_process_files(tmp_path: Path) -> None:
    with run_chat_server(latency=0.01) as server:
        spec_file(tmp_path, server.base_url, size=6, sweep={"seed": [1, 2]})
        single = nip_run("spec.yaml", "--json", "-q", "--results", "one", cwd=tmp_path)
        parallel = nip_run("spec.yaml", "--json", "-q", "--results", "two", TWO_PROCESSES, cwd=tmp_path)
    assert (single.returncode, parallel.returncode) == (0, 0), parallel.stderr
    for row in json.loads(single.stdout):
        run_id = row["run_id"]
        assert derived_files(tmp_path / "two/runs" / run_id) == derived_files(tmp_path / "one/runs" / run_id)


@pytest.mark.full
def test_a_training_run_with_workers_gives_the_single_process_files(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    for name, processes in (("one", 1), ("two", 2)):
        done = nip_run("run", path, f"execution.processes={processes}", "-q", "--results", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    run_names = sorted(run.name for run in (tmp_path / "one/runs").iterdir() if (run / "journal.jsonl").is_file())
    assert len(run_names) >= 2
    for name in run_names:
        assert derived_files(tmp_path / "two/runs" / name) == derived_files(tmp_path / "one/runs" / name)


@pytest.mark.full
def test_a_replay_says_that_it_uses_a_single_process(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=6)
        run_spec(path, tmp_path / "results")
        spec = tmp_path / "spec.yaml"
        run = only_run(tmp_path / "results")
        done = nip_run(spec, TWO_PROCESSES, "--replay", run, "--run-id", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "played by one process" in done.stderr + done.stdout


@pytest.mark.full
def test_a_script_without_a_main_guard_can_use_workers(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=6)
        script = tmp_path / "script.py"
        script.write_text(
            "from runner import load_spec, run\n"
            f"print(run(load_spec({str(path)!r}, ['{TWO_PROCESSES}']), {str(tmp_path / 'results')!r}).status)\n"
        )
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
            timeout=HANG_SECONDS,
        )  # fmt: skip
    assert done.stdout.strip().endswith("done"), done.stderr


_FILE_SIZE_LIMIT_SCRIPT = """
import resource, sys
from runner.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full
def test_a_full_disk_gives_the_single_process_message_and_the_run_resumes(tmp_path: Path) -> None:
    with run_chat_server() as server:  # its answers make the journal the largest file
        spec_file(tmp_path, server.base_url, size=80, fine_tune=None)
        arguments = ("spec.yaml", "-q", "--results", "results", "--run-id", "full")
        done = python(_FILE_SIZE_LIMIT_SCRIPT, *arguments, TWO_PROCESSES, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        message = r"cannot write .*journal\.jsonl: File too large; all earlier records are stored"
        assert re.search(message, done.stderr), done.stderr
        assert "Free disk space or repair the disk, and run the same command again" in done.stderr
        run = only_run(tmp_path / "results")
        saved_answers = set(read_sorted_answers(run))
        assert saved_answers
        assert nip_run_here(*arguments, TWO_PROCESSES, cwd=tmp_path).returncode == 0
        assert saved_answers < set(read_sorted_answers(run))
        single_process_run = run_spec(tmp_path / "spec.yaml", tmp_path / "one", run_id="full")
    assert derived_files(run) == derived_files(single_process_run.path)


@pytest.mark.full
def test_a_worker_without_memory_is_reported_and_loses_no_answer(tmp_path: Path) -> None:
    limited_pids: list[int] = []

    def limit_memory(progress: Progress) -> None:
        """Limit a worker to the memory that it uses now."""
        if progress.calls >= 20 and not limited_pids:
            limited_pids.extend(find_workers(os.getpid())[:1])
            pages = int(Path(f"/proc/{limited_pids[0]}/statm").read_text().split()[0])
            resource.prlimit(limited_pids[0], resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)

    path = spec_file(tmp_path, size=400, rollouts={"concurrency": 64})
    error_text = ""
    try:
        result = run_spec(path, tmp_path / "two", TWO_PROCESSES, watch=limit_memory)
    except RunError as error:  # a game failed; if the worker fails, another one replaces it
        error_text = str(error)
        result = run_spec(path, tmp_path / "two", TWO_PROCESSES)
    assert limited_pids
    assert not error_text or re.search(
        "(out of memory|worker process).*all answers so far are saved", error_text, re.IGNORECASE
    ), error_text
    assert derived_files(result.path) == derived_files(run_spec(path, tmp_path / "one").path)
