"""Verdicts and probabilities into named numbers, each with its interval or the reason why it has none."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from runner.statistics.calibration import BINS, LOG_FLOOR, Forecasts, auroc
from runner.statistics.clustered_means import Codes, Interval, Share, difference_error, difference_interval
from runner.statistics.reporting_rules import hindrance, only_bounds
from runner.statistics.signal_detection import Signal
from runner.statistics.verdicts import Verdicts


@dataclass(frozen=True)
class Number:
    """A number of a run. One end of its interval is None where it is open.

    `n`: what it is a mean over; `clusters`: those of the rarer label, where both count.
    """

    metric: str
    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    clusters: int
    reason: str | None = None
    """Why it has no interval, or no value."""
    plays: int | None = None
    """Of each datapoint, where the number depends on how many there are; of different numbers, the most."""


def verdict_numbers(verdicts: Verdicts) -> Iterator[Number]:
    """What any run's verdicts come to; what does not apply to them is left out."""
    correct = [verdicts.correct(label) for label in (0, 1)]
    if (right := correct[1]) is not None and (wrong := correct[0]) is not None:
        yield _balanced(right, wrong)
        decided = [verdicts.accepted(label, decided=True) for label in (0, 1)]
        if (hits := decided[1]) is not None and (false_alarms := decided[0]) is not None:
            yield from _signal(Signal(hits, false_alarms))
    for name, found in (
        ("completeness", verdicts.accepted(1)), ("soundness_error", verdicts.accepted(0)),
        ("undecided_0", verdicts.undecided(0)), ("undecided_1", verdicts.undecided(1)),
        ("pair_score", verdicts.pair_score if verdicts.grouped else None),
    ):  # fmt: skip
        if found is not None:
            yield proportion(name, found)
    if (failed := verdicts.always_failed) is not None:
        yield replace(proportion("always_failed", failed), plays=verdicts.most_plays)
    yield from vote_curve(verdicts)[-1:]


def vote_curve(verdicts: Verdicts) -> list[Number]:
    """vote@k for each odd k, as `majority_accuracy` with k as `plays`; nothing where datapoints have no three plays.

    That of k = 1 is the accuracy of a play, each datapoint counting alike.
    """
    return [replace(proportion("majority_accuracy", vote), plays=k) for k, vote in verdicts.votes]


ONE_HERE = "seat and stance are one here: add stances: both"


def block_numbers(verdicts: Verdicts, first_seat: Codes | None) -> Iterator[Number]:
    """What blocks come to. `first_seat`: the stance of the first prover in each game, where provers oppose each other.

    A seat that always argues the same cannot be told from the leaning to accept: it has no position bias.
    """
    for stance in (0, 1):
        if (persuaded := verdicts.persuaded(stance)) is not None:
            yield proportion(f"persuasion_{stance}", persuaded)
    if first_seat is not None and verdicts.exchanged is None:
        n, clusters = len(verdicts.labels), len(set(verdicts.clusters.tolist()))
        yield Number("position_bias", None, None, None, None, n, clusters, ONE_HERE)
    elif first_seat is not None:
        for_it, against = verdicts.accepted_by_first_stance(first_seat)
        if for_it is not None and against is not None:
            yield _difference("position_bias", for_it, against)
    if verdicts.swapped is None:
        return
    written, swapped = verdicts.swap_shares()
    if written is not None and swapped is not None:
        yield _difference("swap_effect", written, swapped)


def player_numbers(verdicts: Verdicts, stances: Codes) -> Iterator[Number]:
    """What one player of provers' seats comes to in blocks. `stances`: what it argues in each game.

    Its score in a game is 1 where the verdict is its stance, else 0.
    """
    won = verdicts.decisions == stances
    expected = verdicts.of(won)
    if expected is not None:
        yield proportion("expected_score", expected)
    honest, dishonest = (verdicts.of(won, (stances == verdicts.labels) == is_true) for is_true in (True, False))
    if honest is not None and dishonest is not None:
        yield _difference("score_difference", honest, dishonest)


def seat_numbers(verdicts: Verdicts, stances: Codes) -> Iterator[Number]:
    """What one seat comes to, over both of its players. `stances`: what is argued there in each game."""
    if (score := verdicts.of(verdicts.decisions == stances)) is not None:
        yield proportion("seat_score", score)


def forecast_numbers(
    forecasts: Forecasts, kind: str, bounds: tuple[float, float] = (0.0, 0.0)
) -> Iterator[Number]:  # fmt: skip
    """What probabilities come to; `kind` ends each name.

    `bounds`: the share of them that are bounds only, which leaves AUROC open, and of those that may be far from the
    probability, which leaves all numbers open.
    """
    for number in _forecast_numbers(forecasts, kind):
        reason = only_bounds(number.metric, *bounds)
        yield number if reason is None else replace(number, ci_low=None, ci_high=None, reason=reason)


