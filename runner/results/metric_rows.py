"""Format a run's metrics as the rows of a table, and the lines below the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.text import decimal, with_interval
from runner.results.metric_definitions import (
    BALANCED_ACCURACY,
    CRITERION,
    DECISION,
    JUDGE_ACCURACY,
    JUDGE_ADVANTAGE,
    MAJORITY_ACCURACY,
    METRICS,
    RANKING_METRIC,
    SENSITIVITY,
)
from runner.results.metrics_file import MetricRow, find_metric_row

_PAIR_VALUES = ("agreement", "kappa")
COLUMNS = ("of", "metric", "value [95% interval]", "n", "clusters")


def metric_rows(metrics: Mapping[str, object], *, include_minor: bool = True) -> list[tuple[Any, ...]]:
    """Return a row with `COLUMNS` for each meaningful metric of a `metrics.json`."""
    return [
        (
            row["agent"] or "game", metric_label(row["metric"], row.get("plays")), format_metric(row), row["n"],
            row["clusters"],
        )
        for row in meaningful_metrics(metrics)
        if include_minor or not is_minor(row["metric"])
    ]  # fmt: skip


def meaningful_metrics(metrics: Mapping[str, Any]) -> list[MetricRow]:
    """Return the metrics, those of the whole game first, without `decision` if a game is undecided.

    `decision` is the mean of 0 (reject), 1 (accept) and 2 (none), which has no meaning if there is a 2.
    """
    outcomes: Mapping[str, int] = metrics["outcomes"]
    undecided = sum(outcomes.values()) - outcomes.get("decided", 0)
    agents = list(dict.fromkeys([None, *(row["agent"] for row in metrics["metrics"])]))
    rows: list[MetricRow] = sorted(metrics["metrics"], key=lambda row: agents.index(row["agent"]))
    return [row for row in rows if not (undecided and row["metric"] == DECISION)]


def is_minor(metric: str) -> bool:
    """Return whether short lists leave out a metric."""
    return metric in METRICS and METRICS[metric].is_minor


def metric_label(metric: str, plays: int | None = None) -> str:
    """Return the name of a metric, with its symbol, an explanation or the number of plays that it depends on."""
    if plays is not None:
        return f"{metric} (vote@{plays})" if metric == MAJORITY_ACCURACY else f"{metric} (of {plays} each)"
    symbol = METRICS[metric].symbol if metric in METRICS else ""
    return f"{metric} ({symbol})" if symbol else metric


def format_metric(row: MetricRow) -> str:
    """Return a metric's value with its interval, and for `criterion` whether the judge is biased."""
    low, high = row["ci_low"], row["ci_high"]
    value = with_interval(row["value"], low, high)
    if row["metric"] != CRITERION or low is None or high is None:
        return value
    return f"{value} {'leans to reject' if low > 0 else 'leans to accept' if high < 0 else 'no bias detected'}"


def missing_intervals(metrics: Mapping[str, Any]) -> list[str]:
    """Return a line for each reason why metrics have no interval or no value, with the names of these metrics."""
    names_by_reason: dict[str, dict[str, None]] = {}  # dictionaries instead of sets, since these keep the order
    for row in metrics["metrics"]:
        reason = row.get("reason")
        if reason and row["n"]:
            missing = "value" if row["value"] is None else "interval"
            names_by_reason.setdefault(f"{missing}: {reason}", {})[row["metric"]] = None
    return [f"{', '.join(names)}: no {reason}" for reason, names in names_by_reason.items()]


