"""`nip-run plan --workers`: the predicted duration and bottleneck of a run, measured with sample games."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from runner.models.layers.limits import GroupLimit
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.plan import Plan
from runner.runs.planning.earlier_runs import read_statistics
from runner.spec.loader import load_spec
from tests.support.hidden_passages import passages_spec
from tests.support.paths import ROOT
from tests.support.processes import nip_run, nip_run_here
from tests.support.runs import run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

QUICK = ("--measure", "0.02")
FIXED = {"min_message_rounds": 5, "max_message_rounds": 5, "verifier_first": True}


def run_forecast(
    folder: Path, *arguments: str, run: Callable[..., CompletedProcess[str]] = nip_run_here
) -> dict[str, Any]:
    """Return a forecast. If it runs in the process of the test, its startup time includes earlier tests."""
    process = run("plan", "spec.yaml", *QUICK, *arguments, "--json", cwd=folder)
    assert process.returncode == 0, process.stderr
    (plan,) = json.loads(process.stdout)
    time = plan["time"]
    assert isinstance(time, dict)
    return time


def test_run_without_servers_is_bound_by_the_core_and_leaves_no_files(tmp_path: Path) -> None:
    spec_file(tmp_path, size=4, protocol=FIXED, fine_tune=None, budget={"completions": 100})
    before = sorted(path.name for path in tmp_path.iterdir())
    forecast = run_forecast(tmp_path, "--workers", "1")
    assert (forecast["games"], forecast["calls"], forecast["servers_known"]) == (4, [20, 20], True)
    assert [row["name"] for row in forecast["bounds"]] == ["core"]
    assert forecast["bottleneck"] in {"core", "start and end"}
    assert forecast["seconds"][0] == forecast["seconds"][1] > 20 / forecast["calls_per_second"]
    assert forecast["journal_bytes"] > 20 * 200
    assert forecast["breaks"][0]["games"] == 20
    day = next(row["games"] for row in forecast["breaks"] if "day" in row["what"])
    assert 0.05 < day * 5 / forecast["calls_per_second"] / 86400 < 1.01  # startup and finish count once
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.full
def test_pilot_run_supplies_server_latency_and_rate_limits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with run_chat_server(latency=0.2, decide=0.0) as server:
        path = spec_file(tmp_path, server.base_url, size=2000, protocol=FIXED, fine_tune=None)
        pilot = run_spec(path, tmp_path / "results", "dataset.limit=16", run_id="pilot")
    with caplog.at_level("INFO"):
        GroupLimit("m", 8).learn_rates({"x-ratelimit-limit-requests": "60000"})
    with (pilot.path / "run.log").open("a") as log:
        log.write(f"{caplog.messages[-1]}\n")
    forecast = run_forecast(tmp_path, "--workers", "1", run=nip_run)
    calls = table(pilot.path, "completions")
    latency = sum(row["latency_ms"] for row in calls) / len(calls) / 1000
    servers = next(row for row in forecast["bounds"] if row["name"] == "servers")
    assert servers["calls_per_second"] == pytest.approx(8 / latency)
    assert forecast["bottleneck"] == "servers"
    assert forecast["seconds"][0] >= 10000 * latency / 8
    assert forecast["calls"] == [10000, 10000]
    tokens = sum(row["prompt_tokens"] for row in calls) / len(calls)
    assert forecast["prompt_tokens"][0] == pytest.approx(10000 * tokens)
    limit = next(row for row in forecast["bounds"] if row["name"] == "provider's limit")
    assert limit["detail"] == "m: 60,000 requests a minute"
    slow = run_forecast(tmp_path, "--workers", "1", "models.m.requests_per_minute=600", run=nip_run)
    assert slow["bottleneck"] == "provider's limit"
    assert slow["calls_per_second"] == pytest.approx(10000 / 994.5)


@pytest.mark.full
def test_games_with_selectors_and_checkers_are_predicted_without_calls_of_functions(tmp_path: Path) -> None:
    for name in ("best_of_n_debate", "prover_estimator"):
        path = ROOT / "specs" / f"{name}.yaml"
        (estimate,) = estimate_costs(Plan(load_spec(path)))
        arguments = ("plan", str(path), "--workers", "1", *QUICK, "--json")
        first = nip_run_here(*arguments, cwd=tmp_path)
        run_spec(path, tmp_path / "results")
        for process in (first, nip_run_here(*arguments, "name=again", cwd=tmp_path)):
            assert process.returncode == 0, process.stderr
            assert json.loads(process.stdout)[0]["time"]["calls"] == [*estimate.calls]


@pytest.mark.full
def test_the_choice_among_candidates_waits_for_them(tmp_path: Path) -> None:
    rules = {
        "cycle": [
            {"speak": {"p0": ["main"]}, "best_of": {"n": 3, "by": "preference"}}, {"speak": {"judge": ["main"]}},
        ],
        "parameters": {"max_message_rounds": 2, "min_message_rounds": 2},
    }  # fmt: skip
    with run_chat_server(text="Best: 1\nDecision: accept", latency=0.2) as server:
        models = {"m": {"provider": "openai", "model": "x", "base_url": server.base_url}}
        path = passages_spec(tmp_path, rules, models=models)
        (tmp_path / "prompts" / "p0.preference.jinja").write_text("{{ speech_candidates }}")
        run = run_spec(path, tmp_path / "results")
    games = read_statistics(run.folder, Plan(load_spec(path))).games
    assert (games.calls_per_game, games.steps) == (5, 3)
    assert games.wait_seconds is not None
    assert games.wait_seconds > 3 * 0.19


@pytest.mark.full
def test_runs_of_other_rules_and_runs_that_judge_again_are_not_similar(tmp_path: Path) -> None:
    with run_chat_server(decide=0.0) as server:
        path = spec_file(tmp_path, server.base_url, protocol=FIXED, fine_tune=None)
        run_spec(path, tmp_path / "results", run_id="played")
        done = nip_run_here("rejudge", "played", "--run-id", "rejudged", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    forecast = run_forecast(tmp_path, "--workers", "1", "name=new")
    assert forecast["calls"][0] == 5 * forecast["games"]
    for other_rules in ("protocol.max_message_rounds=7", "votes=3"):
        assert not run_forecast(tmp_path, "--workers", "1", "name=new", other_rules)["servers_known"]
    refused = nip_run_here("plan", "spec.yaml", "--workers", "1", "--like", "rejudged", cwd=tmp_path)
    assert "--like rejudged: run rejudged judges the debates of played; name a run that plays games" in refused.stderr


@pytest.mark.full
def test_plan_without_a_pilot_says_that_server_latency_is_unknown(tmp_path: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1", size=50, fine_tune=None)
    process = nip_run_here("plan", "spec.yaml", "--workers", "1", *QUICK, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    text = " ".join(process.stdout.split())
    assert "50 games, 50 to 300 calls: at least" in text
    assert "the latency of the servers is not known" in text
    assert "--like pilot" in text


@pytest.mark.full
def test_plan_prints_the_time_of_workers_and_shards_with_the_sample_sizes(tmp_path: Path) -> None:
    spec_file(tmp_path, size=300, fine_tune=None)
    arguments = ("--workers", "2", "--shards", "2", "--detect", "0.2")
    process = nip_run_here("plan", "spec.yaml", *QUICK, *arguments, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    for text in ("2 shards of 2 workers and their writer", "writer", "2 workers and their writer,", "datapoints"):
        assert text in process.stdout
    forecast = run_forecast(tmp_path, *arguments[:2])
    assert {"cores", "writer"} == {bound["name"] for bound in forecast["bounds"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "0"), "--workers must be at least 1, not 0"),
        (
            ("--workers", "1025"),
            "--workers 1025: the maximum of execution.processes is 1,024, and of execution.workers 4,096 on",
        ),
        (
            ("--workers", "4097", "execution.engine=ray", "execution.workers=2"),
            "--workers 4097: the maximum of execution.workers is 4,096; use fewer workers, or split",
        ),
        (("--shards", "10001"), "--shards 10001: the maximum is 10,000"),
        (("--shards", "13"), "--shards 13: the dataset has only 12 groups"),
        (("--workers", "2", "--cores", "-1"), "--cores must be at least 1, not -1"),
        (("--workers", "2", "--measure", "0"), "--measure must be a number of seconds above 0 and up to 3600, not 0"),
        (("--cores", "2"), "add --workers N or --shards N"),
        (("--workers", "2", "--like", "none"), "no run 'none'"),
        (("--workers", "2", "rollouts.num_responses_per_timestep=2"), "cannot predict the duration of trees"),
        (("--workers", "1", "models.m={model: a, batch: true}"), "models.m.batch: the duration of a batch"),
        (
            ("--workers", "1", "models.m={model: a, answer_words: 5}"),
            "models.m.answer_words: answer_words works only with provider dummy",
        ),
    ],
)
def test_time_forecast_errors_exit_2_with_the_reason(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    spec_file(tmp_path, fine_tune=None)
    process = nip_run_here("plan", "spec.yaml", *arguments, cwd=tmp_path)
    assert (process.returncode, message in process.stderr) == (2, True), process.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_unwritable_results_folder_is_reported(tmp_path: Path) -> None:
    spec_file(tmp_path, fine_tune=None)
    process = nip_run_here("plan", "spec.yaml", "--workers", "1", *QUICK, "--results", "/proc/none", cwd=tmp_path)
    assert (process.returncode, "use --results DIR with a writable folder" in process.stderr) == (1, True)
