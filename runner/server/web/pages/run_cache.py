"""A cache of the pages of single runs and of pages that compare two runs. An isolated process builds each page once.

Anyone may publish a release, and building the page of a malicious one could take very long. So the time and memory of
that process are limited. A release never changes, so a page that depends only on its bytes stays cached. If the server
itself fails to build a page, it tries again later.

There are two queues of pages, called lanes: one for single runs, and one for pairs of runs. Anyone may request any
pair, and these requests must not delay the pages of single runs. In each lane, a requester may have only a few pages
that wait or are being built.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import NotFoundError
from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import create, make_folders, read_bounded, remove_folder
from runner.documents.releases.reference import Reference
from runner.pages.report.served import EMPTY_PAGE_DATA
from runner.registry.release_errors import causes_of, describe_error
from runner.registry.transports.registry import Registry
from runner.server.accounts.accounts import Viewer
from runner.server.isolated_task import TaskLimits, TaskStatus, is_server_fault, run_isolated
from runner.server.settings import Settings
from runner.server.visible_releases import open_registry
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")

PAGE_FILE = "page.json"
MAX_PAGE_BYTES = 64 << 20
OVER_LIMIT_MESSAGE = (
    "the page needs more time, memory or disk space than this server allows; download the run with `nip-run get` and "
    "build the page with `nip-run report`"
)
FAILED_MESSAGE = (
    "the server failed to build the page; reload later (the administrator can find details in the server log)"
)
PARAMETERS_FILE = "parameters.yaml"
MAX_PARAMETERS_BYTES = 1 << 18
LANES = ("one", "two")
"""Names of the lanes and of their folders: for pages of one run and of two runs."""
MAX_PAGES = 2_000
"""Maximum number of cached pages of a lane; the least recently read pages are removed first."""
PAGE_LIMITS = TaskLimits(memory=3 << 30, seconds=120, file_bytes=1 << 30, nice=5)
"""Limits of the process that builds one page."""
MAX_UNFINISHED = 16
"""Maximum number of pages of a lane that wait or are being built."""
MAX_PER_REQUESTER = 2
"""Maximum number of pages of one requester in a lane that wait or are being built."""
RETRY_OVER_LIMIT_SECONDS = 600.0
"""Time until a page that exceeded a limit is tried again."""
RETRY_SECONDS = 5.0
"""Time until a page that failed for another reason is tried again."""
_MAX_FAILED = 1_000
"""Maximum number of failed pages whose messages are cached."""


class PageNotReady(Exception):
    """Raised if a page is not ready yet or too many pages are waiting; the client should try again later."""


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """The content of a cached page, as stored in `page.json`."""

    sections: Sequence[tuple[str, str]] = ()
    """The route and the HTML of each section."""
    about: Mapping[str, Any] = field(default_factory=lambda: EMPTY_PAGE_DATA)
    """Data about the runs and their pieces for the page's script. (This name is stored in `page.json`.)"""
    parameters: str = ""
    """The text of the release's `parameters.yaml`; empty if it has none, and for pairs of runs."""
    wrong: str | None = None
    """The reason why the page could not be built; None if it was built. (This name is stored in `page.json`.)"""
    pieces: Sequence[str] = ()
    """Names of the pieces. A piece is a file with a part of the page's data, which the page's script loads."""


@dataclass(frozen=True)
class CachedPage:
    """A page and the folder with its pieces."""

    folder: Path
    content: PageContent
    is_permanent: bool = True
    """Whether the page depends only on the bytes of the releases, and so never changes."""

    def piece(self, name: str) -> Path | None:
        """Return the file of a piece by its name."""
        return self.folder / f"{name}.json.gz" if name in self.content.pieces else None


@dataclass
class Lane:
    """A queue of pages, which are built one at a time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The lock that a task holds while it builds a page."""
    tasks: dict[str, tuple[str, asyncio.Task[CachedPage]]] = field(default_factory=dict)
    """The first requester and the task of each page that waits or is being built, by the name of the page's folder."""

    def has_capacity(self, requester: str) -> bool:
        """Return whether the lane can accept one more page of this requester."""
        requester_pages = sum(first_requester == requester for first_requester, _ in self.tasks.values())
        return len(self.tasks) < MAX_UNFINISHED and requester_pages < MAX_PER_REQUESTER


