"""The worst of several systems, such as a verifier with each of several provers, with an interval that covers it.

The system that looks worst is partly the unluckiest, so its own interval would be too short. Each system gets the
confidence 1 - (1 - 0.95)/m (Bonferroni). All m intervals then hold together at least 95 % of the time, whether the
systems are independent or not. The largest true value is between the largest low end and the largest high end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.statistics.clustered_means import Interval, mover_interval
from runner.statistics.intervals import CONFIDENCE, wilson_interval


@dataclass(frozen=True)
class WorstCase:
    """The worst of several proportions; `ci_low` and `ci_high` cover the worst true value, whichever system has it."""

    system: str
    value: float
    ci_low: float | None
    ci_high: float | None
    systems: int
    reason: str | None = None
    """The reason why there is no interval: one of the systems has none."""


def find_worst_case(systems: Mapping[str, Mapping[str, Any]], *, most: bool) -> WorstCase:
    """Return the largest (`most`) or the smallest of proportions by name.

    Each is a row of `metrics.json`: `value`, `stderr`, `ci_low`, `ci_high`, `n`, `clusters`, and `reason` if it has no
    interval. Two more keys: `grouped`, whether a cluster has several datapoints, and for the mean of two shares
    `parts`, their rows. A single system has its own interval.

    Raises:
        ValueError: there is no system, a system has no value, or the metric depends on the number of plays and the
            systems have different numbers.
    """
    if not systems:
        raise ValueError("no system to find the worst of")
    without = [name for name, row in systems.items() if row["value"] is None]
    if without:
        raise ValueError(f"{', '.join(sorted(without))}: no value; leave it out, or finish the run")
    plays = {name: row["plays"] for name, row in sorted(systems.items()) if row.get("plays") is not None}
    if len(set(plays.values())) > 1:
        counts = ", ".join(f"{name} {count} times" for name, count in plays.items())
        raise ValueError(f"it falls with every further play of a datapoint: {counts}; play all as often")
    pick = max if most else min
    name = pick(sorted(systems), key=lambda candidate: systems[candidate]["value"])
    for with_reason, row in sorted(systems.items()):
        if reason := row.get("reason"):
            return WorstCase(name, systems[name]["value"], None, None, len(systems), f"{with_reason}: {reason}")
    if len(systems) == 1:
        return WorstCase(name, systems[name]["value"], systems[name]["ci_low"], systems[name]["ci_high"], 1)
    level = 1 - (1 - CONFIDENCE) / len(systems)
    ends = [_interval(row, level) for row in systems.values()]
    low, high = (pick(end[i] for end in ends) for i in (0, 1))
    return WorstCase(name, systems[name]["value"], low, high, len(systems))


def _interval(row: Mapping[str, Any], level: float) -> Interval:
    if row.get("parts"):
        return _mean_interval(row, level)
    largest_size = math.inf if row.get("grouped") else float(row["n"])
    return wilson_interval(row["value"], row["stderr"], largest_size, row["clusters"], level)


def _mean_interval(row: Mapping[str, Any], level: float) -> Interval:
    """Return the interval of (a + b) / 2, from both intervals and the correlation implied by the error of the mean."""
    first, second = row["parts"]
    (low, high), (other_low, other_high) = (
        _interval({**part, "grouped": row.get("grouped")}, level) for part in (first, second)
    )
    errors = [part["stderr"] or 0.0 for part in (first, second)]
    covariance_term = 4 * (row["stderr"] or 0.0) ** 2 - errors[0] ** 2 - errors[1] ** 2
    # If each datapoint is a cluster, the two labels are in different clusters and are not correlated.
    is_correlated = row.get("grouped") and errors[0] and errors[1]
    correlation = min(1.0, max(-1.0, -covariance_term / (2 * errors[0] * errors[1]))) if is_correlated else 0.0
    complement = (1 - second["value"], 1 - other_high, 1 - other_low)
    ends = mover_interval((first["value"], low, high), complement, correlation)
    return max(0.0, (1 + ends[0]) / 2), min(1.0, (1 + ends[1]) / 2)
