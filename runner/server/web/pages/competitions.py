"""The pages of competitions. The list has only public ones; a signed-in account can open the pages of private ones."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from sqlalchemy import select
from starlette.responses import Response

from runner.base.errors import NotFoundError
from runner.pages.report.served import ServedPage, View
from runner.server.accounts.accounts import ANYBODY
from runner.server.accounts.browser_sessions import BrowserSession
from runner.server.competitions import board as competition_board
from runner.server.store.schema import competitions, releases
from runner.server.web.api.competitions import CompetitionBoardResponse, CompetitionResponse, SubmissionRow
from runner.server.web.api.schemas import UrlName
from runner.server.web.authentication import server_of
from runner.server.web.browser_session import find_session
from runner.server.web.pages.site import missing_page
from runner.server.web.responses import PRIVATE, PUBLIC, page_response
from runner.server.web.views import Command

pages = APIRouter(include_in_schema=False)
MAX_LISTED = 1_000


@dataclass(frozen=True, kw_only=True)
class CompetitionListView(View):
    """The list of competitions."""

    template = "competitions"
    competitions: Sequence[CompetitionResponse]


@dataclass(frozen=True, kw_only=True)
class CompetitionView(View):
    """A competition with its board."""

    template = "competition"
    competition: CompetitionBoardResponse
    is_dataset_public: bool
    """Whether the dataset has a page."""
    rows: Sequence[tuple[SubmissionRow, str]]
    """The submissions, each with its interval as text."""
    count: int
    commands: Sequence[Command]


@pages.get("/competitions")
def list_competitions(request: Request) -> Response:
    """Show the list of competitions."""
    with server_of(request).database.reading() as connection:
        descriptions = competition_board.list_competitions(connection, ANYBODY, time.time(), "", MAX_LISTED)
    section = CompetitionListView(competitions=[CompetitionResponse(**facts) for facts in descriptions]).render()
    return page_response(request, ServedPage("Competitions", [("competitions", section)], nav_path="/competitions"))


@pages.get("/competitions/{owner}/{name}")
def competition_page(
    request: Request, owner: UrlName, name: UrlName, session: Annotated[BrowserSession | None, Depends(find_session)]
) -> Response:
    """Show a competition with its board."""
    server, viewer = server_of(request), ANYBODY if session is None else session.viewer
    try:
        with server.database.reading() as connection:
            board = CompetitionBoardResponse(
                **competition_board.describe_board(connection, viewer, owner, name, time.time())
            )
            query = select(releases.c.visibility).join(competitions, competitions.c.release_id == releases.c.id)
            query = query.where(competitions.c.owner == owner, competitions.c.name == name)
            is_dataset_public = connection.execute(query).scalar_one() == "public"
    except NotFoundError:
        return missing_page(request, "This competition does not exist on this server. /competitions lists all of them.")
    view = CompetitionView(
        competition=board, is_dataset_public=is_dataset_public,
        rows=[(row, format_interval(row.ci_low, row.ci_high)) for row in board.board],
        count=sum(owner.count for owner in board.submissions), commands=_commands(board, server.settings.address),
    )  # fmt: skip
    title = board.title or board.competition
    links = [("/competitions", "Competitions")]
    account, csrf_token = (None, "") if session is None else (session.viewer.account, session.csrf_token)
    page = ServedPage(title, [("competition", view.render())], links=links, account=account, csrf_token=csrf_token)
    return page_response(request, page, cache_control=PUBLIC if session is None else PRIVATE)


def _commands(competition: CompetitionResponse, address: str) -> list[Command]:
    """Return the commands for taking part; for a closed competition, only the command that downloads its rows."""
    url = shlex.quote(address)
    rows = ("Get the rows", f"nip-run install {competition.dataset} --from {url}")
    if competition.is_closed or competition.withdrawn is not None:
        return [rows]
    path = competition.dataset.partition("/")[2]
    return [
        rows,
        (
            "Play a run on these rows",
            f"nip-run SPEC dataset.path={path} dataset.split=null fine_tune=null --run-id mine",
        ),
        ("Submit the run", f"nip-run publish mine --as OWNER --license MIT --to {url}"),
    ]


def format_interval(low: float | None, high: float | None) -> str:
    """Return an interval, rounded outwards; "" if there is none."""
    if low is None or high is None:
        return ""
    return f"{math.floor(low * 1_000) / 1_000:g}–{math.ceil(high * 1_000) / 1_000:g}"
