"""The pages of a leaderboard: an overview of its tasks, and for each task its list, its sweeps, its costs."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from runner.base.text import decimal, dollars, interval_ends
from runner.pages.boards.charts import cost_chart, sweep_chart, told
from runner.pages.boards.lists import BoardPage, BoardRow, TaskList
from runner.pages.boards.marks import MEANINGS, kinds_of
from runner.pages.html import rendered
from runner.pages.packing import packed
from runner.pages.report.games import FORMAT
from runner.pages.site import Keep, Section, Site

FIRST = 200
"""So many rows of a task stand in the page for a browser without JavaScript."""
PIECE = 5_000
"""Rows of a piece of data."""
ROUTE = "board"
_MOST_LINKS = 5
"""With more tasks, the overview alone leads to them."""


def board_site(board: BoardPage, keep: Keep, runs: Collection[str] = ()) -> Site:
    """A board as a site: `board` is the overview, `board/TASK` the list of a task.

    The rows of each list are kept as data (`b0-rows-0`, ...), for the script. `runs` are the ids of those that the same
    site shows, to which the rows are linked; `beside` puts the two sites together. To show a board as it is now, make
    it again: `board_site(local_board(Results(path)), keep)`.
    """
    lists = [_kept(f"b{place}", listed, keep) for place, listed in enumerate(board.lists)]
    overview = {"board": board, "lists": [_in_short(listed) for listed in board.lists]}
    sections = [Section(ROUTE, rendered("board.html", overview))]
    sections += [
        Section(f"{ROUTE}/{listed.name}", rendered("board_task.html", _facts(board, listed, runs)))
        for listed in board.lists
    ]
    links = [(ROUTE, "Board")]
    if len(board.lists) <= _MOST_LINKS:
        links += [(f"{ROUTE}/{listed.name}", _short_name(listed, board)) for listed in board.lists]
    facts = {
        "where": board.where,
        "published": board.is_published,
        "place": board.place,
        "lists": lists,
        "linked": sorted(runs),
    }
    about = {"format": FORMAT, "runs": [], "live": False, "notes": None, "board": {**facts, "meanings": MEANINGS}}
    return Site(f"Leaderboard · {board.where}", links, sections, about)


def beside(board: Site, runs: Site) -> Site:
    """A board's site and that of runs as one, which begins with the board."""
    about = {**runs.about, "board": board.about["board"]}
    return Site(board.title, [*board.links, *runs.links], [*board.sections, *runs.sections], about)


