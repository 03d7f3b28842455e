"""Games of published and of private runs, a page each, for whoever reads without a script."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from runner.base.storage.safe_files import read_bounded
from runner.pages.report.plain_games import game_section, games_section, row_at, unpacked
from runner.pages.report.served import ServedPage
from runner.server.web.browser_session import who
from runner.server.web.pages.boards import no_page, site_of, words_alone
from runner.server.web.pages.run_cache import CachedPage
from runner.server.web.pages.sign_in import private_run
from runner.server.web.responses import PRIVATE, PUBLIC, page_answer

pages = APIRouter(include_in_schema=False)

LISTED = 100
MOST_PACKED = 32 << 20
_TOO_LARGE = "This game is too large for a page; a browser with JavaScript shows it, and nip-run get has all of it."


@pages.get("/run/{owner}/{name}/{version}/games")
def games(request: Request, owner: str, name: str, version: str, part: str = "1") -> Response:
    """The games of a published run, some at a time."""
    return _answer(request, f"{owner}/{name}@{version}", _public(request, owner, name, version), part)


@pages.get("/run/{owner}/{name}/{version}/game/{place}")
def game(request: Request, owner: str, name: str, version: str, place: str) -> Response:
    """One game of a published run."""
    return _answer(request, f"{owner}/{name}@{version}", _public(request, owner, name, version), None, place)


@pages.get("/mine/run/{owner}/{name}/{version}/games")
def my_games(request: Request, owner: str, name: str, version: str, part: str = "1") -> Response:
    """The games of a private run, some at a time."""
    return _answer(request, f"{owner}/{name}@{version}", _mine(request, owner, name, version), part)


@pages.get("/mine/run/{owner}/{name}/{version}/game/{place}")
def my_game(request: Request, owner: str, name: str, version: str, place: str) -> Response:
    """One game of a private run."""
    return _answer(request, f"{owner}/{name}@{version}", _mine(request, owner, name, version), None, place)


Found = tuple[str, str | None, dict[str, Any]] | None
"""Of a run that whoever asks may see: its hash, who is signed in, and what its page is sent with."""


def _public(request: Request, owner: str, name: str, version: str) -> Found:
    shown = site_of(request).boards.shown
    said = shown and shown.release(f"run/{owner}/{name}@{version}")
    return (said["sha256"], None, {}) if said else None


def _mine(request: Request, owner: str, name: str, version: str) -> Found:
    found = who(request)
    said = found and private_run(request, found.viewer, owner, name, version)
    if found is None or not said:
        return None
    return said["sha256"], found.viewer.account, {"who": found.viewer.account, "word": found.word}


def _answer(request: Request, label: str, found: Found, part: str | None, place: str = "") -> Response:
    if found is None:
        return no_page(request, "There is no such run here.")
    sha256, account, signed = found
    run = request.url.path.removesuffix("/games") if part else request.url.path.rpartition("/game/")[0]
    made = site_of(request).runs.there([sha256])
    if made is None:  # its own page has it made
        return RedirectResponse(run, 303, {"cache-control": "no-store"})
    number = int(part or place) - 1 if re.fullmatch(r"[1-9][0-9]{0,7}", part or place) else -1
    about = next(iter(made.said.get("about", {}).get("runs", ())), None)
    first = number * (LISTED if part else 1)
    if about is None or not 0 <= first < about["count"]:
        return no_page(request, "There is no such game here.")
    links = [(run, label), *([] if part else [(f"{run}/games?part={first // LISTED + 1}", "Games")])]
    if part:
        title, section = f"Games of {label}", _list(made, about, first, run)
    else:
        title, section = _game(made, about, first, run)
    page = ServedPage(title, [("game", section)], links=links, **signed)
    return page_answer(request, page, cache=PUBLIC if account is None else PRIVATE)


def _piece(made: CachedPage, about: dict[str, Any], kind: str, place: int) -> dict[str, Any] | None:
    """The piece that has a game, or its row."""
    firsts = about["lists" if kind == "list" else "pieces"]
    number = max(at for at, first in enumerate(firsts) if first <= place)
    path = made.piece(f"{about['slug']}-{kind}-{number}")
    if path is None or path.stat().st_size > MOST_PACKED:
        return None
    return unpacked(read_bounded(path, MOST_PACKED))


def _list(made: CachedPage, about: dict[str, Any], first: int, run: str) -> Any:
    last = min(first + LISTED, about["count"])
    piece = _piece(made, about, "list", first)
    if piece is None:
        return words_alone("This list is too large for a page.")
    before, after = first // LISTED, first // LISTED + 2
    return games_section(
        [row_at(piece, place) for place in range(first, last)], first, about["count"], at=run,
        before=f"{run}/games?part={before}" if before else None,
        after=f"{run}/games?part={after}" if last < about["count"] else None,
    )  # fmt: skip


def _game(made: CachedPage, about: dict[str, Any], place: int, run: str) -> tuple[str, Any]:
    listed, piece = (_piece(made, about, kind, place) for kind in ("list", "games"))
    if listed is None or piece is None:
        return f"Game {place + 1:,}", words_alone(_TOO_LARGE)
    row = row_at(listed, place)
    section = game_section(
        row, piece["games"][place - piece["first"]], piece["texts"], about,
        before=f"{run}/game/{place}" if place else None,
        after=f"{run}/game/{place + 2}" if place + 1 < about["count"] else None,
    )  # fmt: skip
    return str(row["datapoint"]), section
