"""The rows of a run's `metrics.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict

ESTIMATE_FIELDS = ("value", "stderr", "ci_low", "ci_high", "n", "clusters")
"""The numbers of a metric, with their interval."""


class MetricRow(TypedDict):
    """The value of a metric. `runner.results.estimates.Estimate` describes the keys."""

    agent: str | None
    metric: str
    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    clusters: int
    reason: NotRequired[str | None]
    plays: NotRequired[int]


class ReliabilityRow(TypedDict):
    """A point of a reliability curve. `runner.statistics.calibration.Bin` describes the keys."""

    low: float
    high: float
    n: int
    confidence: float
    right: float
    ci_low: float | None
    ci_high: float | None


class MonitorPoint(TypedDict):
    """A point of a monitor's curve. `runner.statistics.monitoring.ranked_games.CurvePoint` describes the keys."""

    share: float
    threshold: float
    attacks_found: float
    ci_low: float | None
    ci_high: float | None


class MonitorCurves(TypedDict):
    """The curves of a monitor, the number of games of each kind, and the reason if there are no intervals."""

    attacks: int
    benign: int
    no_score: int
    reason: str | None
    roc: list[MonitorPoint]
    audit: list[MonitorPoint]


def find_metric_row(metrics: Mapping[str, Any], name: str, agent: str | None = None) -> MetricRow | None:
    """Return the row of a metric of the whole game, or of an agent, in a `metrics.json`; None if there is none."""
    rows: Iterable[MetricRow] = metrics.get("metrics") or ()
    return next((row for row in rows if (row.get("agent"), row.get("metric")) == (agent, name)), None)
