"""Runs whose games a panel decides: at a server with a model for each judge, after a kill, with votes and in trees."""

from __future__ import annotations

import json
import math
import re
import signal
from collections import Counter
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.base.text import decimal
from runner.results.tables import rollout_rows
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.plan import Plan
from runner.runs.finished.reconstruction import Reconstructor, saved_plan
from runner.spec.loader import load_spec
from runner.statistics.agreement import agreement
from tests.support.kills import kill_at_random_moments
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import derived_files, journal_records, metric, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

JUDGES = ("judge0", "judge1", "judge2")
PROVERS = ("prover0", "prover1")


def write_panel_spec(
    folder: Path, base_url: str | None = None, *, size: int = 12, use: str = "panel_debate", **changes: Any
) -> Path:
    """Write a spec of `panel_debate` with a model group for the provers and one for each judge."""
    model = {"provider": "dummy"} if base_url is None else {"provider": "openai", "base_url": base_url}
    names = ("m", *JUDGES)
    models = {name: model if base_url is None else {**model, "model": f"model-of-{name}"} for name in names}
    agents = {**{name: {"model": "m"} for name in PROVERS}, **{name: {"model": name} for name in JUDGES}}
    return spec_file(
        folder,
        size=size,
        protocol={"use": use, "max_message_rounds": 3},
        agents={"prover": None, "verifier": None, **agents},
        models=models,
        prompts="prompts/code_validation/panel_debate",
        **changes,
    )


def write_protocol_with_rule(folder: Path, rule: str) -> str:
    """Copy the protocol with another rule and return the copy's name."""
    text = (ROOT / "runner/game/protocols/panel_debate.yaml").read_text()
    (folder / "own.yaml").write_text(text.replace("rule: majority", f"rule: {rule}"))
    return "own.yaml"


def read_verdicts(row: dict[str, Any]) -> dict[str, int]:
    return {verdict["agent"]: verdict["decision"] for verdict in json.loads(row["panel"])}


def test_each_judge_calls_its_own_model_and_the_majority_decides(tmp_path: Path) -> None:
    with run_chat_server(record=500) as server:
        run = run_spec(write_panel_spec(tmp_path, server.base_url), tmp_path / "results")
        models = Counter(json.loads(request["body"])["model"] for request in server.recorded_requests())
    rows = table(run.folder.path, "rollouts")
    assert models == {"model-of-m": 48, **{f"model-of-{judge}": 12 for judge in JUDGES}}
    for row in rows:
        verdicts = Counter(read_verdicts(row).values())
        assert set(read_verdicts(row)) == {*JUDGES}
        accepts, rejects = verdicts[1], verdicts[0]
        assert row["decision"] == (2 if accepts == rejects else int(accepts > rejects))
        assert row["correct"] == (row["decision"] == row["y"])
    assert len({tuple(read_verdicts(row).values()) for row in rows}) > 2


def test_judge_metrics_follow_from_the_rollouts_table(tmp_path: Path) -> None:
    spec = write_panel_spec(tmp_path, size=40, verdict={"confidence": "stated"})
    run = run_spec(spec, tmp_path / "results")
    rows = table(run.folder.path, "rollouts")
    for judge in JUDGES:
        right = [read_verdicts(row)[judge] == row["y"] for row in rows]
        gains = [int(ok) - int(row["correct"]) for ok, row in zip(right, rows, strict=True)]
        equal = [read_verdicts(row)[judge] == row["decision"] for row in rows]
        for name, values in (("judge_accuracy", right), ("judge_advantage", gains), ("panel_agreement", equal)):
            estimate = metric(run, name, judge)
            assert math.isclose(estimate["value"], sum(values) / 40, abs_tol=1e-12)
            assert estimate["ci_low"] < estimate["value"] < estimate["ci_high"]
        stated = [next(v for v in json.loads(row["panel"]) if v["agent"] == judge)["confidence_stated"] for row in rows]
        brier = [(p - row["y"]) ** 2 for p, row in zip(stated, rows, strict=True)]
        score = metric(run, "judge_brier_stated", judge)
        assert math.isclose(score["value"], sum(brier) / 40)
        assert (score["ci_low"], score["reason"][:24]) == (None, "fewer than 100 groups of")
    assert not [row for row in run.metrics["metrics"] if row["metric"] == "judge_brier_logprob"]
    pairs = run.metrics["judge_pairs"]
    assert [(pair["first"], pair["second"]) for pair in pairs] == list(combinations(JUDGES, 2))
    for pair in pairs:
        codes = [[read_verdicts(row)[pair[name]] for row in rows] for name in ("first", "second")]
        expected = agreement(codes[0], codes[1], list(range(40)), 40)
        assert expected is not None
        assert math.isclose(pair["agreement"]["value"], expected.raw.as_quantity().value or 0)
        assert math.isclose(pair["kappa"]["value"], expected.kappa.value or 0)
    for row in rows:
        stated = [verdict["confidence_stated"] for verdict in json.loads(row["panel"])]
        assert math.isclose(row["confidence_stated"], sum(stated) / 3)


