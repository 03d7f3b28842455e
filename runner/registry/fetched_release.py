"""A release into a folder that says where it came from, with nothing in it executed; and what lies in such a folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import NipRunError, ReleaseError, UsageError
from runner.base.storage.safe_files import open_to_read
from runner.base.storage.strict_json import loads
from runner.base.text import in_one_line, shortened
from runner.documents.fetched_files import MARKER, got_from, marker
from runner.documents.releases.bundle import beside_it
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, digest, read_checksum
from runner.documents.releases.reference import Digest, Kind, Reference
from runner.registry.recomputed_run import write_tables
from runner.registry.signing import check_release
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.registry.transports.staging import remove_abandoned
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.spec.origin import DATA

SPEC = "spec.yaml"
PARAMETERS = "parameters.yaml"
LOCK = "environment.lock"

PIN = f"{DATA}/inputs/dataset.pin.json"
"""Stands in the place of a dataset's rows, where their licence forbids to pass them on."""
MAX_PIN = 64 << 20
WITHOUT_ROWS = "it was published without the rows of its dataset, and show, compare and play need them"

PUBLISHED = "published"
"""Where a results folder keeps what `reproduce` gets: OWNER/NAME/VERSION below it."""

MAX_SMALL = 2 << 20

_BESIDE = re.compile(r"\.nip-run-[0-9a-f]{16}\.(got|new|old)")
"""What a get writes into, beside its folder; one that was killed leaves it."""

_COMMENT = re.compile(r"#(?!.*coding)[ -~]*")
"""pip reads a file as the encoding that a comment names: bytes could be other lines to it than to us."""
MAX_LOCK = 4 << 20
_PINNED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*")


@dataclass(frozen=True)
class FetchedRelease:
    """A release in a folder."""

    folder: Path
    release: Release
    sha256: str
    """Of its manifest."""
    notes: tuple[str, ...] = ()
    """What whoever got it should know: why it was yanked, whether it is signed, what could not be read."""

    @property
    def run(self) -> RunFolder | None:
        """The run that it brought; None of a component."""
        return RunFolder.got(self.folder / DATA) if self.release.kind == Kind.RUN else None

    @property
    def is_training_run(self) -> bool:
        """Whether it is a training run, whose games are in releases of their own."""
        return self.release.kind == Kind.RUN and not (self.folder / DATA / "journal.jsonl").is_file()


def get(
    registry: Registry, named: Reference | Digest, folder: Path | None = None, signer_key: Path | None = None
) -> FetchedRelease:
    """Write a release into a folder, by default one of its name here: all of it, or nothing.

    Of a run the tables are made again from its journal, which executes nothing: its templates are rendered as when it
    was played.

    Raises:
        NotPublished, UsageError: there is no such release, or the folder holds something.
        ReleaseError: it is damaged, or not signed by that key; nothing was written.
    """
    entry = registry.find(named)
    signed = check_release(registry, entry, signer_key)
    notes = [] if entry.yanked is None else [f"{entry.reference} was yanked: {entry.yanked}"]
    notes += [] if signed is None else [signed]
    target = (folder or Path(entry.reference.name)).absolute()
    with whole(target) as beside:
        also = {MARKER: marker(str(entry.reference), entry.sha256, registry.where)}
        release = registry.unpack(entry, beside, also=also)
        try:
            check_lock(beside, release)
        except ReleaseError as error:
            raise type(error)(f"{entry.reference} in {registry.where}: {error}; nothing was written") from error
        got = FetchedRelease(beside, release, entry.sha256)
        if release.file(PIN) is not None:
            notes.append(WITHOUT_ROWS)
        elif release.kind == Kind.RUN and not got.is_training_run:
            try:
                write_tables(RunFolder.got(beside / DATA))
            except NipRunError as error:
                said = str(error).replace(str(beside), str(target))
                notes.append(f"its tables cannot be made again, and show and compare cannot read it: {said}")
    return FetchedRelease(target, release, entry.sha256, tuple(notes))


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """`beside_it`, for a folder of a user's; what a killed get left there is removed.

    Raises:
        UsageError: the folder holds something, or is the current one.
        ReleaseError: it cannot be written.
    """
    if target.resolve() == Path.cwd():
        raise UsageError(
            f"{target} is the current folder, which would be replaced under your shell; name a folder that is not "
            f"there yet, or go out of it first: cd .. (and then give {target.resolve().name})"
        )
    with beside_it(target, "got") as beside:
        remove_abandoned(target.parent, now=time.time(), named=_BESIDE)
        yield beside


