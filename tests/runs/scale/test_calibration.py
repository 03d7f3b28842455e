"""Measured costs: games of the plan with `dummy`, and the additional cost of a server's answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.runs.planning.calibration import CalibrationRun, temporary_results
from runner.runs.planning.server_overhead import CALLS, measure_server_overhead
from runner.spec.loader import load_spec
from tests.support.specs import spec_file


@pytest.mark.gate
def test_a_measured_run_plays_at_least_twice_the_first_games_and_counts_all_calls(tmp_path: Path) -> None:
    fixed = {"min_message_rounds": 5, "max_message_rounds": 5, "verifier_first": True}
    plan = Plan(load_spec(spec_file(tmp_path, "http://127.0.0.1:9/v1", size=4, protocol=fixed)))
    with temporary_results(Results(tmp_path / "results")) as results:
        calibration = CalibrationRun(plan, results, {"m": 20}, seconds=0.001)
        run = calibration.play_one_process()
        answers = [len(line) for line in run.folder.journal.read_bytes().splitlines()[1:]]
    assert (run.games, run.calls) == (2 * calibration.short_run.games, 5 * run.games)
    assert len(answers) == run.calls
    assert run.seconds_per_call > 0
    assert not (tmp_path / "results").exists()


@pytest.mark.gate
def test_the_overhead_of_a_servers_answer_is_measured_for_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = spec_file(
        tmp_path, "http://127.0.0.1:9/v1", size=4, protocol={"use": "debate"}, prompts="prompts/code_validation/debate",
        models={"other": {"provider": "dummy"}},
        agents={"prover": None, "prover0": {"model": "other"}, "prover1": {"model": "other"}},
        rollouts={"max_unusable": 0.1},  # generated answers ask no question, which neither stops nor warns
    )  # fmt: skip
    plan = Plan(load_spec(path))
    with temporary_results(Results(tmp_path / "results")) as results:
        overhead = measure_server_overhead(plan, results, "m", words=2000, prompt_tokens=3000)
        (live,) = (run for run in (results.path / "runs").iterdir() if run.name == "live")
        records = (live / "journal.jsonl").read_bytes().count(b'"kind":"call"')
    assert records > CALLS
    assert overhead.journal_bytes > 2000 * 6
    assert overhead.seconds > 0
    assert not caplog.messages
