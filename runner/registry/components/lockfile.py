"""Read and write `nip-run.lock`: the hash and the registry of each release that a project's specs name (the *pins*).

`runner.registry.components.install` writes this file, and `runner.registry.components.installed` reads it. Users put
the file under version control. It is sorted JSON with one line per release.
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
from runner.base.hashing import SHA256
from runner.base.package_data import is_file
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import read_bounded
from runner.base.storage.strict_json import parse_strict_json
from runner.documents.fetched_files import fetched_folder
from runner.documents.releases.reference import Digest, Reference, parse_reference
from runner.documents.source_tree import ancestors
from runner.registry.transports.registry import version_order

LOCK = "nip-run.lock"
WRITE_LOCK = ".nip-run.lock.held"
"""The file that a process holds locked while it changes `nip-run.lock`."""

FORMAT = 1
MAX_BYTES = 1 << 20
MAX_WHERE_CHARACTERS = 1_000
WAIT_SECONDS = 30.0
"""Maximum time to wait for another process that changes `nip-run.lock`."""

_CONFLICT = re.compile(rb"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)
"""Matches the markers of a merge conflict, which git writes into the file."""


@dataclass(frozen=True)
class LockedPin:
    """The hash and the registry of a pinned release, which are enough to install the same release again."""

    sha256: str
    address: str
    """The registry that the release was installed from. A registry folder in the project is a relative path."""


@dataclass(frozen=True)
class Lock:
    """The pins in a `nip-run.lock`. If the file is missing, there are no pins."""

    path: Path
    pins: Mapping[Reference, LockedPin] = field(default_factory=dict)

    @classmethod
    def find_nearest(cls, folder: Path) -> Lock:
        """Return the lock in a folder or in the nearest folder above it; if there is none, that of the current folder.

        A lock in a fetched release is skipped, because its publisher chose its pins.

        Raises:
            ReleaseError: the lock is damaged.
        """
        start = folder.absolute()
        while (release_folder := fetched_folder([start])) is not None and release_folder != release_folder.parent:
            start = release_folder.parent
        candidates = (parent / LOCK for parent in ancestors(start))
        path = next((path for path in candidates if is_file(path)), Path.cwd() / LOCK)
        return cls.read(path)

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Return the lock in a file. Raises ReleaseError: the file is damaged, or cannot be read."""
        try:
            data = read_bounded(path, MAX_BYTES)
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise ReleaseError(f"cannot read {path}: {error.strerror}") from error
        if conflict := _CONFLICT.search(data):
            line = data[: conflict.start()].count(b"\n") + 1
            raise ReleaseError(
                f"{path}:{line}: an unresolved merge conflict; keep one line for each release, and remove the markers"
            )
        try:
            return cls(path, _parse_pins(parse_strict_json(data)))
        except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
            raise ReleaseError(
                f"{path} is damaged: {error}; restore the file, or remove it and run nip-run install REFERENCE again"
            ) from error

    def find(self, reference: Reference) -> Reference | None:
        """Return the pinned release that a reference names; without a version, the newest one; None if none matches."""
        if reference.version is not None:
            return reference if reference in self.pins else None
        versions = [pinned for pinned in self.pins if pinned.unversioned == reference]
        return max(versions, key=lambda pinned: version_order(pinned.version or ""), default=None)

    def find_by_hash(self, digest: Digest) -> list[Reference]:
        """Return the pinned releases whose manifest has this hash."""
        return [reference for reference, pin in self.pins.items() if pin.sha256.startswith(digest.hex)]

    def address_of(self, reference: Reference) -> str:
        """Return the address of the registry that a release was installed from."""
        address = self.pins[reference].address
        path = address.removeprefix("file:./")
        return address if path == address else f"file:{(self.path.parent / path).absolute()}"

    def only_address(self) -> str | None:
        """Return the registry that all releases were installed from; None if there are several, or no releases."""
        registries = {self.address_of(reference) for reference in self.pins}
        return registries.pop() if len(registries) == 1 else None

    def add(self, pins: Mapping[Reference, LockedPin]) -> Lock:
        """Add pins to the file, which other processes may change at the same time, and return the new lock.

        Raises:
            TakenError: a reference is pinned to another release; nothing was written.
            RunError: the file cannot be written.
        """
        with self._exclusive_access() as current:
            conflicts = [
                f"{reference} is pinned to sha256:{pinned.sha256[:12]} from {pinned.address}, but {pin.address} has "
                f"sha256:{pin.sha256[:12]}"
                for reference, pin in pins.items()
                if (pinned := current.pins.get(reference)) is not None and pinned.sha256 != pin.sha256
            ]
            if conflicts:
                raise TakenError(
                    f"{'; '.join(conflicts)}. A version never changes, so one of the two is not genuine. To use the "
                    f"new one, remove the line of the release from {self.path} and install it again"
                )
            new_pins = {name: self._relative_pin(pin) for name, pin in pins.items() if name not in current.pins}
            return current.write({**current.pins, **new_pins}) if new_pins else current

    def remove(self, references: set[Reference]) -> Lock:
        """Remove pins from the file, and return the new lock. Raises as `add`."""
        with self._exclusive_access() as current:
            return current.write(
                {reference: pin for reference, pin in current.pins.items() if reference not in references}
            )

    def write(self, pins: Mapping[Reference, LockedPin]) -> Lock:
        atomic_write(self.path, _format_pins(pins))
        return Lock(self.path, pins)

    @contextmanager
    def _exclusive_access(self) -> Iterator[Lock]:
        """Yield the current content of `nip-run.lock`; in the `with` block, no other process can write the file."""
        with locked(self.path.with_name(WRITE_LOCK), str(self.path), WAIT_SECONDS):
            yield Lock.read(self.path)

    def _relative_pin(self, pin: LockedPin) -> LockedPin:
        """Make the path of a registry folder inside the project relative, so that users can move the project."""
        if not pin.address.startswith("file:"):
            return pin
        with suppress(ValueError):
            path = Path(pin.address.removeprefix("file:")).relative_to(self.path.parent.absolute())
            return LockedPin(pin.sha256, f"file:./{path.as_posix()}")
        return pin


