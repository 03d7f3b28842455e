"""Fetch releases into folders (`nip-run get`), and open such folders.

A fetched folder has a marker, a file that says which release it has and that its files come from others. `verify`,
`reproduce` and the loader of specs read these folders.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import NipRunError, ReleaseError, UsageError, errors_as, os_errors_as
from runner.base.storage.safe_files import read_bounded
from runner.base.storage.strict_json import parse_strict_json
from runner.base.text import in_one_line, shortened
from runner.documents.fetched_files import MARKER, marker_bytes, read_marker
from runner.documents.releases.bundle import staging_folder
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, digest, read_checksum
from runner.documents.releases.reference import Digest, Kind, Reference
from runner.registry.recomputed_run import write_tables
from runner.registry.signing import check_release_signature
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.transports.staging import remove_abandoned
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.spec.origin import DATA

PARAMETERS = "parameters.yaml"
LOCK = "environment.lock"

PIN = f"{DATA}/inputs/dataset.pin.json"
"""The *pin*: a file with the hashes of a dataset's rows, published instead of the rows if their license forbids it."""
MAX_PIN = 64 << 20
WITHOUT_ROWS = "the release was published without the rows of its dataset, which show, compare and play need"

PUBLISHED = "published"
"""The folder in a results folder where `reproduce` stores releases, as OWNER/NAME/VERSION."""

MAX_SMALL_BYTES = 2 << 20

_TEMPORARY_FOLDER = re.compile(r"\.nip-run-[0-9a-f]{16}\.(got|new|old)")
"""Matches temporary folders of `nip-run get`. They are left behind if the process is killed."""

_COMMENT = re.compile(r"#(?!.*coding)[ -~]*")
"""Matches a comment without the word `coding`. A comment with it could declare an encoding, so that pip would read
other lines than nip-run checks."""
MAX_LOCK = 4 << 20
_PINNED_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*")


@dataclass(frozen=True)
class FetchedRelease:
    """A release in a folder that `nip-run get` wrote."""

    folder: Path
    release: Release
    sha256: str
    """Hash of the manifest."""
    notes: tuple[str, ...] = ()
    """Messages for the user: that the release was yanked or is signed, or that its tables could not be rebuilt."""

    @property
    def run(self) -> RunFolder | None:
        """The run in the release; None if the release is a component."""
        return RunFolder.from_release(self.folder / DATA) if self.release.kind == Kind.RUN else None

    @property
    def is_training_run(self) -> bool:
        """Whether the release is a training run, whose games are in releases of their own."""
        return self.release.kind == Kind.RUN and not (self.folder / DATA / "journal.jsonl").is_file()


def fetch_release(
    registry: Registry,
    reference: Reference | Digest,
    folder: Path | None = None,
    signer_key: Path | None = None,
    *,
    tables: bool = True,
) -> FetchedRelease:
    """Write a complete release into a folder, by default the folder with the release's name in the current folder.

    If `tables` is true, the tables of a run are rebuilt from its journal. This renders the templates of the release,
    but executes no code from it.

    Raises:
        NotFoundError, UsageError: there is no such release, or the folder is not empty. Nothing was written.
        ReleaseError: the release is damaged, or not signed with `signer_key`. Nothing was written.
    """
    entry = registry.find(reference)
    signature_note = check_release_signature(registry, entry, signer_key)
    notes = [] if entry.yanked is None else [f"{entry.reference} was yanked: {entry.yanked}"]
    notes += [] if signature_note is None else [signature_note]
    target = (folder or Path(entry.reference.name)).absolute()
    with replace_folder(target) as temporary_folder:
        extra_files = {MARKER: marker_bytes(str(entry.reference), entry.sha256, registry.address)}
        release = registry.unpack(entry, temporary_folder, extra_files=extra_files)
        try:
            check_lock(temporary_folder, release)
        except ReleaseError as error:
            raise type(error)(
                f"{entry.reference} in {registry.address}: {error}. Nothing was written. Try again; if the error "
                "repeats, the release is damaged: tell the registry's operator"
            ) from error
        if release.file(PIN) is not None:
            notes.append(WITHOUT_ROWS)
        elif tables:
            notes += _rebuild_tables(FetchedRelease(temporary_folder, release, entry.sha256), target)
    return FetchedRelease(target, release, entry.sha256, tuple(notes))


