"""The pages of competitions, as anybody sees them."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from runner.errors import NotPublished
from runner.pages.page import rendered
from runner.pages.served import ServedPage
from runner.server.competitions import board as boards
from runner.server.competitions.kept import shown_time
from runner.server.people.accounts import ANYBODY
from runner.server.web.answers import page_answer
from runner.server.web.api_competitions import Word
from runner.server.web.asking import server_of
from runner.server.web.page_facts import href_of
from runner.server.web.pages_boards import no_page

pages = APIRouter(include_in_schema=False)
MOST = 1_000


@pages.get("/competitions")
def listed(request: Request) -> Response:
    """All competitions."""
    with server_of(request).database.reading() as connection:
        found = boards.listed(connection, ANYBODY, time.time(), "", MOST)
    section = rendered("served/competitions.html", {"competitions": [_with_times(one) for one in found]})
    return page_answer(request, ServedPage("Competitions", [("competitions", section)], links=[("/", "Boards")]))


@pages.get("/competitions/{owner}/{name}")
def one(request: Request, owner: Word, name: Word) -> Response:
    """A competition with its board."""
    server = server_of(request)
    try:
        with server.database.reading() as connection:
            found = boards.board(connection, ANYBODY, owner, name, time.time())
    except NotPublished:
        return no_page(request, "There is no such competition here.")
    shown = {**_with_times(found), "board": [_row(row) for row in found["board"]]}
    section = rendered("served/competition.html", {"one": shown, "address": server.settings.address})
    links = [("/", "Boards"), ("/competitions", "Competitions")]
    return page_answer(request, ServedPage(f"{owner}/{name}", [("competition", section)], links=links))


def _with_times(one: dict[str, Any]) -> dict[str, Any]:
    closing = f"{'closed' if one['is_closed'] else 'closes'} {shown_time(one['closes'])}"
    if one["withdrawn"] is not None:
        closing = f"withdrawn {shown_time(one['withdrawn'])}"
    times = {"withdrawing": one["withdrawn"], "relabelling": one["relabelled"]}
    return {**one, "closing": closing, **{name: at and shown_time(at) for name, at in times.items()}}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    ranks = str(row["rank"]) if row["rank"] == row["rank_last"] else f"{row['rank']}–{row['rank_last']}"
    between = "–" if row["ci_low"] is None else f"{row['ci_low']:g} to {row['ci_high']:g}"
    accuracy = "–" if row["accuracy"] is None else f"{row['accuracy']:g}"
    return {
        **row, "href": href_of(row["release"]), "ranks": ranks, "between": between, "accuracy": accuracy,
        "time": shown_time(row["created"]),
    }  # fmt: skip
