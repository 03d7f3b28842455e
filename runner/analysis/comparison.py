"""Metrics of analyses for `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.analysis.analyzer import YES_NO, Analyzer, AnalyzerFile
from runner.analysis.labels import Label, read_labels
from runner.analysis.results import AnalysisTable
from runner.analysis.scores import RunAnalysis, cached_analyses, find_analysis, find_validations
from runner.base.errors import RunError
from runner.results.comparison.analysis_metrics import AnalysisDifference, analysis_metric
from runner.results.folder import RunFolder
from runner.results.metric_definitions import Metric
from runner.statistics.clustered_means import Quantity


class AnalysisScores:
    """Reads the results of analyses for a comparison: an `AnalysisReader`."""

    def metric(self, name: str, folders: Sequence[RunFolder]) -> Metric:
        """Return the metric of an analysis that all these runs have. Raises as `find_analysis`."""
        analysis = find_analysis(name, folders)
        values = {value for folder in folders for value in analysis.game_values(folder.run_id).values()}
        return analysis_metric(
            name, is_share=analysis.is_share, is_proportion=analysis.is_share and values <= {0.0, 1.0},
            rollout_scores=lambda folder: analysis.game_values(folder.run_id),
        )  # fmt: skip

    def has_analysis(self, analyzer: str, folders: Sequence[RunFolder]) -> bool:
        """Return whether one of the runs has an analysis by this analyzer. RunError: a table is damaged."""
        return any(table.analyzer == analyzer for folder in folders for table in cached_analyses(folder))

    def difference(self, name: str, base: Sequence[RunFolder], other: Sequence[RunFolder]) -> AnalysisDifference:
        """Return the facts about the difference between two systems. Raises as `find_analysis`."""
        analysis = find_analysis(name, [*base, *other])
        facts = AnalysisDifference(
            analysis.instrument, analysis.is_share, find_validations(base[0]).get(analysis.instrument)
        )
        sides = [_Side(analysis, folders) for folders in (base, other)]
        if not all(side.labels for side in sides):
            return replace(facts, reason="people have not labeled units of both; see nip-run label")
        if not analysis.is_share:
            return replace(facts, reason="nip-run validate corrects the mean of a scale")
        try:
            plain, corrected = _differences(analysis, sides)
        except RunError as error:
            return replace(facts, reason=str(error))
        low, high = corrected.interval or (None, None)
        return replace(
            facts, plain=plain, corrected=corrected.value, ci_low=low, ci_high=high, labels=corrected.n,
            reason=corrected.reason,
        )  # fmt: skip


class _Side:
    """The results and labels of one system, whose runs are pooled."""

    def __init__(self, analysis: RunAnalysis, folders: Sequence[RunFolder]) -> None:
        tables = [analysis.tables[folder.run_id] for folder in folders]
        self.table = replace(tables[0], results=tuple(result for table in tables for result in table.results))
        self.labels: list[Label] = [
            label
            for folder in folders
            for labels in read_labels(folder.path).values()
            for label in labels
            if label.question_sha256 == self.table.question_sha256
        ]
        self.strata_tables = _pool([table for folder in folders for table in cached_analyses(folder)])


def _pool(tables: Sequence[AnalysisTable]) -> list[AnalysisTable]:
    """Return one table for each instrument."""
    pooled: dict[str, AnalysisTable] = {}
    for table in tables:
        earlier = pooled.get(table.instrument)
        pooled[table.instrument] = (
            table if earlier is None else replace(earlier, results=(*earlier.results, *table.results))
        )
    return list(pooled.values())


def _differences(analysis: RunAnalysis, sides: Sequence[_Side]) -> tuple[float | None, Quantity]:
    """Return the plain and the corrected difference of a share over all units, the second side minus the first."""
    from runner.analysis.validation import number_groups, rate_difference, validate  # it imports NumPy

    tables = [side.table for side in sides]
    all_answers = {result.answer for table in tables for result in table.results if result.answer is not None}
    all_answers |= {label.answer for side in sides for label in side.labels if label.answer is not None}
    is_yes_no = all_answers <= set(YES_NO)
    answers = YES_NO if is_yes_no else tuple(sorted(all_answers))
    file = AnalyzerFile(name=tables[0].analyzer, unit="message", question="", answers=answers)
    groups = number_groups(tables)
    base, other = (
        validate(Analyzer(file, Path()), side.table, side.labels, groups, side.strata_tables) for side in sides
    )
    # The rates of yes and no have the sum 1, so that only the rate of yes is estimated.
    answer, sign = ("yes", -1) if is_yes_no and analysis.answer == "no" else (analysis.answer or "yes", 1)
    first, second = (validation.rates[answer].plain.value for validation in (base, other))
    corrected = rate_difference(base, other, answer)
    plain = None if first is None or second is None else sign * (second - first)
    if sign > 0 or corrected.value is None:
        return plain, corrected
    ends = None if corrected.interval is None else (-corrected.interval[1], -corrected.interval[0])
    return plain, replace(corrected, value=-corrected.value, interval=ends)