def _rebuild_tables(fetched: FetchedRelease, target: Path) -> Iterator[str]:
    """Write the tables of a run, or yield a note why that failed, with paths in `target`."""
    if fetched.run is None or fetched.is_training_run:
        return
    try:
        write_tables(fetched.run)
    except NipRunError as error:
        reason = str(error).replace(str(fetched.folder), str(target))
        yield f"the run's tables cannot be rebuilt, so show and compare cannot read the run: {reason}"


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `target` at the end of the `with` block.

    Also remove temporary folders that an interrupted `nip-run get` left behind.

    Raises:
        UsageError: `target` is not empty, or is the current folder.
        ReleaseError: `target` cannot be written.
    """
    if target.resolve() == Path.cwd():
        raise UsageError(
            f"{target} is the current folder, which cannot be replaced while your shell uses it; name a folder that "
            f"does not exist yet, or run `cd ..` first and name {target.resolve().name}"
        )
    with staging_folder(target, "got") as temporary:
        remove_abandoned(target.parent, now=time.time(), pattern=_TEMPORARY_FOLDER)
        yield temporary


def check_lock(folder: Path, release: Release) -> None:
    """Check that a release's environment.lock has only versions and comments: pip could execute code for other lines.

    Raises:
        ReleaseError: a line is neither `NAME==VERSION` nor a comment.
    """
    if release.file(LOCK) is None:
        return
    lines = read_small(folder / LOCK, MAX_LOCK, LOCK).decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        if line and not _PINNED_PACKAGE.fullmatch(line) and not _COMMENT.fullmatch(line):
            raise ReleaseError(
                f"{LOCK}:{number}: expected NAME==VERSION, because pip could execute code for other lines: "
                f"{in_one_line(shortened(line, 80))}"
            )


def open_fetched(folder: Path) -> FetchedRelease:
    """Return the release in a folder that `nip-run get` wrote. Users may have changed files; `verify` reports this.

    Raises:
        UsageError: `nip-run get` did not write the folder.
        ReleaseError: the manifest is missing or damaged.
    """
    if not is_fetched(folder):
        raise UsageError(f"{folder} was not written by `nip-run get`, because it has no {MARKER}; name another folder")
    data, marker_content = read_small(folder / MANIFEST), read_marker(folder)
    release = Release.from_bytes(data)
    if read_checksum(read_small(folder / CHECKSUM)) != digest(data):
        raise ReleaseError(f"{folder / MANIFEST} is damaged: its SHA-256 differs from the one in {CHECKSUM}")
    if marker_content is None or marker_content != {"release": str(release.reference), "sha256": digest(data)}:
        raise ReleaseError(f"{folder / MARKER} is damaged: the file does not name the release in this folder")
    return FetchedRelease(folder, release, digest(data))


def is_fetched(folder: Path) -> bool:
    """Return whether `nip-run get` wrote a folder."""
    return (folder / MARKER).is_file() and (folder / MANIFEST).is_file()


def fetched_folders(results: Results) -> list[Path]:
    """Return the folders of the releases that `reproduce` fetched into a results folder."""
    return sorted(folder for folder in (results.path / PUBLISHED).glob("*/*/*") if is_fetched(folder))


def read_small(path: Path, max_bytes: int = MAX_SMALL_BYTES, name: str | None = None) -> bytes:
    """Return the content of a small file of a fetched folder. Messages show `name`, or the path if there is no name.

    Raises:
        ReleaseError: the file is missing, or larger than `max_bytes` bytes.
    """
    with os_errors_as(ReleaseError, f"cannot read {name or path}"):
        return read_bounded(path, max_bytes)


def read_pin(path: Path) -> dict[str, Any]:
    """Return the content of a pin; see `PIN`.

    Raises:
        ReleaseError: the pin is missing or damaged.
    """
    with errors_as(ReleaseError, f"{path} is damaged", ValueError):
        pin = parse_strict_json(read_small(path, MAX_PIN))
    if not isinstance(pin, dict):
        raise ReleaseError(f"{path} is damaged: not an object")
    return pin


def find_run(registry: Registry, reference: Reference | Digest) -> ReleaseEntry:
    """Return the entry of a run's release. Raises as `Registry.find`; UsageError: the release is not a run."""
    entry = registry.find(reference)
    if entry.reference.kind != Kind.RUN:
        raise UsageError(f"{entry.reference} is a {entry.reference.kind}; only a run can be reproduced; name a run")
    return entry
