"""Games of published and of private runs, a page each, for browsers without a script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from runner.base.storage.safe_files import read_bounded
from runner.documents.releases.reference import Reference
from runner.pages.report.plain_games import game_section, games_section, row_at, unpacked
from runner.pages.report.served import ServedPage
from runner.server.web.pages.run_cache import CachedPage
from runner.server.web.pages.runs import find_run
from runner.server.web.pages.site import ListingView, missing_page, run_reference, site_of
from runner.server.web.responses import PRIVATE, PUBLIC, page_answer

pages = APIRouter(include_in_schema=False)

LISTED = 100
MAX_PIECE_BYTES = 32 << 20
_TOO_LARGE = "This game is too large for a page; a browser with JavaScript shows it, and nip-run get has all of it."


@pages.get("/run/{owner}/{name}/{version}/games")
@pages.get("/mine/run/{owner}/{name}/{version}/games")
def games(request: Request, reference: Annotated[Reference, Depends(run_reference)], part: str = "1") -> Response:
    """The games of a run, some at a time."""
    return _respond(request, reference, request.url.path.removesuffix("/games"), part, LISTED)


@pages.get("/run/{owner}/{name}/{version}/game/{place}")
@pages.get("/mine/run/{owner}/{name}/{version}/game/{place}")
def game(request: Request, reference: Annotated[Reference, Depends(run_reference)], place: str) -> Response:
    """One game of a run."""
    return _respond(request, reference, request.url.path.rpartition("/game/")[0], place, 1)


def _respond(request: Request, reference: Reference, at: str, number: str, size: int) -> Response:
    """Return the page of some games: the part of the list with this number, or the game itself if `size` is 1."""
    run = find_run(request, reference)
    if run is None:
        return missing_page(request, "There is no such run here.")
    cached = site_of(request).runs.find([run.facts["sha256"]])
    if cached is None:  # the run's own page has it made
        return RedirectResponse(at, 303, {"cache-control": "no-store"})
    first = (int(number) - 1) * size if re.fullmatch(r"[1-9][0-9]{0,7}", number) else -1
    about = next(iter(cached.content.about["runs"]), None)
    if about is None or not 0 <= first < about["count"]:
        return missing_page(request, "There is no such game here.")
    label = str(reference).partition("/")[2]
    links = [(at, label)]
    if size == LISTED:
        title, section = f"Games of {label}", _list_section(cached, about, first, at)
    else:
        title, section = _game_section(cached, about, first, at)
        links.append((f"{at}/games?part={first // LISTED + 1}", "Games"))
    who, word = (None, "") if run.session is None else (run.session.viewer.account, run.session.word)
    page = ServedPage(title, [("game", section)], links=links, who=who, word=word)
    return page_answer(request, page, cache=PUBLIC if run.session is None else PRIVATE)


def _read_piece(cached: CachedPage, about: Mapping[str, Any], kind: str, place: int) -> dict[str, Any] | None:
    """Return the piece that has a game, or its row; None if it is too large."""
    firsts = about["lists" if kind == "list" else "pieces"]
    number = max(at for at, first in enumerate(firsts) if first <= place)
    path = cached.piece(f"{about['slug']}-{kind}-{number}")
    if path is None or path.stat().st_size > MAX_PIECE_BYTES:
        return None
    return unpacked(read_bounded(path, MAX_PIECE_BYTES))


def _list_section(cached: CachedPage, about: Mapping[str, Any], first: int, run: str) -> Markup:
    last = min(first + LISTED, about["count"])
    piece = _read_piece(cached, about, "list", first)
    if piece is None:
        return ListingView(lead=["This list is too large for a page."]).render()
    before, after = first // LISTED, first // LISTED + 2
    return games_section(
        [row_at(piece, place) for place in range(first, last)], first, about["count"], at=run,
        before=f"{run}/games?part={before}" if before else None,
        after=f"{run}/games?part={after}" if last < about["count"] else None,
    )  # fmt: skip


def _game_section(cached: CachedPage, about: Mapping[str, Any], place: int, run: str) -> tuple[str, Markup]:
    listed, piece = (_read_piece(cached, about, kind, place) for kind in ("list", "games"))
    if listed is None or piece is None:
        return f"Game {place + 1:,}", ListingView(lead=[_TOO_LARGE]).render()
    row = row_at(listed, place)
    section = game_section(
        row, piece["games"][place - piece["first"]], piece["texts"], about,
        before=f"{run}/game/{place}" if place else None,
        after=f"{run}/game/{place + 2}" if place + 1 < about["count"] else None,
    )  # fmt: skip
    return str(row["datapoint"]), section
