"""What a board reads of a registry: manifests, and of each benchmark its numbers and records, checked and kept.

Everything is kept by the hash of its release's manifest, so that what was read once is not read again, and nothing
that a registry changes is believed. A release's run stands under that hash, as no two runs have one then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import orjson

from runner.base.errors import NipRunError, ReleaseError
from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import create, make_folders, read_bounded, remove_folder
from runner.documents.releases.bundle import checked_copy
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import FileEntry, Release, digest
from runner.registry.board.numbers import checked_run
from runner.registry.lineage.sessions import LineageSession, content_hashes, session_of_release
from runner.registry.records import ROLLOUTS_FILE
from runner.registry.skipped_releases import in_words, is_passing
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.verification.kinds import wrong_kind
from runner.results.folder import RunFolder
from runner.spec.origin import MARKER
from runner.version import __version__

DATA = "data/"
SMALL = ("data/manifest.json", "data/metrics.json", "data/spec.yaml")
MAX_SMALL, MAX_INPUT, MAX_ROLLOUTS = 16 << 20, 256 << 20, 4 << 30
_CHECKED = "checked.json"
STAGES = "data/stages.jsonl"


def default_cache() -> Path:
    """Where boards of registries are kept: everything there can be made again."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "nip-run" / "boards"


@dataclass(frozen=True)
class CachedRun:
    """A published run whose numbers follow from its records."""

    folder: RunFolder
    marks: tuple[str, ...]
    """What is to be said of its numbers."""
    run_id: str


class RefusedRelease(ReleaseError):
    """A release whose bytes are as published, and say what cannot be."""