def test_a_run_without_a_panel_has_no_panel_data(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, size=2), tmp_path / "results")
    assert {row["panel"] for row in table(run.folder.path, "rollouts")} == {None}
    assert "judge_pairs" not in run.metrics
    assert not [row for row in run.metrics["metrics"] if row["metric"].startswith(("judge_", "panel_"))]
    assert "panel" not in (run.folder.path / "inputs" / "protocol.yaml").read_text()


@pytest.mark.full
def test_a_resumed_run_with_a_panel_repeats_only_calls_in_flight_at_the_kill(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.01, 0.05]) as server:
        path = write_panel_spec(tmp_path, server.base_url)
        complete_run = run_spec(path, tmp_path / "whole", "rollouts.concurrency=4")
        needed = server.requests
        server.change(held_after=needed + 40)
        process = start_nip_run("spec.yaml", "rollouts.concurrency=4", "-q", cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + 40 or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        code, _, _ = wait_for_exit(process)
        assert code == -signal.SIGKILL
        server.change(held_after=None)
        recorded_calls = [
            record for record in journal_records(only_run(tmp_path / "results")) if record["kind"] == "call"
        ]
        resumed = run_spec(path, tmp_path / "results", "rollouts.concurrency=4")
        requests = server.requests - needed
    assert recorded_calls
    assert needed <= requests <= needed + 4 * 3  # the calls in flight: at most three judges in each of four games
    assert derived_files(resumed.folder.path) == derived_files(complete_run.folder.path)
    samples = [tuple(record["sample"]) for record in journal_records(resumed.folder.path) if record["kind"] == "call"]
    assert len(samples) == len(set(samples)) == needed


def test_the_mean_decides_by_the_stated_confidences(tmp_path: Path) -> None:
    path = write_panel_spec(
        tmp_path, size=24, verdict={"confidence": "stated"}, use=write_protocol_with_rule(tmp_path, "mean")
    )
    rows = table(run_spec(path, tmp_path / "results").folder.path, "rollouts")
    for row in rows:
        mean = sum(verdict["confidence_stated"] for verdict in json.loads(row["panel"])) / 3
        assert row["decision"] == (2 if abs(mean - 0.5) < 1e-9 else int(mean > 0.5))
    majorities = [int(sum(read_verdicts(row).values()) > 1) for row in rows]
    assert majorities != [row["decision"] for row in rows], "the mean and the majority never differ here"


def test_each_judge_has_its_own_votes(tmp_path: Path) -> None:
    run = run_spec(write_panel_spec(tmp_path, size=4), tmp_path / "results", "votes=3").folder.path
    for row in table(run, "rollouts"):
        assert row["votes"] is None
        for verdict in json.loads(row["panel"]):
            assert len(verdict["votes"]) == 3
            assert verdict["decision"] == Counter(vote for vote in verdict["votes"] if vote != 2).most_common(1)[0][0]
    calls = Counter(call["agent"] for call in table(run, "completions"))
    assert calls == {**dict.fromkeys(PROVERS, 8), **dict.fromkeys(JUDGES, 12)}
    estimates = estimate_costs(Plan(load_spec(tmp_path / "spec.yaml", ["votes=3"])))
    assert {estimate.group: estimate.calls for estimate in estimates} == {
        "m": (16, 16),
        **dict.fromkeys(JUDGES, (12, 12)),
    }


def test_trees_of_a_panel_are_rebuilt_as_they_were_played(tmp_path: Path) -> None:
    path = write_panel_spec(tmp_path, size=2, rollouts={"num_responses_per_timestep": 2})
    run = run_spec(path, tmp_path / "results").folder
    rows = table(run.path, "rollouts")
    with closing(Reconstructor(run, saved_plan(run))) as reconstructor:
        rebuilt = [rollout_rows(run.run_id, rollout)["rollouts"][0] for rollout in reconstructor.rollouts()]
    assert [row["panel"] for row in rebuilt] == [json.loads(row["panel"]) for row in rows]
    assert [row["rewards"] for row in rebuilt] == [json.loads(row["rewards"]) for row in rows]
    assert len(rows) == 2 * 2**3
    assert all(set(read_verdicts(row)) == {*JUDGES} for row in rows)


def test_fine_tuning_files_of_a_judge_are_selected_by_its_own_verdict(tmp_path: Path) -> None:
    path = write_panel_spec(tmp_path, fine_tune={"formats": ["openai"], "agents": ["judge1"], "min_examples": 1})
    run = run_spec(path, tmp_path / "results").folder.path
    rows = table(run, "rollouts")
    rewards = {row["rollout_id"]: json.loads(row["rewards"])["judge1"] for row in rows}
    assert rewards == {row["rollout_id"]: 1.0 if read_verdicts(row)["judge1"] == row["y"] else -1.0 for row in rows}
    assert any(reward != (1.0 if row["correct"] else -1.0) for reward, row in zip(rewards.values(), rows, strict=True))
    lines = (run / "fine_tune" / "agents" / "judge1.sft.jsonl.trace.jsonl").read_text().splitlines()
    assert [(line["rollout_id"], line["reward"]) for line in map(json.loads, lines)] == list(rewards.items())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["verdict.confidence=null"], "verdict.confidence: the panel of panel_debate decides by the mean"),
        (["seats={swap: [judge0, judge1]}"], "judge0 and judge1 are judges of a panel; only seats of provers can be"),
        (["agents.judge2=null"], "missing agents of panel_debate: judge2"),
        (["+agents.judge3={model: m}"], "agents.judge3: panel_debate has no such agent"),
    ],
)  # fmt: skip
def test_settings_that_a_panel_does_not_allow_are_errors(tmp_path: Path, overrides: list[str], message: str) -> None:
    path = write_panel_spec(tmp_path, use=write_protocol_with_rule(tmp_path, "mean"), verdict={"confidence": "stated"})
    with pytest.raises(SpecError) as error:
        load_spec(path, overrides)
    assert message in "\n".join(map(str, error.value.problems))