def check_lock(folder: Path, release: Release) -> None:
    """See that the environment of a release is one that nip-run writes: `pip install -r` obeys far more.

    Raises:
        ReleaseError: another line than `NAME==VERSION` or a comment is in it; which.
    """
    if release.file(LOCK) is None:
        return
    lines = small(folder / LOCK, MAX_LOCK, LOCK).decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        if line and not _PINNED.fullmatch(line) and not _COMMENT.fullmatch(line):
            raise ReleaseError(
                f"{LOCK}:{number} is no line of a lock of nip-run, each of which is NAME==VERSION, and pip obeys more: "
                f"{in_one_line(shortened(line, 80))}"
            )


def opened(folder: Path) -> FetchedRelease:
    """What lies in a folder that `get` left. Its files may have been changed since; see
    `runner.registry.verification.verify`.

    Raises:
        UsageError: nothing was got into it.
        ReleaseError: its manifest is missing or damaged.
    """
    if not is_got(folder):
        raise UsageError(f"{folder} is no folder that `nip-run get` left: it has no {MARKER}")
    data, said = small(folder / MANIFEST), got_from(folder)
    release = Release.from_bytes(data)
    if read_checksum(small(folder / CHECKSUM)) != digest(data):
        raise ReleaseError(f"{folder / MANIFEST} is damaged: its bytes are not those of its hash in {CHECKSUM}")
    if said is None or said != {"release": str(release.reference), "sha256": digest(data)}:
        raise ReleaseError(f"{folder / MARKER} is damaged: it does not name the release that lies beside it")
    return FetchedRelease(folder, release, digest(data))


def is_got(folder: Path) -> bool:
    """Whether a release was got into a folder."""
    return (folder / MARKER).is_file() and (folder / MANIFEST).is_file()


def got_into(results: Results) -> list[Path]:
    """The folders of the releases that `reproduce` has got into a results folder."""
    return sorted(folder for folder in (results.path / PUBLISHED).glob("*/*/*") if is_got(folder))


def small(path: Path, most: int = MAX_SMALL, shown: str | None = None) -> bytes:
    """A small file of a got folder; `shown` is how messages name it.

    Raises:
        ReleaseError: it is missing, or larger than that.
    """
    try:
        with open_to_read(path) as file:
            data = file.read(most + 1)
    except OSError as error:
        said = error.strerror or os.strerror(error.errno or 0)
        raise ReleaseError(f"cannot read {shown or path}: {said}") from error
    if len(data) > most:
        raise ReleaseError(f"{shown or path} is larger than {most:,} bytes")
    return data


def read_pin(path: Path) -> dict[str, Any]:
    """What a pin says of the rows that it stands for.

    Raises:
        ReleaseError: it is missing or damaged.
    """
    try:
        said = loads(small(path, MAX_PIN))
    except ValueError as error:
        raise ReleaseError(f"{path} is damaged: {error}") from error
    if not isinstance(said, dict):
        raise ReleaseError(f"{path} is damaged: not an object")
    return said


def found_in(registry: Registry, named: Reference | Digest) -> ReleaseEntry:
    """The entry of a release that must be a run's. Raises as `Registry.find`; UsageError: it is none."""
    entry = registry.find(named)
    if entry.reference.kind != Kind.RUN:
        raise UsageError(f"{entry.reference} is a {entry.reference.kind}, and no run; only a run can be reproduced")
    return entry