def _forecast_numbers(forecasts: Forecasts, kind: str) -> Iterator[Number]:
    counts = forecasts.n, forecasts.brier.clusters
    yield proportion(f"brier_{kind}", forecasts.brier)
    for name, value, interval in (
        ("reliability", forecasts.reliability, forecasts.reliability_interval),
        ("resolution", forecasts.resolution, forecasts.resolution_interval),
        ("uncertainty", forecasts.uncertainty, None),
    ):
        yield _number(f"brier_{name}_{kind}", value, None, interval, counts)
    score, most = forecasts.log_score, forecasts.most_log_score
    low, high = score.interval
    error = None if score.stderr is None else most * score.stderr
    yield _number(f"log_score_{kind}", most * score.value, error, (most * low, most * high), counts)
    yield _number(f"ece_{kind}", forecasts.ece, forecasts.ece_error, forecasts.ece_interval, counts)
    area = auroc(forecasts.p, forecasts.y, forecasts.clusters, forecasts.total)
    if area is not None:
        yield proportion(f"auroc_{kind}", area)


_AT_EFFECTIVE_SIZE = "Wilson 1927 at the effective sample size of the clustered error"
_PUT_TOGETHER = "of two shares, each by Wilson 1927 at its effective sample size, put together by Zou and Donner 2008"
METHODS = {
    ("sensitivity", "criterion"): (
        "z of H and F, of decided games, with half a game added (Hautus 1995); error: delta method; "
        f"interval: {_PUT_TOGETHER}"
    ),
    ("balanced_accuracy", "swap_effect", "score_difference"): f"interval: {_PUT_TOGETHER}",
    (
        "completeness", "soundness_error", "undecided_0", "undecided_1", "always_failed",
        "pair_score", "persuasion_0", "persuasion_1", "confidence_disagreement", "brier",
    ): f"interval: {_AT_EFFECTIVE_SIZE}",
    ("majority_accuracy",): (
        "the majority of k plays, the largest odd k up to 99 that nine in ten datapoints were played as often as: the "
        f"mean over all choices of k plays, a tie of decided verdicts half right; interval: {_AT_EFFECTIVE_SIZE}"
    ),
    ("confidence_bounds",): (
        "the share of probabilities that the top log-probabilities only bound; the bound is taken as the probability; "
        f"interval: {_AT_EFFECTIVE_SIZE}"
    ),
    ("position_bias",): (
        "P(verdict = stance of the first seat) - P(verdict = stance of the other), mean over both ways to give the "
        f"stances and both labels: P(accept) by the first seat's stance; interval: {_PUT_TOGETHER}"
    ),
    ("expected_score",): (
        f"P(verdict = what the agent argues), of the entry of `agents` in either seat; interval: {_AT_EFFECTIVE_SIZE}"
    ),
    ("seat_score",): f"P(verdict = what the seat argues), over both players; interval: {_AT_EFFECTIVE_SIZE}",
    ("log_score",): f"-ln P(label), P from {LOG_FLOOR} to {1 - LOG_FLOOR}; interval: {_AT_EFFECTIVE_SIZE}",
    ("auroc",): f"Mann-Whitney, error clustered (Obuchowski 1997); interval: {_AT_EFFECTIVE_SIZE}",
    ("ece", "brier_reliability", "brier_resolution"): (
        f"{BINS} bins of equal width; interval: bounds of a norm by the bins' clustered covariance; error of ECE: "
        "linearised, too small where the judge is nearly calibrated"
    ),
}  # fmt: skip


def methods(metrics: Collection[str]) -> dict[str, str]:
    """How these metrics and their intervals are counted, by metric; only of those that are named here."""
    return {
        metric: text
        for names, text in METHODS.items()
        for name in names
        for metric in (name, f"{name}_stated", f"{name}_logprob")
        if metric in metrics
    }


def proportion(metric: str, found: Share) -> Number:
    """A share with Wilson's interval at the effective sample size."""
    return _number(metric, found.value, found.stderr, found.interval, (found.n, found.clusters))


def _balanced(right: Share, wrong: Share) -> Number:
    """(P(right | 1) + P(right | 0)) / 2."""
    turned = Share(1 - wrong.value, -wrong.influence, wrong.n, wrong.clusters, wrong.cap)
    low, high = difference_interval(right, turned)
    ends = max(0.0, (1 + low) / 2), min(1.0, (1 + high) / 2)
    return _number(
        "balanced_accuracy",
        (right.value + wrong.value) / 2,
        difference_error(right, turned, 0.5),
        ends,
        _both(right, wrong),
    )


def _signal(signal: Signal) -> Iterator[Number]:
    counts = _both(signal.hits, signal.false_alarms)
    for name, value, error, interval in (
        ("sensitivity", signal.sensitivity, signal.sensitivity_error, signal.sensitivity_interval),
        ("criterion", signal.criterion, signal.criterion_error, signal.criterion_interval),
    ):
        yield _number(name, value, error, interval, counts, open_end=signal.open_end)


def _difference(metric: str, first: Share, second: Share) -> Number:
    interval = difference_interval(first, second)
    return _number(metric, first.value - second.value, difference_error(first, second), interval, _both(first, second))


def _both(first: Share, second: Share) -> tuple[int, int]:
    return first.n + second.n, min(first.clusters, second.clusters)


def _number(
    metric: str, value: float, stderr: float | None, interval: Interval | None, counts: tuple[int, int], *,
    open_end: str | None = None,
) -> Number:  # fmt: skip
    n, clusters = counts
    reason = hindrance(metric, clusters)
    if reason is not None or interval is None:
        return Number(metric, value, stderr, None, None, n, clusters, reason)
    low, high = (end if math.isfinite(end) else None for end in interval)
    return Number(metric, value, stderr, low, high, n, clusters, open_end)
