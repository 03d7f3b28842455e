"""Rates of the answers of an analysis, as the model or the function gave them: neither corrected nor validated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from runner.analysis.results import AnalysisTable, Status


@dataclass(frozen=True)
class AnalysisRates:
    """The counts and the plain rate of one analysis of a run."""

    run_id: str
    analyzer: str
    instrument: str
    models: tuple[str, ...]
    statuses: Mapping[Status, int]
    """The number of units by status."""
    answers: Mapping[str, int]
    """The number of units by answer, the most frequent first."""
    mean: float | None
    """The mean number of the answers: for yes and no, the share of yes. None for labels, and without answers."""
    not_applicable: Mapping[str, int]
    """The number of units that are not applicable by reason, the most frequent first."""

    @property
    def answered(self) -> int:
        return self.statuses.get("answered", 0)

    @property
    def applicable(self) -> int:
        """The number of units without those that are not applicable."""
        return sum(self.statuses.values()) - self.statuses.get("not_applicable", 0)


def plain_rates(table: AnalysisTable) -> AnalysisRates:
    """Return the rates of a table."""
    answered = [result for result in table.results if result.status == "answered"]
    values = [result.value for result in answered if result.value is not None]
    return AnalysisRates(
        table.run_id, table.analyzer, table.instrument,
        tuple(dict.fromkeys(result.model for result in answered)),
        Counter(result.status for result in table.results),
        dict(Counter(result.answer or "" for result in answered).most_common()),
        fmean(values) if values else None,
        dict(Counter(r.reason or "" for r in table.results if r.status == "not_applicable").most_common()),
    )  # fmt: skip
