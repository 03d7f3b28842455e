"""Pages of single runs, public or private, and pages that compare two public runs.

A page shows the run's report (from `runner.server.web.pages.run_cache`) and facts from the newest board. Facts are the
values that a board stores about a release (`runner.server.boards.builder`). The page's script loads the games from
pieces: files that contain a part of the report's data each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Request
from markupsafe import Markup
from sqlalchemy import Row, select
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from runner.base.errors import ReleaseError
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, Release
from runner.documents.releases.reference import Reference
from runner.pages.report.served import ServedPage, View
from runner.registry.lineage.nodes import listed_facts
from runner.registry.transports.listing import SIGNATURE_FOLDER, read_small_file
from runner.registry.transports.yanks import YANKED, parse_yanked_file
from runner.server.accounts.accounts import ANYBODY, Viewer
from runner.server.accounts.administration import HIDDEN
from runner.server.accounts.browser_sessions import BrowserSession
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.verification_tiers import MEANINGS as TIERS
from runner.server.store.blobs import BlobStore
from runner.server.store.schema import files, is_release, reference_of, releases
from runner.server.visible_releases import VisibleReleases, find_added_files, read_yank, visible_to
from runner.server.web.api_errors import error_response
from runner.server.web.authentication import server_of
from runner.server.web.browser_session import find_session
from runner.server.web.callers import caller_of
from runner.server.web.pages.run_cache import CachedPage, PageNotReady
from runner.server.web.pages.site import (
    EarlyResponse,
    ListingView,
    NewestSnapshot,
    Session,
    missing_page,
    run_reference,
    site_of,
    waiting_page,
)
from runner.server.web.responses import PRIVATE, PUBLIC, page_response, piece_response
from runner.server.web.views import (
    Command,
    FamilyLine,
    ReleaseLine,
    commands_of,
    draw_learning_curve,
    draw_lineage,
    format_day,
    format_rank,
    href_of,
    label_of,
    private_href,
)

pages = APIRouter(include_in_schema=False)

WAIT_SECONDS = 25.0
"""Time that a request waits while a page is built."""
RELOAD_SECONDS = 5
"""Delay before the browser reloads a page that is not ready after `WAIT_SECONDS`."""


@dataclass(frozen=True, kw_only=True)
class ReproductionLine:
    """A run that reproduces another one."""

    href: str
    label: str
    owner: str
    outcome: str
    details: str
    """The reason for the outcome."""

    @classmethod
    def from_json(cls, reproduction: Mapping[str, Any]) -> Self:
        release = reproduction["release"]
        return cls(href=href_of(release), label=label_of(release), owner=reproduction["owner"],
                   outcome=reproduction["outcome"], details=reproduction["said"])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunPageView(View):
    """The page of a run; for a private run, without data from the board."""

    template = "run"
    owner: str
    private: bool
    yanked: str | None
    problem: str | None
    """The reason if the games of the run cannot be shown."""
    description: str
    parts: Sequence[tuple[str, str]]
    """The URL and the text of each link to a part of the page or to a comparison."""
    rank: str | None
    page: str | None
    """The name of the run's board."""
    tier: str | None
    tier_meaning: str
    owner_runs: int | None
    facts: Sequence[tuple[str, str]]
    links: Sequence[tuple[str, Sequence[tuple[str, str | None]]]]
    """The linked releases for each role, each with its page if it has one."""
    commands: Sequence[Command]
    inner: Markup
    """The HTML of the run's report."""
    games: str | None
    """The path of the list of games; None if the run has no games."""
    lineage: Markup | None
    curve: Markup | None
    family: Sequence[FamilyLine]
    parameters: str
    reproductions: Sequence[ReproductionLine]
    versions: Sequence[ReleaseLine]


@dataclass(frozen=True)
class VisibleRun:
    """A run that the browser's account may see."""

    facts: Mapping[str, Any]
    session: BrowserSession | None
    """The session that may see a private run; None for a public run."""

    @property
    def cache_control(self) -> str:
        return PUBLIC if self.session is None else PRIVATE


def find_run(request: Request, reference: Reference) -> VisibleRun | None:
    """Return a public run or, if the request's path starts with `/mine/`, a private run.

    Return None if the run does not exist or the browser's account may not see it.
    """
    if request.url.path.startswith("/mine/"):
        session = find_session(request)
        facts = None if session is None else find_private_run(request, session.viewer, reference)
    else:
        session, snapshot = None, site_of(request).boards.newest
        facts = None if snapshot is None else snapshot.release(str(reference))
    return None if facts is None else VisibleRun(facts, session)


