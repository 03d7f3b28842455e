"""The first page, the boards, their files, and what all pages have beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Request
from markupsafe import Markup
from starlette.responses import FileResponse, Response

from runner.pages.boards.marks import MEANINGS
from runner.pages.html import rendered
from runner.pages.report.games import FORMAT
from runner.pages.report.served import ServedPage, static
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.verification_tiers import MEANINGS as TIERS
from runner.server.web.api.schemas import BYTES, AnswerBody, faults
from runner.server.web.api_errors import fault
from runner.server.web.authentication import server_of
from runner.server.web.responses import FOR_EVER, PUBLIC, answer, packed_file, page_answer, piece_file
from runner.server.web.wording import board_commands, board_line, home_commands, release_line, task_line

if TYPE_CHECKING:
    from runner.server.web.pages.site import ServerSite

pages = APIRouter(include_in_schema=False)
data = APIRouter(tags=["boards"])

ROWS = 100
"""Of a page that is read without a script; with one the list has all."""
NEWEST = 20
AGAIN = 3
LATER = {"retry-after": str(AGAIN)}
"""When it is worth to ask again for a board that is being made for the first time."""

_CSV = {"content": {"text/csv": {"schema": {"type": "string"}}}}


class TaskOfBoard(AnswerBody):
    page: str
    benchmark: str
    task: str | None
    selection: str | None


class BoardFile(AnswerBody):
    """A board as a program reads it; what a row has is described in docs/pages.md."""

    task: TaskOfBoard
    rows: list[dict[str, Any]]


TaskName = Annotated[str, Path(pattern="^[0-9a-f]{12}$")]


def site_of(request: Request) -> ServerSite:
    found: ServerSite = request.app.state.site
    return found


def no_page(request: Request, what: str) -> Response:
    """That there is no such page, or none that whoever asks may see: the same words for both."""
    said = "If it was published just now, it is here in a few seconds. What is private is at /mine, for its owners."
    page = ServedPage("Not here", [("missing", words_alone(what, said))])
    return page_answer(request, page, status=404, cache="no-store")


def listing(lead: Sequence[str], **more: Any) -> Markup:
    """A section that says something and lists releases: all that its template asks for, and `more` of it."""
    facts: dict[str, Any] = {
        "lead": lead, "tables": [], "before": None, "after": None, "commands": [], "owner": None, "links": [],
    }  # fmt: skip
    return rendered("served/listed.html", facts | more)


def words_alone(*lines: str) -> Markup:
    """A section that says something, and lists nothing."""
    return listing(lines)


def no_board(request: Request) -> Response:
    """That the first board of a server is still being made."""
    section = words_alone("The boards are being made for the first time; this page asks again by itself.")
    page = ServedPage("In a moment", [("making", section)], again=AGAIN)
    made = page_answer(request, page, status=503, cache="no-store")
    made.headers.update(LATER)
    return made


def _no_board_yet() -> Response:
    """The same, to a program."""
    return fault(503, "making", "the board is being made for the first time", headers=LATER)


@pages.get("/")
def home(request: Request) -> Response:
    """The tasks and the newest releases."""
    site = site_of(request)
    shown = site.boards.shown
    if shown is None:
        return no_board(request)
    address = server_of(request).settings.address
    return site.kept.answer(request, (shown.name, "/"), lambda: _home(shown, address))


def _home(shown: BoardSnapshot, address: str) -> ServedPage:
    counts = ", ".join(
        f"{count:,} {kind}{'' if count == 1 or kind == 'prompts' else 's'}"
        for kind, count in sorted(shown.counts.items())
    )
    busiest = sorted(shown.tasks, key=lambda task: (-task["owners"], -task["rows"], task["benchmark"]))
    facts = {
        "tasks": [task_line(task) for task in busiest],
        "newest": [release_line(one) for one in shown.newest(NEWEST)],
        "refused": shown.info("left_out")[:50],
        "commands": home_commands(address),
        "counts": counts,
    }
    return ServedPage("Boards", [("home", rendered("served/home.html", facts))], here="/")


@data.get("/board.duckdb", response_class=FileResponse, responses={200: BYTES})
def board_file(request: Request) -> Response:
    """The whole public board as a DuckDB file; its tables are described in docs/pages.md."""
    shown = site_of(request).boards.shown
    if shown is None:
        return _no_board_yet()
    headers = {"cache-control": PUBLIC, "content-disposition": 'attachment; filename="board.duckdb"'}
    return FileResponse(shown.file, media_type="application/octet-stream", headers=headers)


@data.get("/board/{page}.json", response_model=BoardFile, responses=faults(404))
def board_json(request: Request, page: TaskName) -> Response:
    """A board's rows, and what is ranked in it."""
    return _download(request, page, "json", "application/json")


