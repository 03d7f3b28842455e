"""`nip-run.lock`: which release each reference of a project's specs means, by hash, and where it came from.

It is written to be kept under version control: JSON, sorted, one line a release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base.errors import NewerFormatError, ReleaseError, TakenError, UsageError
from runner.base.package_data import is_file
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import read_bounded
from runner.base.storage.strict_json import loads
from runner.documents.fetched_files import fetched_folder
from runner.documents.releases.reference import Digest, Reference, parse
from runner.documents.source_tree import upwards
from runner.registry.transports.registry import version_order

LOCK = "nip-run.lock"
HELD = ".nip-run.lock.held"
"""The side file that whoever writes the lock holds."""

FORMAT = 1
MAX_BYTES = 1 << 20
MAX_WHERE = 1_000
WAIT_SECONDS = 30.0

_HEX = re.compile(r"[0-9a-f]{64}")
_CONFLICT = re.compile(rb"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)


@dataclass(frozen=True)
class LockedPin:
    """The one release that a reference means."""

    sha256: str
    where: str
    """The registry that it was installed from; a folder in the project, from the lock's own."""


@dataclass(frozen=True)
class Lock:
    """What a lock file says; one that is not there pins nothing."""

    path: Path
    pins: Mapping[Reference, LockedPin] = field(default_factory=dict)

    @classmethod
    def above(cls, folder: Path) -> Lock:
        """The nearest lock of a folder and those above it, else that of the current folder.

        One that came with what was got from elsewhere says nothing of what this user installed, and is passed over.

        Raises:
            ReleaseError: it is damaged.
        """
        start = folder.absolute()
        while (got := fetched_folder([start])) is not None and got != got.parent:
            start = got.parent
        above = (up / LOCK for up in upwards(start))
        found = next((path for path in above if is_file(path)), Path.cwd() / LOCK)
        return cls.read(found)

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Raises ReleaseError where it is damaged, or cannot be read."""
        try:
            data = read_bounded(path, MAX_BYTES)
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise ReleaseError(f"cannot read {path}: {error.strerror}") from error
        if conflict := _CONFLICT.search(data):
            line = data[: conflict.start()].count(b"\n") + 1
            raise ReleaseError(
                f"{path}:{line}: a merge left both sides here; keep the lines of each release that is meant"
            )
        try:
            return cls(path, _pins(loads(data)))
        except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
            raise ReleaseError(f"{path} is damaged: {error}; restore it, or remove it and install again") from error

    def find(self, reference: Reference) -> Reference | None:
        """The pinned release that is meant: without a version, the newest of that name."""
        if reference.version is not None:
            return reference if reference in self.pins else None
        named = [one for one in self.pins if one.at("") == reference.at("")]
        return max(named, key=lambda one: version_order(one.version or ""), default=None)

    def by_hash(self, digest: Digest) -> list[Reference]:
        """The pinned releases whose manifest has this hash."""
        return [one for one, pin in self.pins.items() if pin.sha256.startswith(digest.hex)]

    def where(self, reference: Reference) -> str:
        """The registry that a release was installed from, as a command takes it."""
        where = self.pins[reference].where
        inside = where.removeprefix("file:./")
        return where if inside == where else f"file:{(self.path.parent / inside).absolute()}"

    def only_where(self) -> str | None:
        """The one registry that all of it was installed from; None where there are several, or none."""
        found = {self.where(reference) for reference in self.pins}
        return found.pop() if len(found) == 1 else None

    def add(self, pins: Mapping[Reference, LockedPin]) -> Lock:
        """Write further pins, whoever else writes some now.

        Raises:
            TakenError: a reference is pinned to another release; nothing was written.
            RunError: it cannot be written.
        """
        with self._held() as now:
            conflicts = [
                f"{reference} is pinned to sha256:{there.sha256[:12]} from {there.where}, and {pin.where} has "
                f"sha256:{pin.sha256[:12]}"
                for reference, pin in pins.items()
                if (there := now.pins.get(reference)) is not None and there.sha256 != pin.sha256
            ]
            if conflicts:
                raise TakenError(
                    f"{'; '.join(conflicts)}. A version never changes, so that one of the two is not what it says; to "
                    f"take the other one, remove the line from {self.path}"
                )
            new = {reference: pin for reference, pin in pins.items() if reference not in now.pins}
            return now.write({**now.pins, **{one: self._inside(pin) for one, pin in new.items()}}) if new else now

    def remove(self, references: set[Reference]) -> Lock:
        """Write it without these pins. Raises as `add`."""
        with self._held() as now:
            return now.write({one: pin for one, pin in now.pins.items() if one not in references})

    def write(self, pins: Mapping[Reference, LockedPin]) -> Lock:
        atomic_write(self.path, _text(pins))
        return Lock(self.path, pins)

    @contextmanager
    def _held(self) -> Iterator[Lock]:
        """The lock as it is now, which nobody else writes in the meantime."""
        with locked(self.path.with_name(HELD), str(self.path), WAIT_SECONDS):
            yield Lock.read(self.path)

    def _inside(self, pin: LockedPin) -> LockedPin:
        """A folder inside the project is named from there: the project may be moved, or be on another machine."""
        if not pin.where.startswith("file:"):
            return pin
        with suppress(ValueError):
            inside = Path(pin.where.removeprefix("file:")).relative_to(self.path.parent.absolute())
            return LockedPin(pin.sha256, f"file:./{inside.as_posix()}")
        return pin


def _pins(said: Any) -> dict[Reference, LockedPin]:
    if not isinstance(said, dict) or set(said) != {"format", "releases"} or not isinstance(said["releases"], dict):
        raise ValueError("it has not the keys format and releases")
    if type(said["format"]) is int and said["format"] > FORMAT:
        raise NewerFormatError(f"{LOCK} was written by a newer nip-run (format {said['format']}); upgrade nip-run")
    if said["format"] != FORMAT:
        raise ValueError(f"its format cannot be {said['format']!r}")
    return {_exact(name): _pin(name, entry) for name, entry in said["releases"].items()}


def _exact(name: str) -> Reference:
    reference = parse(name)
    if not isinstance(reference, Reference) or reference.version is None:
        raise ValueError(f"{name!r} is no release with a version")
    return reference


def _pin(name: str, entry: Any) -> LockedPin:
    if not isinstance(entry, dict) or set(entry) != {"sha256", "where"}:
        raise ValueError(f"{name}: sha256 and where belong there")
    sha256, where = entry["sha256"], entry["where"]
    if not isinstance(sha256, str) or not _HEX.fullmatch(sha256):
        raise ValueError(f"{name}: its sha256 is none")
    if not isinstance(where, str) or not 0 < len(where) <= MAX_WHERE:
        raise ValueError(f"{name}: where it came from cannot be {str(where)[:60]!r}")
    return LockedPin(sha256, where)


def _text(pins: Mapping[Reference, LockedPin]) -> str:
    """One line a release, so that two who install different ones change different lines."""
    lines = [
        f"  {json.dumps(str(one))}: {json.dumps({'sha256': pins[one].sha256, 'where': pins[one].where})}"
        for one in sorted(pins, key=str)
    ]
    return f'{{"format": {FORMAT}, "releases": {{\n' + ",\n".join(lines) + "\n}}\n"
