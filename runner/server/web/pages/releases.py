"""Pages of components, of owners, and of search results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from runner.documents.releases.reference import COMPONENTS, Kind
from runner.pages.report.served import ServedPage, View
from runner.server.web.authentication import server_of
from runner.server.web.pages.site import ListingView, NewestSnapshot, missing_page
from runner.server.web.responses import page_response
from runner.server.web.views import Command, ReleaseLine, VersionLine, commands_of, format_day

pages = APIRouter(include_in_schema=False)

RELEASES_PER_PART = 100
"""Number of releases in one part of a list."""
MAX_TERMS = 8
"""Maximum number of words of a search."""


def part_number(part: str = "1") -> int:
    """Return the index of the requested part of a list, from 0; the query parameter counts from 1."""
    return int(part) - 1 if re.fullmatch(r"[1-9][0-9]{0,5}", part) else 0


Part = Annotated[int, Depends(part_number)]


@dataclass(frozen=True, kw_only=True)
class ComponentView(View):
    """The releases of one name, and the releases that use them."""

    template = "component"
    title: str
    kind: str
    owner: str
    description: str
    is_run: bool
    facts: Sequence[tuple[str, str]]
    versions: Sequence[VersionLine]
    users: Sequence[ReleaseLine]
    commands: Sequence[Command]
    before: str | None
    after: str | None


def _neighbors(url: str, part: int, has_more: bool) -> tuple[str | None, str | None]:
    """Return the URLs of the previous and the next part of a list."""
    start = f"{url}{'&' if '?' in url else '?'}part="
    return f"{start}{part}" if part else None, f"{start}{part + 2}" if has_more else None


def component(request: Request, snapshot: NewestSnapshot, owner: str, name: str, part: Part) -> Response:
    """Show the releases of one name, and the releases that use them."""
    kind = request.url.path.split("/")[1]
    releases = snapshot.releases_of(kind, owner, name)
    if not releases:
        return missing_page(request, f"This {kind} does not exist on this server, or is private.")
    use_counts = snapshot.count_uses(kind, owner, name)
    dependents = snapshot.dependents_of(kind, owner, name, part * RELEASES_PER_PART, RELEASES_PER_PART + 1)
    newest = next((release for release in releases if release["yanked"] is None), releases[0])
    before, after = _neighbors(request.url.path, part, len(dependents) > RELEASES_PER_PART)
    view = ComponentView(
        title=f"{owner}/{name}", kind=kind, owner=owner, description=newest["description"], is_run=kind == Kind.RUN,
        facts=[("Newest", newest["version"]), ("Published", format_day(newest["created"])),
               ("License", newest["licence"] or "not given")],
        versions=[VersionLine.from_facts(release, use_counts) for release in releases],
        users=[ReleaseLine.from_facts(facts, uses=version) for facts, version in dependents[:RELEASES_PER_PART]],
        commands=commands_of(newest["reference"], kind, server_of(request).settings.address),
        before=before, after=after,
    )  # fmt: skip
    return page_response(request, ServedPage(f"{owner}/{name}", [("component", view.render())]))


for _kind in (Kind.RUN, *COMPONENTS):
    pages.add_api_route(f"/{_kind}/{{owner}}/{{name}}", component, name=f"{_kind}")


@pages.get("/owner/{name}")
def owner(request: Request, snapshot: NewestSnapshot, name: str, part: Part) -> Response:
    """Show the public releases of an owner."""
    count = snapshot.count_releases_of_owner(name)
    releases = snapshot.releases_of_owner(name, part * RELEASES_PER_PART, RELEASES_PER_PART + 1)
    if not releases:
        return missing_page(request, "No account of this name has public releases on this server.")
    tables: dict[str, list[ReleaseLine]] = {"Runs": [], "Components and models": [], "Parts of trainings": []}
    for release, is_part in releases[:RELEASES_PER_PART]:
        table = "Parts of trainings" if is_part else "Runs" if release["kind"] == Kind.RUN else "Components and models"
        tables[table].append(ReleaseLine.from_facts(release))
    before, after = _neighbors(f"/owner/{name}", part, len(releases) > RELEASES_PER_PART)
    view = ListingView(
        lead=[f"{count:,} public release{'' if count == 1 else 's'}"], tables=list(tables.items()), owner=name,
        before=before, after=after,
    )  # fmt: skip
    return page_response(request, ServedPage(name, [("listed", view.render())]))


def _count_text(count: int, part: int) -> str:
    """Return a sentence about a part of the search results.

    `count` is the number of results from this part on, at most `RELEASES_PER_PART` + 1.
    """
    first = part * RELEASES_PER_PART
    if count == 0:
        return "No public release contains all of these words. Try fewer words."
    if count > RELEASES_PER_PART:
        return f"Releases {first + 1:,} to {first + RELEASES_PER_PART:,} with all of these words, newest first."
    return f"{first + count:,} release{'' if first + count == 1 else 's'} with all of these words, newest first."


@pages.get("/search")
def search(request: Request, snapshot: NewestSnapshot, part: Part, q: str = "") -> Response:
    """Show the releases that contain all words of the query."""
    query = q[:200]
    terms = query.lower().split()[:MAX_TERMS]
    matches = snapshot.search(terms, part * RELEASES_PER_PART, RELEASES_PER_PART + 1) if terms else []
    lead = ["The search covers names, owners, descriptions, benchmarks, protocols and models."]
    if terms:
        lead.insert(0, _count_text(len(matches), part))
    address = "/search?" + urlencode({"q": query}, errors="replace")
    before, after = _neighbors(address, part, len(matches) > RELEASES_PER_PART)
    view = ListingView(
        lead=lead, tables=[("", [ReleaseLine.from_facts(release) for release in matches[:RELEASES_PER_PART]])],
        before=before, after=after,
    )  # fmt: skip
    return page_response(request, ServedPage("Search", [("listed", view.render())], searched=query))
