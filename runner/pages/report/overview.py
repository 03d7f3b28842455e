"""Several runs side by side: their accuracy, what they cost, and the points of a sweep with their seeds as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from runner.base.text import comma_join
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.forest import forest
from runner.pages.html import rendered
from runner.pages.numbers import count, decimal, dollars, interval
from runner.pages.report.run import RunPage
from runner.pages.site import Section
from runner.pages.sweeps import short_names
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import NOT_ON_BOARD, SweepPoint, SweepRow, sweep_rows
from runner.results.manifest import Status
from runner.results.metric_table import RANKING_METRIC
from runner.results.sweep_points import shown_point

ROUTE = "runs"


def overview(made: Sequence[RunPage]) -> Section:
    """The section that comes first where there are several runs.

    Raises:
        LeaderboardError: the runs are of one sweep, and the board of their results is damaged.
    """
    rows = [_row(one) for one in made]
    estimates = [ChartEstimate.of(one.manifest.run_id, row) for one in made if (row := _accuracy(one)) is not None]
    facts = {
        "rows": rows,
        "forest": forest(estimates, title="Accuracy of each run", domain=(0.0, 1.0), key="runs") if estimates else None,
        "sweep": _sweep(made),
    }
    return Section(ROUTE, rendered("runs.html", facts))


def _accuracy(one: RunPage) -> Any:
    """The row of its accuracy, of a training run that of its last test; None where it has none."""
    if one.manifest.is_training_run:
        tests = (one.metrics or {}).get("tests")
        return tests[-1]["accuracy"] if tests else None
    found = (row for row in (one.metrics or {"metrics": ()})["metrics"] if row["metric"] == RANKING_METRIC)
    row = next(found, None)
    return None if row is None or row["value"] is None else row


def _row(one: RunPage) -> dict[str, Any]:
    manifest, accuracy = one.manifest, _accuracy(one)
    return {
        "run_id": manifest.run_id,
        "status": "" if manifest.status == Status.DONE else str(manifest.status),
        "protocol": manifest.protocol,
        "models": ", ".join(dict.fromkeys(row["model"] for row in manifest.agents)),
        "point": shown_point(manifest.point),
        "accuracy": decimal(None if accuracy is None else accuracy["value"]),
        "interval": "" if accuracy is None else interval(accuracy),
        "games": count(one.games),
        "cost": dollars(manifest.own_cost_usd) if manifest.completions is not None else "",
    }


# A sweep


def _sweep(made: Sequence[RunPage]) -> dict[str, Any] | None:
    """The points of a sweep, seeds of one point as one row; None where the runs are of none, or of several folders."""
    runs = [one for one in made if one.manifest.point]
    folders = {Results.of(one.folder).path.resolve() for one in runs}
    if len(runs) < 2 or len(folders) > 1 or any(one.folder.name is not None for one in runs):
        return None
    points = [SweepPoint(one.manifest.name, one.manifest.run_id, one.manifest.point, one.manifest.seed) for one in runs]
    rows = sweep_rows(points, Results.of(runs[0].folder), writes=False)  # a page changes nothing beside the runs
    rows.sort(key=lambda row: -1.0 if (value := row.metrics[RANKING_METRIC].value) is None else value, reverse=True)
    return {
        "swept": (swept := list(dict.fromkeys(key for row in rows for key in row.point))),
        "short": ", ".join(short_names(swept).values()),
        "forest": _forest(rows),
        "rows": list(map(_point, rows)),
        "lacking": _lacking(rows),
    }


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


def _point(row: SweepRow) -> dict[str, Any]:
    value = row.metrics[RANKING_METRIC]
    first, last = row.rank or (None, None)
    spread = "" if value.between is None else decimal(value.between)
    return {
        "name": row.name,
        "point": {key: str(one) for key, one in row.point.items()},
        "rank": "" if first is None else str(first) if first == last else f"{first}–{last}",
        "accuracy": decimal(value.value),
        "interval": interval({"ci_low": value.ci_low, "ci_high": value.ci_high}),
        "n": count(value.n),
        "seeds": count(len(row.seeds)),
        "spread": spread if value.within is None else f"{spread} ({decimal(value.within)})",
        "cost": dollars(row.cost_usd),
        "reason": row.reason or value.reason or "",
    }
