"""The pages of a leaderboard: an overview of the tasks, and for each task a page with its list, sweeps and costs."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from runner.pages.boards.charts import cost_chart, sweep_chart, text_of
from runner.pages.boards.lists import BoardPage, BoardRow, TaskList
from runner.pages.boards.marks import MEANINGS, Mark, kinds_of
from runner.pages.html import render_template
from runner.pages.packing import compress_json
from runner.pages.report.games import FORMAT, to_columns
from runner.pages.site import Section, Site, StorePiece
from runner.pages.sweeps import SweepLine, SweepPoints
from runner.results.leaderboard.model import describe_ranks

MAX_PLAIN_ROWS = 200
"""Maximum rows in a task's page for browsers without JavaScript."""
PIECE_ROWS = 5_000
"""Maximum rows in a piece of data."""
ROUTE = "board"
_MAX_LINKS = 5
"""Maximum number of tasks with links in the navigation. If there are more, only the overview links to them."""


def board_site(board: BoardPage, store_piece: StorePiece, runs: Collection[str] = ()) -> Site:
    """Return a board as a site: the route `board` is the overview, and `board/TASK` the list of a task.

    The rows of each list are stored as data for the script (`b0-rows-0`, ...). `runs` has the ids of runs whose pages
    `join_sites` adds; their rows link to these pages. The site is not updated when the board changes.
    """
    lists = [_store_rows(f"b{index}", task_list, store_piece) for index, task_list in enumerate(board.lists)]
    sections = [Section(ROUTE, render_template("board.html", BoardOverview(board)))]
    sections += [
        Section(f"{ROUTE}/{task_list.name}", render_template("board_task.html", _task_view(board, task_list, runs)))
        for task_list in board.lists
    ]
    links = [(ROUTE, "Board")]
    if len(board.lists) <= _MAX_LINKS:
        links += [(f"{ROUTE}/{task_list.name}", _short_name(task_list, board)) for task_list in board.lists]
    facts = {
        "where": board.where,
        "published": board.is_published,
        "place": board.option,
        "lists": lists,
        "linked": sorted(runs),
    }
    about = {"format": FORMAT, "runs": [], "live": False, "notes": None, "board": {**facts, "meanings": MEANINGS}}
    return Site(f"Leaderboard · {board.where}", links, sections, about)


def join_sites(board: Site, runs: Site) -> Site:
    """Return one site with a board's pages and the pages of runs; the board comes first."""
    about = {**runs.about, "board": board.about["board"]}
    return Site(board.title, [*board.links, *runs.links], [*board.sections, *runs.sections], about)


def _store_rows(slug: str, task_list: TaskList, store_piece: StorePiece) -> dict[str, object]:
    """Store the rows of a list, and return the facts that the script reads first."""
    for number, piece in enumerate(row_pieces([row.to_json() for row in task_list.rows])):
        store_piece(f"{slug}-rows-{number}", piece)
    return {
        "slug": slug,
        "name": task_list.name,
        "benchmark": task_list.benchmark,
        "task": task_list.task,
        "count": len(task_list.rows),
        "pieces": math.ceil(len(task_list.rows) / PIECE_ROWS),
        "domain": domain_of(task_list.rows),
    }


def row_pieces(rows: Sequence[Mapping[str, object]]) -> Iterator[bytes]:
    """Yield compressed pieces with up to `PIECE_ROWS` rows of a list each, for the page's script."""
    for first in range(0, len(rows), PIECE_ROWS):
        piece_rows = rows[first : first + PIECE_ROWS]
        yield compress_json({"first": first, "count": len(piece_rows), "columns": to_columns(piece_rows)})


def _short_name(task_list: TaskList, board: BoardPage) -> str:
    is_only_list = sum(other_list.benchmark == task_list.benchmark for other_list in board.lists) == 1
    return task_list.benchmark if is_only_list else f"{task_list.benchmark} {task_list.name[:8]}"


class BoardLine(NamedTuple):
    """A row of a list, with the drawing of its interval and the text of its outcomes."""

    values: Mapping[str, Any]
    marks: Sequence[Mark]
    bar: Markup
    outcomes: str


class SweepTable(NamedTuple):
    """A sweep, the values of its keys in each line, its chart, and how its lines are ranked."""

    sweep: SweepPoints
    lines: Sequence[tuple[SweepLine, Sequence[str]]]
    chart: Markup | None
    rank_method: str


@dataclass(frozen=True)
class BoardOverview:
    """The content of `board.html`."""

    board: BoardPage


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """The content of `board_task.html`."""

    board: BoardPage
    list: TaskList
    runs: Collection[str]
    """Ids of the runs that have pages on the site."""
    ranked: Sequence[BoardLine]
    unranked: Sequence[BoardLine]
    other_tasks: Sequence[BoardLine]
    domain: Sequence[float] | None
    meanings: Sequence[tuple[str, str]]
    rank_method: str
    frontier: Markup | None
    sweeps: Sequence[SweepTable]
    commands: Sequence[tuple[str, str]]


