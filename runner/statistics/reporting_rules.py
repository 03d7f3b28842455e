"""Where an interval is not told, and why: where it holds the truth in fewer than 90 % of benchmarks, or nobody knows.

What decides is the number of clusters behind it, by kind of number, as `benchmarks/proofs/coverage_metrics.py` measures
it; its table is `benchmarks/coverage.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

FEWEST_CLUSTERS: Mapping[str, int] = {"brier": 100, "log_score": 100}
"""A judge that is sure errs seldom and then by much: few groups may hold none of its errors.

Of one too sure of strong evidence, 1,000 intervals of the Brier score held the truth 75.2 % of the time at 20
datapoints, 89.8 % at 50 and 94.8 % at 100; of the log score 70.7, 85.2 and 92.3 %.
"""
FEWEST_OF_ANY = 5
"""Of any other number, and the fewest that are measured; of each label, where a number is of right and wrong ones."""
BY_LABEL = frozenset(
    (
        "balanced_accuracy", "sensitivity", "criterion", "score_difference", "position_bias", "auroc",
    )
)  # fmt: skip
"""Numbers of right and of wrong solutions, whose `clusters` are those of the rarer label."""
OF_EACH = " of each label"
UNDER = "the measured coverage of such intervals is under 90 %"
UNKNOWN = "how often such intervals hold the truth is not measured"
FEWEST_DIFFERING = 10
"""Groups whose mean is not the commonest, from which on Student's t is told of a mean that is no share.

Where hardly a group differs, those that do may all be missing: of a value that one group in twenty has, 1,000 such
intervals held the truth 65 % of the time at 20 datapoints and 88 % at 100. With this rule it is at least 90 % wherever
a fifth of the runs have an interval.
"""
MOST_BOUNDS = 0.05
"""Of probabilities by log-probabilities that are bounds only, where intervals are told all the same."""
NO_INTERVAL: Mapping[str, str] = {
    "brier_uncertainty": "it follows from the labels of the chosen datapoints, not from the judge",
}


def hindrance(metric: str, clusters: int) -> str | None:
    """Why a metric has no interval with so many clusters; None where it has one."""
    name = metric.removesuffix("_stated").removesuffix("_logprob")
    if name in NO_INTERVAL:
        return NO_INTERVAL[name]
    fewest = FEWEST_CLUSTERS.get(name, FEWEST_OF_ANY)
    if clusters < fewest:
        why = UNDER if name in FEWEST_CLUSTERS else UNKNOWN
        return f"fewer than {fewest} groups of datapoints{OF_EACH if name in BY_LABEL else ''}: {why}"
    return None


def near_constant(differing: int) -> str | None:
    """Why the mean of a value that is no share has no interval, by how many groups differ from the commonest."""
    if differing == 0:
        return "every group has the same value, which leaves its error open"
    if differing < FEWEST_DIFFERING:
        return f"fewer than {FEWEST_DIFFERING} groups differ from the commonest value: {UNDER}"
    return None


def only_bounds(metric: str, share: float, loose: float) -> str | None:
    """Why a number of probabilities has no interval, by the shares that are bounds, and bounds far from 0 and 1."""
    found = share if metric.startswith("auroc") else loose
    if found <= MOST_BOUNDS:
        return None
    return f"{found:.0%} of the probabilities are only bounds (more of top_logprobs tells them)"