def test_a_panel_is_not_rejudged(tmp_path: Path) -> None:
    run = run_spec(write_panel_spec(tmp_path, size=2), tmp_path / "results")
    done = nip_run_here("rejudge", run.run_id, cwd=tmp_path)
    assert done.returncode == 2
    assert "panel_debate has a panel of 3 judges, and only debates with a single verifier can be judged again" in (
        done.stderr
    )


def test_the_verdicts_of_judges_are_shown(tmp_path: Path) -> None:
    run = run_spec(write_panel_spec(tmp_path, size=8), tmp_path / "results")
    output = nip_run_here("show", run.run_id, cwd=tmp_path).stdout
    run_output = nip_run_here("spec.yaml", cwd=tmp_path).stdout
    for judge in JUDGES:
        accuracy = decimal(metric(run, "judge_accuracy", judge)["value"])
        assert re.search(rf"^{judge} +judge_accuracy +{re.escape(accuracy)} \[", output, re.MULTILINE)
        assert f"{judge}    {accuracy} [" in run_output
    assert "judge0 and judge1 give the same verdict: " in output
    game_output = nip_run_here("show", run.run_id, "p0", cwd=tmp_path).stdout
    assert "the panel decides (majority): " in game_output
    document = json.loads(nip_run_here("show", run.run_id, "p0", "--json", cwd=tmp_path).stdout)
    assert [verdict["agent"] for verdict in document["panel"]] == [*JUDGES]


@pytest.mark.full
def test_kills_of_a_panel_at_random_moments_lose_and_repeat_no_answer(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.0, 0.03]) as server:
        path = write_panel_spec(tmp_path, server.base_url)
        complete_run = run_spec(path, tmp_path / "whole")
        kill_at_random_moments(tmp_path, server, server.requests, 20, max_in_flight=3 * 8)
    assert derived_files(only_run(tmp_path / "results")) == derived_files(complete_run.folder.path)


@pytest.mark.full
def test_a_query_and_compare_report_each_judge(tmp_path: Path) -> None:
    run = run_spec(write_panel_spec(tmp_path, size=10), tmp_path / "results")
    other_run = run_spec(write_panel_spec(tmp_path, size=10, seed=8), tmp_path / "results")
    judged = json.loads(nip_run_here("sql", "@judges", f"run={run.run_id}", "--json", cwd=tmp_path).stdout)
    rows = table(run.folder.path, "rollouts")
    expected: dict[str | None, float] = {
        judge: sum(read_verdicts(row)[judge] == row["y"] for row in rows) / 10 for judge in JUDGES
    }
    expected[None] = sum(row["correct"] for row in rows) / 10
    assert {row["judge"]: row["accuracy"] for row in judged} == expected
    compared = nip_run_here("compare", run.run_id, other_run.run_id, "--metric", "judge1.judge_accuracy", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert decimal(expected["judge1"]) in compared.stdout