class RunPageCache:
    """The cached pages of a server, and the lanes that build them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.folder / "pages"
        for unfinished in self._folder.glob("*/.*"):  # left by a killed server
            remove_folder(unfinished)
        self.lanes = {name: Lane() for name in LANES}
        self._failed: OrderedDict[str, tuple[float, CachedPage]] = OrderedDict()
        """The time of the next attempt and a page with the reason, for each page that failed, by its folder's name."""

    def _page_folder(self, hashes: Sequence[str]) -> Path:
        return self._folder / LANES[len(hashes) - 1] / tagged_hash("page", [__version__, *hashes])

    def find_cached(self, hashes: Sequence[str]) -> CachedPage | None:
        """Return the cached page of the releases with these hashes; None if it must be built.

        If building the page failed a short time ago, return a page with the reason.
        """
        folder = self._page_folder(hashes)
        with suppress(OSError, ValueError):
            page = _load_page(folder)
            os.utime(folder)  # the least recently read pages are removed first
            return page
        retry_at, failed_page = self._failed.get(folder.name, (0.0, None))
        return failed_page if time.monotonic() < retry_at else None

    async def get_or_build(
        self, references: Sequence[Reference], hashes: Sequence[str], viewer: Viewer, wait: float, *, requester: str
    ) -> CachedPage:
        """Return the page of one or two releases; build it if it is not cached. `requester` is an address or account.

        Raises:
            PageNotReady: the page is not ready after `wait` seconds, or too many pages are waiting, in total or for
                this requester.
        """
        cached = await asyncio.to_thread(self.find_cached, hashes)
        if cached is not None:
            return cached
        folder = self._page_folder(hashes)
        lane, key = self.lanes[folder.parent.name], folder.name
        if key not in lane.tasks:
            if not lane.has_capacity(requester):
                raise PageNotReady
            task = asyncio.create_task(self._build_in_turn(lane, folder, references, viewer))
            lane.tasks[key] = requester, task
            task.add_done_callback(lambda _: lane.tasks.pop(key, None))
        try:
            return await asyncio.wait_for(asyncio.shield(lane.tasks[key][1]), wait)
        except TimeoutError as error:
            raise PageNotReady from error

    async def _build_in_turn(
        self, lane: Lane, folder: Path, references: Sequence[Reference], viewer: Viewer
    ) -> CachedPage:
        async with lane.lock:
            return await asyncio.to_thread(self._build, folder, references, viewer)

    def _build(self, folder: Path, references: Sequence[Reference], viewer: Viewer) -> CachedPage:
        unfinished = folder.parent / f".{secrets.token_hex(8)}"
        make_folders(unfinished)
        try:
            arguments = self._settings, references, viewer, unfinished.absolute()
            outcome = run_isolated(PAGE_LIMITS, self._settings.incoming, write_page, *arguments)
            if outcome.status is not TaskStatus.FINISHED:
                LOG.warning("a page could not be built: %s %s", outcome.status.value, outcome.failure)
                is_over_limit = outcome.status is not TaskStatus.DIED
                message = OVER_LIMIT_MESSAGE if is_over_limit else FAILED_MESSAGE
                return self._cache_failure(folder, message, is_over_limit=is_over_limit)
            error_text = outcome.value  # the result of `write_page`
            if error_text is not None:
                return self._cache_failure(folder, str(error_text))
            if _folder_bytes(unfinished) > self._settings.pages_bytes:
                return self._cache_failure(folder, OVER_LIMIT_MESSAGE, is_over_limit=True)
            with suppress(OSError):  # fails if another process has built the page already
                unfinished.rename(folder)
        finally:
            remove_folder(unfinished)
        remove_old_pages(self._folder, self._settings.pages_bytes)
        return _load_page(folder)

    def _cache_failure(self, folder: Path, message: str, *, is_over_limit: bool = False) -> CachedPage:
        """Return a page with a message, and cache it until the server may try to build the page again."""
        page = CachedPage(folder, PageContent(wrong=message), is_permanent=False)
        seconds = RETRY_OVER_LIMIT_SECONDS if is_over_limit else RETRY_SECONDS
        self._failed[folder.name] = time.monotonic() + seconds, page
        while len(self._failed) > _MAX_FAILED:
            self._failed.popitem(last=False)
        return page


