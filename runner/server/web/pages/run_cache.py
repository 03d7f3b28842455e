"""Pages of published runs and of two side by side, each made once, when it is first asked for, in a process of its own.

What is read is a stranger's, so that time and memory are bounded; a release never changes, so that what was made of its
bytes stays. What could not be made for another reason is told for a while, and then tried anew.

Of two runs there are as many pages as pairs, which anybody may ask for: they are made and kept beside those of one run,
and take no place of theirs. In each lane one who asks has few places.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy.exc import SQLAlchemyError

from runner.base.errors import NotPublished
from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import create, make_folders, read_bounded, remove_folder
from runner.documents.releases.reference import Reference
from runner.registry.skipped_releases import in_words
from runner.registry.transports.registry import Registry
from runner.server.accounts.accounts import Viewer
from runner.server.isolated_task import How, TaskLimits, apart, is_the_servers
from runner.server.settings import Settings
from runner.server.store.blob_stores import blobs_of
from runner.server.store.database import Database
from runner.server.visible_tree import ServerTree
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")

PAGE = "page.json"
TOO_MUCH = "it takes more time, memory or room than this server gives to a page"
NOT_NOW = "this server cannot make its page now; its log says why"
PARAMETERS = "parameters.yaml"
MOST_PARAMETERS = 1 << 18
LANES = ("one", "two")
"""Folders of the pages of one run, and of two."""
MOST_KEPT = 2_000
"""Pages of a lane; of more the oldest are removed, and made again when they are asked for."""
BOUNDS = TaskLimits(memory=3 << 30, seconds=120, file_bytes=1 << 30, nice=5)
"""Of the making of one page."""
WAITING, OF_ONE = 16, 2
"""Pages of a lane that may wait to be made, and of those that one asker may have; more are asked to come later."""
AGAIN_SECONDS, SOON_SECONDS = 600.0, 5.0
"""After a page that took too much; and after one that could not be made for another reason than its bytes."""
_MOST_FAILED = 1_000


class Busy(Exception):
    """Too many pages are being made; the same question in a while is answered."""


@dataclass(frozen=True)
class CachedPage:
    """What was made of releases: sections for a page, and pieces of data beside them."""

    folder: Path
    said: dict[str, Any]
    lasts: bool = True
    """Whether it follows from the bytes of releases, so that it is the same whenever it is asked for."""

    def piece(self, name: str) -> Path | None:
        """The file of a piece by its name."""
        return self.folder / f"{name}.json.gz" if name in self.said["pieces"] else None


@dataclass
class Lane:
    """Pages of one sort, which are made one at a time."""

    one: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    making: dict[str, tuple[str, asyncio.Task[CachedPage]]] = field(default_factory=dict)
    """By their keys, with who asked for them first."""

    def has_place(self, asker: str) -> bool:
        return len(self.making) < WAITING and sum(one == asker for one, _ in self.making.values()) < OF_ONE


class RunPages:
    """Makes pages, and keeps them."""

    def __init__(self, settings: Settings, soon: float = SOON_SECONDS) -> None:
        self._settings, self._soon = settings, soon
        self._folder = settings.folder / "pages"
        for left in self._folder.glob("*/.*"):  # by a server that was killed
            remove_folder(left)
        self.lanes = {name: Lane() for name in LANES}
        self._failed: OrderedDict[str, tuple[float, CachedPage]] = OrderedDict()

    def _place(self, sha256s: Sequence[str]) -> Path:
        """Where what is made of releases with these hashes is kept."""
        return self._folder / LANES[len(sha256s) - 1] / tagged_hash("page", [__version__, *sha256s])

    def there(self, sha256s: Sequence[str]) -> CachedPage | None:
        """What was made before."""
        folder = self._place(sha256s)
        with suppress(OSError, ValueError):
            made = CachedPage(folder, orjson.loads(read_bounded(folder / PAGE, 64 << 20)))
            os.utime(folder)  # what is read stays longest
            return made
        until, failed = self._failed.get(folder.name, (0.0, None))
        return failed if time.monotonic() < until else None

    async def made(
        self, references: Sequence[Reference], sha256s: Sequence[str], viewer: Viewer, wait: float, *, asker: str
    ) -> CachedPage:
        """What is made of releases, made now where it is not there.

        Raises:
            Busy: it is still being made, or there are too many before it, or too many of this asker.
        """
        found = await asyncio.to_thread(self.there, sha256s)
        if found is not None:
            return found
        place = self._place(sha256s)
        lane, key = self.lanes[place.parent.name], place.name
        if key not in lane.making:
            if not lane.has_place(asker):
                raise Busy
            task = asyncio.create_task(self._make(lane, place, references, viewer))
            lane.making[key] = asker, task
            task.add_done_callback(lambda _: lane.making.pop(key, None))
        try:
            return await asyncio.wait_for(asyncio.shield(lane.making[key][1]), wait)
        except TimeoutError as error:
            raise Busy from error

    async def _make(self, lane: Lane, place: Path, references: Sequence[Reference], viewer: Viewer) -> CachedPage:
        async with lane.one:
            return await asyncio.to_thread(self._made_apart, place, references, viewer)

    def _made_apart(self, place: Path, references: Sequence[Reference], viewer: Viewer) -> CachedPage:
        make_folders(place.parent)
        beside = place.parent / f".{secrets.token_hex(8)}"
        make_folders(beside)
        try:
            ending = apart(
                BOUNDS, self._settings.incoming, _make, self._settings, references, viewer, beside.absolute()
            )
            if ending.how is not How.ANSWERED:
                LOG.warning("a page: %s %s", ending.how.value, ending.why)
                why, seconds = (NOT_NOW, self._soon) if ending.how is How.DIED else (TOO_MUCH, AGAIN_SECONDS)
                return self._not_made(place, why, seconds)
            if ending.answer is not None:
                return self._not_made(place, str(ending.answer), self._soon)
            if _bytes(beside) > self._settings.pages_bytes:
                return self._not_made(place, TOO_MUCH, AGAIN_SECONDS)
            with suppress(OSError):  # another process of this server was quicker
                beside.rename(place)
        finally:
            remove_folder(beside)
        forget_old(self._folder, self._settings.pages_bytes)
        return CachedPage(place, orjson.loads(read_bounded(place / PAGE, 64 << 20)))

    def _not_made(self, place: Path, why: str, seconds: float) -> CachedPage:
        """What is told in place of a page, for so many seconds."""
        made = CachedPage(place, {"wrong": why, "pieces": []}, lasts=False)
        self._failed[place.name] = time.monotonic() + seconds, made
        while len(self._failed) > _MOST_FAILED:
            self._failed.popitem(last=False)
        return made


def _bytes(folder: Path) -> int:
    """What a page and its pieces take."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in folder.iterdir())
    return 0


