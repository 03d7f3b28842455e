"""Verdicts and confidences of rollouts into metrics.json: what applies is there, and nothing else is."""

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


def game(point: int, decision: int, *, protocol: str = "solo_verifier", repeat: int = 0, **facts: Any) -> Rollout:
    """A game about datapoint `point`, right if odd. `facts`: fields of the job (stance, swapped) or of the rollout."""
    of_job = {name: facts.pop(name) for name in ("stance", "swapped", "stances_exchanged") if name in facts}
    datapoint = Datapoint(f"p{point}", point % 2, {"solution": "x"})
    job = Job(0, f"r{point}-{repeat}-{of_job}", datapoint, repeat, 0, **of_job)
    last = Round({"verifier": "."}, (), decision, {"verifier": 0.0}, {}, {}, {"verifier": 1}, {"verifier": False})
    outcome = Outcome.DECIDED if decision < 2 else Outcome.NO_DECISION
    stance = of_job.get("stance") if protocol == "nip" else None
    return replace(Rollout(job, (last,), decision, outcome, stance, {}), **facts)


def summary(rollouts: Iterable[Rollout], protocol: str = "solo_verifier") -> dict[str, Any]:
    metrics = Metrics(load_protocol(protocol))
    for rollout in rollouts:
        metrics.add(rollout)
    return metrics.summary()


def rows(shown: dict[str, Any]) -> dict[tuple[str | None, str], dict[str, Any]]:
    return {(row["agent"], row["metric"]): row for row in shown["metrics"]}


def confident(count: int, seed: int = 1) -> list[Rollout]:
    rng, games = np.random.default_rng(seed), []
    for i in range(count):
        p = float(np.clip(0.5 + 0.3 * (2 * (i % 2) - 1) + rng.normal(0, 0.25), 0, 1))
        games.append(game(i, int(p > 0.5), confidence_stated=round(p, 1), confidence_logprob=p))
    return games


def test_a_run_without_confidence_or_blocks_has_no_rows_of_them() -> None:
    shown = summary(game(i, i % 3 % 2) for i in range(30))
    names = {name for _, name in rows(shown)}
    assert {"sensitivity", "criterion", "balanced_accuracy", "completeness", "always_failed"} <= names
    assert not names & {"brier_stated", "auroc_logprob", "confidence_disagreement", "position_bias", "persuasion_0",
                        "expected_score", "pair_score", "majority_accuracy"}  # fmt: skip
    assert "reliability_curves" not in shown
    assert shown["methods"].keys() <= names


def test_games_without_a_requested_confidence_count_even_if_no_game_has_it() -> None:
    metrics = Metrics(load_protocol("solo_verifier"), confidence_kinds=("stated", "logprob"))
    for i in range(30):
        metrics.add(game(i, i % 3, confidence_logprob=0.7 if i % 3 == 1 else None))
    found = rows(metrics.summary())
    assert [(found[None, f"no_score_{kind}"][key]) for kind in ("stated", "logprob") for key in ("value", "n")] == [
        1.0, 30, pytest.approx(2 / 3), 30,
    ]  # fmt: skip
    assert (None, "brier_logprob") in found
    assert (None, "brier_stated") not in found


def test_repeats_have_a_curve_of_votes_that_says_of_how_many_plays() -> None:
    shown = summary(game(i, i % 2 if (i + r) % 4 else 1 - i % 2, repeat=r) for i in range(40) for r in range(4))
    found = rows(shown)
    assert [(one["k"], one["value"]) for one in shown["vote_curve"]] == [(1, 0.75), (3, 1.0)]
    assert (found[None, "majority_accuracy"]["value"], found[None, "majority_accuracy"]["plays"]) == (1.0, 3)
    assert found[None, "always_failed"]["plays"] == 4
    assert "plays" not in found[None, "accuracy"]
    names = {row[1] for row in metric_rows(shown)}
    assert {"always_failed (of 4 each)", "majority_accuracy (vote@3)"} <= names
    assert "accuracy_excluding_failures (lost or undecided)" in names
    assert any(line.startswith("vote@k: 1: 0.750 [") for line in section_lines(shown))
    for full in (True, False):
        intervals = sum("[" in row[2] for row in metric_rows(shown, include_minor=full)) + 2  # two of vote@k
        assert section_lines(shown, include_minor=full)[0].startswith(f"{intervals} intervals of 95 %, not adjusted")
    assert "vote_curve" not in summary(game(i, i % 2) for i in range(40))


def test_both_kinds_of_confidence_have_their_numbers_and_a_curve() -> None:
    shown = summary(confident(200))
    found = rows(shown)
    for kind in ("stated", "logprob"):
        brier, auroc = found[None, f"brier_{kind}"], found[None, f"auroc_{kind}"]
        assert 0 < brier["ci_low"] < brier["value"] < brier["ci_high"] < 0.25
        assert auroc["ci_low"] > 0.5
        assert sum(one["n"] for one in shown["reliability_curves"][kind]) == brier["n"] == 200
    assert found[None, "confidence_disagreement"]["value"] == 0


def test_some_games_without_a_probability_are_left_out_of_its_numbers_alone() -> None:
    games = [replace(one, confidence_stated=None) if i % 4 else one for i, one in enumerate(confident(80))]
    found = rows(summary(games))
    assert (found[None, "brier_stated"]["n"], found[None, "brier_logprob"]["n"], found[None, "accuracy"]["n"]) == (
        20, 80, 80,
    )  # fmt: skip


