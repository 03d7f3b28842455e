"""Pages of published runs: one with its games, its lineage and its commands; two side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from runner.documents.releases.reference import Kind, Reference
from runner.pages.html import rendered
from runner.pages.report.served import NOTHING, ServedPage
from runner.server.accounts.accounts import ANYBODY
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.verification_tiers import MEANINGS as TIERS
from runner.server.web.api_errors import fault
from runner.server.web.authentication import server_of
from runner.server.web.browser_session import has_private_run
from runner.server.web.callers import address_of
from runner.server.web.pages.boards import no_board, no_page, site_of, words_alone
from runner.server.web.pages.run_cache import Busy, CachedPage
from runner.server.web.responses import PRIVATE, PUBLIC, page_answer, piece_file
from runner.server.web.wording import commands_of, day, href_of, label_of, lineage_facts, rank, release_line

pages = APIRouter(include_in_schema=False)

WAIT_SECONDS = 25.0
"""For a page that is made for the first time; a browser asks again after that."""


@pages.get("/run/{owner}/{name}/{version}")
async def run(request: Request, owner: str, name: str, version: str) -> Response:
    """A published run."""
    site, settings = site_of(request), server_of(request).settings
    shown = site.boards.shown
    if shown is None:
        return no_board(request)
    reference = f"run/{owner}/{name}@{version}"
    said = await run_in_threadpool(shown.release, reference)
    if said is None:
        if await run_in_threadpool(has_private_run, request, owner, name, version):
            return RedirectResponse(f"/mine{href_of(reference)}", 303, {"cache-control": PRIVATE})
        return no_page(request, "There is no such run here.")
    try:
        made = await site.runs.made(
            [Reference(Kind.RUN, owner, name, version)], [said["sha256"]], ANYBODY, WAIT_SECONDS,
            asker=asker_of(request),
        )  # fmt: skip
    except Busy:
        return busy(request)

    def make() -> ServedPage:
        return run_page(said, made, f"{href_of(reference)}/data/", settings.address, shown)

    if not made.lasts:
        return page_answer(request, await run_in_threadpool(make), cache="no-store")
    return await run_in_threadpool(site.kept.answer, request, (shown.name, reference), make)


def run_page(
    said: dict[str, Any], made: CachedPage, data: str, address: str, shown: BoardSnapshot | None, **signed_in: str
) -> ServedPage:
    """The page of a run; of a private one without anything that the board says of it."""
    reference, is_public = said["reference"], shown is not None
    row = None if shown is None else shown.row_of(reference)
    task = None if shown is None or row is None else shown.task(row["page"])
    tier = said.get("tier")
    facts = [(name, said[key]) for name, key in (("Benchmark", "benchmark"), ("Models", "models")) if said[key]]
    facts += [("Trained on", row["trained_on"])] if row and row["trained_on"] else []
    facts += [("Published", day(said["created"])), ("Licence", said["licence"] or "none is given"),
              ("Signed", "yes" if said["signed"] else "no"), ("SHA-256 of its manifest", said["sha256"])]  # fmt: skip
    facts += [("Pinned", "not pinned: its files are in no public commit")] if said.get("pinned") is False else []
    family = lineage_facts([] if shown is None else shown.family_of(reference), said["sha256"][:12])
    if said.get("what") == "training":  # its own page has that curve already
        family["curve"] = None
    inner = Markup("").join(Markup(html) for _, html in made.said.get("sections", ()))  # noqa: S704 - ours, escaped
    told = {
        "owner": said["owner"], "private": not is_public, "yanked": said["yanked"], "description": said["description"],
        "tier": said.get("tier_words"), "tier_meaning": TIERS.get(tier or "", ""), "owner_runs": said.get("owner_runs"),
        "rank": task and row and f"{rank(row)} of {task['ranked']:,} in {task['benchmark']}",
        "page": row and row["page"],
        "facts": facts, "wrong": made.said.get("wrong"), "inner": inner, "parameters": made.said.get("parameters", ""),
        **family,
        "links": [] if shown is None else _by_role(shown.links_from(reference)),
        "reproductions": [
            {**one, "href": href_of(one["release"]), "label": label_of(one["release"])}
            for one in said.get("reproductions", ())
        ],
        "commands": commands_of(reference, said["kind"], address, trains=said.get("what") == "training"),
        "versions": [] if shown is None else [
            release_line(one) for one in shown.releases_of("run", said["owner"], said["name"])
        ],
    }  # fmt: skip
    has_games = any(one["count"] for one in made.said.get("about", {}).get("runs", ()))
    told["games"] = f"{data.removesuffix('data/')}games" if has_games else None
    told["parts"] = _parts(told, _compared(row, task))
    about = {**made.said.get("about", NOTHING), "data": data}
    route = next(iter(made.said.get("sections", ())), ["run", ""])[0]
    links = [("/", "Boards")] if is_public else [("/mine", "Private releases")]
    links += [(f"/board/{task['page']}", task["benchmark"])] if task else []
    return ServedPage(label_of(reference), [(route, rendered("served/run.html", told))], about, links, **signed_in)  # type: ignore[arg-type]


_ROLES = {"part": "Its parts", "output": "Models that it made", "reproduces": "Plays anew", "child_of": "Made from"}


def _by_role(links: Sequence[tuple[str, str, bool]]) -> list[tuple[str, list[tuple[str, str | None]]]]:
    """What a release was made with, and what came of it: for each role the releases, with their pages."""
    found: dict[str, list[tuple[str, str | None]]] = {}
    for role, target, there in links:
        found.setdefault(role, []).append((label_of(target), href_of(target) if there else None))
    return [(_ROLES.get(role, role.replace("_", " ").capitalize()), them) for role, them in found.items()]


def _parts(told: Mapping[str, Any], compared: str | None) -> list[tuple[str, str]]:
    """Where on a run's page is what, and what is beside it."""
    names = ("lineage", "parameters", "reproductions")
    there = [("#get", "Get and reproduce"), *((f"#{name}", name.capitalize()) for name in names if told[name])]
    there += [("#versions", "Versions")] if len(told["versions"]) > 1 else []
    return [*there, *([(compared, "Compare with the first of its board")] if compared else [])]