@data.get("/board/{page}.csv", response_class=Response, responses={200: _CSV, **faults(404)})
def board_csv(request: Request, page: TaskName) -> Response:
    """A board's rows for a spreadsheet."""
    return _download(request, page, "csv", "text/csv; charset=utf-8")


def _download(request: Request, page: str, ending: str, kind: str) -> Response:
    shown = site_of(request).boards.shown
    if shown is None:
        return _no_board_yet()
    if shown.task(page) is None:
        return fault(404, "missing", f"there is no board {page}")
    path = shown.folder / f"{page}.{ending}.gz"
    made = packed_file(request, path, kind, cache=PUBLIC, tag=f"{shown.name}-{page}-{ending}")
    made.headers["content-disposition"] = f'attachment; filename="board-{page}.{ending}"'
    return made


@pages.get("/board/{page}")
def board(request: Request, page: str, part: str = "1") -> Response:
    """A board, some rows at a time."""
    site = site_of(request)
    shown = site.boards.shown
    if shown is None:
        return no_board(request)
    task = shown.task(page)
    number = int(part) if re.fullmatch(r"[1-9][0-9]{0,5}", part) else 0
    if task is None or not number or (number - 1) * ROWS >= max(task["rows"], 1):
        return no_page(request, "There is no such board here.")
    address = server_of(request).settings.address
    return site.kept.answer(
        request, (shown.name, "board", page, str(number)), lambda: _board(shown, page, number, address)
    )


def _board(shown: BoardSnapshot, page: str, number: int, address: str) -> ServedPage:
    task = shown.task(page)
    assert task is not None
    first, domain = (number - 1) * ROWS, task["domain"]
    rows = shown.rows(page, first, ROWS)
    facts = {
        "task": task,
        "rows": [board_line(row, domain) for row in rows],
        "domain": domain and [f"{end:.1f}" for end in domain],
        "trained": any(row["trained_on"] for row in rows),
        "first": first + 1,
        "last": first + len(rows),
        "before": f"/board/{page}?part={number - 1}" if number > 1 else None,
        "after": f"/board/{page}?part={number + 1}" if first + ROWS < task["rows"] else None,
        "chart": task["chart"] and _drawn(task["chart"]),
        "tiers": list(TIERS.items()),
        "meanings": [(kind, MEANINGS[kind]) for kind in MEANINGS if kind in task["kinds"]],
        "commands": board_commands(address),
    }
    listed = {"slug": page, "name": page, "count": task["rows"]} | {
        name: task[name] for name in ("benchmark", "task", "pieces", "domain")
    }
    told = {"where": address, "published": True, "served": True, "place": f" --from {address}", "lists": [listed],
            "linked": [], "meanings": MEANINGS}  # fmt: skip
    about = {
        "format": FORMAT,
        "runs": [],
        "live": False,
        "notes": None,
        "data": f"/boards/{shown.name}/",
        "board": told,
    }
    section = rendered("served/board.html", facts)
    return ServedPage(task["benchmark"], [(f"board/{page}", section)], about, [("/", "Boards")], wide=True)


def _drawn(svg: str) -> Markup:
    return Markup(svg)  # noqa: S704 - drawn by the process that makes boards, and escaped there


@pages.get("/boards/{name}/{piece}.json.gz")
def piece(request: Request, name: str, piece: str) -> Response:
    """Rows of a board for the script of its page."""
    folder = site_of(request).boards.at(name)
    if folder is None or not re.fullmatch(r"[0-9a-f]{12}-rows-[0-9]{1,4}", piece):
        return fault(404, "missing", "this board is gone; load its page again")
    path = folder / f"{piece}.json.gz"
    return piece_file(path, PUBLIC) if path.is_file() else fault(404, "missing", "there is no such piece")


@pages.get("/static/{name}")
def static_file(request: Request, name: str) -> Response:
    """The script or the style."""
    found = static().get(name)
    if found is None:
        return fault(404, "missing", "there is no such file")
    return answer(request, *found, cache=FOR_EVER)
