"""Signing a browser in with a token, and the private runs of whoever is signed in, on pages that no cache keeps."""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from runner.base.errors import ReleaseError
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, Release
from runner.documents.releases.reference import Kind, Reference
from runner.pages.html import rendered
from runner.pages.report.served import ServedPage
from runner.registry.lineage.listed_facts import listed_facts
from runner.registry.transports.listing import small_file
from runner.server.accounts.accounts import Viewer, viewer_of
from runner.server.accounts.browser_sessions import SECONDS, SignedIn, sign_in, sign_out
from runner.server.store.schema import releases
from runner.server.visible_tree import ServerTree, seen_by
from runner.server.web.api_errors import fault
from runner.server.web.authentication import server_of
from runner.server.web.browser_session import SESSION, cookie_name, who
from runner.server.web.forms import from_here, posted, same
from runner.server.web.pages.boards import listing, no_page, site_of
from runner.server.web.pages.run_cache import Busy
from runner.server.web.pages.runs import busy, run_page
from runner.server.web.responses import PRIVATE, page_answer, piece_file
from runner.server.web.wording import release_line

pages = APIRouter(include_in_schema=False)

WAIT_SECONDS = 25.0
_BEFORE = "nip-run-form"
_MOST_LISTED = 1_000


def _set(request: Request, made: Response, name: str, value: str, seconds: int) -> None:
    secure = server_of(request).settings.address.startswith("https:")
    made.set_cookie(
        cookie_name(request, name), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict"
    )


@pages.get("/login")
def login(request: Request) -> Response:
    """The form that takes a token."""
    return _form(request, "", 200)


def _form(request: Request, wrong: str, status: int) -> Response:
    word = secrets.token_urlsafe(24)
    section = rendered("served/login.html", {"wrong": wrong, "word": word})
    page = ServedPage("Sign in", [("login", section)], here="/mine")
    made = page_answer(request, page, status=status, cache=PRIVATE)
    _set(request, made, _BEFORE, word, 3600)
    return made


@pages.post("/login")
async def log_in(request: Request) -> Response:
    """Sign a browser in."""
    said = await posted(request)
    if not from_here(request) or not same(said.get("word", ""), request.cookies.get(cookie_name(request, _BEFORE), "")):
        return _form(request, "This form was open for too long, or came from elsewhere; try again.", 403)
    cookie = await run_in_threadpool(_signed, request, said.get("token", "").strip())
    if cookie is None:
        return _form(request, "This token is not known, has expired, or was revoked.", 401)
    made = RedirectResponse("/mine", 303, {"cache-control": PRIVATE})
    _set(request, made, SESSION, cookie, SECONDS)
    made.delete_cookie(cookie_name(request, _BEFORE), path="/")
    return made


def _signed(request: Request, token: str) -> str | None:
    """The cookie of who has this token. Nothing is written, and no writer waits, where it is none."""
    database = server_of(request).database
    with database.reading() as connection:
        if viewer_of(connection, token, time.time()) is None:
            return None
    with database.writing() as connection:
        return sign_in(connection, token, time.time())


@pages.post("/logout")
async def log_out(request: Request) -> Response:
    """Sign a browser out, here and for good."""
    said = await posted(request)
    found = await run_in_threadpool(who, request)
    if found is not None:
        if not from_here(request) or not same(said.get("word", ""), found.word):
            return _form(request, "This form came from elsewhere; nothing was done.", 403)
        await run_in_threadpool(_out, request, found)
    made = RedirectResponse("/", 303, {"cache-control": PRIVATE})
    made.delete_cookie(cookie_name(request, SESSION), path="/")
    return made


def _out(request: Request, found: SignedIn) -> None:
    with server_of(request).database.writing() as connection:
        sign_out(connection, found)


