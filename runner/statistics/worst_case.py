"""The worst of several systems, such as a verifier beside each of several provers, with an interval for all at once.

The one that looks worst of several is partly the unluckiest: an interval of its own would be too short. Each is given
the confidence 1 - (1 - 0.95)/m (Bonferroni), under which all m hold together at least 95 % of the time, whether they
are independent or not; the largest of the truths is then between the largest low end and the largest high end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.statistics.clustered_means import Interval, recovered
from runner.statistics.intervals import CONFIDENCE, wilson


@dataclass(frozen=True)
class WorstCase:
    """The worst of several proportions. `ci_low` and `ci_high` are of the worst truth, whichever system's it is."""

    system: str
    value: float
    ci_low: float | None
    ci_high: float | None
    systems: int
    reason: str | None = None
    """Why there is no interval: one of the systems has none."""


def worst(systems: Mapping[str, Mapping[str, Any]], *, most: bool) -> WorstCase:
    """The largest (`most`) or the smallest of proportions, by name.

    Each is a row of `metrics.json`: `value`, `stderr`, `ci_low`, `ci_high`, `n`, `clusters`, and `reason`, where it has
    no interval. Two more keys: `grouped`, whether a cluster has several datapoints, and `parts`, of a mean of two
    shares, their rows. Of a single system, the interval is its own.

    Raises:
        ValueError: there is none, one has no value, or of a number that depends on it, datapoints were played more
            often in one than in another.
    """
    if not systems:
        raise ValueError("no system to find the worst of")
    without = [name for name, row in systems.items() if row["value"] is None]
    if without:
        raise ValueError(f"{', '.join(sorted(without))}: no value; leave it out or play it to its end")
    plays = {name: row["plays"] for name, row in sorted(systems.items()) if row.get("plays") is not None}
    if len(set(plays.values())) > 1:
        told = ", ".join(f"{name} {count} times" for name, count in plays.items())
        raise ValueError(f"it falls with every further play of a datapoint: {told}; play all as often")
    pick = max if most else min
    name = pick(sorted(systems), key=lambda one: systems[one]["value"])
    for other, row in sorted(systems.items()):
        if reason := row.get("reason"):
            return WorstCase(name, systems[name]["value"], None, None, len(systems), f"{other}: {reason}")
    if len(systems) == 1:
        return WorstCase(name, systems[name]["value"], systems[name]["ci_low"], systems[name]["ci_high"], 1)
    level = 1 - (1 - CONFIDENCE) / len(systems)
    ends = [_interval(row, level) for row in systems.values()]
    low, high = (pick(end[i] for end in ends) for i in (0, 1))
    return WorstCase(name, systems[name]["value"], low, high, len(systems))


def _interval(row: Mapping[str, Any], level: float) -> Interval:
    if row.get("parts"):
        return _mean_interval(row, level)
    most = math.inf if row.get("grouped") else float(row["n"])
    return wilson(row["value"], row["stderr"], most, row["clusters"], level)


def _mean_interval(row: Mapping[str, Any], level: float) -> Interval:
    """Of (a + b) / 2, from the intervals of both and the correlation that the error of the mean tells."""
    first, second = row["parts"]
    (low, high), (other_low, other_high) = (
        _interval({**one, "grouped": row.get("grouped")}, level) for one in (first, second)
    )
    errors = [one["stderr"] or 0.0 for one in (first, second)]
    apart = 4 * (row["stderr"] or 0.0) ** 2 - errors[0] ** 2 - errors[1] ** 2
    # Datapoints that are clusters of their own have one label, and nothing to correlate.
    known = row.get("grouped") and errors[0] and errors[1]
    correlation = min(1.0, max(-1.0, -apart / (2 * errors[0] * errors[1]))) if known else 0.0
    turned = (1 - second["value"], 1 - other_high, 1 - other_low)
    ends = recovered((first["value"], low, high), turned, correlation)
    return max(0.0, (1 + ends[0]) / 2), min(1.0, (1 + ends[1]) / 2)
