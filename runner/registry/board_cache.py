"""What a board reads of a registry: manifests, and of each benchmark its numbers and records, checked and kept.

Everything is kept by the hash of its release's manifest, so that what was read once is not read again, and nothing
that a registry changes is believed. A release's run stands under that hash, as no two runs have one then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import orjson

from runner.errors import NipRunError, ReleaseError
from runner.hashing import tagged_hash
from runner.registry.fetched import PIN
from runner.registry.kinds import wrong_kind
from runner.registry.left_out import in_words
from runner.registry.rollout_records import ROLLOUTS, Records, differing, merged, rows_of
from runner.registry.session_facts import MAX_COUNT
from runner.registry.sessions import content_hashes
from runner.releases.bundle import checked_copy
from runner.releases.limits import MAX_MANIFEST
from runner.releases.manifest import FileEntry, Release, digest
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest
from runner.results.tables import COLUMNS, PART_BYTES, PART_ROWS
from runner.runs.reconstruct import played_plan
from runner.spec.origin import MARKER
from runner.storage.atomic import atomic_write, read_json
from runner.storage.files import create, make_folders, read_bounded, remove_folder
from runner.storage.locks import locked
from runner.storage.parquet import write_parquet
from runner.transports.registry import Entry, Registry
from runner.version import __version__

DATA = "data/"
SMALL = ("data/manifest.json", "data/metrics.json", "data/spec.yaml")
MAX_SMALL, MAX_INPUT, MAX_ROLLOUTS = 16 << 20, 256 << 20, 4 << 30
COUNTED = ("rollouts", "completions", "prompt_tokens", "completion_tokens", "cached_tokens", "transport_failed")
_CHECKED = "checked.json"
NOT_RECOMPUTED = "not recomputed"
"""What the mark of a row begins with whose numbers are as published."""
STAGES = "data/stages.jsonl"


def default_cache() -> Path:
    """Where boards of registries are kept: everything there can be made again."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "nip-run" / "boards"


@dataclass(frozen=True)
class Kept:
    """A published run whose numbers follow from its records."""

    folder: RunFolder
    marks: tuple[str, ...]
    """What is to be said of its numbers."""
    run_id: str


class Refused(ReleaseError):
    """A release whose bytes are as published, and say what cannot be."""


@dataclass(frozen=True)
class BoardCache:
    """What is kept of one registry."""

    path: Path

    @classmethod
    def of(cls, registry: Registry, root: Path | None = None) -> BoardCache:
        """That of a registry, with the folder made.

        Raises:
            ReleaseError: it cannot be.
        """
        path = (root or default_cache()) / tagged_hash("board", registry.where)[:32]
        try:
            for name in ("manifests", "kept", "inputs", "refused", "trained"):
                make_folders(path / name)
            atomic_write(path / MARKER, b"{}\n")  # whatever stands here is a stranger's
        except OSError as error:
            raise ReleaseError(f"cannot write {path}: {error.strerror}; XDG_CACHE_HOME names another place") from error
        return cls(path)

    def release(self, registry: Registry, entry: Entry) -> Release:
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

    def run(self, registry: Registry, entry: Entry, release: Release) -> Kept:
        """A benchmark's folder with all that its rows are made of.

        Raises:
            Refused: its bytes are as published, and what it says does not follow from its records.
            ReleaseError: it cannot be read now, or is damaged.
        """
        folder = RunFolder(self.path / "kept" / entry.sha256)
        refused = self.path / "refused" / f"{entry.sha256}.json"
        with locked(self.path / ".lock", str(self.path), 600):
            for path in (folder.path / _CHECKED, refused):
                with suppress(NipRunError, OSError):
                    said = read_json(path)
                    if said.get("by") == __version__ and "why" in said:
                        raise _Again(str(said["why"]))
                    if said.get("by") == __version__:
                        return Kept(folder, tuple(said["marks"]), str(said["run_id"]))
            try:
                return self._read(registry, entry, release, folder)
            except Refused as error:
                atomic_write(refused, orjson.dumps({"by": __version__, "why": str(error)}))
                remove_folder(folder.path)
                raise

    def _read(self, registry: Registry, entry: Entry, release: Release, folder: RunFolder) -> Kept:
        remove_folder(folder.path)
        fetch(registry, entry, release, folder.path, lambda path: path in SMALL or path.startswith("data/inputs/"))
        rows = release.file(DATA + ROLLOUTS)
        if rows is not None:
            fetch(registry, entry, release, folder.path, lambda path: path == DATA + ROLLOUTS, most=MAX_ROLLOUTS)
        try:
            marks, run_id = _checked(folder, release, entry.sha256, has_rows=rows is not None)
        except OSError as error:
            raise ReleaseError(f"{entry.reference} cannot be read: {error.strerror}") from error
        except Exception as error:
            raise Refused(in_words(error, folder.path)) from error
        said = {"by": __version__, "marks": marks, "run_id": run_id}
        atomic_write(folder.path / _CHECKED, orjson.dumps(said))
        return Kept(folder, marks, run_id)

    def check_training(self, registry: Registry, entry: Entry, release: Release) -> None:
        """See that what a release says of the models that its run made is what the run's own stages say.

        Raises:
            Refused: it is not.
            ReleaseError: it cannot be read now, or is damaged.
        """
        folder = RunFolder(self.path / "trained" / entry.sha256)
        checked = folder.path / _CHECKED
        with locked(self.path / ".lock", str(self.path), 600):
            with suppress(NipRunError, OSError):
                said = read_json(checked)
                if said.get("by") == __version__ and said.get("why") is not None:
                    raise _Again(str(said["why"]))
                if said.get("by") == __version__:
                    return
            remove_folder(folder.path)
            fetch(registry, entry, release, folder.path, lambda path: path in (*SMALL, STAGES))
            try:
                why = next(iter(wrong_kind(folder, release.facts)), None)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this release's
                why = in_words(error, folder.path)
            atomic_write(checked, orjson.dumps({"by": __version__, "why": why}))
            if why is not None:
                raise Refused(why)

    def datapoints(self, registry: Registry, entry: Entry, release: Release) -> frozenset[str] | None:
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


