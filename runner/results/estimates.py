"""Compute metrics of verdicts and probabilities, each with its interval or the reason why it has none."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from runner.results.metric_definitions import MAJORITY_ACCURACY, METRICS, Metric, Source, metrics_of
from runner.statistics.calibration import Forecasts
from runner.statistics.clustered_means import Quantity, Share
from runner.statistics.verdicts import Verdicts

_SOURCES_WITH_METHODS = frozenset(Source) - {Source.GAMES, Source.AGENTS, Source.DATAPOINTS}
"""Sources of metrics whose methods are listed in `metrics.json`. Its key `interval` names the method of the others."""


@dataclass(frozen=True)
class Estimate:
    """A metric of a run: a row of `metrics.json`. An end of the interval is None if it is infinite."""

    agent: str | None
    """The agent; None for the whole game."""
    metric: str
    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    """The number of values whose mean is the metric."""
    clusters: int
    """The number of groups of datapoints. Metrics that need both labels count only groups with the rarer label;
    `worst_datapoint_accuracy` counts datapoints."""
    reason: str | None = None
    """The reason why there is no interval or no value."""
    plays: int | None = None
    """For metrics that depend on the plays of each datapoint: the maximum number of plays, or k of vote@k."""

    def to_json(self) -> dict[str, Any]:
        """Return a row of `metrics.json`, which has `plays` only if it is not None."""
        return {name: value for name, value in vars(self).items() if name != "plays" or value is not None}


def estimate(metric: Metric, result: Share | Quantity, agent: str | None = None) -> Estimate:
    """Return the estimate of a metric, with an interval if the metric's rule allows it."""
    quantity = result.as_quantity() if isinstance(result, Share) else result
    counts = quantity.n, quantity.clusters
    reason = quantity.reason if quantity.value is None else metric.rule.missing_reason(quantity.clusters)
    low = high = None
    if reason is None and quantity.interval is not None:
        low, high = (end if math.isfinite(end) else None for end in quantity.interval)
        reason = quantity.reason
    return Estimate(agent, metric.name, quantity.value, quantity.stderr, low, high, *counts, reason, quantity.plays)


def estimates_of(
    source: Source, *arguments: Any, agent: str | None = None, kind: str | None = None
) -> Iterator[Estimate]:
    """Yield the metrics of a source that apply, computed from the arguments that `Source` lists."""
    for metric in metrics_of(source, kind=kind):
        assert metric.compute is not None
        if (result := metric.compute(*arguments)) is not None:
            yield estimate(metric, result, agent)


def forecast_estimates(
    forecasts: Forecasts, kind: str, bounds: tuple[float, float] = (0.0, 0.0)
) -> Iterator[Estimate]:  # fmt: skip
    """Yield the metrics of probabilities; `bounds` is the result of `bound_shares` for them."""
    for result in estimates_of(Source.FORECASTS, forecasts, kind=kind):
        reason = METRICS[result.metric].rule.bounds_reason(*bounds)
        yield result if reason is None else replace(result, ci_low=None, ci_high=None, reason=reason)


def vote_curve(verdicts: Verdicts) -> list[Estimate]:
    """Return vote@k for each odd k, with k as `plays`; empty if datapoints have fewer than three plays.

    The estimate for k = 1 is the accuracy of a single play, with equal weights for datapoints.
    """
    metric = METRICS[MAJORITY_ACCURACY]
    return [estimate(metric, vote.as_quantity(k)) for k, vote in verdicts.votes]


def interval_methods(names: Collection[str]) -> dict[str, str]:
    """Return a description of how each metric of verdicts and probabilities is computed, by name."""
    return {
        metric.name: metric.method
        for metric in METRICS.values()
        if metric.name in names and metric.method and metric.source in _SOURCES_WITH_METHODS
    }
