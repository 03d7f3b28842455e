"""Several runs side by side: their accuracy, what they cost, and the points of a sweep with their seeds as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from runner.base.text import comma_join
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.rows import forest
from runner.pages.html import rendered
from runner.pages.report.run import RunPage
from runner.pages.site import Section
from runner.pages.sweeps import short_names
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import NOT_ON_BOARD, SweepPoint, SweepRow, SweepValue, sweep_rows
from runner.results.manifest import Manifest
from runner.results.metric_table import RANKING_METRIC

ROUTE = "runs"


class RunRow(NamedTuple):
    """A run, and the row of its accuracy in `metrics.json`, if it has any."""

    manifest: Manifest
    games: int
    accuracy: Mapping[str, Any] | None


@dataclass(frozen=True)
class SweepView:
    """The points of a sweep, with the seeds of each as one."""

    swept: Sequence[str]
    short_names: str
    forest: Markup | None
    points: Sequence[tuple[SweepRow, SweepValue]]
    advice: str | None
    """The next step if runs are not on the board."""


@dataclass(frozen=True)
class OverviewView:
    """The content of `runs.html`."""

    rows: Sequence[RunRow]
    forest: Markup | None
    sweep: SweepView | None


def overview(pages: Sequence[RunPage]) -> Section:
    """The section that comes first where there are several runs.

    Raises:
        LeaderboardError: the runs are of one sweep, and the board of their results is damaged.
    """
    rows = [RunRow(one.manifest, one.games, _accuracy(one)) for one in pages]
    estimates = [ChartEstimate.of(row.manifest.run_id, row.accuracy) for row in rows if row.accuracy is not None]
    picture = forest(estimates, title="Accuracy of each run", domain=(0.0, 1.0), key="runs") if estimates else None
    return Section(ROUTE, rendered("runs.html", OverviewView(rows, picture, _sweep(pages))))


def _accuracy(one: RunPage) -> Mapping[str, Any] | None:
    """The row of its accuracy, of a training run that of its last test; None where it has none."""
    if one.manifest.is_training_run:
        tests = (one.metrics or {}).get("tests")
        return tests[-1]["accuracy"] if tests else None
    found = (row for row in (one.metrics or {"metrics": ()})["metrics"] if row["metric"] == RANKING_METRIC)
    row = next(found, None)
    return None if row is None or row["value"] is None else row


# A sweep


def _sweep(pages: Sequence[RunPage]) -> SweepView | None:
    """The points of a sweep, seeds of one point as one row; None where the runs are of none, or of several folders."""
    runs = [one for one in pages if one.manifest.point]
    folders = {Results.of(one.folder).path.resolve() for one in runs}
    if len(runs) < 2 or len(folders) > 1 or any(one.folder.name is not None for one in runs):
        return None
    swept_runs = [
        SweepPoint(one.manifest.name, one.manifest.run_id, one.manifest.point, one.manifest.seed) for one in runs
    ]
    rows = sweep_rows(swept_runs, Results.of(runs[0].folder), writes=False)  # a page changes nothing beside the runs
    rows.sort(key=lambda row: -1.0 if (value := row.metrics[RANKING_METRIC].value) is None else value, reverse=True)
    swept = list(dict.fromkeys(key for row in rows for key in row.point))
    points = [(row, row.metrics[RANKING_METRIC]) for row in rows]
    return SweepView(swept, ", ".join(short_names(swept).values()), _forest(rows), points, _lacking(rows))


def _forest(rows: Sequence[SweepRow]) -> Markup | None:
    """The accuracy of each point, in the order of the table beside it."""
    several = len({row.name for row in rows}) > 1
    estimates = []
    for row in rows:
        point = ", ".join(map(str, row.point.values()))
        value = row.metrics[RANKING_METRIC]
        if value.value is not None:
            name = f"{row.name} {point}" if several or not point else point
            estimates.append(ChartEstimate(name, value.value, value.ci_low, value.ci_high))
    return forest(estimates, title="Accuracy of each point", domain=(0.0, 1.0), key="sweep") if estimates else None


def _lacking(rows: Sequence[SweepRow]) -> str | None:
    """What to do where finished runs are not on the board, by which seeds are pooled."""
    lacking = [run_id for row in rows for run_id, status in row.missing.items() if status == NOT_ON_BOARD]
    if not lacking:
        return None
    why = f"{NOT_ON_BOARD}, by which seeds are pooled"
    return f"{comma_join(lacking)}: {why}; `nip-run leaderboard --rebuild` puts them there"
