"""Pages of published runs and of two side by side, each made once, when it is first asked for, in a process of its own.

What is read is a stranger's, so that time and memory are bounded; a release never changes, so that what was made stays.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy.exc import SQLAlchemyError

from runner.errors import NotPublished
from runner.hashing import tagged_hash
from runner.registry.left_out import in_words
from runner.releases.reference import Reference
from runner.server.apart import Bounds, How, apart, is_the_servers
from runner.server.people.accounts import Viewer
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.stores import blobs_of
from runner.server.tree import ServerTree
from runner.storage.files import create, make_folders, read_bounded, remove_folder
from runner.transports.registry import Registry
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")

PAGE = "page.json"
PARAMETERS = "parameters.yaml"
MOST_PARAMETERS = 1 << 18
MOST_KEPT = 2_000
"""Pages; of more the oldest are removed, and made again when they are asked for."""
BOUNDS = Bounds(memory=3 << 30, seconds=120, file_bytes=3 << 30, nice=5)
"""Of the making of one page."""
WAITING = 16
"""Pages that may wait to be made; more are asked to come later."""


class Busy(Exception):
    """Too many pages are being made; the same question in a while is answered."""


@dataclass(frozen=True)
class Made:
    """What was made of releases: sections for a page, and pieces of data beside them."""

    folder: Path
    said: dict[str, Any]

    def piece(self, name: str) -> Path | None:
        """The file of a piece by its name."""
        return self.folder / f"{name}.json.gz" if name in self.said["pieces"] else None


class RunPages:
    """Makes pages, one at a time, and keeps them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.folder / "pages"
        self._one = asyncio.Semaphore(1)
        self._making: dict[str, asyncio.Task[Made]] = {}

    def key(self, sha256s: Sequence[str]) -> str:
        """What is made of releases with these hashes is kept under it."""
        return tagged_hash("page", [__version__, *sha256s])

    def there(self, sha256s: Sequence[str]) -> Made | None:
        """What was made before."""
        folder = self._folder / self.key(sha256s)
        with suppress(OSError, ValueError):
            return Made(folder, orjson.loads(read_bounded(folder / PAGE, 64 << 20)))
        return None

    async def made(self, references: Sequence[Reference], sha256s: Sequence[str], viewer: Viewer, wait: float) -> Made:
        """What is made of releases, made now where it is not there.

        Raises:
            Busy: it is still being made, or there are too many before it.
        """
        found = await asyncio.to_thread(self.there, sha256s)
        if found is not None:
            return found
        key = self.key(sha256s)
        if key not in self._making:
            if len(self._making) >= WAITING:
                raise Busy
            task = asyncio.create_task(self._make(key, references, viewer))
            self._making[key] = task
            task.add_done_callback(lambda _: self._making.pop(key, None))
        try:
            return await asyncio.wait_for(asyncio.shield(self._making[key]), wait)
        except TimeoutError as error:
            raise Busy from error

    async def _make(self, key: str, references: Sequence[Reference], viewer: Viewer) -> Made:
        async with self._one:
            return await asyncio.to_thread(self._made_apart, key, references, viewer)

    def _made_apart(self, key: str, references: Sequence[Reference], viewer: Viewer) -> Made:
        make_folders(self._folder)
        beside = self._folder / f".{secrets.token_hex(8)}"
        make_folders(beside)
        try:
            ending = apart(
                BOUNDS, self._settings.incoming, _make, self._settings, references, viewer, beside.absolute()
            )
            if ending.how is not How.ANSWERED:
                LOG.warning("a page: %s %s", ending.how.value, ending.why)
            if ending.how is How.DIED:  # which is not the release's fault, and so is tried again
                said = {"wrong": "this server cannot make its page now; its log says why", "pieces": []}
                return Made(self._folder / key, said)
            if ending.how is not How.ANSWERED:
                _write(beside, {"wrong": "it takes more time or memory than this server gives to a page", "pieces": []})
            with suppress(OSError):  # another process of this server was quicker
                beside.rename(self._folder / key)
        finally:
            remove_folder(beside)
        self._forget_old()
        return Made(self._folder / key, orjson.loads(read_bounded(self._folder / key / PAGE, 64 << 20)))

    def _forget_old(self) -> None:
        there = [path for path in self._folder.iterdir() if path.name[:1] != "."]
        if len(there) > MOST_KEPT:
            for path in sorted(there, key=lambda one: one.stat().st_mtime)[: len(there) - MOST_KEPT]:
                with suppress(OSError):
                    remove_folder(path)


def _make(place: Path, settings: Settings, references: Sequence[Reference], viewer: Viewer, into: Path) -> None:
    """Write a page and its pieces into a folder; in a process of its own.

    Raises:
        RunError, NotPublished, SQLAlchemyError, OSError: the server's database, blobs or disk are at fault.
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
    except (NotPublished, SQLAlchemyError):
        raise
    except Exception as error:
        if is_the_servers(error):
            raise
        said = {"wrong": in_words(error, place)}
    _write(into, {**said, "pieces": pieces})


def _said(registry: Registry, references: Sequence[Reference], keep: Any) -> dict[str, Any]:
    from runner.comparison.systems import Reading
    from runner.pages.compare_page import METRICS, compare_page
    from runner.pages.games import FORMAT
    from runner.pages.run_page import runs_site
    from runner.pages.site import Site
    from runner.registry.fetched import get
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
        found = compare_page(folders[0], folders[1], "c0", keep, Reading(metrics=METRICS))
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
