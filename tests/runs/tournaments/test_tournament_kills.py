"""A killed or interrupted tournament repeats no recorded call and ends like an undisturbed one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.kills import kill_at_random_moments, recorded_calls
from tests.support.processes import start_nip_run, start_nip_run_silently, wait_for_exit, wait_or_kill, wait_until
from tests.support.runs import derived_files, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.tournaments import tournament_spec

pytestmark = pytest.mark.full

ADAPTIVE = {"pairing": "adaptive", "games": 64, "datapoints_per_round": 2}


def read_results(results: Path) -> dict[str, object]:
    """Return the files of all parts that depend only on their answers, and the rounds."""
    runs = sorted((results / "runs").iterdir())
    files: dict[str, object] = {run.name: derived_files(run) for run in runs if (run / "rollouts.parquet").is_file()}
    logs = [run / "stages.jsonl" for run in runs if (run / "stages.jsonl").is_file()]
    return files | {"rounds": [path.read_text().splitlines()[1:] for path in logs]}


def test_a_resumed_tournament_requests_only_missing_calls(tmp_path: Path) -> None:
    with run_chat_server(held_after=100) as server:
        tournament_spec(tmp_path, server.base_url, tournament=ADAPTIVE)
        process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
        wait_until(lambda: server.requests > 100 or process.poll() is not None)
        process.kill()
        process.wait()
        server.change(held_after=None)
        wait_until(lambda: server.stats()["open"] == 0)
        requests_before, calls_before = server.requests, len(recorded_calls(tmp_path / "results"))
        assert 0 < calls_before <= 100
        assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)) == 0
        samples = recorded_calls(tmp_path / "results")
        assert server.requests - requests_before == len(samples) - calls_before
        assert len(samples) == len(set(samples))
        run_spec(tmp_path / "spec.yaml", tmp_path / "whole")
    assert len(list(tmp_path.glob("results/runs/*/stages.jsonl"))) == 1
    assert read_results(tmp_path / "results") == read_results(tmp_path / "whole")


def test_ctrl_c_saves_all_answers_and_prints_the_resume_command(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05) as server:
        tournament_spec(tmp_path, server.base_url, tournament=ADAPTIVE)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests >= 60 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        code, _, error = wait_for_exit(process)
        assert code == 130, error
        assert "Resume with: nip-run run spec.yaml" in error
        recorded = len(recorded_calls(tmp_path / "results"))
        assert server.requests == recorded
        assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)) == 0
        samples = recorded_calls(tmp_path / "results")
        assert server.requests == len(samples) == len(set(samples))


@pytest.mark.parametrize(("pairing", "kills"), [("round_robin", 6), ("swiss", 6), ("adaptive", 20)])
def test_kills_at_random_moments_lose_and_repeat_no_answer(tmp_path: Path, pairing: str, kills: int) -> None:
    with run_chat_server(latency=[0.0, 0.03]) as server:
        path = tournament_spec(tmp_path, server.base_url, size=8, tournament={**ADAPTIVE, "pairing": pairing})
        run_spec(path, tmp_path / "whole")
        needed = server.requests
        kill_at_random_moments(tmp_path, server, needed, kills, max_in_flight=2 * 8)
    assert read_results(tmp_path / "results") == read_results(tmp_path / "whole")
