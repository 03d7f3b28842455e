"""The theoretical behavior of planted judges, and estimates of it from a run's tables, independent of `runner`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from tests.support.runs import table
from tests.support.servers.judges import SIGN, Judge

NORMAL = NormalDist()
Z_95 = 1.959964


@dataclass(frozen=True)
class Estimate:
    """An estimate with its standard error, for independent games."""

    value: float
    stderr: float

    @property
    def interval(self) -> tuple[float, float]:
        return self.value - Z_95 * self.stderr, self.value + Z_95 * self.stderr

    def is_near(self, truth: float) -> bool:
        """Return whether the estimate is within three standard errors of the true value."""
        return abs(self.value - truth) <= 3 * self.stderr

    def contains(self, truth: float) -> bool:
        low, high = self.interval
        return low <= truth <= high


def acceptance_probability(judge: Judge, label: int, arguments: Sequence[tuple[str, float]] = ()) -> float:
    """Return the probability that a judge accepts.

    `arguments` are the side and the force of each argument, in the order of the debate.
    """
    shift = sum(SIGN[side] * force for side, force in arguments)
    probability_by_evidence = NORMAL.cdf((judge.sensitivity / 2) * (1 if label else -1) + shift - judge.criterion)
    follow_share = judge.follows_first if arguments else 0.0
    return (1 - follow_share) * probability_by_evidence + follow_share * (
        bool(arguments) and arguments[0][0] == "accept"
    )


def estimate_share(values: Iterable[bool]) -> Estimate:
    """Estimate a share with the method of Agresti and Coull."""
    outcomes = list(values)
    n, successes = len(outcomes) + Z_95 * Z_95, sum(outcomes) + Z_95 * Z_95 / 2
    return Estimate(successes / n, math.sqrt(successes / n * (1 - successes / n) / n))


def estimate_signal_detection(rows: Sequence[dict[str, Any]]) -> tuple[Estimate, Estimate]:
    """Estimate d' and c from the rows of `rollouts`.

    Half a game is added to each count (Hautus 1995). The standard errors are computed with the delta method.
    """
    z, variance = [], []
    for label in (1, 0):
        decisions = [row["decision"] for row in rows if row["y"] == label]
        n = len(decisions) + 1
        rate = (decisions.count(1) + 0.5) / n
        z.append(NORMAL.inv_cdf(rate))
        variance.append(rate * (1 - rate) / n / NORMAL.pdf(z[-1]) ** 2)
    error = math.sqrt(sum(variance))
    return Estimate(z[0] - z[1], error), Estimate(-(z[0] + z[1]) / 2, error / 2)


def estimate_first_seat_lead(rows: Sequence[dict[str, Any]]) -> Estimate:
    """Estimate how much more often the first debater wins than the second, if both argue for both verdicts."""
    return estimate_mean(
        (row["decision"] == int(row["stances_exchanged"])) - (row["decision"] == int(not row["stances_exchanged"]))
        for row in rows
    )


def estimate_win_share(rows: Sequence[dict[str, Any]], player: int) -> Estimate:
    """Estimate how often a player of a debate wins: player 0 is listed first in the spec, player 1 second."""
    return estimate_share(
        row["decision"] == (player ^ bool(row["swapped"]) ^ bool(row["stances_exchanged"])) for row in rows
    )


def read_confidences(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return label and P(accept) of each verdict by kind of confidence: stated as a number, or log-probability."""
    labels = {row["rollout_id"]: row["y"] for row in table(run, "rollouts")}
    pairs: dict[str, list[tuple[int, float]]] = {"stated": [], "logprob": []}
    for row in table(run, "completions"):
        accepts = "Decision: accept" in row["raw_message"]
        stated = re.search(r"Confidence: ([0-9.]+)", row["raw_message"])
        if row["agent"] == "verifier" and stated:
            pairs["stated"].append((labels[row["rollout_id"]], abs((not accepts) - float(stated[1]))))
        if row["verdict_logprobs"]:
            tops = json.loads(row["verdict_logprobs"])[-1]["top"]
            pairs["logprob"].append((labels[row["rollout_id"]], math.exp(tops[" accept"])))
    return pairs


def estimate_brier(pairs: Sequence[tuple[int, float]]) -> Estimate:
    return estimate_mean(((label - p) ** 2 for label, p in pairs))


def estimate_mean(values: Iterable[float]) -> Estimate:
    sample = list(values)
    mean = sum(sample) / len(sample)
    variance = sum((value - mean) ** 2 for value in sample) / (len(sample) - 1)
    return Estimate(mean, math.sqrt(variance / len(sample)))


def expected_value(judge: Judge, function: Callable[[int, float], float], steps: int = 4000) -> float:
    """Return the mean of a function of label and P(accept) over the observations of a judge without arguments.

    Both labels are equally likely.
    """
    total = 0.0
    for label in (0, 1):
        mean = (judge.sensitivity / 2) * (1 if label else -1)
        for step in range(steps):
            observation = mean + NORMAL.inv_cdf((step + 0.5) / steps)
            total += function(label, 1 / (1 + math.exp(-judge.sharpness * judge.sensitivity * observation)))
    return total / (2 * steps)