def _load_page(folder: Path) -> CachedPage:
    return CachedPage(folder, PageContent(**orjson.loads(read_bounded(folder / PAGE_FILE, MAX_PAGE_BYTES))))


def _folder_bytes(folder: Path) -> int:
    """Return the size of a page and its pieces in bytes."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in folder.iterdir())
    return 0


def remove_old_pages(folder: Path, max_bytes: int) -> None:
    """Remove the least recently read pages beyond `max_bytes` bytes in each lane, and folders that are not lanes."""
    old_folders = [path for path in folder.iterdir() if path.name not in LANES]
    for lane in (folder / name for name in LANES):
        pages = [path for path in lane.iterdir() if path.name[:1] != "."] if lane.is_dir() else []
        total = 0
        for number, path in enumerate(sorted(pages, key=_last_read_time, reverse=True)):
            total += _folder_bytes(path)
            if total > max_bytes or number >= MAX_PAGES:
                old_folders.append(path)
    for path in old_folders:
        with suppress(OSError):
            remove_folder(path)


def _last_read_time(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def write_page(
    download_folder: Path, settings: Settings, references: Sequence[Reference], viewer: Viewer, page_folder: Path
) -> str | None:
    """Write a page and its pieces into `page_folder`; return an error text if the viewer no longer sees a release.

    Runs in an isolated process, and downloads the releases into `download_folder`.

    Raises:
        RunError, SQLAlchemyError, OSError: the server's database, blobs or disk are at fault.
    """
    pieces: list[str] = []

    def write_piece(name: str, data: bytes) -> None:
        with create(page_folder / f"{name}.json.gz") as file:
            file.write(data)
        pieces.append(name)

    with open_registry(settings, viewer) as registry:
        os.chdir(download_folder)
        try:
            content = _build_content(registry, references, write_piece, pieces)
            data = orjson.dumps(content)
        except Exception as error:
            if is_server_fault(error):
                raise
            if any(isinstance(cause, NotFoundError) for cause in causes_of(error)):
                # The server caches this result only for a short time, because the viewer may see the release later.
                return describe_error(error, download_folder)
            data = orjson.dumps(PageContent(wrong=describe_error(error, download_folder), pieces=pieces))
    with create(page_folder / PAGE_FILE) as file:
        file.write(data)
    return None


def _build_content(
    registry: Registry, references: Sequence[Reference], write_piece: Callable[[str, bytes], None], pieces: list[str]
) -> PageContent:
    """Download releases into the working directory, and build their page; `write_piece` adds a name to `pieces`."""
    from runner.pages.report.comparison import compare_pairs
    from runner.pages.report.run_site import runs_site
    from runner.pages.site import Site
    from runner.registry.fetched_release import fetch_release
    from runner.results.folder import RunFolder
    from runner.spec.origin import DATA

    folders = []
    for number, reference in enumerate(references, 1):
        name = reference.name if len(references) == 1 else f"{number}-{reference.name}"
        fetch_release(registry, reference, Path(name))
        folders.append(RunFolder.from_release(Path(name) / DATA))
    if len({folder.run_id for folder in folders}) == len(folders):
        site = runs_site(folders, write_piece, has_commands=False)
    else:  # both releases are of the same run, so the ids of their games would clash
        (comparison,) = compare_pairs([(folders[0], folders[1])], write_piece)
        site = Site("", [], [comparison.section], {**EMPTY_PAGE_DATA})
    sections = sorted(site.sections, key=lambda section: not section.route.startswith("compare"))
    return PageContent(
        sections=[(section.route, section.html) for section in sections], about={**site.about, "served": True},
        parameters=_read_parameters(folders[0].path.parent) if len(folders) == 1 else "", pieces=pieces,
    )  # fmt: skip


def _read_parameters(folder: Path) -> str:
    """Return the text of the parameters file of a release, or "" if it has none."""
    with suppress(OSError):
        return read_bounded(folder / PARAMETERS_FILE, MAX_PARAMETERS_BYTES).decode("utf-8", "replace")
    return ""
