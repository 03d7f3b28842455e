"""The pages of competitions, as anybody sees them."""

from __future__ import annotations

import math
import shlex
import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from runner.base.errors import NotPublished
from runner.pages.html import rendered
from runner.pages.report.served import ServedPage
from runner.server.accounts.accounts import ANYBODY
from runner.server.competitions import board as boards
from runner.server.web.api.competitions import Word
from runner.server.web.authentication import server_of
from runner.server.web.pages.boards import no_page
from runner.server.web.responses import page_answer
from runner.server.web.wording import href_of, label_of

pages = APIRouter(include_in_schema=False)
MOST = 1_000


@pages.get("/competitions")
def listed(request: Request) -> Response:
    """All competitions."""
    with server_of(request).database.reading() as connection:
        found = boards.listed(connection, ANYBODY, time.time(), "", MOST)
    section = rendered("served/competitions.html", {"competitions": [_with_times(one) for one in found]})
    return page_answer(request, ServedPage("Competitions", [("competitions", section)], here="/competitions"))


@pages.get("/competitions/{owner}/{name}")
def one(request: Request, owner: Word, name: Word) -> Response:
    """A competition with its board."""
    server = server_of(request)
    try:
        with server.database.reading() as connection:
            found = boards.board(connection, ANYBODY, owner, name, time.time())
    except NotPublished:
        return no_page(request, "There is no such competition here.")
    counted = sum(one["count"] for one in found["submissions"])
    shown = {**_with_times(found), "board": [_row(row) for row in found["board"]], "submissions": f"{counted:,}"}
    commands = _commands(found, server.settings.address)
    section = rendered("served/competition.html", {"one": shown, "commands": commands})
    title = found["title"] or f"{owner}/{name}"
    links = [("/competitions", "Competitions")]
    return page_answer(request, ServedPage(title, [("competition", section)], links=links))


def _with_times(one: dict[str, Any]) -> dict[str, Any]:
    dataset = one["dataset"]
    times = {"closing": one["closes"], "withdrawing": one["withdrawn"], "relabelling": one["relabelled"]}
    return {
        **one,
        **{name: at and _minute(at) for name, at in times.items()},
        "rows_href": href_of(dataset),
        "rows_label": label_of(dataset),
    }


def _minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _commands(one: dict[str, Any], address: str) -> list[tuple[str, str]]:
    """What takes part; of one that is closed, what gets its rows."""
    at = shlex.quote(address)
    rows = ("Get the rows", f"nip-run install {one['dataset']} --from {at}")
    if one["is_closed"] or one["withdrawn"] is not None:
        return [rows]
    path = one["dataset"].partition("/")[2]
    return [
        rows,
        ("Play a run on them", f"nip-run SPEC dataset.path={path} dataset.split=null fine_tune=null --run-id mine"),
        ("Submit it", f"nip-run publish mine --as OWNER --licence MIT --to {at}"),
    ]


def _between(low: float, high: float) -> str:
    """An interval, rounded outwards."""
    return f"{math.floor(low * 1_000) / 1_000:g}–{math.ceil(high * 1_000) / 1_000:g}"


def _row(row: dict[str, Any]) -> dict[str, Any]:
    ranks = str(row["rank"]) if row["rank"] == row["rank_last"] else f"{row['rank']}–{row['rank_last']}"
    ranks = "–" if row["rank"] is None else ranks
    between = "" if row["ci_low"] is None else _between(row["ci_low"], row["ci_high"])
    accuracy = "–" if row["accuracy"] is None else f"{row['accuracy']:g}"
    return {
        **row, "href": href_of(row["release"]), "label": label_of(row["release"]), "ranks": ranks, "between": between,
        "accuracy": accuracy, "time": _minute(row["created"]),
    }  # fmt: skip