@pages.get("/mine")
def mine(request: Request) -> Response:
    """The private releases of whoever is signed in."""
    found = who(request)
    if found is None:
        return RedirectResponse("/login", 303, {"cache-control": PRIVATE})
    query = select(releases).where(releases.c.visibility == "private", seen_by(found.viewer))
    with server_of(request).database.reading() as connection:
        rows = connection.execute(query.order_by(releases.c.created.desc()).limit(_MOST_LISTED)).all()
    lines = [
        release_line(_said(row), f"/mine/run/{row.owner}/{row.name}/{row.version}" if row.kind == Kind.RUN else None)
        | ({} if row.kind == Kind.RUN else {"href": "/mine"})
        for row in rows
    ]
    lead = ["Nobody else sees these." if lines else "There is nothing private of yours here."]
    lead.append(f"You are in: {', '.join(sorted(found.viewer.owners))}.")
    section = listing(lead, tables=[("", lines)], links=[("/mine/account", "Your tokens and organisations")])
    page = ServedPage("Private releases", [("mine", section)], here="/mine", who=found.viewer.account, word=found.word)
    return page_answer(request, page, cache=PRIVATE)


def _said(row: Any) -> dict[str, Any]:
    return {
        "reference": f"{row.kind}/{row.owner}/{row.name}@{row.version}", "kind": row.kind, "owner": row.owner,
        "name": row.name, "created": row.created, "sha256": row.sha256, "yanked": None, "description": "",
    }  # fmt: skip


@pages.get("/mine/run/{owner}/{name}/{version}")
async def my_run(request: Request, owner: str, name: str, version: str) -> Response:
    """A private run."""
    found = await run_in_threadpool(who, request)
    if found is None:
        return RedirectResponse("/login", 303, {"cache-control": PRIVATE})
    said = await run_in_threadpool(private_run, request, found.viewer, owner, name, version)
    if said is None:
        return no_page(request, "There is no such run here.")
    try:
        wanted = [Reference(Kind.RUN, owner, name, version)]
        made = await site_of(request).runs.made(
            wanted, [said["sha256"]], found.viewer, WAIT_SECONDS, asker=f"account {found.viewer.account}"
        )
    except Busy:
        return busy(request)
    address = server_of(request).settings.address
    signed = {"who": found.viewer.account, "word": found.word}
    page = await run_in_threadpool(run_page, said, made, f"{request.url.path}/data/", address, None, **signed)
    return page_answer(request, page, cache=PRIVATE)


def private_run(request: Request, viewer: Viewer, owner: str, name: str, version: str) -> dict[str, Any] | None:
    """What is said of a private run, where it is the viewer's."""
    named = (
        releases.c.kind == "run",
        releases.c.owner == owner,
        releases.c.name == name,
        releases.c.version == version,
    )
    server = server_of(request)
    with server.database.reading() as connection:
        row = connection.execute(
            select(releases).where(*named, releases.c.visibility == "private", seen_by(viewer))
        ).one_or_none()
    if row is None:
        return None
    tree = ServerTree(server.database, server.blobs, viewer)
    path = f"run/{owner}/{name}/{version}"
    try:
        release = Release.from_bytes(
            small_file(tree.open(f"{path}/{MANIFEST}"), MANIFEST, MAX_MANIFEST), server.settings.limits
        )
    except ReleaseError:
        return None
    more = {"description": release.description, "licence": release.licence, "signed": False, "version": version,
            "pinned": release.facts.get("pinned")}  # fmt: skip
    return {**listed_facts(release), **_said(row), **more}


@pages.get("/mine/run/{owner}/{name}/{version}/data/{piece}.json.gz")
def my_piece(request: Request, owner: str, name: str, version: str, piece: str) -> Response:
    """Games of a private run for the script of its page."""
    found = who(request)
    said = found and private_run(request, found.viewer, owner, name, version)
    made = site_of(request).runs.there([said["sha256"]]) if said else None
    path = made and made.piece(piece)
    return piece_file(path, PRIVATE) if path else fault(404, "missing", "there is no such piece")