def _parse_pins(data: Any) -> dict[Reference, LockedPin]:
    if not isinstance(data, dict) or set(data) != {"format", "releases"} or not isinstance(data["releases"], dict):
        raise ValueError("the keys must be format and releases")
    if type(data["format"]) is int and data["format"] > FORMAT:
        message = f"{LOCK} was written by a newer version of nip-run (format {data['format']}); upgrade nip-run"
        raise NewerFormatError(message)
    if data["format"] != FORMAT:
        raise ValueError(f"unknown format {data['format']!r}")
    return {_parse_versioned(name): _parse_pin(name, entry) for name, entry in data["releases"].items()}


def _parse_versioned(name: str) -> Reference:
    reference = parse_reference(name)
    if not isinstance(reference, Reference) or reference.version is None:
        raise ValueError(f"{name!r} is not a release with a version")
    return reference


def _parse_pin(name: str, entry: Any) -> LockedPin:
    if not isinstance(entry, dict) or set(entry) != {"sha256", "where"}:
        raise ValueError(f"{name}: the keys must be sha256 and where")
    sha256, address = entry["sha256"], entry["where"]
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise ValueError(f"{name}: sha256 must be 64 hexadecimal digits")
    if not isinstance(address, str) or not 0 < len(address) <= MAX_WHERE_CHARACTERS:
        raise ValueError(f"{name}: invalid value of where: {str(address)[:60]!r}")
    return LockedPin(sha256, address)


def _format_pins(pins: Mapping[Reference, LockedPin]) -> str:
    """Return the text of a lock, with one line per release to avoid merge conflicts."""
    lines = [
        f"  {json.dumps(str(name))}: {json.dumps({'sha256': pins[name].sha256, 'where': pins[name].address})}"
        for name in sorted(pins, key=str)
    ]
    return f'{{"format": {FORMAT}, "releases": {{\n' + ",\n".join(lines) + "\n}}\n"
