"""Analyses that are killed, stopped by a budget, resumed and replayed lose no answer and pay for none twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from runner.analysis.results import AnalysisTable, read_analyses
from tests.support.kills import recorded_calls
from tests.support.processes import nip_run_here, start_nip_run_silently, wait_or_kill, wait_until
from tests.support.runs import run_spec
from tests.support.servers.analyst_client import ask_at, run_analyst
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

SIZE = 60
KILLS = 6
CONCURRENCY = 4
ANALYZERS = ("follow_up", "role_conformance")


def play_run(folder: Path) -> Path:
    return run_spec(spec_file(folder, size=SIZE, fine_tune=None), folder / "results", run_id="first").path


def read_tables(run: Path) -> list[AnalysisTable]:
    from runner.results.folder import RunFolder

    return read_analyses(RunFolder(run))


def list_answers(run: Path) -> list[tuple[str, str | None]]:
    return [(result.unit_id, result.answer) for table in read_tables(run) for result in table.results]


def list_analysis_calls(results: Path) -> list[tuple[str, str]]:
    return [call for call in recorded_calls(results) if call[0] != "first"]


def test_no_kill_loses_or_repeats_an_answer(tmp_path: Path) -> None:
    run, results = play_run(tmp_path), tmp_path / "results"
    with run_analyst(latency=0.05) as server:
        command = ["analyze", "first", *ANALYZERS, *ask_at(server), f"rollouts.concurrency={CONCURRENCY}", "-q"]
        rng = random.Random(1)
        for _ in range(KILLS):
            calls_before, requests_before, new_requests = (
                list_analysis_calls(results),
                server.requests,
                rng.randint(1, 8),
            )
            process = start_nip_run_silently(*command, cwd=tmp_path)
            wait_until(lambda: process.poll() is not None or server.requests - requests_before >= new_requests)  # noqa: B023
            process.kill()
            process.wait()
            wait_until(lambda: server.stats()["open"] == 0)
            recorded = list_analysis_calls(results)
            assert set(calls_before) <= set(recorded), "an answer is lost"
            in_flight = len(ANALYZERS) * CONCURRENCY
            assert 0 <= server.requests - requests_before - (len(recorded) - len(calls_before)) <= in_flight, (
                "an answer is repeated"
            )
        calls_before, requests_before = list_analysis_calls(results), server.requests
        server.change(latency=0.0)
        assert wait_or_kill(start_nip_run_silently(*command, cwd=tmp_path)) == 0
        recorded = list_analysis_calls(results)
        assert server.requests - requests_before == len(recorded) - len(calls_before)
        assert len(recorded) == len(set(recorded)) == sum(answer is not None for _, answer in list_answers(run)) > 50
        # A repeated command makes no requests.
        requests_before, answers_before = server.requests, list_answers(run)
        assert nip_run_here(*command, cwd=tmp_path).returncode == 0
        assert (server.requests, list_answers(run)) == (requests_before, answers_before)
        # A replay makes no requests and gives the same answers.
        analysis = read_tables(run)[0].analysis_run_id
        done = nip_run_here(str(results / "runs" / str(analysis)), "--replay", str(analysis), "-q", cwd=tmp_path)
        assert (done.returncode, server.requests) == (0, requests_before)


def test_a_budget_stops_an_analysis_and_a_larger_one_continues_it(tmp_path: Path) -> None:
    run = play_run(tmp_path)
    with run_analyst() as server:
        command = ["analyze", "first", *ANALYZERS, *ask_at(server), "models.analyst.max_completion_tokens=50", "-q"]
        stopped = nip_run_here(*command, "budget.completions=9", cwd=tmp_path)
        assert stopped.returncode == 3
        assert "nip-run analyze first" in stopped.stderr
        assert server.requests == 9
        assert read_tables(run) == []
        done = nip_run_here(*command, "budget.completions=5000", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert server.requests == sum(answer is not None for _, answer in list_answers(run)) > 50


def test_lost_calls_are_failed_units_until_the_analysis_is_resumed(tmp_path: Path) -> None:
    run = play_run(tmp_path)
    with run_analyst() as server:
        command = ["analyze", "first", "follow_up", *ask_at(server), "-q"]
        retry_options = ["retry.transient.attempts=1", "retry.breaker.failures=100000"]
        server.change(faults={"server_error": 0.3}, max_faults=1)
        stopped = nip_run_here(*command, *retry_options, cwd=tmp_path)
        assert stopped.returncode == 1
        (table,) = read_tables(run)
        failed = [result for result in table.results if result.status == "failed"]
        assert failed
        answered = sum(result.status == "answered" for result in table.results)
        requests_before = server.requests
        assert nip_run_here(*command, cwd=tmp_path).returncode == 0
        assert server.requests - requests_before == len(failed)
        (table,) = read_tables(run)
        assert sum(result.status == "answered" for result in table.results) == answered + len(failed)
