"""The rules that decide whether an interval is reported, as simulated coverage shows.

An interval is left out if it covers the truth in fewer than 90 % of simulated benchmarks, or if its coverage has not
been measured. What decides is the number of clusters behind it; `benchmarks/coverage_metrics.py` measures the
coverage, and `benchmarks/coverage.md` has the result.
"""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_OF_ANY = 5
"""The fewest clusters that are measured."""
NOTHING = "nothing to count"
UNDER = "the measured coverage of such intervals is under 90 %"
UNKNOWN = "how often such intervals hold the truth is not measured"
FEWEST_DIFFERING = 10
"""Groups whose mean is not the commonest one that Student's t needs.

If hardly a group differs, those that do may all be missing: of a value that one group in twenty has, 1,000 such
intervals held the truth 65 % of the time at 20 datapoints and 88 % at 100. With this rule it is at least 90 % if a
fifth of the runs have an interval.
"""
MOST_BOUNDS = 0.05
"""The share of probabilities by log-probabilities that may be bounds only."""


@dataclass(frozen=True)
class IntervalRule:
    """The conditions under which a metric has an interval."""

    fewest_clusters: int = FEWEST_OF_ANY
    """The Brier and log scores need 100: a judge that is sure errs seldom and then by much, so few groups may hold none
    of its errors. Of one too sure of strong evidence, 1,000 intervals of the Brier score held the truth 75.2 % of the
    time at 20 datapoints, 89.8 % at 50 and 94.8 % at 100; of the log score 70.7, 85.2 and 92.3 %."""
    is_measured: bool = False
    """Whether the coverage with fewer clusters was measured, and is under 90 %."""
    needs_each_label: bool = False
    """Whether the clusters are those of the rarer label, for numbers of right and of wrong solutions."""
    is_open_with_any_bound: bool = False
    """Whether every probability that is only a bound counts, not just those far from 0 and 1."""
    never: str | None = None
    """Why there is never an interval."""

    def missing_reason(self, clusters: int) -> str | None:
        """Return why there is no interval with so many clusters; None if there is one."""
        if self.never is not None:
            return self.never
        if clusters >= self.fewest_clusters:
            return None
        label = " of each label" if self.needs_each_label else ""
        why = UNDER if self.is_measured else UNKNOWN
        return f"fewer than {self.fewest_clusters} groups of datapoints{label}: {why}"

    def bounds_reason(self, bounds: float, loose: float) -> str | None:
        """Return why a metric of probabilities has no interval, by the share of bounds, and of loose bounds."""
        share = bounds if self.is_open_with_any_bound else loose
        if share <= MOST_BOUNDS:
            return None
        return f"{share:.0%} of the probabilities are only bounds (more of top_logprobs tells them)"


def near_constant_reason(differing: int) -> str | None:
    """Return why a mean has no interval by Student's t, by how many groups differ from the commonest value."""
    if differing == 0:
        return "every group has the same value, which leaves its error open"
    if differing < FEWEST_DIFFERING:
        return f"fewer than {FEWEST_DIFFERING} groups differ from the commonest value: {UNDER}"
    return None
