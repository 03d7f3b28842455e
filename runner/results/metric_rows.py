"""The metrics of a run as the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.base.text import decimal, with_interval
from runner.results.metric_table import (
    BALANCED_ACCURACY,
    CRITERION,
    DECISION,
    MAJORITY_ACCURACY,
    METRICS,
    SENSITIVITY,
)

COLUMNS = ("of", "metric", "value [95% interval]", "n", "clusters")


def metric_rows(metrics: Mapping[str, Any], *, whole: bool = True) -> list[tuple[Any, ...]]:
    """A row for each metric that says something; without `whole`, not for what few ask about."""
    return [
        (m["agent"] or "game", shown_name(m["metric"], m.get("plays")), shown_value(m), m["n"], m["clusters"])
        for m in told_metrics(metrics)
        if whole or not is_aside(m["metric"])
    ]


def told_metrics(metrics: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The metrics that say something, the whole game's first.

    `decision` is the mean of 0 (reject), 1 (accept) and 2 (none): with a game that was not decided, it is no share.
    """
    outcomes: Mapping[str, int] = metrics["outcomes"]
    undecided = sum(outcomes.values()) - outcomes.get("decided", 0)
    agents = list(dict.fromkeys([None, *(m["agent"] for m in metrics["metrics"])]))
    told = sorted(metrics["metrics"], key=lambda m: agents.index(m["agent"]))
    return [m for m in told if not (undecided and m["metric"] == DECISION)]


def is_aside(metric: str) -> bool:
    """Whether short lists leave a metric out."""
    return metric in METRICS and METRICS[metric].is_minor


def shown_name(metric: str, plays: int | None = None) -> str:
    """The name of a metric, with the sign that the field knows it by, or with the plays that it depends on."""
    if plays is not None:
        return f"{metric} (vote@{plays})" if metric == MAJORITY_ACCURACY else f"{metric} (of {plays} each)"
    symbol = METRICS[metric].symbol if metric in METRICS else ""
    return f"{metric} ({symbol})" if symbol else metric


def shown_value(row: Mapping[str, Any]) -> str:
    """A metric's value with its interval; of a criterion, which way the judge leans, where that can be told."""
    low, high = row["ci_low"], row["ci_high"]
    value = with_interval(row["value"], low, high)
    if row["metric"] != CRITERION or low is None or high is None:
        return value
    return f"{value} {'leans to reject' if low > 0 else 'leans to accept' if high < 0 else 'no bias detected'}"


def reasons(metrics: Mapping[str, Any], *, whole: bool = True) -> list[str]:
    """Why metrics have no interval or no value: a line for each reason, with the metrics that it is of."""
    told: dict[str, list[str]] = {}  # by what is missing and why, metrics
    for row in metrics["metrics"]:
        reason = row.get("reason")
        if reason and row["n"] and (whole or not is_aside(row["metric"])):
            names = told.setdefault(f"{'value' if row['value'] is None else 'interval'}: {reason}", [])
            names.extend([row["metric"]] if row["metric"] not in names else [])
    return [f"{', '.join(names)}: no {reason}" for reason, names in told.items()]


def judging_rows(metrics: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Balanced accuracy, d' and c for a summary; nothing where there are too few datapoints to show them."""
    found = {row["metric"]: row for row in metrics["metrics"] if row["agent"] is None}
    balanced = found.get(BALANCED_ACCURACY)
    if balanced is None or balanced["ci_low"] is None:
        return ()
    rows = [("balanced", f"{shown_value(balanced)} (accuracy, both labels alike)")]
    told = [f"{METRICS[name].symbol} {shown_value(found[name])}" for name in (SENSITIVITY, CRITERION) if name in found]
    return [*rows, ("signal", ", ".join(told))] if told else rows


def extra_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Of a run that stops when it is decided, how it did; of one with repeats, how scores vary and what more would do.

    Earlier versions wrote neither.
    """
    lines = []
    if until := metrics.get("until"):
        lines.append(f"until: {until['note']}; accuracy has its confidence sequence")
    if votes := metrics.get("vote_curve"):
        told = (f"{one['k']}: {with_interval(one['value'], one['ci_low'], one['ci_high'])}" for one in votes)
        lines.append(f"vote@k: {', '.join(told)}")
    if found := metrics.get("variance"):
        enough = found["enough_repeats"]
        more = (
            "groups do not differ, so that a repeat tells as much as a further group"
            if enough is None
            else f"more than {enough} repeat{'s' * (enough != 1)} of each datapoint are useless ({found['rule']})"
        )
        lines.append(
            f"variance: {decimal(found['between'])} between groups, {decimal(found['within'])} within one; {more}"
        )
    return lines