def find_private_run(request: Request, viewer: Viewer, reference: Reference) -> dict[str, Any] | None:
    """Return the facts of a private or hidden run, or None if the viewer may not see it."""
    if Reference.of_folder(reference.folder) is None:  # such as a name with NUL, which PostgreSQL does not accept
        return None
    server = server_of(request)
    query = select(releases).where(is_release(reference), is_private, visible_to(viewer))
    with server.database.reading() as connection:
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        additions = find_added_files(connection, files.c.release_id == row.id)
    tree = VisibleReleases(server.database, server.blobs, viewer)
    try:
        manifest = read_small_file(tree.open(f"{reference.folder}/{MANIFEST}"), MANIFEST, MAX_MANIFEST)
        release = Release.from_bytes(manifest, server.settings.limits)
        facts = private_release_facts(row, additions, server.blobs)
    except ReleaseError:
        return None
    details = {"description": release.description, "licence": release.licence,
               "signed": (row.id, SIGNATURE_FOLDER) in additions, "is_hidden": row.visibility == HIDDEN,
               "version": reference.version, "pinned": release.facts.get("pinned")}  # fmt: skip
    return {**listed_facts(release), **facts, **details}


is_private = releases.c.visibility != "public"
"""SQL condition: a release is private, or hidden by an administrator."""


def private_release_facts(
    row: Row[Any], additions: Mapping[tuple[int, str], str], blobs: BlobStore
) -> dict[str, object]:
    """Return the facts about a private release that the list of private releases shows.

    `additions` is from `find_added_files`.
    """
    yank_sha256, yanked = additions.get((row.id, YANKED)), None
    if yank_sha256 is not None:
        try:
            yanked = parse_yanked_file(read_yank(blobs, yank_sha256))
        except ReleaseError as error:
            yanked = str(error)
    return {
        "reference": str(reference_of(row)), "kind": row.kind, "owner": row.owner,
        "name": row.name, "created": row.created, "sha256": row.sha256, "yanked": yanked, "description": "",
    }  # fmt: skip


async def _cached_page(
    request: Request, references: Sequence[Reference], hashes: Sequence[str], session: BrowserSession | None = None
) -> CachedPage:
    """Return the page of one or two runs, built if necessary; raise EarlyResponse if it is not ready.

    `session` is the session that may see a private run.
    """
    if session is None:
        viewer, requester = ANYBODY, caller_of(request.scope, server_of(request).settings.proxies)
    else:
        viewer, requester = session.viewer, f"account {session.viewer.account}"
    try:
        return await site_of(request).run_pages.get_or_build(
            references, hashes, viewer, WAIT_SECONDS, requester=requester
        )
    except PageNotReady:
        message = "The server is building this page. The browser reloads it every few seconds until it is ready."
        raise EarlyResponse(waiting_page(request, message, RELOAD_SECONDS)) from None


@pages.get("/run/{owner}/{name}/{version}")
async def public_run_page(
    request: Request, snapshot: NewestSnapshot, reference: Annotated[Reference, Depends(run_reference)]
) -> Response:
    """Show a public run."""
    facts = await run_in_threadpool(snapshot.release, str(reference))
    if facts is None:
        session = await run_in_threadpool(find_session, request)
        viewer = ANYBODY if session is None else session.viewer
        if await run_in_threadpool(find_private_run, request, viewer, reference) is not None:
            return RedirectResponse(private_href(reference), 303, {"cache-control": PRIVATE})
        return missing_page(request, "This run does not exist on this server, or is private.")
    cached = await _cached_page(request, [reference], [facts["sha256"]])

    def build() -> ServedPage:
        return build_run_page(facts, cached, href_of(str(reference)), server_of(request).settings.address, snapshot)

    if not cached.is_permanent:
        return page_response(request, await run_in_threadpool(build), cache_control="no-store")
    return await run_in_threadpool(site_of(request).page_cache.respond, request, (snapshot.name, str(reference)), build)


@pages.get("/mine/run/{owner}/{name}/{version}")
async def private_run_page(
    request: Request, session: Session, reference: Annotated[Reference, Depends(run_reference)]
) -> Response:
    """Show a private run."""
    facts = await run_in_threadpool(find_private_run, request, session.viewer, reference)
    if facts is None:
        return missing_page(request, "This run does not exist on this server, or another account owns it.")
    cached = await _cached_page(request, [reference], [facts["sha256"]], session)
    address = server_of(request).settings.address
    page = await run_in_threadpool(build_run_page, facts, cached, request.url.path, address, None, session=session)
    return page_response(request, page, cache_control=PRIVATE)


