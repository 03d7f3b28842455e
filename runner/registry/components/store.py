"""The store: the components that are installed for a user, from whichever registry, each checked when it is used.

It is a folder registry (`runner.registry.transports.folder`). What is in it is others': each release's folder has the
mark of what came from elsewhere, as one that `get` left.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import NotPublished, ReleaseError, TakenError, UsageError
from runner.base.storage.safe_files import open_to_read, read_bounded, remove_folder
from runner.documents.releases.bundle import checked_copy
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, FileEntry, Release, digest
from runner.documents.releases.reference import Digest, Reference
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.spec.origin import MARKER

VARIABLE = "NIP_RUN_STORE"
WEIGHTS = "weights/"
"""Files of a model's release that no spec needs, and that can be large: of these the sizes are checked."""

MAX_MARK = 64 << 10

_seen: dict[Path, tuple[tuple[int, ...], str]] = {}
"""Of a file that was checked in this process: when it was last written, its size and place on disk, and its hash."""


def store_folder() -> Path:
    """Where the store is: `NIP_RUN_STORE`, else in the folder of the user's data."""
    if said := os.environ.get(VARIABLE):
        return Path(said).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else Path("~/.local/share").expanduser()
    return base / "nip-run" / "store"


@dataclass(frozen=True)
class Installed:
    """A release in the store, as it was checked."""

    release: Release
    folder: Path
    sha256: str


class Store:
    """The store at a folder, which need not be there yet."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = store_folder() if root is None else root.absolute()

    def entries(self) -> list[ReleaseEntry]:
        """All that is installed. Raises as `Registry.entries`."""
        return Registry(FolderTransport(str(self.root))).entries()

    def folder(self, reference: Reference) -> Path:
        return self.root / reference.folder

    def has(self, reference: Reference) -> bool:
        return (self.folder(reference) / MANIFEST).is_file()

    def by_hash(self, named: Digest) -> Reference:
        """The installed release whose manifest has this hash.

        Raises:
            NotPublished: none has.
            UsageError: several have, since too few digits are given.
        """
        found = [entry for entry in self.entries() if entry.sha256.startswith(named.hex)]
        if len({entry.sha256 for entry in found}) > 1:
            raise UsageError(f"{named} is the start of {len(found)} installed releases; give more digits")
        if not found:
            raise NotPublished(f"{named} is not installed")
        return found[0].reference

    def check(self, reference: Reference) -> Installed:
        """An installed release, of which every file is as its manifest says.

        Raises:
            NotPublished: it is not installed.
            ReleaseError: it is damaged; the files are named.
        """
        folder = self.folder(reference)
        repair = f"; repair it: nip-run uninstall {reference}, then nip-run install {reference}"
        try:
            data = read_bounded(folder / MANIFEST, MAX_MANIFEST)
            release = Release.from_bytes(data)
        except FileNotFoundError as error:
            raise NotPublished(f"{reference} is not installed") from error
        except OSError as error:
            raise ReleaseError(f"cannot read {folder / MANIFEST}: {error.strerror}") from error
        except ReleaseError as error:
            raise type(error)(f"{folder}: {error}{repair}") from error
        if release.reference != reference:
            raise ReleaseError(f"{folder} is that of {release.reference}{repair}")
        damaged = [wrong for file in release.files if (wrong := _damage(folder, file))]
        if damaged:
            raise ReleaseError(f"{reference} is damaged in {folder}: {'; '.join(damaged)}{repair}")
        return Installed(release, folder, digest(data))

    def came_from(self, reference: Reference) -> str | None:
        """The registry that an installed release came from; None where its mark does not say."""
        try:
            said = json.loads(read_bounded(self.folder(reference) / MARKER, MAX_MARK))
            return said["where"] if isinstance(said["where"], str) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def add(self, registry: Registry, entry: ReleaseEntry) -> Installed:
        """Install a release of a registry, checked; the very same release is left as it is.

        Raises:
            TakenError: the store has another release of this name and version.
            ReleaseError: the registry's files are damaged, or the store cannot be written.
        """
        if not self.has(entry.reference):
            said = {"release": str(entry.reference), "sha256": entry.sha256, "where": registry.where}
            mark = json.dumps(said, indent=2).encode() + b"\n"
            try:
                registry.unpack(entry, self.folder(entry.reference), also={MARKER: mark})
            except (ReleaseError, UsageError):
                if not self.has(entry.reference):  # which another process may have installed in the meantime
                    raise
        there = self.check(entry.reference)
        if there.sha256 != entry.sha256:
            raise TakenError(
                f"{entry.reference} is installed from {self.came_from(entry.reference)} as sha256:{there.sha256[:12]}, "
                f"and {registry.where} has sha256:{entry.sha256[:12]} under this name; to take that one: "
                f"nip-run uninstall {entry.reference}"
            )
        return there

    def remove(self, reference: Reference) -> None:
        """Uninstall a release.

        Raises:
            NotPublished: it is not installed.
            ReleaseError: its folder cannot be removed.
        """
        folder = self.folder(reference)
        if not folder.exists():
            raise NotPublished(f"{reference} is not installed")
        try:
            remove_folder(folder)
            above = folder.parent
            with suppress(OSError):  # others of its name, owner or kind are there
                while above != self.root:
                    above.rmdir()
                    above = above.parent
        except OSError as error:
            raise ReleaseError(f"cannot remove {folder}: {error.strerror}") from error


def _damage(folder: Path, file: FileEntry) -> str | None:
    """What is wrong with an installed file. One that has not been written to since is not read again."""
    path = folder / file.path
    try:
        with open_to_read(path) as source:
            found = os.fstat(source.fileno())
            state = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
            if file.path.startswith(WEIGHTS):
                return (
                    None if found.st_size == file.size else f"{file.path} has {found.st_size:,} of {file.size:,} bytes"
                )
            if _seen.get(path) != (state, file.sha256):
                checked_copy(source, file, lambda _: None)
                _seen[path] = (state, file.sha256)
    except OSError as error:
        return f"{file.path}: {error.strerror}"
    except ReleaseError as error:
        return str(error)
    return None
