"""The manifest of a release, `release.json`: what it is, where it came from, and each of its files by hash.

Its exact bytes are the release's identity: the same release has the same bytes wherever it was made, so nothing in it
depends on the clock, the machine, or who publishes it. They are hashed as they stand, and never written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import orjson

from runner.base.errors import NewerFormatError, ReleaseError
from runner.base.text import shortened
from runner.documents.releases.checked_values import MAX_DEPTH, match, named, only, text, text_or_null, too_deep, typed
from runner.documents.releases.limits import MAX_MANIFEST, USUAL, Limits
from runner.documents.releases.paths import wrong_path, wrong_together
from runner.documents.releases.reference import Kind, Reference, wrong_word

MANIFEST = "release.json"
CHECKSUM = "release.sha256"
"""The hash of the manifest, as `sha256sum -c` reads it: beside it, since it cannot say its own."""

FORMAT = 1
VISIBILITIES = ("public", "private")

_HEX = re.compile(r"[0-9a-f]{64}")
_MEDIA = re.compile(r"[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,60}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_ROLE = re.compile(r"[a-z_]{1,40}(:[A-Za-z0-9._-]{1,100})?")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a release."""

    path: str
    size: int
    sha256: str
    media_type: str


BUILTIN = "nip-run:"
"""Before the path of a file that comes with nip-run, which is in no repository: `why` has the version that pins it."""


RELEASE = "release:"
"""Before the reference of a release that a file came with, as its repository; `commit` is the hash of its manifest."""


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Where a file came from: a commit that others can get, and whether the file was what that commit holds.

    Of a file that is in no repository, or that was not committed or not pushed, `clean` is false, and `why` says it.
    """

    repository: str | None
    commit: str | None
    path: str | None
    clean: bool
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReleaseLink:
    """Another release, or what would be one, that this one was made with, from or for.

    `role` says what for: protocol, prompts, dataset, `agent:NAME`, `trainer:GROUP`; `input` (a model that it starts
    from), `output` (a model that it made), `part`, `parent`, `judges`, `reproduces`, `child_of`. Where no release is
    known, its identity alone is there: of a component the canonical hash, of a model what proves which one it is.
    """

    role: str
    release: str | None = None
    """`kind/owner/name@version`."""
    sha256: str | None = None
    """Of that release's manifest."""
    identity: str | None = None


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a manifest says."""

    kind: Kind
    owner: str
    name: str
    version: str
    description: str = ""
    licence: str | None = None
    """An SPDX identifier, or a name; None: nothing was said, so that nobody may assume anything."""
    visibility: str = "public"
    identity: Mapping[str, str] = field(default_factory=dict)
    """Canonical hashes, by what they are of: equal where the things are equal, however their files are written."""
    sources: Mapping[str, FileSource] = field(default_factory=dict)
    """By part: spec, prompts, protocol, dataset; of a component, its own kind."""
    links: tuple[ReleaseLink, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a list or a board shows of it without its files; each kind has its own."""
    files: tuple[FileEntry, ...] = ()

    @property
    def reference(self) -> Reference:
        return Reference(self.kind, self.owner, self.name, self.version)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.files)

    def file(self, path: str) -> FileEntry | None:
        """The file at a path; None where there is none."""
        return next((entry for entry in self.files if entry.path == path), None)

    def to_bytes(self) -> bytes:
        """The manifest, as it is published and hashed.

        Raises:
            ReleaseError: it says what JSON cannot, such as a whole number beyond 64 bits, or half a surrogate pair.
        """
        data = {"format": FORMAT, **{one.name: _plain(getattr(self, one.name)) for one in fields(self)}}
        try:
            return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        except TypeError as error:
            raise ReleaseError(f"{self.reference} says what {MANIFEST} cannot hold: {error}") from error

    @classmethod
    def from_bytes(cls, data: bytes, limits: Limits = USUAL) -> Self:
        """What a manifest says, of which every part is as a reader may rely on.

        Raises:
            ReleaseError: it is damaged, or says what no release may.
            NewerFormatError: a newer nip-run wrote it.
        """
        if len(data) > MAX_MANIFEST:
            raise ReleaseError(f"{MANIFEST} is larger than {MAX_MANIFEST >> 10} KiB")
        try:
            said = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ReleaseError(f"{MANIFEST} is damaged: {error}") from error
        if not isinstance(said, dict):
            raise ReleaseError(f"{MANIFEST} is damaged: not an object")
        format_ = said.pop("format", None)
        if type(format_) is int and format_ > FORMAT:
            raise NewerFormatError(f"{MANIFEST} was written by a newer nip-run (format {format_}); upgrade nip-run")
        if format_ != FORMAT:
            raise ReleaseError(f"{MANIFEST} is damaged: its format cannot be {shortened(repr(format_))}")
        try:
            release = cls(**_checked(cls, said))
        except (KeyError, TypeError, ValueError) as error:
            raise ReleaseError(f"{MANIFEST} is no manifest of nip-run: {error}") from error
        if release.to_bytes() != data:
            raise ReleaseError(f"{MANIFEST} is damaged: it is not written as nip-run writes one")
        for message in wrong_files(release.files, limits):
            raise ReleaseError(f"{release.reference}: {message}")
        return release