def build_run_page(
    facts: Mapping[str, Any], cached: CachedPage, path: str, address: str, snapshot: BoardSnapshot | None,
    *, session: BrowserSession | None = None,
) -> ServedPage:  # fmt: skip
    """Build the page of a run at `path`; without a board, the page of a private run."""
    entry = _BoardEntry() if snapshot is None else _BoardEntry.find(snapshot, facts["reference"])
    view, task = _build_view(facts, cached, path, address, snapshot, entry=entry), entry.task
    page_data = {**cached.content.about, "data": f"{path}/data/"}
    route = next(iter(cached.content.sections), ["run", ""])[0]
    links = [("/mine", "Private releases")] if snapshot is None else [("/", "Boards")]
    links += [(f"/board/{task['page']}", task["benchmark"])] if task else []
    account, csrf_token = (session.viewer.account, session.csrf_token) if session else (None, "")
    title = label_of(facts["reference"])
    return ServedPage(title, [(route, view.render())], page_data, links, account=account, csrf_token=csrf_token)


@dataclass(frozen=True)
class _BoardEntry:
    """The row of a run on its board, and the summary of the board; None if the run is on no board."""

    row: Mapping[str, Any] | None = None
    task: Mapping[str, Any] | None = None

    @classmethod
    def find(cls, snapshot: BoardSnapshot, reference: str) -> Self:
        row = snapshot.row_of(reference)
        return cls(row, None if row is None else snapshot.task(row["page"]))

    @property
    def rank(self) -> str | None:
        if not self.task or not self.row:
            return None
        return f"{format_rank(self.row)} of {self.task['ranked']:,} in {self.task['benchmark']}"

    @property
    def comparison_path(self) -> str | None:
        """The path of the page that compares the run with the leader of its board, or None."""
        leader = self.task and self.task["leader"]
        if self.row is None or not leader or leader["release"] == self.row["release"]:
            return None
        first, second = (str(run["href"]).removeprefix("/run") for run in (leader, self.row))
        return f"/compare{first}{second}"


def _build_view(
    facts: Mapping[str, Any], cached: CachedPage, path: str, address: str, snapshot: BoardSnapshot | None,
    *, entry: _BoardEntry,
) -> RunPageView:  # fmt: skip
    """Return the content of a run's page."""
    reference = facts["reference"]
    family = [] if snapshot is None else snapshot.family_of(reference)
    if len(family) < 2:  # only the run itself: there is no lineage to show
        family = []
    short_hash, is_training = facts["sha256"][:12], facts.get("what") == "training"
    has_games = any(run["count"] for run in cached.content.about["runs"])
    versions = [] if snapshot is None else snapshot.releases_of("run", facts["owner"], facts["name"])
    reproductions, parameters = facts.get("reproductions", ()), cached.content.parameters
    optional_parts = {"lineage": family, "parameters": parameters, "reproductions": reproductions,
                      "versions": versions[1:]}  # fmt: skip
    parts = [("#get", "Get and reproduce")]
    parts += [(f"#{name}", name.capitalize()) for name, content in optional_parts.items() if content]
    if entry.comparison_path:
        parts.append((entry.comparison_path, "Compare with the leader of this board"))
    return RunPageView(
        owner=facts["owner"], private=snapshot is None, yanked=facts["yanked"], description=facts["description"],
        problem=cached.content.wrong, parts=parts,
        rank=entry.rank,
        page=None if entry.row is None else entry.row["page"],
        tier=facts.get("tier_words"), tier_meaning=TIERS.get(facts.get("tier") or "", ""),
        owner_runs=facts.get("owner_runs"), facts=_build_facts(facts, entry.row),
        links=[] if snapshot is None else _group_by_role(snapshot.links_from(reference)),
        commands=commands_of(reference, facts["kind"], address, trains=is_training),
        inner=Markup("").join(Markup(html) for _, html in cached.content.sections),  # noqa: S704 - escaped when built
        games=f"{path}/games" if has_games else None,
        lineage=draw_lineage(family, short_hash) if family else None,
        curve=None if is_training else draw_learning_curve(family, short_hash),  # a training run's report has one
        family=[FamilyLine.from_row(member) for member in family], parameters=parameters,
        reproductions=[ReproductionLine.from_json(reproduction) for reproduction in reproductions],
        versions=[ReleaseLine.from_facts(version) for version in versions],
    )  # fmt: skip


