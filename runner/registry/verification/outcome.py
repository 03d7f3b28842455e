"""Determine from the comparison of a run with a new run of the same game whether the result was reproduced.

This module does not import the code that plays games, so the boards of a server can use it.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.results.comparison.comparison import SystemComparison
from runner.results.comparison.wording import format_difference
from runner.results.metric_definitions import RANKING_METRIC, compared_metric
from runner.statistics.differences import Difference
from runner.statistics.significance import ALPHA

MARGIN = 0.1
"""The default of `--margin`: the largest difference of a reproduced result, as a share of the metric's scale."""


def describe_outcome(
    pair: SystemComparison, agents: Iterable[str], metric: str = RANKING_METRIC, margin: float = MARGIN
) -> tuple[str, str]:
    """Return the outcome (`reproduced`, `drifted` or `undecided`) and a sentence with the difference or the reason.

    The base of `pair` is the published run.
    """
    measure = compared_metric(metric, sorted(agents))
    difference = Difference(pair.difference, pair.stderr, pair.ci_low, pair.ci_high, pair.detectable, pair.groups)
    difference_text = format_difference(pair.difference, measure, difference)
    low, high = pair.ci_low, pair.ci_high
    limits = [format_difference(end, measure, difference, unit=False) for end in (low, high) if end is not None]
    if limits:
        difference_text += f" [{', '.join(limits)}]"
    if pair.p is None:
        return "undecided", f"undecided: {pair.verdict}"
    if pair.p <= ALPHA:
        flips = len(pair.flips)
        flipped = f"{flips} flipped datapoint{'' if flips == 1 else 's'}"
        return "drifted", f"drifted by {difference_text}, {flipped}"
    max_difference = margin * (abs(pair.base_value) if measure.bound is None else measure.bound)
    margin_text = format_difference(max_difference, measure, difference)
    if pair.detectable is None or low is None or high is None:
        reason = "too few datapoints to detect a difference"
        return "undecided", f"undecided: {difference_text}; {reason}"
    if max(-low, high) > max_difference:
        upper = f"{'+' if high > 0 else ''}{format_difference(high, measure, difference)}"
        interval = f"the difference is between {limits[0]} and {upper}"
        return "undecided", f"undecided: {interval}; the result is reproduced if the difference is within {margin_text}"
    return "reproduced", f"reproduced within {margin_text}: {difference_text}"
