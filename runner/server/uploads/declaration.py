"""The declaration of an upload: the folders to add to the registry, each with the paths, sizes and hashes of its files.

A client sends the declaration before it sends files. `Uploads` stores it, and `runner.server.uploads.checking` compares
it with manifests.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Self

import orjson

from runner.base.errors import ReleaseError
from runner.base.text import shortened
from runner.documents.releases.limits import MAX_MANIFEST, Limits
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, checksum, digest
from runner.documents.releases.paths import path_conflicts, path_problem
from runner.documents.releases.reference import Reference
from runner.registry.transports.listing import MAX_SIGNATURE_BYTES, SIGNATURE_FILE, SIGNATURE_FOLDER
from runner.registry.transports.yanks import MAX_YANK_BYTES, YANKED, YANKED_FILE

_FILE_OF_PART = {YANKED: YANKED_FILE, SIGNATURE_FOLDER: SIGNATURE_FILE}
_MAX_BYTES_OF_FILE = {MANIFEST: MAX_MANIFEST, CHECKSUM: 1_000}
"""Maximum sizes of the two files that describe a release. Settings of the server limit all other files."""


@dataclass(frozen=True)
class DeclaredFile:
    """A file in a declaration."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DeclaredFolder:
    """A release, or an addition to an existing one: its yank or its signature."""

    reference: Reference
    part: str
    """`""` for a release itself, `yanked` or `signature`."""
    files: Sequence[DeclaredFile]

    @classmethod
    def from_manifest(cls, release: Release, manifest: bytes) -> Self:
        """Return the folder of a release with all its files; `manifest` is the content of its manifest."""
        generated = [(MANIFEST, manifest), (CHECKSUM, checksum(manifest))]
        files = [DeclaredFile(path, len(data), digest(data)) for path, data in generated]
        files += (DeclaredFile(file.path, file.size, file.sha256) for file in release.files)
        return cls(release.reference, "", files)

    @property
    def path(self) -> str:
        """The path of the folder in the registry."""
        return f"{self.reference.folder}/{self.part}" if self.part else self.reference.folder


@dataclass(frozen=True)
class Declaration:
    """The folders of one upload, which become visible together."""

    folders: Sequence[DeclaredFolder]

    def id(self, account_id: int) -> str:
        """Return the upload's id, which is the same if the account declares the same upload again."""
        return hashlib.sha256(b"%d\n%s" % (account_id, self.to_bytes())).hexdigest()[:32]

    @cached_property
    def blobs(self) -> Mapping[str, int]:
        """The size of each distinct file, by hash."""
        return {file.sha256: file.size for folder in self.folders for file in folder.files}

    def to_bytes(self) -> bytes:
        def to_json(file: DeclaredFile) -> dict[str, Any]:
            return {"path": file.path, "sha256": file.sha256, "size": file.size}  # this order decides the upload's id

        folders = [{"folder": folder.path, "files": list(map(to_json, folder.files))} for folder in self.folders]
        return orjson.dumps(folders)

    @classmethod
    def parse(cls, declared: Sequence[Mapping[str, Any]], limits: Limits, max_folders: int, max_files: int) -> Self:
        """Check and parse a client's declaration.

        Raises:
            ReleaseError: a path or a size is invalid, or there are too many files; the notes list all problems.
        """
        problems: list[str] = []
        folders = []
        if not 1 <= len(declared) <= max_folders:
            problems.append(f"the upload has {len(declared)} releases; publish 1 to {max_folders} at once")
        if (count := sum(len(entry["files"]) for entry in declared)) > max_files:
            problems.append(f"the upload has {count:,} files; publish fewer releases at once, with up to {max_files:,}")
            declared = []
        for entry in declared[:max_folders]:
            path = str(entry["folder"])
            reference, part = _split_folder(path)
            if reference is None:
                problems.append(f"{shortened(path)!r} is not the folder of a release; write KIND/OWNER/NAME/VERSION")
                continue
            files = [DeclaredFile(file["path"], file["size"], file["sha256"]) for file in entry["files"]]
            folder = DeclaredFolder(reference, part, files)
            problems += (f"{folder.path}: {problem}" for problem in _folder_problems(folder, limits))
            folders.append(folder)
        repeated = sorted(path for path, count in Counter(folder.path for folder in folders).items() if count > 1)
        problems += (f"{path} is declared twice; declare it once" for path in repeated)
        sizes: dict[str, int] = {}
        for file in chain.from_iterable(folder.files for folder in folders):
            if sizes.setdefault(file.sha256, file.size) != file.size:
                name = shortened(file.path)
                problems.append(f"file {name!r}: another file has the same hash and another size; correct the sizes")
        if problems:
            raise ReleaseError("the server does not accept this upload; correct these problems").with_notes(
                problems[:20]
            )
        return cls(folders)

    @classmethod
    def from_bytes(cls, data: bytes | str) -> Self:
        """Parse the output of `to_bytes`."""
        folders = []
        for entry in orjson.loads(data):
            reference, part = _split_folder(entry["folder"])
            assert reference is not None
            files = [DeclaredFile(file["path"], file["size"], file["sha256"]) for file in entry["files"]]
            folders.append(DeclaredFolder(reference, part, files))
        return cls(folders)


def _split_folder(path: str) -> tuple[Reference | None, str]:
    """Split the path of a declared folder into a release and the name of its part; the release is None if invalid."""
    base, _, part = path.rpartition("/")
    if part in _FILE_OF_PART and Reference.of_folder(path) is None:
        return Reference.of_folder(base), part
    return Reference.of_folder(path), ""


def _folder_problems(folder: DeclaredFolder, limits: Limits) -> Iterator[str]:
    """Yield problems with the number, the names and the sizes of a folder's files."""
    files = folder.files
    if len(files) > limits.files + 2:  # the limit does not count the manifest and its checksum
        yield f"the release has {len(files)} files; publish at most {limits.files}"
        return
    for file in files:
        max_bytes = _max_bytes(folder.part, file.path, limits)
        if not 0 <= file.size <= max_bytes:
            size = f"has {file.size:,} bytes; at most {max_bytes:,} are allowed"
            yield f"file {shortened(file.path)!r} {size}; publish a smaller file"
        is_description = folder.part == "" and file.path in _MAX_BYTES_OF_FILE
        if problem := None if is_description else path_problem(file.path):
            yield f"file {shortened(file.path)!r}: {problem}"
    conflicts = path_conflicts(file.path for file in files)
    yield from (f"file {shortened(path)!r}: {problem}" for path, problem in conflicts)
    if (total := sum(file.size for file in files)) > limits.total_bytes:
        yield f"the files of the release have {total:,} bytes; publish at most {limits.total_bytes:,} bytes"
    names = {file.path for file in files}
    if folder.part == "" and not {MANIFEST, CHECKSUM} <= names:
        yield f"the release lacks {MANIFEST} or {CHECKSUM}; add both files"
    if folder.part and names != {_FILE_OF_PART[folder.part]}:
        yield f"this folder must contain {_FILE_OF_PART[folder.part]} and nothing else"


def _max_bytes(part: str, path: str, limits: Limits) -> int:
    if part:
        return MAX_YANK_BYTES if part == YANKED else MAX_SIGNATURE_BYTES
    return _MAX_BYTES_OF_FILE.get(path, limits.file_bytes)