def _build_facts(facts: Mapping[str, Any], row: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the names and values in the page's table of facts; `row` is the run's row on its list."""
    lines = [(name, facts[key]) for name, key in (("Benchmark", "benchmark"), ("Models", "models")) if facts[key]]
    lines += [("Trained on", row["trained_on"])] if row and row["trained_on"] else []
    lines += [("Published", format_day(facts["created"])), ("License", facts["licence"] or "not given"),
              ("Signed", "yes" if facts["signed"] else "no"), ("SHA-256 of the manifest", facts["sha256"])]  # fmt: skip
    if facts.get("is_hidden"):
        lines.append(("Hidden", "by an administrator of this server"))
    if facts.get("pinned") is False:
        lines.append(("Pinned", "no: the files of the run are not in a public commit"))
    return lines


_ROLE_TITLES = {"part": "Parts", "output": "Trained models", "reproduces": "Reproduces", "child_of": "Derived from"}
"""Titles for the roles of links. The title of another role is the role itself."""


def _group_by_role(links: Sequence[tuple[str, str, bool]]) -> list[tuple[str, list[tuple[str, str | None]]]]:
    """Group linked releases by role, each with the path of its page if the release is public."""
    by_role: dict[str, list[tuple[str, str | None]]] = {}
    for role, target, is_public in links:
        by_role.setdefault(role, []).append((label_of(target), href_of(target) if is_public else None))
    return [(_ROLE_TITLES.get(role, role.replace("_", " ").capitalize()), targets) for role, targets in by_role.items()]


@pages.get("/run/{owner}/{name}/{version}/data/{piece}.json.gz")
@pages.get("/mine/run/{owner}/{name}/{version}/data/{piece}.json.gz")
def run_piece(request: Request, reference: Annotated[Reference, Depends(run_reference)], piece: str) -> Response:
    """Return a piece of a run's games for the page's script."""
    run = find_run(request, reference)
    if run is None:
        return _piece_response(request, [], piece)
    return _piece_response(request, [run.facts["sha256"]], piece, run.cache_control)


def _piece_response(request: Request, hashes: Sequence[str], piece: str, cache_control: str = PUBLIC) -> Response:
    """Return a piece of the cached page of the runs with these hashes; status 404 if it is not cached."""
    cached = site_of(request).run_pages.find_cached(hashes) if hashes else None
    path = cached and cached.piece(piece)
    if not path:
        return error_response(404, "missing", "this part of the run's data is not cached; reload the page")
    return piece_response(path, cache_control)


_COMPARISON_ROUTE = "/compare/{owner}/{name}/{version}/{owner2}/{name2}/{version2}"


def compared_runs(*, owner: str, name: str, version: str, owner2: str, name2: str, version2: str) -> list[Reference]:
    """Return the two runs in a path of the form `_COMPARISON_ROUTE`."""
    return [run_reference(owner, name, version), run_reference(owner2, name2, version2)]


Pair = Annotated[list[Reference], Depends(compared_runs)]


def _pair_hashes(snapshot: BoardSnapshot, pair: Sequence[Reference]) -> list[str]:
    """Return the hashes of two public runs; an empty list if one of them is not on the board."""
    facts = [snapshot.release(str(reference)) for reference in pair]
    return [run["sha256"] for run in facts if run] if all(facts) else []


@pages.get(_COMPARISON_ROUTE)
async def compare(request: Request, snapshot: NewestSnapshot, pair: Pair) -> Response:
    """Show two public runs side by side."""
    hashes = await run_in_threadpool(_pair_hashes, snapshot, pair)
    if not hashes or pair[0] == pair[1]:
        return missing_page(request, "Only two different public runs can be compared; check both runs in the address.")
    cached = await _cached_page(request, pair, hashes)
    sections = [(route, Markup(html)) for route, html in cached.content.sections]  # noqa: S704 - escaped when built
    if not sections:
        message = f"The runs cannot be compared: {cached.content.wrong}"
        sections = [("compare", ListingView(lead=[message]).render())]
    page_data = {**cached.content.about, "data": f"{request.url.path}/data/"}
    links = [(href_of(str(reference)), label_of(str(reference))) for reference in pair]
    page = ServedPage("Two runs compared", sections, page_data, links)
    return page_response(request, page, cache_control=PUBLIC if cached.is_permanent else "no-store")


@pages.get(_COMPARISON_ROUTE + "/data/{piece}.json.gz")
def compare_piece(request: Request, snapshot: NewestSnapshot, pair: Pair, piece: str) -> Response:
    """Return a piece of the paired games for the page's script."""
    return _piece_response(request, _pair_hashes(snapshot, pair), piece)
