"""The rules that decide whether an interval is reported.

An interval is left out if it covers the true value in fewer than 90 % of simulated benchmarks with as many clusters, or
if its coverage has not been measured. `benchmarks/coverage_metrics.py` measures the coverage, and
`benchmarks/coverage.md` has the result.
"""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_OF_ANY = 5
"""The fewest clusters whose coverage was measured."""
NOTHING = "nothing to count"
LOW_COVERAGE = "the measured coverage of such intervals is under 90 %"
UNKNOWN_COVERAGE = "how often such intervals hold the truth is not measured"
FEWEST_DIFFERING = 10
"""The minimum number of groups that differ from the most frequent group mean, for an interval by Student's t.

If hardly any group differs, a sample may contain no differing group. For a value that one group in twenty has, 1,000
such intervals covered the truth 65 % of the time at 20 datapoints and 88 % at 100. With this rule, the coverage is at
least 90 % if a fifth of the runs have an interval.
"""
MOST_BOUNDS = 0.05
"""The maximum share of probabilities that may be only bounds, if a metric has an interval."""


@dataclass(frozen=True)
class IntervalRule:
    """The conditions under which a metric has an interval."""

    fewest_clusters: int = FEWEST_OF_ANY
    """The Brier and log scores need 100: a confident judge makes few but large errors, so few groups may contain none
    of them. For a judge that is overconfident about strong evidence, 1,000 intervals of the Brier score covered the
    truth 75.2 % of the time at 20 datapoints, 89.8 % at 50 and 94.8 % at 100; of the log score 70.7, 85.2 and 92.3
    %."""
    is_measured: bool = False
    """Whether the coverage with fewer clusters was measured, and is below 90 %; otherwise it is unknown."""
    needs_each_label: bool = False
    """Whether only clusters of the rarer label count, for metrics that need right and wrong solutions."""
    is_open_with_any_bound: bool = False
    """Whether all probabilities that are only bounds count against an interval, not just those far from 0 and 1."""
    never: str | None = None
    """The reason why the metric never has an interval."""

    def missing_reason(self, clusters: int) -> str | None:
        """Return why there is no interval with this number of clusters; None if there is one."""
        if self.never is not None:
            return self.never
        if clusters >= self.fewest_clusters:
            return None
        label = " of each label" if self.needs_each_label else ""
        explanation = LOW_COVERAGE if self.is_measured else UNKNOWN_COVERAGE
        return f"fewer than {self.fewest_clusters} groups of datapoints{label}: {explanation}"

    def bounds_reason(self, bounds: float, loose: float) -> str | None:
        """Return why a metric of probabilities has no interval; None if it has one.

        `bounds` is the share of probabilities that are only bounds, `loose` the share of bounds far from 0 and 1.
        """
        share = bounds if self.is_open_with_any_bound else loose
        if share <= MOST_BOUNDS:
            return None
        return f"{share:.0%} of the probabilities are only bounds (more of top_logprobs tells them)"


def near_constant_reason(differing: int) -> str | None:
    """Return why a mean has no interval by Student's t; `differing` groups differ from the commonest group mean."""
    if differing == 0:
        return "every group has the same value, which leaves its error open"
    if differing < FEWEST_DIFFERING:
        return f"fewer than {FEWEST_DIFFERING} groups differ from the commonest value: {LOW_COVERAGE}"
    return None
