"""What an upload says that it will be: folders of a registry, and of each the files with their hashes and sizes."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import orjson

from runner.base.errors import ReleaseError
from runner.base.text import shortened
from runner.documents.releases.limits import MAX_MANIFEST, Limits
from runner.documents.releases.manifest import CHECKSUM, MANIFEST
from runner.documents.releases.paths import wrong_path, wrong_together
from runner.documents.releases.reference import Reference
from runner.registry.transports.listing import SIGNATURE
from runner.registry.transports.registry import MAX_SIGNATURES
from runner.registry.transports.yanks import MAX_BYTES, YANKED, YANKED_FILE

MAX_SIGNATURE = 1 << 20
_HEX = re.compile(r"[0-9a-f]{64}")
_SIZES = {MANIFEST: MAX_MANIFEST, CHECKSUM: 1_000}


@dataclass(frozen=True)
class DeclaredFile:
    """A file of an upload."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DeclaredFolder:
    """A release, or what is added to one later: why it was yanked, or its signature."""

    reference: Reference
    part: str
    """`""`, `yanked` or `signature`."""
    files: Sequence[DeclaredFile]

    @property
    def path(self) -> str:
        return f"{self.reference.folder}/{self.part}" if self.part else self.reference.folder


@dataclass(frozen=True)
class Declaration:
    """All that is seen at once, or not at all."""

    folders: Sequence[DeclaredFolder]

    def id(self, account: int) -> str:
        """That of the upload: the same account that declares the same goes on where it was."""
        return hashlib.sha256(b"%d\n%s" % (account, self.to_bytes())).hexdigest()[:32]

    @cached_property
    def blobs(self) -> Mapping[str, int]:
        """The size of each file that there is, by hash."""
        return {file.sha256: file.size for folder in self.folders for file in folder.files}

    def to_bytes(self) -> bytes:
        said = [
            {"folder": one.path, "files": [{"path": f.path, "sha256": f.sha256, "size": f.size} for f in one.files]}
            for one in self.folders
        ]
        return orjson.dumps(said)

    @classmethod
    def of(cls, said: Sequence[Mapping[str, Any]], limits: Limits, most: int, most_files: int) -> Self:
        """What somebody declares, of which every name and size is one that there may be.

        Raises:
            ReleaseError: it is not, with each thing that is wrong as a note.
        """
        wrong: list[str] = []
        folders = []
        if not 1 <= len(said) <= most:
            wrong.append(f"{len(said)} releases; 1 to {most} are taken at once")
        if (count := sum(len(one["files"]) for one in said)) > most_files:
            wrong.append(f"{count:,} files; at most {most_files:,} are taken at once")
            said = []
        for one in said[:most]:
            path = str(one["folder"])
            base, _, part = path.rpartition("/")
            reference = Reference.of_folder(path)
            if reference is None and part in (YANKED, SIGNATURE):
                reference = Reference.of_folder(base)
            else:
                part = ""
            if reference is None:
                wrong.append(f"{shortened(path)!r} is no KIND/OWNER/NAME/VERSION")
                continue
            files = [DeclaredFile(str(f["path"]), int(f["size"]), str(f["sha256"])) for f in one["files"]]
            folder = DeclaredFolder(reference, part, files)
            wrong += (f"{folder.path}: {message}" for message in _wrong(folder, limits))
            folders.append(folder)
        twice = sorted(path for path, count in Counter(folder.path for folder in folders).items() if count > 1)
        wrong += (f"{path} is there twice" for path in twice)
        sizes: dict[str, int] = {}
        for file in (file for folder in folders for file in folder.files):
            if sizes.setdefault(file.sha256, file.size) != file.size:
                wrong.append(f"file {shortened(file.path)!r}: another file with its hash has another size")
        if wrong:
            raise ReleaseError("the upload cannot be taken").with_notes(wrong[:20])
        return cls(folders)

    @classmethod
    def from_bytes(cls, data: bytes | str) -> Self:
        """What was declared before, and found good."""
        folders = []
        for one in orjson.loads(data):
            reference, part = Reference.of_folder(one["folder"]), ""
            if reference is None:
                base, _, part = one["folder"].rpartition("/")
                reference = Reference.of_folder(base)
            assert reference is not None
            files = [DeclaredFile(f["path"], f["size"], f["sha256"]) for f in one["files"]]
            folders.append(DeclaredFolder(reference, part, files))
        return cls(folders)


def _wrong(folder: DeclaredFolder, limits: Limits) -> Iterator[str]:
    files = folder.files
    if len(files) > limits.files + 2:
        yield f"{len(files)} files; at most {limits.files} are taken"
        return
    for file in files:
        if not _HEX.fullmatch(file.sha256):
            yield f"file {shortened(file.path)!r}: no SHA-256"
        most = _most(folder.part, file.path, limits)
        if not 0 <= file.size <= most:
            yield f"file {shortened(file.path)!r} has {file.size:,} bytes; at most {most:,} are taken"
        if wrong := _wrong_name(folder.part, file.path):
            yield f"file {shortened(file.path)!r}: {wrong}"
    yield from (f"file {shortened(path)!r}: {why}" for path, why in wrong_together(file.path for file in files))
    if (total := sum(file.size for file in files)) > limits.total_bytes:
        yield f"{total:,} bytes in all; at most {limits.total_bytes:,} are taken"
    names = {file.path for file in files}
    if folder.part == "" and not {MANIFEST, CHECKSUM} <= names:
        yield f"{MANIFEST} and {CHECKSUM} belong to every release"
    if folder.part == YANKED and names != {YANKED_FILE}:
        yield f"{YANKED_FILE} alone belongs there"
    if folder.part == SIGNATURE and not 1 <= len(files) <= MAX_SIGNATURES:
        yield f"1 to {MAX_SIGNATURES} files belong there"


def _most(part: str, path: str, limits: Limits) -> int:
    if part:
        return MAX_BYTES if part == YANKED else MAX_SIGNATURE
    return _SIZES.get(path, limits.file_bytes)


def _wrong_name(part: str, path: str) -> str | None:
    return None if part == "" and path in _SIZES else wrong_path(path)
