"""Rates of analyses as columns of tables: of sweeps and of the leaderboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.analysis.scores import AnalysisName, cached_analyses, find_analysis, find_validations
from runner.base.errors import UsageError
from runner.results.comparison.analysis_metrics import is_analysis_metric
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import SweepPoint, SweepRow, SweepValue, sweep_rows


def sweep_with_analyses(points: Sequence[SweepPoint], results: Results, metrics: Sequence[str]) -> list[SweepRow]:
    """Return the rows of a sweep as `sweep_rows`; metrics may also be analyses.

    Raises:
        UsageError: no metric has one of the names.
        LeaderboardError: the board is damaged, or remains locked.
        RunError: the results of an analysis are damaged.
    """
    rows = sweep_rows(points, results, [name for name in metrics if not is_analysis_metric(name)])
    return [
        replace(
            row,
            metrics={
                name: rate_of(name, [results.run(run_id) for run_id in row.run_ids if run_id not in row.missing])
                if is_analysis_metric(name)
                else row.metrics[name]
                for name in metrics
            },
        )
        for row in rows
    ]


def rate_of(name: str, folders: Sequence[RunFolder]) -> SweepValue:
    """Return the rate of an analysis over some runs, which has no interval, or the reason why there is none.

    There is no reason if none of the runs was analyzed.

    Raises:
        RunError: the results of an analysis are damaged.
    """
    if not folders:
        return SweepValue(reason="not played yet")
    analyzer = AnalysisName.parse(name).analyzer
    if not any(table.analyzer == analyzer for folder in folders for table in cached_analyses(folder)):
        return SweepValue()
    try:
        analysis = find_analysis(name, folders)
    except UsageError as error:
        return SweepValue(reason=str(error))
    rate = analysis.rate()
    validation = find_validations(folders[0]).get(analysis.instrument, "not validated")
    reason = f"uncorrected; {validation} (instrument {analysis.instrument})"
    return SweepValue(rate.value, n=rate.games, clusters=rate.groups, reason=reason)


def rate_notes(name: str, values: Sequence[SweepValue]) -> Iterator[str]:
    """Yield the notes below a column of rates: how far to trust them, and the reasons for missing rates."""
    yield from dict.fromkeys(f"{name}: {value.reason}" for value in values if value.value is not None)
    yield from dict.fromkeys(f"{name}: {value.reason}" for value in values if value.value is None and value.reason)
    if all(value.value is None and value.reason is None for value in values):
        yield f"{name}: no run here was analyzed; see nip-run analyze"