def signal_rows(metrics: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the rows of a summary about balanced accuracy, d' and c; empty if there are too few datapoints.

    d' and c come from signal detection theory; see `runner.statistics.signal_detection`.
    """
    by_name = {row["metric"]: row for row in metrics["metrics"] if row["agent"] is None}
    balanced = by_name.get(BALANCED_ACCURACY)
    if balanced is None or balanced["ci_low"] is None:
        return ()
    rows = [("balanced", f"{format_metric(balanced)} (mean accuracy of the two labels)")]
    names = [name for name in (SENSITIVITY, CRITERION) if name in by_name]
    signals = ", ".join(f"{METRICS[name].symbol} {format_metric(by_name[name])}" for name in names)
    return [*rows, ("signal", signals)] if names else rows


def judge_rows(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a summary about the judges of a panel; empty without a panel."""
    by_judge = [row for row in metrics["metrics"] if row["metric"] == JUDGE_ACCURACY and row["n"]]
    advantages = {row["agent"]: row for row in metrics["metrics"] if row["metric"] == JUDGE_ADVANTAGE}
    return [
        (row["agent"], f"{format_metric(row)} alone; minus the panel: {format_metric(advantages[row['agent']])}")
        for row in by_judge
    ]


def lost_games_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return a line with the lowest and highest accuracy that the lost games allow; empty if no game was lost."""
    lost, accuracy = metrics["outcomes"].get("transport_failed", 0), find_metric_row(metrics, RANKING_METRIC)
    if not lost or accuracy is None or accuracy["value"] is None:
        return []
    right, total = accuracy["value"] * accuracy["n"], accuracy["n"] + lost
    bounds = f"{decimal(right / total)} to {decimal((right + lost) / total)}"
    return [f"lost in transport: {lost} of {total} games; with any verdicts of these, accuracy would be {bounds}"]


def _interval_notes(metrics: Mapping[str, Any], *, include_minor: bool) -> Iterator[str]:
    """Yield notes on the number of intervals that are shown, and on the effect of clustering on accuracy."""
    rows = [row for row in meaningful_metrics(metrics) if include_minor or not is_minor(row["metric"])]
    intervals = sum(row["ci_low"] is not None for row in (*rows, *metrics.get("vote_curve", ())))
    if intervals > 1:
        yield f"{intervals} intervals of 95 %, not adjusted for their number: about 1 in 20 misses its true value"
    accuracy = find_metric_row(metrics, RANKING_METRIC)
    if accuracy is None or accuracy["value"] is None or accuracy["value"] in (0, 1) or not accuracy["stderr"]:
        return
    value, games, clusters = accuracy["value"], accuracy["n"], accuracy["clusters"]
    design_effect = accuracy["stderr"] ** 2 * games / (value * (1 - value))
    text = f"design effect of accuracy: {decimal(design_effect, 2)} (its variance over that of independent games)"
    if games > clusters:  # Kish 1965: design effect = 1 + (games in a cluster - 1) * intraclass correlation
        text += f"; intraclass correlation {decimal((design_effect - 1) / (games / clusters - 1), 2)}"
    yield text


def section_lines(metrics: Mapping[str, Any], *, include_minor: bool = True) -> list[str]:
    """Return lines about the intervals, lost games, the stopping rule, vote@k and the variance of scores.

    `include_minor` says whether the table above the lines includes minor metrics, whose intervals are counted then.
    """
    lines = [*_interval_notes(metrics, include_minor=include_minor), *lost_games_lines(metrics)]
    if until := metrics.get("until"):
        lines.append(f"until: {until['note']}; accuracy has its confidence sequence")
    if votes := metrics.get("vote_curve"):
        votes_text = (f"{vote['k']}: {with_interval(vote['value'], vote['ci_low'], vote['ci_high'])}" for vote in votes)
        lines.append(f"vote@k: {', '.join(votes_text)}")
    for pair in metrics.get("judge_pairs", ()):
        values = {name: (pair[name]["value"], pair[name]["ci_low"], pair[name]["ci_high"]) for name in _PAIR_VALUES}
        equal, kappa = (with_interval(*values[name]) for name in _PAIR_VALUES)
        kappa = pair["kappa"]["reason"] or f"kappa {kappa}"
        lines.append(f"{pair['first']} and {pair['second']} give the same verdict: {equal}, {kappa}")
    if split := metrics.get("variance"):
        repeats = split["enough_repeats"]
        more = f"more than {repeats} repeat{'s' * (repeats != 1)} of each datapoint are useless ({split['rule']})"
        if repeats is None:
            more = "groups do not differ, so a repeat is worth as much as another group"
        between, within = decimal(split["between"]), decimal(split["within"])
        lines.append(f"variance: {between} between groups, {within} within one; {more}")
    return lines