class _Again(Refused):
    """It was refused before."""


def fetch(
    registry: Registry,
    entry: Entry,
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


def _copy(source: IO[bytes], file: FileEntry, copy: IO[bytes], entry: Entry) -> None:
    try:
        checked_copy(source, file, copy.write)
    except ReleaseError as error:
        raise type(error)(f"{entry.reference}: {error}") from error


def _checked(folder: RunFolder, release: Release, key: str, *, has_rows: bool) -> tuple[tuple[str, ...], str]:
    """See that a run is what its release says, and write the files of its rows; marks, and the run's id."""
    manifest = folder.manifest()
    _check_counts(manifest)
    for wrong in wrong_kind(folder, release.facts):
        raise ReleaseError(wrong)
    if release.file(PIN) is not None:
        raise ReleaseError(
            f"its datapoints are withheld, and {PIN} has their ids and hashes without their labels, so that its "
            "numbers cannot be made again"
        )
    _check_facts(release, {"run_id": manifest.run_id, "status": manifest.status, "benchmark": manifest.benchmark})
    if release.identity.get("run") not in (None, manifest.identity):
        raise ReleaseError("its identity is another than that of its run")
    marks: tuple[str, ...] = ()
    accuracy = None
    if manifest.status in PLAYED:
        if not has_rows:
            raise ReleaseError(f"it has no {DATA}{ROLLOUTS}, of which its numbers could be made")
        published = read_json(folder.metrics)
        marks, numbers = _numbers(folder, published)
        atomic_write(folder.metrics, orjson.dumps(numbers))
        of_game = {row["metric"]: row["value"] for row in numbers["metrics"] if row["agent"] is None}
        accuracy = of_game.get("accuracy")
        _write_rows(folder, key)
    said = release.facts.get("accuracy")
    if (said or {}).get("value") != accuracy:
        raise ReleaseError(f"its release says accuracy {(said or {}).get('value')}, and its records {accuracy}")
    folder.write_manifest(replace(manifest, run_id=key))
    return marks, manifest.run_id


def _check_counts(manifest: Manifest) -> None:
    for name in (*COUNTED, "cost_usd"):
        value = getattr(manifest, name)
        if value is not None and not 0 <= value <= MAX_COUNT:
            raise ReleaseError(f"its manifest says {name} {value!r}, which no run comes to")


def _check_facts(release: Release, facts: Mapping[str, Any]) -> None:
    for name, value in facts.items():
        if release.facts.get(name) != value:
            raise ReleaseError(f"its release says {name} {release.facts.get(name)!r}, and its run {value!r}")


def _numbers(folder: RunFolder, published: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A run's numbers by its records.

    Raises:
        ReleaseError: they are others than those that this very version is said to have made.
    """
    plan, manifest = played_plan(folder), folder.manifest()
    if plan.shape is not None:
        return (f"{NOT_RECOMPUTED}: a tree",), dict(published)
    records = Records(folder, plan)
    for row in rows_of(folder.path / ROLLOUTS):
        records.add(row)
    again = records.summary()
    if plan.debates is not None and plan.debates.stopped is not None:
        return (f"{NOT_RECOMPUTED}: it judges the debates of a run that had stopped",), dict(published)
    differs = differing(published, again)
    if differs and manifest.version == __version__:
        raise ReleaseError(f"its numbers do not follow from its records: {'; '.join(differs[:5])}")
    marks = (f"recomputed with {__version__} (made with {manifest.version}): {'; '.join(differs[:3])}",)
    return marks if differs else (), merged(published, again)


def _write_rows(folder: RunFolder, key: str) -> None:
    """A run's rows as the table that boards are made of, in files of a bounded size on the way."""
    paths: list[Path] = []
    longest = size = rows = 0
    file: IO[bytes] | None = None
    try:
        for row in rows_of(folder.path / ROLLOUTS):
            line = orjson.dumps({**row, "run_id": key}, option=orjson.OPT_APPEND_NEWLINE)
            if file is None or rows >= PART_ROWS or size + len(line) > PART_BYTES:
                if file is not None:
                    file.close()
                paths.append(folder.path / f".rollouts.{len(paths):05d}.jsonl")
                file, size, rows = create(paths[-1]), 0, 0
            file.write(line)
            longest, size, rows = max(longest, len(line)), size + len(line), rows + 1
    finally:
        if file is not None:
            file.close()
    write_parquet(paths, COLUMNS["rollouts"], folder.table("rollouts"), longest=longest)
    for path in (*paths, folder.path / ROLLOUTS):
        path.unlink()
