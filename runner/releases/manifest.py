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

from runner.errors import NewerFormatError, ReleaseError
from runner.releases.limits import MAX_MANIFEST, USUAL, Limits
from runner.releases.paths import wrong_path, wrong_together
from runner.releases.reference import Kind, Reference, wrong_word

MANIFEST = "release.json"
CHECKSUM = "release.sha256"
"""The hash of the manifest, as `sha256sum -c` reads it: beside it, since it cannot say its own."""

FORMAT = 1
VISIBILITIES = ("public", "private")

MAX_TEXT = 4_000
MAX_DEPTH = 24

_HEX = re.compile(r"[0-9a-f]{64}")
_MEDIA = re.compile(r"[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,60}")
_ROLE = re.compile(r"[a-z_]{1,40}(:[A-Za-z0-9._-]{1,100})?")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a release."""

    path: str
    size: int
    sha256: str
    media_type: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a file came from: a commit that others can get, and whether the file was what that commit holds.

    Of a file that is in no repository, or that was not committed or not pushed, `clean` is false, and `why` says it.
    """

    repository: str | None
    commit: str | None
    path: str | None
    clean: bool
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Link:
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
    sources: Mapping[str, Source] = field(default_factory=dict)
    """By part: spec, prompts, protocol, dataset; of a component, its own kind."""
    links: tuple[Link, ...] = ()
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
        """The manifest, as it is published and hashed."""
        data = {"format": FORMAT, **{one.name: _plain(getattr(self, one.name)) for one in fields(self)}}
        return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

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
            raise ReleaseError(f"{MANIFEST} is damaged: its format cannot be {format_!r}")
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
            yield f"file {entry.path!r}: {wrong}"
        if entry.size > limits.file_bytes:
            yield f"file {entry.path!r} has {entry.size:,} bytes; at most {limits.file_bytes:,} are taken"
    yield from (f"file {path!r}: {why}" for path, why in wrong_together(entry.path for entry in files))
    if [entry.path for entry in files] != sorted(entry.path for entry in files):
        yield "its files are not in the order of their paths"
    if (total := sum(entry.size for entry in files)) > limits.total_bytes:
        yield f"{total:,} bytes in all; at most {limits.total_bytes:,} are taken"


def _plain(value: Any) -> Any:
    """A value of ours as JSON has it."""
    if isinstance(value, (FileEntry, Source, Link)):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return value


def _typed(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise TypeError(f"{str(value)[:60]!r} cannot stand where it stands")
    return value


def _text(value: Any, most: int = MAX_TEXT) -> str:
    text: str = _typed(value, str)
    if len(text) > most:
        raise ValueError(f"a text of {len(text):,} characters; at most {most:,} are taken")
    return text


def _text_or_null(value: Any) -> str | None:
    return None if value is None else _text(value)


def _match(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(_typed(value, str)):
        raise ValueError(f"{value[:80]!r} is not of the form {pattern.pattern}")
    return str(value)


def _only(said: Any, cls: type) -> dict[str, Any]:
    """A mapping with all keys of a class, and no others."""
    names = {one.name for one in fields(cls)}
    if set(_typed(said, dict)) != names:
        raise ValueError(f"its keys are not those of {cls.__name__}: {sorted(set(said) ^ names)[:5]}")
    return dict(said)


def _file(said: Any) -> FileEntry:
    known = _only(said, FileEntry)
    if _typed(known["size"], int) < 0:
        raise ValueError("a size below 0")
    _match(_HEX, known["sha256"])
    _match(_MEDIA, known["media_type"])
    _text(known["path"])
    return FileEntry(**known)


def _source(said: Any) -> Source:
    known = _only(said, Source)
    _typed(known["clean"], bool)
    for name in ("repository", "commit", "path", "why"):
        _text_or_null(known[name])
    return Source(**known)


def _link(said: Any) -> Link:
    known = _only(said, Link)
    _match(_ROLE, known["role"])
    for name in ("release", "identity"):
        _text_or_null(known[name])
    if known["sha256"] is not None:
        _match(_HEX, known["sha256"])
    return Link(**known)


def _depth(value: Any) -> int:
    """How deep data is nested, without a call for each level."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = [one for one in level if isinstance(one, (dict, list))]
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
        depth += 1
    return depth


def _named(said: Any, most: int = 1_000) -> dict[str, Any]:
    known: dict[str, Any] = _typed(said, dict)
    if len(known) > most:
        raise ValueError(f"{len(known)} names; at most {most} are taken")
    return {_text(name, 200): value for name, value in known.items()}


def _checked(cls: type[Release], said: Any) -> dict[str, Any]:
    """The fields of a manifest, each of its own type."""
    known = _only(said, cls)
    for name in ("owner", "name", "version"):
        if wrong := wrong_word(_text(known[name])):
            raise ValueError(wrong)
    if known["visibility"] not in VISIBILITIES:
        raise ValueError(f"no visibility {known['visibility']!r}")
    if _depth(known["facts"]) > MAX_DEPTH:
        raise ValueError(f"its facts are nested deeper than {MAX_DEPTH} levels")
    return {
        **known,
        "kind": Kind(_text(known["kind"])),
        "description": _text(known["description"]),
        "licence": _text_or_null(known["licence"]),
        "identity": {name: _match(_HEX, value) for name, value in _named(known["identity"]).items()},
        "sources": {name: _source(value) for name, value in _named(known["sources"]).items()},
        "links": tuple(_link(one) for one in _typed(known["links"], list)),
        "facts": _named(known["facts"]),
        "files": tuple(_file(one) for one in _typed(known["files"], list)),
    }
