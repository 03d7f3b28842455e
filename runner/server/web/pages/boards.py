"""The first page, the pages of boards, and downloads of boards as files.

A board is the ranked list of the runs on one task. A `BoardSnapshot` has all boards of the server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from markupsafe import Markup
from starlette.responses import FileResponse, Response

from runner.pages.boards.marks import MEANINGS
from runner.pages.report.games import FORMAT
from runner.pages.report.served import ServedPage, View, static_files
from runner.results.leaderboard.model import describe_ranks
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.verification_tiers import MEANINGS as TIERS
from runner.server.web.api.schemas import FILE_RESPONSE, ResponseBody, errors
from runner.server.web.api_errors import error_response
from runner.server.web.authentication import server_of
from runner.server.web.pages.site import RETRY_SECONDS, EarlyResponse, NewestSnapshot, missing_page, site_of
from runner.server.web.responses import IMMUTABLE, PUBLIC, body_response, compressed_file_response, piece_response
from runner.server.web.views import BoardTableRow, Command, ReleaseLine, TaskLine, board_commands, home_commands

pages = APIRouter(include_in_schema=False)
data = APIRouter(tags=["boards"])

ROWS_PER_PART = 100
"""Maximum rows on a page without JavaScript. (The page's script shows all rows.)"""
MAX_NEWEST = 20
"""Number of releases on the first page."""
MAX_LEFT_OUT = 50
"""Maximum number of left-out releases on the first page."""

_CSV = {"content": {"text/csv": {"schema": {"type": "string"}}}}


class BoardTask(ResponseBody):
    page: str
    """The id of the board."""
    benchmark: str
    task: str | None
    selection: str | None


class BoardFileResponse(ResponseBody):
    """A board for programs. docs/reference/report-files.md describes the fields of a row."""

    task: BoardTask
    rows: list[dict[str, Any]]


BoardId = Annotated[str, Path(pattern="^[0-9a-f]{12}$")]
"""Type of the parameter in a URL's path that is the id of a board."""


def find_snapshot_for_download(request: Request) -> BoardSnapshot:
    """Return the newest snapshot for a download; raise EarlyResponse with a JSON body if there is none yet.

    For pages, `find_snapshot` raises EarlyResponse with a page instead.
    """
    snapshot = site_of(request).boards.newest
    if snapshot is None:
        headers = {"retry-after": str(RETRY_SECONDS)}
        message = "the server is building its first board; try again in a few seconds"
        raise EarlyResponse(error_response(503, "making", message, headers=headers))
    return snapshot


SnapshotForDownload = Annotated[BoardSnapshot, Depends(find_snapshot_for_download)]


@dataclass(frozen=True, kw_only=True)
class HomeView(View):
    """The first page: the boards and the newest releases."""

    template = "home"
    tasks: Sequence[TaskLine]
    newest: Sequence[ReleaseLine]
    refused: Sequence[tuple[str, str]]
    """Releases that the boards leave out, each with the reason."""
    commands: Sequence[Command]
    counts: str


@dataclass(frozen=True, kw_only=True)
class BoardView(View):
    """A board with one part of its rows. (Without JavaScript, a page shows up to `ROWS_PER_PART` rows.)"""

    template = "board"
    page: str
    task: str | None
    selection: str | None
    ranked: int
    """The number of rows that have a rank; `count` is the number of all rows."""
    rank_method: str
    count: int
    rows: Sequence[BoardTableRow]
    domain: tuple[str, str] | None
    """The two ends of the accuracy axis."""
    trained: bool
    """Whether a run on this part of the board uses a trained model. If so, the table has the column "Trained on"."""
    first: int
    last: int
    """The places of the first and the last shown row, from 1."""
    before: str | None
    after: str | None
    """The URLs of the previous and the next part."""
    chart: Markup | None
    tiers: Sequence[tuple[str, str]]
    """The verification tiers with their meanings."""
    meanings: Sequence[tuple[str, str]]
    """The kinds of marks on the board with their meanings."""
    commands: Sequence[Command]


@pages.get("/")
def home(request: Request, snapshot: NewestSnapshot) -> Response:
    """Show the boards and the newest releases."""
    address = server_of(request).settings.address
    return site_of(request).page_cache.respond(request, (snapshot.name, "/"), lambda: _home_page(snapshot, address))


def _home_page(snapshot: BoardSnapshot, address: str) -> ServedPage:
    plurals = {"prompts": "prompts"}  # one release of the kind "prompts" has several prompts
    counts = ", ".join(
        f"{count:,} {kind if count == 1 else plurals.get(kind, f'{kind}s')}"
        for kind, count in sorted(snapshot.counts.items())
    )
    busiest = sorted(snapshot.tasks, key=lambda task: (-task["owners"], -task["rows"], task["benchmark"]))
    view = HomeView(
        tasks=[TaskLine.from_task(task) for task in busiest],
        newest=[ReleaseLine.from_facts(facts) for facts in snapshot.newest_releases(MAX_NEWEST)],
        refused=snapshot.read_info("left_out")[:MAX_LEFT_OUT],
        commands=home_commands(address),
        counts=counts,
    )
    return ServedPage("Boards", [("home", view.render())], nav_path="/")


@data.get("/board.duckdb", response_class=FileResponse, responses={200: FILE_RESPONSE})
def board_file(snapshot: SnapshotForDownload) -> Response:
    """Download the public board as a DuckDB file. docs/reference/report-files.md describes its tables."""
    headers = {"cache-control": PUBLIC, "content-disposition": 'attachment; filename="board.duckdb"'}
    return FileResponse(snapshot.file, media_type="application/octet-stream", headers=headers)


@data.get("/board/{page}.json", response_model=BoardFileResponse, responses=errors(404))
def board_json(request: Request, snapshot: SnapshotForDownload, page: BoardId) -> Response:
    """Download a board as JSON: its rows, its benchmark and its selection of rows."""
    return _download(request, snapshot, page, "json", "application/json")


@data.get("/board/{page}.csv", response_class=Response, responses={200: _CSV, **errors(404)})
def board_csv(request: Request, snapshot: SnapshotForDownload, page: BoardId) -> Response:
    """Download the rows of a board as CSV."""
    return _download(request, snapshot, page, "csv", "text/csv; charset=utf-8")


def _download(request: Request, snapshot: BoardSnapshot, page: str, extension: str, content_type: str) -> Response:
    """Return a board as a file to download."""
    task = snapshot.task(page)
    if task is None:
        return error_response(404, "missing", f"there is no board {page}; the server's first page lists all boards")
    page = task["page"]  # the current id of the board; the URL may contain an earlier one
    path = snapshot.folder / f"{page}.{extension}.gz"
    tag = f"{snapshot.name}-{page}-{extension}"
    response = compressed_file_response(request, path, content_type, cache_control=PUBLIC, tag=tag)
    response.headers["content-disposition"] = f'attachment; filename="board-{page}.{extension}"'
    return response


@pages.get("/board/{page}")
def board_page(request: Request, snapshot: NewestSnapshot, page: str, part: str = "1") -> Response:
    """Show a part of a board."""
    task = snapshot.task(page)
    part_count = 0 if task is None else max(1, math.ceil(task["rows"] / ROWS_PER_PART))
    if task is None or part not in map(str, range(1, part_count + 1)):
        return missing_page(request, "This board does not exist on this server. The first page lists all boards.")
    address = server_of(request).settings.address
    cache_key = (snapshot.name, "board", task["page"], part)
    page_cache = site_of(request).page_cache
    return page_cache.respond(request, cache_key, lambda: _board_page(snapshot, task, int(part), address))


def _board_page(snapshot: BoardSnapshot, task: Mapping[str, Any], number: int, address: str) -> ServedPage:
    board_id, first, domain = task["page"], (number - 1) * ROWS_PER_PART, task["domain"]
    rows = snapshot.rows(board_id, first, ROWS_PER_PART)
    view = BoardView(
        page=board_id, task=task["task"], selection=task["selection"], ranked=task["ranked"],
        rank_method=describe_ranks(task["ranked"]), count=task["rows"],
        rows=[BoardTableRow.from_row(row, domain) for row in rows],
        domain=(f"{domain[0]:.1f}", f"{domain[1]:.1f}") if domain else None,
        trained=any(row["trained_on"] for row in rows),
        first=first + 1, last=first + len(rows),
        before=f"/board/{board_id}?part={number - 1}" if number > 1 else None,
        after=f"/board/{board_id}?part={number + 1}" if first + ROWS_PER_PART < task["rows"] else None,
        chart=Markup(task["chart"]) if task["chart"] else None,  # noqa: S704 - drawn and escaped by the board's process
        tiers=list(TIERS.items()), meanings=[(kind, MEANINGS[kind]) for kind in MEANINGS if kind in task["kinds"]],
        commands=board_commands(address),
    )  # fmt: skip
    list_data = {"slug": board_id, "name": board_id, "count": task["rows"]} | {
        name: task[name] for name in ("benchmark", "task", "pieces", "domain")
    }
    # The page's script reads these keys. "where" is the registry's address, and "place" an option for shown commands.
    script_data = {"where": address, "published": True, "served": True, "place": f" --from {address}",
                   "lists": [list_data], "linked": [], "meanings": MEANINGS}  # fmt: skip
    page_data = {"format": FORMAT, "runs": [], "live": False, "notes": None, "data": f"/boards/{snapshot.name}/",
             "board": script_data}  # fmt: skip
    sections = [(f"board/{board_id}", view.render())]
    return ServedPage(task["benchmark"], sections, page_data, [("/", "Boards")], wide=True)


@pages.get("/boards/{name}/{piece}.json.gz")
def board_piece(request: Request, name: str, piece: str) -> Response:
    """Return a piece of a board's rows for the page's script."""
    folder = site_of(request).boards.folder_of(name)
    if folder is None or not re.fullmatch(r"[0-9a-f]{12}-rows-[0-9]{1,4}", piece):
        return error_response(404, "missing", "the server has a newer board; reload the page")
    path = folder / f"{piece}.json.gz"
    if not path.is_file():
        return error_response(404, "missing", "this part of the board does not exist; reload the page")
    return piece_response(path, PUBLIC)


@pages.get("/static/{name}")
def static_file(request: Request, name: str) -> Response:
    """Return the script or the style sheet."""
    file = static_files().get(name)
    if file is None:
        return error_response(404, "missing", "the server has another version of this file; reload the page")
    return body_response(request, *file, cache_control=IMMUTABLE)