@dataclass(frozen=True)
class BoardCache:
    """What is kept of one registry."""

    path: Path

    @classmethod
    def of(cls, registry: Registry, root: Path | None = None) -> Self:
        """That of a registry, with the folder made.

        Raises:
            ReleaseError: it cannot be.
        """
        return cls.at((root or default_cache()) / tagged_hash("board", registry.where)[:32])

    @classmethod
    def at(cls, path: Path) -> Self:
        """That in a folder, which is made. Raises as `of`."""
        try:
            for name in ("manifests", "kept", "inputs", "refused", "trained"):
                make_folders(path / name)
            atomic_write(path / MARKER, b"{}\n")  # whatever stands here is a stranger's
        except OSError as error:
            raise ReleaseError(f"cannot write {path}: {error.strerror}; XDG_CACHE_HOME names another place") from error
        return cls(path)

    def release(self, registry: Registry, entry: ReleaseEntry) -> Release:
        """A release's manifest, from here or from the registry. Raises as `Registry.read`."""
        path = self.path / "manifests" / f"{entry.sha256}.json"
        with suppress(OSError, ReleaseError):
            data = read_bounded(path, MAX_MANIFEST)
            release = Release.from_bytes(data, registry.limits)
            if digest(data) == entry.sha256 and release.reference == entry.reference:
                return release
        release, data = registry.read(entry)
        atomic_write(path, data)
        return release

    def session(self, entry: ReleaseEntry, release: Release) -> LineageSession:
        """A published run or model by its manifest. Raises as `session_of_release`."""
        return session_of_release(entry, release)

    def has_manifest(self, entry: ReleaseEntry) -> bool:
        """Whether its manifest is here."""
        return (self.path / "manifests" / f"{entry.sha256}.json").is_file()

    def read_for_run(self, entry: ReleaseEntry, release: Release) -> list[str]:
        """The files that `run` reads from the registry, in this order; none where it has looked at them already."""
        looked = (self.path / "kept" / entry.sha256 / _CHECKED, self.path / "refused" / f"{entry.sha256}.json")
        if any(path.is_file() for path in looked):
            return []
        rows = DATA + ROLLOUTS_FILE
        first = [file.path for file in release.files if _is_read_first(file.path)]
        return [*first, rows] if release.file(rows) is not None else first

    def run(self, registry: Registry, entry: ReleaseEntry, release: Release) -> CachedRun:
        """A benchmark's folder with all that its rows are made of.

        Raises:
            Refused: its bytes are as published, and what it says does not follow from its records.
            ReleaseError: it cannot be read now, or is damaged.
        """
        folder = RunFolder(self.path / "kept" / entry.sha256)
        rows = release.file(DATA + ROLLOUTS_FILE)

        def look() -> dict[str, Any]:
            fetch(registry, entry, release, folder.path, _is_read_first)
            if rows is not None:
                fetch(registry, entry, release, folder.path, lambda path: path == rows.path, most=MAX_ROLLOUTS)
            with _refusing(entry, folder):
                marks, run_id = checked_run(folder, release, entry.sha256, has_rollouts=rows is not None)
            return {"marks": marks, "run_id": run_id}

        said = self._looked_at(entry, folder, look)
        return CachedRun(folder, tuple(said["marks"]), str(said["run_id"]))

    def check_training(self, registry: Registry, entry: ReleaseEntry, release: Release) -> None:
        """See that what a release says of the models that its run made is what the run's own stages say.

        Raises:
            Refused: it is not.
            ReleaseError: it cannot be read now, or is damaged.
        """
        folder = RunFolder(self.path / "trained" / entry.sha256)

        def look() -> dict[str, Any]:
            fetch(registry, entry, release, folder.path, lambda path: path in (*SMALL, STAGES))
            with _refusing(entry, folder):
                for wrong in wrong_kind(folder, release.facts):
                    raise RefusedRelease(wrong)
            return {}

        self._looked_at(entry, folder, look)

    def _looked_at(self, entry: ReleaseEntry, folder: RunFolder, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a look at a release came to, which is kept with the folder that it filled, or as a refusal without it.

        Raises:
            Refused: it was refused, now or by this version before.
            ReleaseError: it could not be looked at; the next time it is.
        """
        checked, refused = folder.path / _CHECKED, self.path / "refused" / f"{entry.sha256}.json"
        with locked(self.path / ".lock", str(self.path), 600):
            for path in (checked, refused):
                said: dict[str, Any] = {}
                with suppress(NipRunError):
                    said = read_json(path)
                if said.get("by") == __version__ and "why" in said:
                    raise RefusedRelease(str(said["why"]))
                if said.get("by") == __version__:
                    return said
            remove_folder(folder.path)
            make_folders(folder.path)
            try:
                said = {"by": __version__, **look()}
            except RefusedRelease as error:
                remove_folder(folder.path)
                atomic_write(refused, orjson.dumps({"by": __version__, "why": str(error)}))
                raise
            atomic_write(checked, orjson.dumps(said))
            return said

    def datapoints(self, registry: Registry, entry: ReleaseEntry, release: Release) -> frozenset[str] | None:
        """The content hashes of what a run played, by its inputs; None where it has none that can be read."""
        folder = self.path / "kept" / entry.sha256
        if not (folder / _CHECKED).is_file():
            folder = self.path / "inputs" / entry.sha256
        try:
            if not folder.is_dir():
                fetch(registry, entry, release, folder, lambda path: path.startswith("data/inputs/"))
            return content_hashes(RunFolder(folder))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - they are a stranger's; and others' rows ask for them
            remove_folder(folder)
            return None

    def runs(self) -> list[RunFolder]:
        """All runs that are kept."""
        return [RunFolder(path) for path in sorted((self.path / "kept").iterdir()) if (path / _CHECKED).is_file()]


def _is_read_first(path: str) -> bool:
    return path in SMALL or path.startswith("data/inputs/")


@contextmanager
def _refusing(entry: ReleaseEntry, folder: RunFolder) -> Iterator[None]:
    """Make refusals of errors that follow from a release's bytes; those of this machine pass.

    Raises:
        Refused: it says what cannot be.
        ReleaseError: it cannot be read now.
    """
    try:
        yield
    except Exception as error:
        why = in_words(error, folder.path)
        if is_passing(error, folder.path):
            raise ReleaseError(f"{entry.reference} cannot be read now: {why}") from error
        raise RefusedRelease(why) from error


def fetch(
    registry: Registry,
    entry: ReleaseEntry,
    release: Release,
    target: Path,
    wanted: Callable[[str], bool],
    *,
    most: int = MAX_INPUT,
) -> None:
    """Copy files of a release's run into a folder of its own, each checked by its hash.

    Raises:
        ReleaseError: one is damaged, missing, or too large.
        OSError: one cannot be written.
    """
    for file in release.files:
        if not wanted(file.path):
            continue
        if file.size > (MAX_SMALL if file.path in SMALL else most):
            raise ReleaseError(f"{entry.reference}: {file.path} has {file.size:,} bytes, which is more than is read")
        path = target / file.path.removeprefix(DATA)
        make_folders(path.parent)
        with registry.open(entry, file.path) as source, create(path) as copy:
            _copy(source, file, copy, entry)


def _copy(source: IO[bytes], file: FileEntry, copy: IO[bytes], entry: ReleaseEntry) -> None:
    try:
        checked_copy(source, file, copy.write)
    except ReleaseError as error:
        raise type(error)(f"{entry.reference}: {error}") from error
