"""The store: the folder with all releases of components that a user has installed. They are checked before each use.

`runner.registry.components.install` adds releases, and `runner.registry.components.installed` reads them. The store has
the layout of a folder registry (`runner.registry.transports.folder`). Each release's folder has the marker of
downloaded files (`runner.documents.fetched_files`), because other people wrote the files.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import NotFoundError, ReleaseError, TakenError, UsageError, os_errors_as
from runner.base.storage.safe_files import open_to_read, read_bounded, remove_folder
from runner.documents.fetched_files import MARKER, fetched_registry, marker_bytes
from runner.documents.releases.bundle import check_content
from runner.documents.releases.limits import MAX_MANIFEST
from runner.documents.releases.manifest import MANIFEST, FileEntry, Release, digest
from runner.documents.releases.reference import Digest, Reference
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.registry import Registry, ReleaseEntry

STORE_VARIABLE = "NIP_RUN_STORE"
"""The environment variable with the store's folder."""
WEIGHTS = "weights/"
"""The folder with a model's weights. They can be large, and no spec reads them, so only their sizes are checked."""

_checked_files: dict[Path, tuple[tuple[int, ...], str]] = {}
"""The state (modification times, size, inode) and the hash of each file that this process has checked before."""


def find_store_folder() -> Path:
    """Return the folder of the store: `NIP_RUN_STORE`, or by default a folder in the user's data folder."""
    if folder := os.environ.get(STORE_VARIABLE):
        return Path(folder).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    data_folder = Path(data) if data.startswith("/") else Path("~/.local/share").expanduser()
    return data_folder / "nip-run" / "store"


@dataclass(frozen=True)
class Installed:
    """An installed release. Its files have been checked."""

    release: Release
    folder: Path
    sha256: str


class Store:
    """The store in a folder, which need not exist yet."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = find_store_folder() if root is None else root.absolute()

    def entries(self) -> list[ReleaseEntry]:
        """Return all installed releases; raise ReleaseError if the store cannot be read."""
        return Registry(FolderTransport(str(self.root))).entries()

    def folder(self, reference: Reference) -> Path:
        return self.root / reference.folder

    def is_installed(self, reference: Reference) -> bool:
        return (self.folder(reference) / MANIFEST).is_file()

    def find_by_hash(self, hash_prefix: Digest) -> Reference:
        """Return the installed release whose manifest has this hash.

        Raises:
            NotFoundError: no installed release has this hash.
            UsageError: several releases match, because the hash has too few digits.
        """
        matches = [entry for entry in self.entries() if entry.sha256.startswith(hash_prefix.hex)]
        if len({entry.sha256 for entry in matches}) > 1:
            raise UsageError(f"{hash_prefix} matches {len(matches)} installed releases; give more digits")
        if not matches:
            raise NotFoundError(f"{hash_prefix} is not installed; nip-run install {hash_prefix} installs it")
        return matches[0].reference

    def check(self, reference: Reference) -> Installed:
        """Check every file of an installed release against its manifest, and return the release.

        Raises:
            NotFoundError: the release is not installed.
            ReleaseError: the release is damaged; the message names the damaged files.
        """
        folder = self.folder(reference)
        repair = f"; repair it: nip-run uninstall {reference}, then nip-run install {reference}"
        try:
            data = read_bounded(folder / MANIFEST, MAX_MANIFEST)
            release = Release.from_bytes(data)
        except FileNotFoundError as error:
            raise NotFoundError(f"{reference} is not installed; nip-run install {reference} installs it") from error
        except OSError as error:
            raise ReleaseError(f"cannot read {folder / MANIFEST}: {error.strerror}") from error
        except ReleaseError as error:
            raise type(error)(f"{folder}: {error}{repair}") from error
        if release.reference != reference:
            raise ReleaseError(f"{folder} contains another release, {release.reference}{repair}")
        problems = [problem for file in release.files if (problem := _describe_damage(folder, file))]
        if problems:
            raise ReleaseError(f"{reference} is damaged in {folder}: {'; '.join(problems)}{repair}")
        return Installed(release, folder, digest(data))

    def find_origin(self, reference: Reference) -> str | None:
        """Return the registry that an installed release came from; None if its marker does not say."""
        return fetched_registry(self.folder(reference))

    def add(self, registry: Registry, entry: ReleaseEntry) -> Installed:
        """Install a release from a registry unless it is installed, check its files, and return it.

        Raises:
            TakenError: the store has another release of this name and version.
            ReleaseError: the registry's files are damaged, or the store cannot be written.
        """
        if not self.is_installed(entry.reference):
            marker = marker_bytes(str(entry.reference), entry.sha256, registry.address)
            try:
                registry.unpack(entry, self.folder(entry.reference), extra_files={MARKER: marker})
            except (ReleaseError, UsageError):
                if not self.is_installed(entry.reference):  # if the store has it now, another process has installed it
                    raise
        installed = self.check(entry.reference)
        if installed.sha256 != entry.sha256:
            raise TakenError(
                f"{entry.reference} is installed from {self.find_origin(entry.reference)} as "
                f"sha256:{installed.sha256[:12]}, but {registry.address} has sha256:{entry.sha256[:12]} under this "
                f"name; to replace it, first run nip-run uninstall {entry.reference}"
            )
        return installed

    def remove(self, reference: Reference) -> None:
        """Uninstall a release.

        Raises:
            NotFoundError: the release is not installed.
            ReleaseError: its folder cannot be removed.
        """
        folder = self.folder(reference)
        if not folder.exists():
            raise NotFoundError(f"{reference} is not installed, so there is nothing to uninstall")
        with os_errors_as(ReleaseError, f"cannot remove {folder}"):
            remove_folder(folder)
            current = folder.parent
            with suppress(OSError):  # `rmdir` fails if a parent has other releases
                while current != self.root:
                    current.rmdir()
                    current = current.parent


def _describe_damage(folder: Path, file: FileEntry) -> str | None:
    """Return a message if an installed file is damaged; None if it is intact. Unchanged files are not read again."""
    path = folder / file.path
    try:
        with open_to_read(path) as source:
            stat = os.fstat(source.fileno())
            state = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
            if file.path.startswith(WEIGHTS):
                return None if stat.st_size == file.size else f"{file.path} has {stat.st_size:,} of {file.size:,} bytes"
            if _checked_files.get(path) != (state, file.sha256):
                check_content(source, file)
                _checked_files[path] = (state, file.sha256)
    except OSError as error:
        return f"{file.path}: {error.strerror}"
    except ReleaseError as error:
        return str(error)
    return None
