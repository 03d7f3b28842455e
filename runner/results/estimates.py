"""Compute metrics of verdicts and probabilities, each with its interval or the reason why it has none."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from runner.results.metric_definitions import METRICS, Metric, Source, metrics_of
from runner.statistics.calibration import Forecasts
from runner.statistics.clustered_means import Quantity, Share


@dataclass(frozen=True)
class Estimate:
    """The value of a metric in a run: a row of `metrics.json`."""

    agent: str | None
    """The agent; None for the whole game."""
    metric: str
    """The metric's name."""
    value: float | None
    stderr: float | None
    ci_low: float | None
    """The low end of the 95 % interval; None if there is no interval, or if this end is infinite."""
    ci_high: float | None
    n: int
    """The number of values whose mean is the metric."""
    clusters: int
    """The number of groups of datapoints. Metrics that need both labels count only groups with the rarer label;
    `worst_datapoint_accuracy` counts datapoints."""
    reason: str | None = None
    """The reason why there is no value or no interval, or why an end is infinite."""
    plays: int | None = None
    """The maximum number of plays of a datapoint, or k of vote@k; None for metrics that do not depend on it."""

    def to_json(self) -> dict[str, Any]:
        """Return a row of `metrics.json`, which has `plays` only if it is not None."""
        return {name: value for name, value in vars(self).items() if name != "plays" or value is not None}


def estimate(metric: Metric, result: Share | Quantity, agent: str | None = None) -> Estimate:
    """Return the estimate of a metric, with an interval if the metric's rule allows it."""
    quantity = result.as_quantity() if isinstance(result, Share) else result
    reason = quantity.reason if quantity.value is None else metric.rule.missing_reason(quantity.clusters)
    low = high = None
    if reason is None and quantity.interval is not None:
        low, high = (end if math.isfinite(end) else None for end in quantity.interval)
        reason = quantity.reason
    return Estimate(
        agent, metric.name, quantity.value, quantity.stderr, low, high, quantity.n, quantity.clusters, reason,
        quantity.plays,
    )  # fmt: skip


def estimates_of(
    source: Source, *arguments: Any, agent: str | None = None, kind: str | None = None
) -> Iterator[Estimate]:
    """Yield the metrics of a source that apply. `arguments` are those of `Metric.compute` that `Source` lists."""
    for metric in metrics_of(source, kind=kind):
        assert metric.compute is not None
        if (result := metric.compute(*arguments)) is not None:
            yield estimate(metric, result, agent)


def forecast_estimates(
    forecasts: Forecasts, kind: str, bounds: tuple[float, float] = (0.0, 0.0)
) -> Iterator[Estimate]:  # fmt: skip
    """Yield the metrics of probabilities. `bounds` has the shares that `IntervalRule.bounds_reason` takes."""
    for result in estimates_of(Source.FORECASTS, forecasts, kind=kind):
        reason = METRICS[result.metric].rule.bounds_reason(*bounds)
        yield result if reason is None else replace(result, ci_low=None, ci_high=None, reason=reason)


def interval_methods(names: Collection[str]) -> dict[str, str]:
    """Return how the interval of each of these metrics is computed, except means, which share one method."""
    return {metric.name: metric.method for metric in METRICS.values() if metric.name in names and metric.method}
