"""Verdicts and confidences of rollouts in metrics.json: only the metrics that apply are present."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner.game.protocols.loader import load_protocol
from runner.game.protocols.rounds import Round
from runner.models.logprobs import BOUND
from runner.results.metric_computation import Metrics
from runner.results.metric_rows import metric_rows, missing_intervals, section_lines, signal_rows
from runner.rollouts.confidence import BY_LOGPROBS
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.runs.finished.result import FinishedRun
from runner.spec.datasets.loader import Datapoint


def make_game(point: int, decision: int, *, protocol: str = "solo_verifier", repeat: int = 0, **facts: Any) -> Rollout:
    """Return a game about datapoint `point`, labeled 1 if odd; `facts` sets fields of the job or of the rollout."""
    job_fields = {name: facts.pop(name) for name in ("stance", "swapped", "stances_exchanged") if name in facts}
    datapoint = Datapoint(f"p{point}", point % 2, {"solution": "x"})
    job = Job(0, f"r{point}-{repeat}-{job_fields}", datapoint, repeat, 0, **job_fields)
    last = Round({"verifier": "."}, (), decision, {"verifier": 0.0}, {}, {}, {"verifier": 1}, {"verifier": False})
    outcome = Outcome.DECIDED if decision < 2 else Outcome.NO_DECISION
    stance = job_fields.get("stance") if protocol == "nip" else None
    return replace(Rollout(job, (last,), decision, outcome, stance, {}), **facts)


def summarize(rollouts: Iterable[Rollout], protocol: str = "solo_verifier") -> dict[str, Any]:
    metrics = Metrics(load_protocol(protocol))
    for rollout in rollouts:
        metrics.add(rollout)
    return metrics.summary()


def index_rows(summarize: dict[str, Any]) -> dict[tuple[str | None, str], dict[str, Any]]:
    return {(row["agent"], row["metric"]): row for row in summarize["metrics"]}


def make_confident_games(count: int, seed: int = 1) -> list[Rollout]:
    rng, games = np.random.default_rng(seed), []
    for i in range(count):
        p = float(np.clip(0.5 + 0.3 * (2 * (i % 2) - 1) + rng.normal(0, 0.25), 0, 1))
        games.append(make_game(i, int(p > 0.5), confidence_stated=round(p, 1), confidence_logprob=p))
    return games


def test_run_without_confidence_or_blocks_has_no_rows_about_them() -> None:
    summary = summarize(make_game(i, i % 3 % 2) for i in range(30))
    names = {name for _, name in index_rows(summary)}
    assert {"sensitivity", "criterion", "balanced_accuracy", "completeness", "always_failed"} <= names
    assert not names & {"brier_stated", "auroc_logprob", "confidence_disagreement", "position_bias", "persuasion_0",
                        "expected_score", "pair_score", "majority_accuracy"}  # fmt: skip
    assert "reliability_curves" not in summary
    assert summary["methods"].keys() <= names


def test_games_without_a_requested_confidence_count_even_if_no_game_has_it() -> None:
    metrics = Metrics(load_protocol("solo_verifier"), confidence_kinds=("stated", "logprob"))
    for i in range(30):
        metrics.add(make_game(i, i % 3, confidence_logprob=0.7 if i % 3 == 1 else None))
    rows = index_rows(metrics.summary())
    assert [(rows[None, f"no_score_{kind}"][key]) for kind in ("stated", "logprob") for key in ("value", "n")] == [
        1.0, 30, pytest.approx(2 / 3), 30,
    ]  # fmt: skip
    assert (None, "brier_logprob") in rows
    assert (None, "brier_stated") not in rows


def test_repeats_have_a_vote_curve_and_state_the_number_of_games() -> None:
    summary = summarize(
        make_game(i, i % 2 if (i + r) % 4 else 1 - i % 2, repeat=r) for i in range(40) for r in range(4)
    )
    rows = index_rows(summary)
    assert [(point["k"], point["value"]) for point in summary["vote_curve"]] == [(1, 0.75), (3, 1.0)]
    assert (rows[None, "majority_accuracy"]["value"], rows[None, "majority_accuracy"]["plays"]) == (1.0, 3)
    assert rows[None, "always_failed"]["plays"] == 4
    assert "plays" not in rows[None, "accuracy"]
    names = {row[1] for row in metric_rows(summary)}
    assert {"always_failed (of 4 each)", "majority_accuracy (vote@3)"} <= names
    assert "accuracy_excluding_failures (lost or undecided)" in names
    assert any(line.startswith("vote@k: 1: 0.750 [") for line in section_lines(summary))
    for full in (True, False):
        intervals = sum("[" in row[2] for row in metric_rows(summary, include_minor=full)) + 2  # two of vote@k
        assert section_lines(summary, include_minor=full)[0].startswith(f"{intervals} intervals of 95 %, not adjusted")
    assert "vote_curve" not in summarize(make_game(i, i % 2) for i in range(40))


def test_both_kinds_of_confidence_have_metrics_and_a_reliability_curve() -> None:
    summary = summarize(make_confident_games(200))
    rows = index_rows(summary)
    for kind in ("stated", "logprob"):
        brier, auroc = rows[None, f"brier_{kind}"], rows[None, f"auroc_{kind}"]
        assert 0 < brier["ci_low"] < brier["value"] < brier["ci_high"] < 0.25
        assert auroc["ci_low"] > 0.5
        assert sum(bucket["n"] for bucket in summary["reliability_curves"][kind]) == brier["n"] == 200
    assert rows[None, "confidence_disagreement"]["value"] == 0


def test_games_without_a_probability_are_omitted_only_from_its_metrics() -> None:
    games = [
        replace(confident_game, confidence_stated=None) if i % 4 else confident_game
        for i, confident_game in enumerate(make_confident_games(80))
    ]
    rows = index_rows(summarize(games))
    assert (rows[None, "brier_stated"]["n"], rows[None, "brier_logprob"]["n"], rows[None, "accuracy"]["n"]) == (
        20, 80, 80,
    )  # fmt: skip


def test_verdict_that_contradicts_its_log_probabilities_is_counted() -> None:
    games = [make_game(i, 1, confidence_logprob=0.3 if i < 5 else 0.5 if i < 7 else 0.9) for i in range(20)]
    rows = index_rows(summarize([*games, make_game(20, 2, confidence_logprob=0.4)]))
    assert (rows[None, "confidence_disagreement"]["value"], rows[None, "confidence_disagreement"]["n"]) == (0.25, 20)


def test_probabilities_known_only_as_bounds_are_counted_and_prevent_intervals() -> None:
    note = f"{BY_LOGPROBS}{BOUND}"
    for probability, with_interval in (
        (0.02, ()),
        (0.0001, ("brier", "ece", "log_score")),
    ):  # near 0, the bound is as good as the value
        games = make_confident_games(200)
        summary = summarize(
            replace(confident_game, confidence_logprob=probability, confidence_note=note) if i < 30 else confident_game
            for i, confident_game in enumerate(games)
        )
        rows = index_rows(summary)
        assert rows[None, "confidence_bounds_logprob"]["value"] == 0.15
        for name in ("brier", "ece", "log_score", "auroc"):
            row = rows[None, f"{name}_logprob"]
            assert (row["ci_low"] is not None) == (name in with_interval), name
            assert row["value"] is not None
            assert name in with_interval or row["reason"].startswith("15% of the probabilities are only bounds")
            assert rows[None, f"{name}_stated"]["reason"] is None
    assert (None, "confidence_bounds_logprob") not in index_rows(summarize(games))


def test_blocks_have_persuasion_and_each_agents_score() -> None:
    games = [make_game(i, i % 2 if i % 8 < 2 else s, protocol="nip", stance=s) for i in range(40) for s in (0, 1)]
    half = make_game(99, 1, protocol="nip", stance=1)  # the other game of its block was lost in transport
    rows = index_rows(summarize([*games, half], "nip"))
    assert rows[None, "persuasion_1"]["value"] == 0.875
    assert rows[None, "persuasion_1"]["n"] == 40
    assert rows["prover", "expected_score"]["value"] == 0.875
    assert rows["prover", "score_difference"]["value"] == 0.25
    assert rows[None, "accuracy"]["n"] == 81


def test_tendency_to_reject_is_not_position_bias() -> None:
    games = [
        make_game(
            i, 0 if i % 5 else stance if i % 2 else 1, protocol="debate", stance=stance, stances_exchanged=stance == 1
        )
        for i in range(60)
        for stance in (0, 1)
    ]
    metrics = Metrics(load_protocol("debate").with_given_stance())
    for debate in games:
        metrics.add(debate)
    rows = index_rows(metrics.summary())
    assert rows[None, "position_bias"]["value"] == pytest.approx(0.1)  # of half of the games that are not rejected
    assert rows["prover0", "expected_score"]["value"] == pytest.approx(0.55)
    assert not {"seat_score", "persuasion_0", "swap_effect"} & {name for _, name in rows}


def test_swapped_seats_have_scores_by_player_and_by_seat() -> None:
    """The player of prover0 wins 4 of 5 games from either seat, and the truth 1; the first seat argues to reject."""
    games = [
        make_game(i, i // 2 % 2 if i % 5 == 0 else int(is_swapped), protocol="debate", swapped=bool(is_swapped))
        for i in range(60)
        for is_swapped in (0, 1)
    ]
    metrics = Metrics(load_protocol("debate"), ("prover0", "prover1"))
    for debate in games:
        metrics.add(debate)
    rows = index_rows(metrics.summary())
    bias = rows[None, "position_bias"]
    assert (bias["value"], bias["ci_low"], bias["n"]) == (None, None, 120)
    assert bias["reason"] == "seat and stance are one here: add stances: both"
    score = {agent: rows[agent, "expected_score"]["value"] for agent in ("prover0", "prover1")}
    assert score == {"prover0": pytest.approx(0.9), "prover1": pytest.approx(0.1)}
    seats = {agent: rows[agent, "seat_score"]["value"] for agent in ("prover0", "prover1")}
    assert seats == {"prover0": 0.5, "prover1": 0.5}


def test_metrics_of_confidence_and_blocks_do_not_depend_on_the_order_of_games() -> None:
    games = [
        *make_confident_games(60),
        *(make_game(i, i % 3 % 2, protocol="nip", stance=s) for i in range(30) for s in (0, 1)),
    ]
    assert summarize(games, "nip") == summarize(games[::-1], "nip")


def test_printed_metrics_state_the_bias_of_the_judge_and_missing_intervals() -> None:
    summary = summarize(make_game(i, 1 if i % 2 or i % 8 == 4 else 0) for i in range(120))
    values = {row[1]: row[2] for row in metric_rows(summary)}
    assert values["sensitivity (d')"].endswith(", not estimable]")
    assert values["criterion (c)"].startswith("-")
    assert any(
        line.startswith("sensitivity, criterion: no interval: every right") for line in missing_intervals(summary)
    )
    assert dict(signal_rows(summary))["signal"].startswith("d' ")
    biased_summary = summarize(make_game(i, int(i % 5 < 4)) for i in range(120))
    assert {row[1]: row[2] for row in metric_rows(biased_summary)}["criterion (c)"].endswith("leans to accept")
    assert not {row[1] for row in metric_rows(summary, include_minor=False)} & {"undecided_0", "undecided_1"}
    assert signal_rows(summarize(make_game(i, 1) for i in range(6))) == ()


def test_open_interval_end_is_infinite_in_python() -> None:
    summary = summarize(make_game(i, 1 if i % 2 or i % 8 == 4 else 0) for i in range(120))
    run = FinishedRun(None, None, summary)  # type: ignore[arg-type]
    for name in ("sensitivity", "criterion"):
        metric = run.metric(name)
        row = index_rows(summary)[None, name]
        assert metric is not None
        assert metric.interval is not None
        ends = (row["ci_low"], row["ci_high"])
        assert metric.interval == tuple(
            sign * math.inf if end is None else end for sign, end in zip((-1, 1), ends, strict=True)
        )
        assert math.inf in map(abs, metric.interval)
        assert "not estimable" in repr(metric)
        assert metric.reason is not None
