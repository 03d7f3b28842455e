"""The charts of a list: accuracy against cost, and a sweep over two keys as a heat map."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from runner.pages.boards.lists import BoardRow, TaskList
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.frontier import PricedSystem, frontier, frontier_of
from runner.pages.charts.heatmap import heatmap
from runner.pages.charts.styles import ChartFrame
from runner.pages.sweeps import SweepPoints, format_value, short_names

MAX_ROWS = 100
"""Maximum number of drawn rows, in addition to the rows on the frontier. More points would hide each other."""
_MAX_SIDE = 24
"""Maximum rows or columns of a heat map; a larger one is not readable."""


def cost_chart(listed: TaskList) -> Markup | None:
    """Draw cost per game against accuracy for the ranked rows; None if fewer than two have a cost, or all are free."""
    systems = [_priced_system(row) for row in listed.ranked if row.values["cost_usd"] is not None]
    if len(systems) < 2 or not any(system.cost for system in systems):
        return None
    frontier_names = {system.name for system in frontier_of(systems)}
    shown_systems = systems[:MAX_ROWS] + [system for system in systems[MAX_ROWS:] if system.name in frontier_names]
    frame = ChartFrame(f"Cost and accuracy, {listed.benchmark}", key=listed.name)
    return frontier(shown_systems, frame, x="dollars a game")


def _priced_system(row: BoardRow) -> PricedSystem:
    values = row.values
    games = values["n"] + (values["lost"] or 0)
    return PricedSystem(
        values["run"],
        ChartEstimate(values["run"], values["accuracy"], values["ci_low"], values["ci_high"], f"n {values['n']}"),
        values["cost_usd"] / games if games else None,  # more repeats do not make a system more expensive
    )


def sweep_chart(sweep: SweepPoints, key: str) -> Markup | None:
    """Draw a heat map of a sweep over two keys; None if the sweep has more or fewer keys, or too many cells."""
    if len(sweep.keys) != 2:
        return None
    down, across = sweep.keys
    rows, columns = (list(dict.fromkeys(text_of(line.point.get(name)) for line in sweep.lines)) for name in sweep.keys)
    cells = {(text_of(line.point.get(down)), text_of(line.point.get(across))): line.value for line in sweep.lines}
    if len(cells) < len(sweep.lines) or max(len(rows), len(columns)) > _MAX_SIDE:
        return None
    names = short_names(sweep.keys)
    return heatmap(
        rows, columns, [[cells.get((row, column)) for column in columns] for row in rows],
        ChartFrame(f"Accuracy, {sweep.name}", key=key), row_name=names[down], column_name=names[across],
    )  # fmt: skip


def text_of(value: Any) -> str:
    """Format the value of a sweep's key; "" if the point does not set the key."""
    return "" if value is None else format_value(value)
