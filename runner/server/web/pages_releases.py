"""Pages of what is published: a run, a component, an owner, what a search finds, two runs side by side."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from runner.pages.page import rendered
from runner.pages.served import NOTHING, ServedPage
from runner.releases.reference import COMPONENTS, Kind, Reference
from runner.server.boards.shown import Shown
from runner.server.boards.tiers import MEANINGS as TIERS
from runner.server.people.accounts import ANYBODY
from runner.server.web.answers import PUBLIC, page_answer, piece_file
from runner.server.web.asking import server_of
from runner.server.web.faults import fault
from runner.server.web.limiting import address_of
from runner.server.web.page_facts import commands_of, day, href_of, label_of, lineage_facts, rank, release_line
from runner.server.web.pages_boards import no_board, no_page, site_of
from runner.server.web.run_pages import Busy, Made

pages = APIRouter(include_in_schema=False)

LISTED = 100
MOST_WORDS = 8
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
    said: dict[str, Any], made: Made, data: str, address: str, shown: Shown | None, **signed_in: str
) -> ServedPage:
    """The page of a run; of a private one without anything that the board says of it."""
    reference, is_public = said["reference"], shown is not None
    row = None if shown is None else shown.row_of(reference)
    task = None if shown is None or row is None else shown.task(row["page"])
    tier = said.get("tier")
    facts = [("Published", day(said["created"])), ("Licence", said["licence"] or "none is given"),
             ("Release", said["sha256"]), ("Signed", "yes" if said["signed"] else "no")]  # fmt: skip
    facts += [(name, said[key]) for name, key in (("Benchmark", "benchmark"), ("Models", "models")) if said[key]]
    family = [] if shown is None else shown.family_of(reference)
    inner = Markup("").join(Markup(html) for _, html in made.said.get("sections", ()))  # noqa: S704 - ours, escaped
    told = {
        "owner": said["owner"], "private": not is_public, "yanked": said["yanked"], "description": said["description"],
        "tier": said.get("tier_words"), "tier_meaning": TIERS.get(tier or "", ""), "owner_runs": said.get("owner_runs"),
        "rank": task and row and f"{rank(row)} of {task['ranked']:,} in {task['benchmark']}",
        "page": row and row["page"],
        "facts": facts, "wrong": made.said.get("wrong"), "inner": inner, "parameters": made.said.get("parameters", ""),
        **lineage_facts(family, said["sha256"][:12]),
        "links": [] if shown is None else [
            (role, label_of(target), href_of(target) if there else None)
            for role, target, there in shown.links_from(reference)
        ],
        "reproductions": [
            {**one, "href": href_of(one["release"]), "label": label_of(one["release"])}
            for one in said.get("reproductions", ())
        ],
        "commands": commands_of(reference, said["kind"], address),
        "versions": [] if shown is None else [
            release_line(one) for one in shown.releases_of("run", said["owner"], said["name"])
        ],
        "compared": _compared(row, task),
    }  # fmt: skip
    about = {**made.said.get("about", NOTHING), "data": data}
    route = next(iter(made.said.get("sections", ())), ["run", ""])[0]
    links = [("/", "Boards")] if is_public else [("/mine", "Private runs")]
    links += [(f"/board/{task['page']}", task["benchmark"])] if task else []
    return ServedPage(label_of(reference), [(route, rendered("served/run.html", told))], about, links, **signed_in)  # type: ignore[arg-type]


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
    words = ["This page is being made; it asks again by itself."]
    section = rendered(
        "served/listed.html", {"lead": words, "tables": [], "before": None, "after": None, "commands": []}
    )
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


def compare_page(references: list[str], made: Made, path: str) -> ServedPage:
    inner = [(route, Markup(html)) for route, html in made.said.get("sections", ())]  # noqa: S704 - ours, escaped
    if not inner:
        lead = [f"They cannot be compared: {made.said.get('wrong', 'nothing was found')}"]
        facts = {"lead": lead, "tables": [], "before": None, "after": None, "commands": []}
        inner = [("compare", rendered("served/listed.html", facts))]
    about = {**made.said.get("about", NOTHING), "data": f"{path}/data/"}
    links = [("/", "Boards"), *((href_of(one), label_of(one)) for one in references)]
    return ServedPage("Compared", inner, about, links)


@pages.get(_TWO + "/data/{piece}.json.gz")
def compare_piece(request: Request, piece: str) -> Response:
    """Pairs of games for the script of a page of two runs."""
    site = site_of(request)
    shown = site.boards.shown
    said = [shown and shown.release(str(one)) for one in _two(request)]
    made = site.runs.there([one["sha256"] for one in said if one]) if all(said) else None
    path = made and made.piece(piece)
    return piece_file(path, PUBLIC) if path else fault(404, "missing", "there is no such piece; load the page again")


def _part(said: str) -> int:
    return int(said) - 1 if re.fullmatch(r"[1-9][0-9]{0,5}", said) else 0


def _listed(
    title: str, lead: list[str], tables: list[tuple[str, list[dict[str, Any]]]], *, at: str, part: int, more: bool,
    commands: list[tuple[str, str]] = [], searched: str = "",  # noqa: B006 - it is only read
) -> ServedPage:  # fmt: skip
    mark = "&" if "?" in at else "?"
    facts = {
        "lead": lead, "tables": tables, "commands": commands,
        "before": f"{at}{mark}part={part}" if part else None, "after": f"{at}{mark}part={part + 2}" if more else None,
    }  # fmt: skip
    return ServedPage(
        title, [("listed", rendered("served/listed.html", facts))], links=[("/", "Boards")], searched=searched
    )


def component(request: Request, owner: str, name: str, part: str = "1") -> Response:
    """All releases of one name, and what was made with them."""
    kind = request.url.path.split("/")[1]
    shown = site_of(request).boards.shown
    if shown is None:
        return no_board(request)
    releases = shown.releases_of(kind, owner, name)
    if not releases:
        return no_page(request, f"There is no such {kind} here.")
    at = _part(part)
    users = shown.users_of(kind, owner, name, at * LISTED, LISTED + 1)
    newest = next((one for one in releases if one["yanked"] is None), releases[0])
    tables = [(f"Releases of {owner}/{name}", [release_line(one) for one in releases]),
              ("Runs and components that use them", [release_line(one) for one in users[:LISTED]])]  # fmt: skip
    page = _listed(
        f"{owner}/{name}", [f"{kind}: {newest['description']}" if newest["description"] else kind], tables,
        at=request.url.path, part=at, more=len(users) > LISTED,
        commands=commands_of(newest["reference"], kind, server_of(request).settings.address),
    )  # fmt: skip
    return page_answer(request, page)


for _kind in (Kind.RUN, *COMPONENTS):
    pages.add_api_route(f"/{_kind}/{{owner}}/{{name}}", component, name=f"{_kind}")


@pages.get("/owner/{name}")
def owner(request: Request, name: str, part: str = "1") -> Response:
    """All public releases of an owner."""
    shown = site_of(request).boards.shown
    if shown is None:
        return no_board(request)
    count, at = shown.count_of_owner(name), _part(part)
    found = shown.of_owner(name, at * LISTED, LISTED + 1)
    if not found:
        return no_page(request, "Nobody of this name has published anything here.")
    tables = [("Releases", [release_line(one) for one in found[:LISTED]])]
    lead = [f"{count:,} public release{'' if count == 1 else 's'}"]
    return page_answer(request, _listed(name, lead, tables, at=f"/owner/{name}", part=at, more=len(found) > LISTED))


@pages.get("/search")
def search(request: Request, q: str = "", part: str = "1") -> Response:
    """Releases that have all words in their names, descriptions, benchmarks, models."""
    from urllib.parse import urlencode

    shown = site_of(request).boards.shown
    if shown is None:
        return no_board(request)
    asked, at = q[:200], _part(part)
    words = asked.lower().split()[:MOST_WORDS]
    found = shown.found(words, at * LISTED, LISTED + 1) if words else []
    lead = ["What is looked for stands in names, descriptions, benchmarks, protocols and models; all words must."]
    if words and not found:
        lead = ["Nothing that is public has all of these words."]
    tables = [("Found, the newest first", [release_line(one) for one in found[:LISTED]])]
    at_words = "/search?" + urlencode({"q": asked}, errors="replace")
    return page_answer(
        request, _listed("Search", lead, tables, at=at_words, part=at, more=len(found) > LISTED, searched=asked)
    )
