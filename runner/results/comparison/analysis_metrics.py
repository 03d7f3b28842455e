"""Metrics of analyses in comparisons, such as `analysis:role_conformance`: a game's value is the mean of its units.

The results of analyses belong to a later package, so callers of `compare_systems` pass an `AnalysisReader`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.base.text import counted, with_interval
from runner.results.folder import RunFolder
from runner.results.metric_definitions import Metric, Source

ANALYSIS_PREFIX = "analysis:"

RolloutScores = Callable[[RunFolder], Mapping[str, float]]
"""A function that returns the values of a run's games by rollout."""


def is_analysis_metric(name: str) -> bool:
    return name.startswith(ANALYSIS_PREFIX)


def analysis_metric(
    name: str, *, is_share: bool, is_proportion: bool = False, rollout_scores: RolloutScores | None = None
) -> Metric:
    """Return the metric of an analysis. The values of a scale have no known ends, because results do not have them."""
    ends = (0.0, 1.0) if is_share else (-math.inf, math.inf)
    return Metric(
        name=name,
        description="mean of the analyzer's answers over the units of a game",
        over="games with an answered unit",
        source=Source.ANALYSES,
        unit="share" if is_share else "",
        low=ends[0],
        high=ends[1],
        better=0,
        is_proportion=is_proportion,
        needs_labels=False,
        with_answers=True,
        rollout_scores=rollout_scores,
    )


NO_BETTER = "no better than chance"
"""The words of a validation whose instrument does not agree with people more than chance would."""
UNDEFINED_KAPPA = "kappa is undefined"
"""The words of a validation without two different answers, which says nothing about the rarer answers."""


@dataclass(frozen=True)
class AnalysisDifference:
    """The instrument that measured systems, and a rate or difference after a correction by labels of people."""

    instrument: str
    is_share: bool
    validation: str | None
    """The recorded validation of the instrument, in words; None if it was not validated."""
    plain: float | None = None
    """The uncorrected value over all units, which `corrected` corrects."""
    corrected: float | None = None
    """The value over all units by PPI++; None without enough labels."""
    ci_low: float | None = None
    ci_high: float | None = None
    labels: int = 0
    """The number of labels of the systems."""
    reason: str | None = None
    """The reason why there is no corrected value."""
    quantity: str = "difference"
    """`difference` of two systems, or `rate` or `mean` of one."""
    unanswered: int = 0
    """The number of applicable units without an answer, which the plain value leaves out."""

    @property
    def is_validated(self) -> bool:
        """Whether labels of people say how far the plain value can be trusted."""
        validation = self.validation or UNDEFINED_KAPPA
        return self.corrected is not None or not (NO_BETTER in validation or UNDEFINED_KAPPA in validation)

    @property
    def trust(self) -> str:
        """The instrument and its validation in words."""
        return f"{self.validation or 'not validated'} (instrument {self.instrument})"

    @property
    def status(self) -> str:
        """The warning that belongs next to the plain difference."""
        unanswered = f"; {counted(self.unanswered, 'unit')} without an answer left out" if self.unanswered else ""
        return f"uncorrected; {self.trust}{unanswered}"

    def describe_correction(self) -> str:
        """Return the corrected value in words, or why there is none."""
        if self.corrected is None:
            return f"no corrected {self.quantity}: {self.reason}"
        value = with_interval(self.corrected, self.ci_low, self.ci_high)
        plain = with_interval(self.plain, None, None)
        return (
            f"corrected {self.quantity} over units: {value} (95 % CI, PPI++ with {counted(self.labels, 'label')}); "
            f"plain {self.quantity} over units: {plain}"
        )


class AnalysisReader(Protocol):
    """Reads the results of analyses for a comparison."""

    def metric(self, name: str, folders: Sequence[RunFolder]) -> Metric:
        """Return the metric of an analysis that all these runs have.

        Raises:
            UsageError: a run lacks the analysis, or several instruments are possible; the message names them.
            RunError: a file of a run is damaged.
        """

    def has_analysis(self, analyzer: str, folders: Sequence[RunFolder]) -> bool:
        """Return whether one of the runs has an analysis by this analyzer. Raises `RunError` as `metric`."""

    def difference(self, name: str, base: Sequence[RunFolder], other: Sequence[RunFolder]) -> AnalysisDifference:
        """Return the facts about the difference between two systems, given the runs of each. Raises as `metric`."""

    def rate(self, name: str, folders: Sequence[RunFolder]) -> AnalysisDifference:
        """Return the facts about the rate of one system, given its runs. Raises as `metric`."""