def digest(manifest: bytes) -> str:
    """The identity of a release: the SHA-256 (hex) of its manifest's bytes."""
    return hashlib.sha256(manifest).hexdigest()


def checksum(manifest: bytes) -> bytes:
    """What stands in `release.sha256`."""
    return f"{digest(manifest)}  {MANIFEST}\n".encode()


_CHECKSUM = re.compile(rb"([0-9a-f]{64})  release\.json\n")


def read_checksum(data: bytes) -> str:
    """The hash that `release.sha256` says.

    Raises:
        ReleaseError: it is damaged.
    """
    found = _CHECKSUM.fullmatch(data)
    if found is None:
        raise ReleaseError(f"{CHECKSUM} is damaged")
    return found[1].decode()


def wrong_files(files: Iterable[FileEntry], limits: Limits = USUAL) -> Iterable[str]:
    """What is wrong with the files of a release, the worst first."""
    files = list(files)
    if len(files) > limits.files:
        yield f"{len(files)} files; at most {limits.files} are taken"
        return
    for entry in files:
        if wrong := wrong_path(entry.path):
            yield f"file {shortened(entry.path)!r}: {wrong}"
        if entry.size > limits.file_bytes:
            yield f"file {shortened(entry.path)!r} has {entry.size:,} bytes; at most {limits.file_bytes:,} are taken"
    yield from (f"file {shortened(path)!r}: {why}" for path, why in wrong_together(entry.path for entry in files))
    if [entry.path for entry in files] != sorted(entry.path for entry in files):
        yield "its files are not in the order of their paths"
    if (total := sum(entry.size for entry in files)) > limits.total_bytes:
        yield f"{total:,} bytes in all; at most {limits.total_bytes:,} are taken"


def _plain(value: Any) -> Any:
    """A value of ours as JSON has it."""
    if isinstance(value, (FileEntry, FileSource, ReleaseLink)):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return value


def _file(said: Any) -> FileEntry:
    known = only(said, FileEntry)
    if typed(known["size"], int) < 0:
        raise ValueError("a size below 0")
    match(_HEX, known["sha256"])
    match(_MEDIA, known["media_type"])
    text(known["path"])
    return FileEntry(**known)


def is_builtin(path: str | None) -> bool:
    """Whether a source's path is that of a file which comes with nip-run: its version pins it."""
    return path is not None and path.startswith("nip-run:")


def _source(said: Any) -> FileSource:
    known = only(said, FileSource)
    typed(known["clean"], bool)
    for name in ("repository", "commit", "path", "why"):
        text_or_null(known[name])
    if known["commit"] is not None:
        match(_COMMIT, known["commit"])
    where = (known["repository"], known["commit"], known["path"])
    if known["clean"] and None in where and not is_builtin(known["path"]):
        raise ValueError("a source that is clean, and in no commit that others can get")
    if _PASSWORD.search(known["repository"] or ""):
        raise ValueError("a repository with a password in its address")
    return FileSource(**known)


def _link(said: Any) -> ReleaseLink:
    known = only(said, ReleaseLink)
    match(_ROLE, known["role"])
    text_or_null(known["identity"])
    if known["release"] is not None:
        folder, sign, version = text(known["release"]).rpartition("@")
        if not sign or Reference.of_folder(f"{folder}/{version}") is None:
            raise ValueError(f"a link to {shortened(known['release'])!r}, which is no KIND/OWNER/NAME@VERSION")
    if known["sha256"] is not None:
        match(_HEX, known["sha256"])
    return ReleaseLink(**known)


def _checked(cls: type[Release], said: Any) -> dict[str, Any]:
    """The fields of a manifest, each of its own type."""
    known = only(said, cls)
    for name in ("owner", "name", "version"):
        if wrong := wrong_word(text(known[name])):
            raise ValueError(wrong)
    if known["visibility"] not in VISIBILITIES:
        raise ValueError(f"no visibility {shortened(repr(known['visibility']))}")
    if too_deep(known["facts"]):
        raise ValueError(f"its facts are nested deeper than {MAX_DEPTH} levels")
    return {
        **known,
        "kind": Kind(text(known["kind"], 20)),
        "description": text(known["description"]),
        "licence": text_or_null(known["licence"]),
        "identity": {name: match(_HEX, value) for name, value in named(known["identity"]).items()},
        "sources": {name: _source(value) for name, value in named(known["sources"]).items()},
        "links": tuple(_link(one) for one in typed(known["links"], list)),
        "facts": named(known["facts"]),
        "files": tuple(_file(one) for one in typed(known["files"], list)),
    }
