"""Pages of what is published: a component, an owner, what a search finds."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from runner.documents.releases.reference import COMPONENTS, Kind
from runner.pages.html import rendered
from runner.pages.report.served import ServedPage
from runner.server.web.authentication import server_of
from runner.server.web.pages.boards import listing, no_board, no_page, site_of
from runner.server.web.responses import page_answer
from runner.server.web.wording import commands_of, day, release_line, version_line

pages = APIRouter(include_in_schema=False)

LISTED = 100
MOST_WORDS = 8


def _part(said: str) -> int:
    return int(said) - 1 if re.fullmatch(r"[1-9][0-9]{0,5}", said) else 0


def _listed(
    title: str, lead: list[str], tables: list[tuple[str, list[dict[str, Any]]]], *, at: str, part: int, more: bool,
    owner: str | None = None, searched: str = "",
) -> ServedPage:  # fmt: skip
    """Releases in tables; of `owner` alone."""
    section = listing(lead, tables=tables, owner=owner, **_steps(at, part, more))
    return ServedPage(title, [("listed", section)], searched=searched)


def _steps(at: str, part: int, more: bool) -> dict[str, str | None]:
    mark = "&" if "?" in at else "?"
    return {
        "before": f"{at}{mark}part={part}" if part else None,
        "after": f"{at}{mark}part={part + 2}" if more else None,
    }


def component(request: Request, owner: str, name: str, part: str = "1") -> Response:
    """All releases of one name, and what was made with them."""
    kind = request.url.path.split("/")[1]
    shown = site_of(request).boards.shown
    if shown is None:
        return no_board(request)
    releases = shown.releases_of(kind, owner, name)
    if not releases:
        return no_page(request, f"There is no such {kind} here.")
    at, used = _part(part), shown.uses_of(kind, owner, name)
    users = shown.users_of(kind, owner, name, at * LISTED, LISTED + 1)
    newest = next((one for one in releases if one["yanked"] is None), releases[0])
    facts = {
        "title": f"{owner}/{name}", "kind": kind, "owner": owner, "description": newest["description"],
        "is_run": kind == Kind.RUN,
        "facts": [("Newest", newest["version"]), ("Published", day(newest["created"])),
                  ("Licence", newest["licence"] or "none is given")],
        "versions": [version_line(one, used) for one in releases],
        "users": [release_line(one) | {"uses": version} for one, version in users[:LISTED]],
        "commands": commands_of(newest["reference"], kind, server_of(request).settings.address),
        **_steps(request.url.path, at, len(users) > LISTED),
    }  # fmt: skip
    section = rendered("served/component.html", facts)
    return page_answer(request, ServedPage(f"{owner}/{name}", [("component", section)]))


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
    tables: dict[str, list[dict[str, Any]]] = {"Runs": [], "Components and models": [], "Parts of trainings": []}
    for one, is_part in found[:LISTED]:
        what = "Parts of trainings" if is_part else "Runs" if one["kind"] == Kind.RUN else "Components and models"
        tables[what].append(release_line(one))
    lead = [f"{count:,} public release{'' if count == 1 else 's'}"]
    more = len(found) > LISTED
    return page_answer(
        request, _listed(name, lead, list(tables.items()), at=f"/owner/{name}", part=at, more=more, owner=name)
    )


def _found_in_words(count: int, part: int) -> str:
    first = part * LISTED
    if count == 0:
        return "Nothing that is public has all of these words."
    if count > LISTED:
        return f"Releases {first + 1:,} to {first + LISTED:,} that have all of these words, the newest first."
    return f"{first + count:,} release{'' if first + count == 1 else 's'} with all of these words, the newest first."


@pages.get("/search")
def search(request: Request, q: str = "", part: str = "1") -> Response:
    """Releases that have all words in their names, descriptions, benchmarks, models."""
    shown = site_of(request).boards.shown
    if shown is None:
        return no_board(request)
    asked, at = q[:200], _part(part)
    words = asked.lower().split()[:MOST_WORDS]
    found = shown.found(words, at * LISTED, LISTED + 1) if words else []
    lead = ["Words are looked for in names, owners, descriptions, benchmarks, protocols and models."]
    if words:
        lead.insert(0, _found_in_words(len(found), at))
    tables = [("", [release_line(one) for one in found[:LISTED]])]
    at_words = "/search?" + urlencode({"q": asked}, errors="replace")
    return page_answer(
        request, _listed("Search", lead, tables, at=at_words, part=at, more=len(found) > LISTED, searched=asked)
    )
