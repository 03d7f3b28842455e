"""The overview of several runs: accuracy, cost, and the points of a sweep with pooled seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from runner.base.text import comma_join
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.rows import forest
from runner.pages.charts.styles import ChartFrame
from runner.pages.html import render_template
from runner.pages.report.run import RunPage
from runner.pages.site import Section
from runner.pages.sweeps import short_names
from runner.results.leaderboard.model import describe_ranks
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import NOT_ON_BOARD, SweepPoint, SweepRow, SweepValue, sweep_rows
from runner.results.manifest import Manifest
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.metrics_file import MetricRow, find_metric_row

ROUTE = "runs"
MAX_COMPARISONS = 3
"""Maximum number of comparisons that the top of the page describes."""


class RunRow(NamedTuple):
    """A run, and the row of its accuracy in `metrics.json`; None if it has no accuracy."""

    manifest: Manifest
    games: int
    accuracy: MetricRow | None


@dataclass(frozen=True)
class SweepView:
    """The points of a sweep, with the seeds of each point pooled."""

    swept_keys: Sequence[str]
    short_names: str
    forest: Markup | None
    points: Sequence[tuple[SweepRow, SweepValue]]
    rank_method: str
    advice: str | None
    """The next step if runs are not on the board."""


@dataclass(frozen=True)
class OverviewView:
    """The content of `runs.html`."""

    rows: Sequence[RunRow]
    forest: Markup | None
    sweep: SweepView | None
    comparisons: Sequence[tuple[str, str]]
    """The first comparisons of the runs, each as a route and a sentence."""
    warnings: Sequence[str]
    """A message for each run whose verifier decided many games before any prover spoke."""


def overview(pages: Sequence[RunPage], comparisons: Sequence[tuple[str, str]] = ()) -> Section:
    """Return the first section of a site with several runs; `comparisons` has the route and sentence of each.

    Raises:
        LeaderboardError: the runs belong to one sweep, and the board of their results folder is damaged.
    """
    rows = [RunRow(page.manifest, page.games, _accuracy(page)) for page in pages]
    estimates = [ChartEstimate.of(row.manifest.run_id, row.accuracy) for row in rows if row.accuracy is not None]
    picture = (
        forest(estimates, ChartFrame("Accuracy of each run", key="runs"), domain=(0.0, 1.0)) if estimates else None
    )
    warnings = [message for page in pages if (message := page.folder.no_prover_message()) is not None]
    view = OverviewView(rows, picture, _sweep(pages), comparisons[:MAX_COMPARISONS], warnings)
    return Section(ROUTE, render_template("runs.html", view))


def _accuracy(page: RunPage) -> MetricRow | None:
    """Return the row of the accuracy of a run, or of a training run's last test; None if there is none."""
    if page.manifest.is_training_run:
        tests = (page.metrics or {}).get("tests")
        return tests[-1]["accuracy"] if tests else None
    row = find_metric_row(page.metrics or {}, RANKING_METRIC)
    return None if row is None or row["value"] is None else row


# A sweep


def _sweep(pages: Sequence[RunPage]) -> SweepView | None:
    """Return the points of a sweep with pooled seeds; None if there is no sweep, or the runs are in several folders."""
    runs = [page for page in pages if page.manifest.point]
    folders = {Results.of(page.folder).path.resolve() for page in runs}
    if len(runs) < 2 or len(folders) > 1 or any(page.folder.name is not None for page in runs):
        return None
    swept_runs = [
        SweepPoint(page.manifest.name, page.manifest.run_id, page.manifest.point, page.manifest.seed) for page in runs
    ]
    rows = sweep_rows(swept_runs, Results.of(runs[0].folder), writes=False)  # a page must not change the results folder
    rows.sort(key=lambda row: -1.0 if (value := row.metrics[RANKING_METRIC].value) is None else value, reverse=True)
    swept_keys = list(dict.fromkeys(key for row in rows for key in row.point))
    points = [(row, row.metrics[RANKING_METRIC]) for row in rows]
    rank_method = describe_ranks(sum(row.rank is not None for row in rows))
    names = ", ".join(short_names(swept_keys).values())
    return SweepView(swept_keys, names, _forest(rows), points, rank_method, _advice(rows))


def _forest(rows: Sequence[SweepRow]) -> Markup | None:
    """Draw the accuracy of each point, in the order of the table."""
    has_several_names = len({row.name for row in rows}) > 1
    estimates = []
    for row in rows:
        point = ", ".join(map(str, row.point.values()))
        value = row.metrics[RANKING_METRIC]
        if value.value is not None:
            name = f"{row.name} {point}" if has_several_names or not point else point
            estimates.append(ChartEstimate(name, value.value, value.ci_low, value.ci_high))
    return (
        forest(estimates, ChartFrame("Accuracy of each point", key="sweep"), domain=(0.0, 1.0)) if estimates else None
    )


def _advice(rows: Sequence[SweepRow]) -> str | None:
    """Return the next step if finished runs are not on the board, so that seeds cannot be pooled; else None."""
    missing_runs = [run_id for row in rows for run_id, status in row.missing.items() if status == NOT_ON_BOARD]
    if not missing_runs:
        return None
    reason = f"{NOT_ON_BOARD}, so their seeds cannot be pooled"
    return f"{comma_join(missing_runs)}: {reason}; run `nip-run leaderboard --rebuild` to add them"
