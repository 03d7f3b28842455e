"""Pages of a single game and of a list of games, for browsers without JavaScript.

(With JavaScript, the run's page shows all games.) A piece is a file with a part of the run's games or of their list,
which `runner.server.web.pages.run_cache` stores with the run's page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from runner.base.storage.safe_files import read_bounded
from runner.documents.releases.reference import Reference
from runner.pages.report.plain_games import GamesView, game_view, row_at, unpack_piece
from runner.pages.report.served import ServedPage
from runner.server.web.pages.run_cache import CachedPage
from runner.server.web.pages.runs import find_run
from runner.server.web.pages.site import ListingView, missing_page, run_reference, site_of
from runner.server.web.responses import page_response

pages = APIRouter(include_in_schema=False)

GAMES_PER_PART = 100
"""Number of games in one part of the list."""
MAX_PIECE_BYTES = 32 << 20
_TOO_LARGE = "This game is too large for a page. Turn on JavaScript, or download the run with nip-run get."


@pages.get("/run/{owner}/{name}/{version}/games")
@pages.get("/mine/run/{owner}/{name}/{version}/games")
def games(request: Request, reference: Annotated[Reference, Depends(run_reference)], part: str = "1") -> Response:
    """Show a part of the games of a run."""
    return _respond(request, reference, request.url.path.removesuffix("/games"), part, GAMES_PER_PART)


@pages.get("/run/{owner}/{name}/{version}/game/{place}")
@pages.get("/mine/run/{owner}/{name}/{version}/game/{place}")
def game(request: Request, reference: Annotated[Reference, Depends(run_reference)], place: str) -> Response:
    """Show one game of a run."""
    return _respond(request, reference, request.url.path.rpartition("/game/")[0], place, 1)


def _respond(request: Request, reference: Reference, run_path: str, number: str, size: int) -> Response:
    """Return the page with game `number` if `size` is 1, or else part `number` of the list; both count from 1."""
    run = find_run(request, reference)
    if run is None:
        return missing_page(request, "This run does not exist on this server, or is private.")
    cached = site_of(request).run_pages.find_cached([run.facts["sha256"]])
    if cached is None:  # redirect to the run's page, which builds the pieces
        return RedirectResponse(run_path, 303, {"cache-control": "no-store"})
    first = (int(number) - 1) * size if re.fullmatch(r"[1-9][0-9]{0,7}", number) else -1
    run_data = next(iter(cached.content.about["runs"]), None)
    if run_data is None or not 0 <= first < run_data["count"]:
        return missing_page(request, "This run has no such game. The run's page lists all games.")
    label = str(reference).partition("/")[2]
    links = [(run_path, label)]
    if size == GAMES_PER_PART:
        title, section = f"Games of {label}", _list_section(cached, run_data, first, run_path)
    else:
        title, section = _game_section(cached, run_data, first, run_path)
        links.append((f"{run_path}/games?part={first // GAMES_PER_PART + 1}", "Games"))
    account, csrf_token = (None, "") if run.session is None else (run.session.viewer.account, run.session.csrf_token)
    page = ServedPage(title, [("game", section)], links=links, account=account, csrf_token=csrf_token)
    return page_response(request, page, cache_control=run.cache_control)


def _read_piece(cached: CachedPage, run_data: Mapping[str, Any], kind: str, place: int) -> dict[str, Any] | None:
    """Return the piece with a game (`kind` "games") or with its row in the list ("list"); None if it is too large.

    `place` is the position of the game in the run, from 0.
    """
    first_places = run_data["lists" if kind == "list" else "pieces"]  # the place of the first game of each piece
    number = max(index for index, first in enumerate(first_places) if first <= place)
    path = cached.piece(f"{run_data['slug']}-{kind}-{number}")
    if path is None or path.stat().st_size > MAX_PIECE_BYTES:
        return None
    return unpack_piece(read_bounded(path, MAX_PIECE_BYTES))


def _list_section(cached: CachedPage, run_data: Mapping[str, Any], first: int, run_path: str) -> Markup:
    last = min(first + GAMES_PER_PART, run_data["count"])
    piece = _read_piece(cached, run_data, "list", first)
    if piece is None:
        message = "This list is too large for a page. Turn on JavaScript, or download the run with nip-run get."
        return ListingView(lead=[message]).render()
    before, after = first // GAMES_PER_PART, first // GAMES_PER_PART + 2
    view = GamesView(
        rows=[row_at(piece, place) for place in range(first, last)],
        first=first,
        count=run_data["count"],
        run_path=run_path,
        before=f"{run_path}/games?part={before}" if before else None,
        after=f"{run_path}/games?part={after}" if last < run_data["count"] else None,
    )
    return view.render()


def _game_section(cached: CachedPage, run_data: Mapping[str, Any], place: int, run_path: str) -> tuple[str, Markup]:
    list_piece, piece = (_read_piece(cached, run_data, kind, place) for kind in ("list", "games"))
    if list_piece is None or piece is None:
        return f"Game {place + 1:,}", ListingView(lead=[_TOO_LARGE]).render()
    row = row_at(list_piece, place)
    view = game_view(
        row,
        piece["games"][place - piece["first"]],
        piece["texts"],
        run_data,
        before=f"{run_path}/game/{place}" if place else None,
        after=f"{run_path}/game/{place + 2}" if place + 1 < run_data["count"] else None,
    )
    return row.datapoint, view.render()