def _kept(slug: str, listed: TaskList, keep: Keep) -> dict[str, Any]:
    """What the script is told first of a list, whose rows are kept."""
    for number, first in enumerate(range(0, len(listed.rows), PIECE)):
        rows = [row.to_json() for row in listed.rows[first : first + PIECE]]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: [row.get(name) for row in rows] for name in names}
        keep(f"{slug}-rows-{number}", packed({"first": first, "count": len(rows), "columns": columns}))
    return {
        "slug": slug,
        "name": listed.name,
        "benchmark": listed.benchmark,
        "task": listed.task,
        "count": len(listed.rows),
        "pieces": -(-len(listed.rows) // PIECE),
        "domain": domain_of(listed.rows),
    }


def _short_name(listed: TaskList, board: BoardPage) -> str:
    alone = sum(other.benchmark == listed.benchmark for other in board.lists) == 1
    return listed.benchmark if alone else f"{listed.benchmark} {listed.name[:8]}"


def _in_short(listed: TaskList) -> dict[str, Any]:
    """A list's row in the overview."""
    ranked = listed.ranked
    leader = ranked[0].values if ranked else None
    ties = 0 if leader is None else leader["rank_last"] - leader["rank"] + 1
    return {
        "route": f"{ROUTE}/{listed.name}",
        "benchmark": listed.benchmark,
        "task": listed.name[:8],
        "selection": listed.selection or "all of it",
        "ranked": len(ranked),
        "others": len(listed.others),
        "leader": "–" if leader is None else leader["run"],
        "ties": "" if ties < 2 else f"tied with {ties - 1:,} more" if ties > 2 else "tied with one more",
        "accuracy": "–" if leader is None else _number(leader["accuracy"]),
        "interval": "" if leader is None else _interval(leader),
    }


def _facts(board: BoardPage, listed: TaskList, runs: Collection[str]) -> dict[str, Any]:
    domain = domain_of(listed.rows)
    ranked, others = listed.ranked[:FIRST], listed.others[: max(0, FIRST - len(listed.ranked))]
    elsewhere = listed.elsewhere[: FIRST - len(ranked) - len(others)]
    kinds = kinds_of(mark for row in listed.rows for mark in row.marks)
    return {
        "board": board,
        "list": listed,
        "ranked": [_line(row, domain, runs) for row in ranked],
        "others": [_line(row, domain, runs) for row in others],
        "elsewhere": [_line(row, domain, runs) for row in elsewhere],
        "not_shown": len(listed.rows) - len(ranked) - len(others) - len(elsewhere),
        "domain": domain and [f"{end:.1f}" for end in domain],
        "meanings": [(kind, MEANINGS[kind]) for kind in kinds],
        "frontier": cost_chart(listed),
        "sweeps": [_sweep(sweep, place) for place, sweep in enumerate(listed.sweeps)],
        "commands": _commands(board, listed),
        "hashes": [_hashes(row) for row in [*ranked, *others, *elsewhere]],
    }


def _line(row: BoardRow, domain: Sequence[float] | None, runs: Collection[str]) -> dict[str, Any]:
    """A row's cells."""
    values = row.values
    return {
        "rank": _rank(values["rank"], values["rank_last"]),
        "run": values["run"],
        "route": f"run/{values['run_id']}" if values["run_id"] in runs else None,
        "bar": bar(values, domain),
        "accuracy": _number(values["accuracy"]),
        "interval": _interval(values),
        "n": _count(values["n"]),
        "clusters": _count(values["clusters"]),
        "outcomes": outcomes_in_words(values["outcomes"]),
        "protocol": values["protocol"],
        "models": values["models"] or "–",
        "cost": dollars(values["cost_usd"]),
        "finished": (values["finished_at"] or "–")[:10],
        "trained_on": values.get("trained_on") or "",
        "point": values["short_point"] or "",
        "marks": row.marks,
    }


def _sweep(sweep: Any, place: int) -> dict[str, Any]:
    lines = [
        {
            "rank": "–" if line.rank is None else _rank(*line.rank),
            "values": [told(line.point.get(key)) for key in sweep.keys],
            "accuracy": _number(line.value),
            "interval": _interval({"ci_low": line.low, "ci_high": line.high}),
            "n": _count(line.n),
            "seeds": line.seeds,
            "cost": dollars(line.cost),
            "reason": line.reason or "",
        }
        for line in sweep.lines
    ]
    has_reasons = any(line["reason"] for line in lines)
    return {"sweep": sweep, "lines": lines, "chart": sweep_chart(sweep, str(place)), "has_reasons": has_reasons}


def _commands(board: BoardPage, listed: TaskList) -> list[tuple[str, str]]:
    """The board's commands, with the runs of this list in the place of words."""
    ranked = listed.ranked or listed.rows
    first, second = ranked[0].values, ranked[min(1, len(ranked) - 1)].values
    made = []
    for what, command in board.commands:
        shown = command.replace(" REF ", f" {first['release']} ")
        shown = shown.replace(" RUN RUN", f" {first['run']} {second['run']}").replace("/RUN/", f"/{first['run']}/")
        made.append((what, shown))
    return made


def _hashes(row: BoardRow) -> dict[str, Any]:
    names = ("run", "spec_sha256", "dataset_sha256", "game_sha256", "release_sha256", "version", "seed")
    return {name: row.values.get(name) for name in names}


def domain_of(rows: Iterable[BoardRow]) -> list[float] | None:
    """The ends of all intervals, in tenths; None where there is no accuracy."""
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


WIDE, HIGH = 120, 16


def bar(values: Mapping[str, Any], domain: Sequence[float] | None) -> Markup:
    """A row's accuracy as a point with its interval, on the scale of its list."""
    if domain is None or values["accuracy"] is None:
        return Markup("")
    low, high = domain

    def at(share: float) -> str:
        return f"{4 + (min(max(share, low), high) - low) / (high - low) * (WIDE - 8):.1f}"

    middle, point = HIGH // 2, at(values["accuracy"])
    parts = [f'<line class="axis" x1="4" x2="{WIDE - 4}" y1="{middle}" y2="{middle}"/>']
    if low < 0.5 < high:
        parts.append(f'<line class="half" x1="{at(0.5)}" x2="{at(0.5)}" y1="1" y2="{HIGH - 1}"/>')
    if values["ci_low"] is not None or values["ci_high"] is not None:
        first = at(low if values["ci_low"] is None else values["ci_low"])
        last = at(high if values["ci_high"] is None else values["ci_high"])
        parts.append(f'<line class="interval" x1="{first}" x2="{last}" y1="{middle}" y2="{middle}"/>')
    parts.append(f'<circle cx="{point}" cy="{middle}" r="3.5"/>')
    return Markup(  # noqa: S704 - of numbers alone, and there are many of it on a page
        f'<svg class="interval-bar" width="{WIDE}" height="{HIGH}" viewBox="0 0 {WIDE} {HIGH}" aria-hidden="true">'
        f"{''.join(parts)}</svg>"
    )


def outcomes_in_words(told: str | None) -> str:
    """`decided 94, no decision 2`: how many rollouts had each outcome that there was."""
    try:
        found = json.loads(told or "{}")
        return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in found.items() if count) or "–"
    except (ValueError, AttributeError, TypeError, RecursionError):
        return str(told)  # a stranger's


def _rank(first: int | None, last: int | None) -> str:
    return "–" if first is None else str(first) if first == last else f"{first}–{last}"


def _number(value: float | None) -> str:
    return decimal(value, none="–")


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _interval(values: Mapping[str, Any]) -> str:
    return "–".join(interval_ends(values["ci_low"], values["ci_high"]) or ())
