"""The charts of a list: what accuracy cost, and a sweep of two keys as a heat map."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from runner.pages.boards.lists import BoardRow, TaskList
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.frontier import Offer, frontier, frontier_of
from runner.pages.charts.heatmap import heat
from runner.pages.sweeps import SweepPoints, short_names

MOST = 100
"""So many rows are drawn, and all that are on the frontier: more of them would hide each other."""
_CROSSED = 2
_LARGEST = 24
"""Rows or columns of a heat map that can be read."""


def cost_chart(listed: TaskList) -> Markup | None:
    """Cost against accuracy of the rows that rank; None where fewer than two have a cost, or all cost nothing."""
    offers = [_offer(row) for row in listed.ranked if row.values["cost_usd"] is not None]
    if len(offers) < _CROSSED or not any(offer.cost for offer in offers):
        return None
    best = {offer.name for offer in frontier_of(offers)}
    drawn = [offer for place, offer in enumerate(offers) if place < MOST or offer.name in best]
    return frontier(drawn, title=f"Cost and accuracy, {listed.benchmark}", key=listed.name)


def _offer(row: BoardRow) -> Offer:
    values = row.values
    return Offer(
        values["run"],
        ChartEstimate(values["run"], values["accuracy"], values["ci_low"], values["ci_high"], f"n {values['n']}"),
        values["cost_usd"],
    )


def sweep_chart(sweep: SweepPoints, key: str) -> Markup | None:
    """The accuracies of a sweep over two keys, each of its cells one line; None of any other."""
    if len(sweep.keys) != _CROSSED:
        return None
    down, across = sweep.keys
    rows, columns = (list(dict.fromkeys(told(line.point.get(name)) for line in sweep.lines)) for name in sweep.keys)
    cells = {(told(line.point.get(down)), told(line.point.get(across))): line.value for line in sweep.lines}
    if len(cells) < len(sweep.lines) or max(len(rows), len(columns)) > _LARGEST:
        return None
    names = short_names(sweep.keys)
    return heat(
        rows,
        columns,
        [[cells.get((row, column)) for column in columns] for row in rows],
        title=f"Accuracy, {sweep.name}",
        row_name=names[down],
        column_name=names[across],
        key=key,
    )


def told(value: Any) -> str:
    """A value of a sweep."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