def _compared(row: dict[str, Any] | None, task: dict[str, Any] | None) -> str | None:
    """The page of a run beside the first of its board."""
    leader = task and task["leader"]
    if row is None or not leader or leader["release"] == row["release"]:
        return None
    first, second = (str(one["href"]).removeprefix("/run") for one in (leader, row))
    return f"/compare{first}{second}"


def asker_of(request: Request) -> str:
    """Whose place in a queue a request takes."""
    return address_of(request.scope, server_of(request).settings.proxies)


def busy(request: Request) -> Response:
    """That a page is still being made."""
    section = words_alone("This page is being made; it asks again by itself.")
    made = page_answer(request, ServedPage("In a moment", [("making", section)], again=5), status=503, cache="no-store")
    made.headers["retry-after"] = "5"
    return made


@pages.get("/run/{owner}/{name}/{version}/data/{piece}.json.gz")
def run_piece(request: Request, owner: str, name: str, version: str, piece: str) -> Response:
    """Games of a published run for the script of its page."""
    site = site_of(request)
    said = site.boards.shown and site.boards.shown.release(f"run/{owner}/{name}@{version}")
    made = site.runs.there([said["sha256"]]) if said else None
    path = made and made.piece(piece)
    return piece_file(path, PUBLIC) if path else fault(404, "missing", "there is no such piece; load the page again")


@pages.get("/compare")
def compare_form(request: Request, base: str = "", other: str = "") -> Response:
    """To the page of two runs that are named as OWNER/NAME@VERSION."""
    found = [
        re.fullmatch(r"(?:run/)?([a-z0-9._-]{1,100})/([a-z0-9._-]{1,100})@([A-Za-z0-9._-]{1,100})", one)
        for one in (base, other)
    ]
    if None in found:
        return no_page(request, "Two runs are compared by their releases: /compare?base=OWNER/NAME@VERSION&other=...")
    return RedirectResponse("/compare/" + "/".join("/".join(one.groups()) for one in found if one), 303)


_TWO = "/compare/{owner}/{name}/{version}/{owner2}/{name2}/{version2}"


def _two(request: Request) -> list[Reference]:
    """The runs that an address names."""
    said = request.path_params
    return [
        Reference(Kind.RUN, *(said[f"{name}{which}"] for name in ("owner", "name", "version"))) for which in ("", "2")
    ]


@pages.get(_TWO)
async def compare(request: Request) -> Response:
    """Two published runs side by side."""
    site = site_of(request)
    shown = site.boards.shown
    if shown is None:
        return no_board(request)
    wanted = _two(request)
    references = [str(one) for one in wanted]
    said = [await run_in_threadpool(shown.release, one) for one in references]
    if said[0] is None or said[1] is None or references[0] == references[1]:
        return no_page(request, "There are no such two runs here.")
    try:
        made = await site.runs.made(
            wanted, [said[0]["sha256"], said[1]["sha256"]], ANYBODY, WAIT_SECONDS, asker=asker_of(request)
        )
    except Busy:
        return busy(request)
    page = compare_page(references, made, str(request.url.path))
    return page_answer(request, page, cache=PUBLIC if made.lasts else "no-store")


def compare_page(references: list[str], made: CachedPage, path: str) -> ServedPage:
    inner = [(route, Markup(html)) for route, html in made.said.get("sections", ())]  # noqa: S704 - ours, escaped
    if not inner:
        inner = [("compare", words_alone(f"They cannot be compared: {made.said.get('wrong', 'nothing was found')}"))]
    about = {**made.said.get("about", NOTHING), "data": f"{path}/data/"}
    links = [(href_of(one), label_of(one)) for one in references]
    return ServedPage("Two runs compared", inner, about, links)


@pages.get(_TWO + "/data/{piece}.json.gz")
def compare_piece(request: Request, piece: str) -> Response:
    """Pairs of games for the script of a page of two runs."""
    site = site_of(request)
    shown = site.boards.shown
    said = [shown and shown.release(str(one)) for one in _two(request)]
    made = site.runs.there([one["sha256"] for one in said if one]) if all(said) else None
    path = made and made.piece(piece)
    return piece_file(path, PUBLIC) if path else fault(404, "missing", "there is no such piece; load the page again")