def forget_old(folder: Path, most: int) -> None:
    """Remove what was not read for longest, until each lane has no more than `most` bytes; and what is of no lane."""
    for path in folder.iterdir():
        if path.name not in LANES:
            with suppress(OSError):
                remove_folder(path)
    for lane in (folder / name for name in LANES):
        if not lane.is_dir():
            continue
        there = {path: _read_at(path) for path in lane.iterdir() if path.name[:1] != "."}
        total = 0
        for number, path in enumerate(sorted(there, key=lambda one: there[one], reverse=True)):
            total += _bytes(path)
            if total > most or number >= MOST_KEPT:
                with suppress(OSError):
                    remove_folder(path)


def _read_at(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _make(place: Path, settings: Settings, references: Sequence[Reference], viewer: Viewer, into: Path) -> str | None:
    """Write a page and its pieces into a folder, in a process of its own. Or say what is not there now.

    Raises:
        RunError, SQLAlchemyError, OSError: the server's database, blobs or disk are at fault.
    """
    pieces: list[str] = []

    def keep(name: str, data: bytes) -> None:
        with create(into / f"{name}.json.gz") as file:
            file.write(data)
        pieces.append(name)

    tree = ServerTree(Database(settings.database_url), blobs_of(settings), viewer, where=settings.address)
    os.chdir(place)
    try:
        said = _said(Registry(tree, settings.limits), references, keep)
    except SQLAlchemyError:
        raise
    except Exception as error:
        if is_the_servers(error):
            raise
        if _is_not_there(error):
            return in_words(error, place)
        said = {"wrong": in_words(error, place)}
    _write(into, {**said, "pieces": pieces})
    return None


def _is_not_there(error: BaseException | None) -> bool:
    """Whether an error follows from what the server shows, which may be hidden and shown again, and not from bytes."""
    while error is not None:
        if isinstance(error, NotPublished):
            return True
        error = error.__cause__ or error.__context__
    return False


def _said(registry: Registry, references: Sequence[Reference], keep: Any) -> dict[str, Any]:
    from runner.pages.report.comparison import compare_page, page_reader
    from runner.pages.report.games import FORMAT
    from runner.pages.report.run_site import runs_site
    from runner.pages.site import Site
    from runner.registry.fetched_release import get
    from runner.results.folder import RunFolder
    from runner.spec.origin import DATA

    folders = []
    for place, reference in enumerate(references):
        name = reference.name if len(references) == 1 else f"{place + 1}-{reference.name}"
        get(registry, reference, Path(name))
        folders.append(RunFolder.got(Path(name) / DATA))
    if len(folders) == 1:
        site = runs_site(folders, keep, has_commands=False)
        more: dict[str, Any] = {"parameters": _parameters(folders[0].path.parent)}
    elif len({folder.run_id for folder in folders}) > 1:  # with the games of both, to which the page leads
        site, more = runs_site(folders, keep, has_commands=False), {}
    else:  # the very same run, published twice
        found = compare_page(folders[0], folders[1], "c0", keep, page_reader())
        site, more = Site("", [], [found.section], {"format": FORMAT, "runs": [], "live": False, "notes": None}), {}
    sections = sorted(site.sections, key=lambda one: not one.route.startswith("compare"))
    return {"sections": [[one.route, one.html] for one in sections], "about": {**site.about, "served": True}, **more}


def _parameters(folder: Path) -> str:
    """What a run was played with, as its release has it."""
    with suppress(OSError):
        return read_bounded(folder / PARAMETERS, MOST_PARAMETERS).decode("utf-8", "replace")
    return ""


def _write(folder: Path, said: dict[str, Any]) -> None:
    try:
        data = orjson.dumps(said)
    except TypeError as error:
        data = orjson.dumps({"wrong": f"its page cannot be written: {error}", "pieces": []})
    beside = folder / "page.new"
    with create(beside) as file:
        file.write(data)
    beside.rename(folder / PAGE)