def test_a_text_that_contradicts_its_log_probabilities_is_counted() -> None:
    games = [game(i, 1, confidence_logprob=0.3 if i < 5 else 0.5 if i < 7 else 0.9) for i in range(20)]
    found = rows(summary([*games, game(20, 2, confidence_logprob=0.4)]))
    assert (found[None, "confidence_disagreement"]["value"], found[None, "confidence_disagreement"]["n"]) == (0.25, 20)


def test_probabilities_that_are_only_bounds_are_counted_and_leave_intervals_open() -> None:
    note = f"{BY_LOGPROBS}{BOUND}"
    for far, told in ((0.02, ()), (0.0001, ("brier", "ece", "log_score"))):  # one near 0 is as good as known
        games = confident(200)
        shown = summary(
            replace(one, confidence_logprob=far, confidence_note=note) if i < 30 else one for i, one in enumerate(games)
        )
        found = rows(shown)
        assert found[None, "confidence_bounds_logprob"]["value"] == 0.15
        for name in ("brier", "ece", "log_score", "auroc"):
            row = found[None, f"{name}_logprob"]
            assert (row["ci_low"] is not None) == (name in told), name
            assert row["value"] is not None
            assert name in told or row["reason"].startswith("15% of the probabilities are only bounds")
            assert found[None, f"{name}_stated"]["reason"] is None
    assert (None, "confidence_bounds_logprob") not in rows(summary(games))


def test_blocks_have_persuasion_and_each_agents_score() -> None:
    games = [game(i, i % 2 if i % 8 < 2 else s, protocol="nip", stance=s) for i in range(40) for s in (0, 1)]
    half = game(99, 1, protocol="nip", stance=1)  # its other half was lost in transport
    found = rows(summary([*games, half], "nip"))
    assert found[None, "persuasion_1"]["value"] == 0.875
    assert found[None, "persuasion_1"]["n"] == 40
    assert found["prover", "expected_score"]["value"] == 0.875
    assert found["prover", "score_difference"]["value"] == 0.25
    assert found[None, "accuracy"]["n"] == 81


def test_a_leaning_to_reject_is_no_position_bias() -> None:
    games = [
        game(i, 0 if i % 5 else stance if i % 2 else 1, protocol="debate", stance=stance, stances_exchanged=stance == 1)
        for i in range(60)
        for stance in (0, 1)
    ]
    metrics = Metrics(load_protocol("debate").with_given_stance())
    for one in games:
        metrics.add(one)
    found = rows(metrics.summary())
    assert found[None, "position_bias"]["value"] == pytest.approx(0.1)  # of half of the games that are not rejected
    assert found["prover0", "expected_score"]["value"] == pytest.approx(0.55)
    assert not {"seat_score", "persuasion_0", "swap_effect"} & {name for _, name in found}


def test_swapped_seats_have_scores_by_player_and_by_seat() -> None:
    """Of five games the player of prover0 wins four, from either seat, and the truth one; the first seat rejects."""
    games = [
        game(i, i // 2 % 2 if i % 5 == 0 else int(way), protocol="debate", swapped=bool(way))
        for i in range(60)
        for way in (0, 1)
    ]
    metrics = Metrics(load_protocol("debate"), ("prover0", "prover1"))
    for one in games:
        metrics.add(one)
    found = rows(metrics.summary())
    bias = found[None, "position_bias"]
    assert (bias["value"], bias["ci_low"], bias["n"]) == (None, None, 120)
    assert bias["reason"] == "seat and stance are one here: add stances: both"
    score = {agent: found[agent, "expected_score"]["value"] for agent in ("prover0", "prover1")}
    assert score == {"prover0": pytest.approx(0.9), "prover1": pytest.approx(0.1)}
    seats = {agent: found[agent, "seat_score"]["value"] for agent in ("prover0", "prover1")}
    assert seats == {"prover0": 0.5, "prover1": 0.5}


def test_the_order_of_games_changes_no_bit_of_confidence_or_of_blocks() -> None:
    games = [*confident(60), *(game(i, i % 3 % 2, protocol="nip", stance=s) for i in range(30) for s in (0, 1))]
    assert summary(games, "nip") == summary(games[::-1], "nip")


def test_what_is_shown_says_which_way_the_judge_leans_and_what_is_missing() -> None:
    shown = summary(game(i, 1 if i % 2 or i % 8 == 4 else 0) for i in range(120))
    values = {row[1]: row[2] for row in metric_rows(shown)}
    assert values["sensitivity (d')"].endswith(", not estimable]")
    assert values["criterion (c)"].startswith("-")
    assert any(line.startswith("sensitivity, criterion: no interval: every right") for line in missing_intervals(shown))
    assert dict(signal_rows(shown))["signal"].startswith("d' ")
    leaning = summary(game(i, int(i % 5 < 4)) for i in range(120))
    assert {row[1]: row[2] for row in metric_rows(leaning)}["criterion (c)"].endswith("leans to accept")
    assert not {row[1] for row in metric_rows(shown, include_minor=False)} & {"undecided_0", "undecided_1"}
    assert signal_rows(summary(game(i, 1) for i in range(6))) == ()


def test_an_end_that_is_open_is_infinite_in_python() -> None:
    shown = summary(game(i, 1 if i % 2 or i % 8 == 4 else 0) for i in range(120))
    run = FinishedRun(None, None, shown)  # type: ignore[arg-type]
    for name in ("sensitivity", "criterion"):
        found = run.metric(name)
        row = rows(shown)[None, name]
        assert found is not None
        assert found.interval is not None
        ends = (row["ci_low"], row["ci_high"])
        assert found.interval == tuple(
            sign * math.inf if end is None else end for sign, end in zip((-1, 1), ends, strict=True)
        )
        assert math.inf in map(abs, found.interval)
        assert "not estimable" in repr(found)
        assert found.reason is not None