def _task_view(board: BoardPage, task_list: TaskList, runs: Collection[str]) -> TaskView:
    domain = domain_of(task_list.rows)
    ranked = task_list.ranked[:MAX_PLAIN_ROWS]
    unranked = task_list.unranked[: MAX_PLAIN_ROWS - len(ranked)]
    other_tasks = task_list.other_tasks[: MAX_PLAIN_ROWS - len(ranked) - len(unranked)]

    def lines(rows: Sequence[BoardRow]) -> list[BoardLine]:
        return [
            BoardLine(row.values, row.marks, accuracy_bar(row.values, domain), format_outcomes(row.values["outcomes"]))
            for row in rows
        ]

    return TaskView(
        board=board,
        list=task_list,
        runs=runs,
        ranked=lines(ranked),
        unranked=lines(unranked),
        other_tasks=lines(other_tasks),
        domain=domain,
        meanings=[(kind, MEANINGS[kind]) for kind in kinds_of(mark for row in task_list.rows for mark in row.marks)],
        rank_method=describe_ranks(len(task_list.ranked)),
        frontier=cost_chart(task_list),
        sweeps=[
            SweepTable(
                sweep,
                [(line, [text_of(line.point.get(key)) for key in sweep.keys]) for line in sweep.lines],
                sweep_chart(sweep, str(index)),
                describe_ranks(
                    len(task_list.ranked) if board.is_published else sum(line.rank is not None for line in sweep.lines)
                ),
            )
            for index, sweep in enumerate(task_list.sweeps)
        ],
        commands=_commands(board, task_list),
    )


def _commands(board: BoardPage, task_list: TaskList) -> list[tuple[str, str]]:
    """Return the board's commands, with the placeholders REF and RUN replaced by runs of this list."""
    ranked = task_list.ranked or task_list.rows
    first, second = ranked[0].values, ranked[min(1, len(ranked) - 1)].values
    filled_in = []
    for description, command in board.commands:
        filled = command.replace(" REF ", f" {first['release']} ")
        filled = filled.replace(" RUN RUN", f" {first['run']} {second['run']}").replace("/RUN/", f"/{first['run']}/")
        filled_in.append((description, filled))
    return filled_in


def domain_of(rows: Iterable[BoardRow]) -> list[float] | None:
    """Return the range of all accuracies and intervals, rounded outwards to tenths; None if there are none."""
    ends = [
        float(end)
        for row in rows
        for name in ("accuracy", "ci_low", "ci_high")
        if (end := row.values[name]) is not None and math.isfinite(end)
    ]
    if not ends:
        return None
    low, high = max(0.0, math.floor(min(ends) * 10) / 10), min(1.0, math.ceil(max(ends) * 10) / 10)
    return [low, high] if low < high else [max(0.0, low - 0.1), min(1.0, high + 0.1)]


WIDTH, HEIGHT = 120, 16
"""Width and height of the drawing of a row's interval, in pixels."""


def accuracy_bar(values: Mapping[str, Any], domain: Sequence[float] | None) -> Markup:
    """Draw a row's accuracy as a point with its interval; `domain` is the scale of the list."""
    if domain is None or values["accuracy"] is None:
        return Markup("")
    low, high = domain

    def x_of(share: float) -> str:
        return f"{4 + (min(max(share, low), high) - low) / (high - low) * (WIDTH - 8):.1f}"

    middle, point = HEIGHT // 2, x_of(values["accuracy"])
    parts = [f'<line class="axis" x1="4" x2="{WIDTH - 4}" y1="{middle}" y2="{middle}"/>']
    if low < 0.5 < high:
        parts.append(f'<line class="half" x1="{x_of(0.5)}" x2="{x_of(0.5)}" y1="1" y2="{HEIGHT - 1}"/>')
    if values["ci_low"] is not None or values["ci_high"] is not None:
        first = x_of(low if values["ci_low"] is None else values["ci_low"])
        last = x_of(high if values["ci_high"] is None else values["ci_high"])
        parts.append(f'<line class="interval" x1="{first}" x2="{last}" y1="{middle}" y2="{middle}"/>')
    parts.append(f'<circle cx="{point}" cy="{middle}" r="3.5"/>')
    return Markup(  # noqa: S704 - contains only numbers; built by hand because a page has many of them
        f'<svg class="interval-bar" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'aria-hidden="true">{"".join(parts)}</svg>'
    )


def format_outcomes(outcomes: str | None) -> str:
    """Format the number of rollouts with each outcome, such as `decided 94, no decision 2`."""
    try:
        counts = json.loads(outcomes or "{}")
        return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count) or "–"
    except (ValueError, AttributeError, TypeError, RecursionError):
        return str(outcomes)  # a published row may have an invalid text
