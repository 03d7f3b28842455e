"""Metrics of analyses for `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.analysis.analyzer import Analyzer, AnalyzerFile
from runner.analysis.labels import Label, read_labels
from runner.analysis.results import UnitResult
from runner.analysis.scores import RunAnalysis, cached_analyses, find_analysis, find_validations
from runner.analysis.strata import Strata, find_strata
from runner.base.errors import RunError
from runner.base.text import comma_join
from runner.results.comparison.analysis_metrics import AnalysisDifference, analysis_metric
from runner.results.folder import RunFolder
from runner.results.metric_definitions import Metric


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
        return _describe(find_analysis(name, [*base, *other]), (base, other))

    def rate(self, name: str, folders: Sequence[RunFolder]) -> AnalysisDifference:
        """Return the facts about the rate of one system, whose runs are pooled. Raises as `find_analysis`."""
        return _describe(find_analysis(name, folders), [folders])


def _describe(analysis: RunAnalysis, systems: Sequence[Sequence[RunFolder]]) -> AnalysisDifference:
    """Return the facts about the mean of a system, or about the difference of two, the second minus the first.

    The plain value is next to it, over all units like the corrected one.
    """
    from runner.analysis.validation import corrected_mean, number_groups  # it imports NumPy
    from runner.statistics.prediction_powered import corrected_difference

    statuses = [result.status for table in analysis.tables.values() for result in table.results]
    facts = AnalysisDifference(
        analysis.instrument, analysis.is_share, find_validations(systems[0][0]).get(analysis.instrument),
        quantity="difference" if len(systems) > 1 else "rate" if analysis.is_share else "mean",
        unanswered=statuses.count("failed") + statuses.count("no_answer"),
    )  # fmt: skip
    try:
        sides = [_Side(analysis, folders) for folders in systems]
    except RunError as error:
        return replace(facts, reason=str(error))
    if unlabeled := list(dict.fromkeys(run_id for side in sides for run_id in side.unlabeled)):
        return replace(facts, reason=f"people have not labeled units of {comma_join(unlabeled)}; see nip-run label")
    table = sides[0].table
    file = AnalyzerFile(
        name=table.analyzer, unit="message", question="", answers=table.answers, values=analysis.numbers
    )  # fmt: skip
    groups = number_groups(side.table for side in sides)
    rates = [corrected_mean(Analyzer(file, Path()), side.table, side.labels, groups, side.strata) for side in sides]
    values = [rate.plain.value or 0.0 for rate in rates]
    plain, corrected = values[0], rates[0].corrected
    if len(rates) > 1:
        plain, corrected = values[1] - values[0], corrected_difference(rates[1], rates[0])
    low, high = corrected.interval or (None, None)
    return replace(
        facts, plain=plain, corrected=corrected.value, ci_low=low, ci_high=high, labels=corrected.n,
        reason=corrected.reason,
    )  # fmt: skip


class _Side:
    """The results and labels of one system, whose runs are pooled."""

    def __init__(self, analysis: RunAnalysis, folders: Sequence[RunFolder]) -> None:
        tables = [analysis.tables[folder.run_id] for folder in folders]
        results: list[UnitResult] = []
        self.labels: list[Label] = []
        self.strata: list[Strata] = []
        self.unlabeled: list[str] = []
        """The runs without labels."""
        for folder, table in zip(folders, tables, strict=True):
            # Runs of one spec have the same units, which are about other games.
            names = {result.unit_id: f"{table.run_id} {result.unit_id}" for result in table.results}
            ids = {result.unit_id for result in table.results if result.status != "not_applicable"}
            labels = [
                label
                for of_question in read_labels(folder.path).values()
                for label in of_question
                if label.question_sha256 == table.question_sha256
                and label.unit_id in ids
                and label.answer in table.answers
            ]
            results += [replace(result, unit_id=names[result.unit_id]) for result in table.results]
            self.labels += [replace(label, unit_id=names[label.unit_id]) for label in labels]
            for strata in find_strata(folder, labels, cached_analyses(folder)):
                self.strata.append({names[unit]: stratum for unit, stratum in strata.items() if unit in names})
            self.unlabeled += [] if labels else [folder.run_id]
            if len(tables) > 1:  # the labels of a run describe this run only
                self.strata.append(dict.fromkeys(names.values(), table.run_id))
        self.table = replace(tables[0], results=tuple(results))
