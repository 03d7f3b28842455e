"""The manifest of a release, `release.json`: its name, sources, links and facts, and the hash of each file.

The hash of the manifest's bytes is the release's identity. The same release has the same manifest on every machine, so
no value depends on the time, the machine or the publisher. The hashed bytes are stored as they are, never rewritten.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import orjson

from runner.base.errors import NewerFormatError, ReleaseError, errors_as
from runner.base.hashing import COMMIT, SHA256
from runner.base.storage.fetched_markers import RELEASE_MANIFEST
from runner.base.text import shortened
from runner.documents.releases.limits import DEFAULT_LIMITS, MAX_MANIFEST, Limits
from runner.documents.releases.paths import path_conflicts, path_problem
from runner.documents.releases.reference import Kind, Reference, identifier_problem

MANIFEST = RELEASE_MANIFEST
CHECKSUM = "release.sha256"
"""The file with the manifest's hash in the format of `sha256sum -c`, because a manifest cannot contain its own hash."""

FORMAT = 1
VISIBILITIES = ("public", "private")

_MEDIA = re.compile(r"[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,60}")
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
"""Prefix of `FileSource.path` for a file that ships with nip-run and is in no repository; `why` has the version."""


RELEASE = "release:"
"""Prefix of `FileSource.repository` for a file of a release; `commit` is then the hash of the release's manifest."""


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """The commit that a file came from.

    `clean` is true if the file has no uncommitted changes and others can fetch the commit. Otherwise `why` has the
    reason: the file is in no repository, changed, not committed or not pushed.
    """

    repository: str | None
    commit: str | None
    path: str | None
    clean: bool
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReleaseLink:
    """A link to another release, or to an unpublished component, run or model, that this release depends on.

    `role` is protocol, prompts, dataset, `agent:NAME`, `trainer:GROUP`; `input` (a model that a run starts from),
    `output` (a model that a run produced), `part`, `parent`, `judges`, `reproduces` or `child_of`. If the target is
    not published, only `identity` is set: the canonical hash of a component or run, or a model's identity.
    """

    role: str
    release: str | None = None
    """`kind/owner/name@version`."""
    sha256: str | None = None
    """The SHA-256 of the manifest of `release`."""
    identity: str | None = None


@dataclass(frozen=True, kw_only=True)
class Release:
    """The content of a manifest."""

    kind: Kind
    owner: str
    name: str
    version: str
    description: str = ""
    licence: str | None = None
    """An SPDX identifier or a name; None if the publisher named no license, so no permission can be assumed."""
    visibility: str = "public"
    identity: Mapping[str, str] = field(default_factory=dict)
    """Canonical hashes by part. Equal parts have equal hashes, even if their files are formatted differently."""
    sources: Mapping[str, FileSource] = field(default_factory=dict)
    """The source of each part: spec, prompts, protocol, dataset. A component has one part, named after its kind."""
    links: tuple[ReleaseLink, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts that lists and boards show without opening the files. Each kind of release has other facts."""
    files: tuple[FileEntry, ...] = ()

    @property
    def reference(self) -> Reference:
        return Reference(self.kind, self.owner, self.name, self.version)

    @property
    def size(self) -> int:
        """The size of all its files in bytes."""
        return sum(entry.size for entry in self.files)

    def file(self, path: str) -> FileEntry | None:
        """Return the entry of the file at a path, or None."""
        return next((entry for entry in self.files if entry.path == path), None)

    def to_bytes(self) -> bytes:
        """Return the manifest's bytes, as they are published and hashed.

        Raises:
            ReleaseError: a value has no JSON form, such as an integer beyond 64 bits or a lone surrogate.
        """
        data = {"format": FORMAT, **{item.name: _to_json(getattr(self, item.name)) for item in fields(self)}}
        with errors_as(ReleaseError, f"{self.reference} has a value that cannot be written to {MANIFEST}", TypeError):
            return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_bytes(cls, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Parse a manifest and check every part of it.

        Raises:
            ReleaseError: it is damaged or invalid.
            NewerFormatError: a newer version of nip-run wrote it.
        """
        if len(data) > MAX_MANIFEST:
            raise ReleaseError(f"{MANIFEST} is larger than {MAX_MANIFEST >> 10} KiB")
        with errors_as(ReleaseError, f"{MANIFEST} is damaged", orjson.JSONDecodeError):
            content = orjson.loads(data)
        if not isinstance(content, dict):
            raise ReleaseError(f"{MANIFEST} is damaged: not an object")
        version = content.pop("format", None)
        if type(version) is int and version > FORMAT:
            message = f"{MANIFEST} was written by a newer version of nip-run (format {version}); upgrade nip-run"
            raise NewerFormatError(message)
        if version != FORMAT:
            raise ReleaseError(f"{MANIFEST} is damaged: its format cannot be {shortened(repr(version))}")
        with errors_as(ReleaseError, f"{MANIFEST} is not a valid manifest of nip-run", KeyError, TypeError, ValueError):
            release = cls(**_parse_fields(cls, content))
        if release.to_bytes() != data:
            raise ReleaseError(f"{MANIFEST} is damaged: not formatted as nip-run writes it")
        for message in file_problems(release.files, limits):
            raise ReleaseError(f"{release.reference}: {message}")
        return release


def digest(manifest: bytes) -> str:
    """Return the identity of a release: the SHA-256 (hex) of its manifest's bytes."""
    return hashlib.sha256(manifest).hexdigest()


def checksum(manifest: bytes) -> bytes:
    """Return the content of `release.sha256`."""
    return f"{digest(manifest)}  {MANIFEST}\n".encode()


_CHECKSUM = re.compile(rb"([0-9a-f]{64})  release\.json\n")


def read_checksum(data: bytes) -> str:
    """Return the hash in the content of `release.sha256`.

    Raises:
        ReleaseError: the file is damaged.
    """
    checksum_match = _CHECKSUM.fullmatch(data)
    if checksum_match is None:
        raise ReleaseError(f"{CHECKSUM} is damaged")
    return checksum_match[1].decode()


def file_problems(files: Iterable[FileEntry], limits: Limits = DEFAULT_LIMITS) -> Iterable[str]:
    """Yield a message for each problem with the paths, sizes, number or order of a release's files."""
    files = list(files)
    if len(files) > limits.files:
        yield f"the release has {len(files)} files; at most {limits.files} are allowed"
        return
    for entry in files:
        if problem := path_problem(entry.path):
            yield f"file {shortened(entry.path)!r}: {problem}"
        if entry.size > limits.file_bytes:
            yield f"file {shortened(entry.path)!r} has {entry.size:,} bytes; at most {limits.file_bytes:,} are allowed"
    yield from (f"file {shortened(path)!r}: {reason}" for path, reason in path_conflicts(entry.path for entry in files))
    if [entry.path for entry in files] != sorted(entry.path for entry in files):
        yield "its files are not sorted by path"
    if (total := sum(entry.size for entry in files)) > limits.total_bytes:
        yield f"the release has {total:,} bytes in all; at most {limits.total_bytes:,} are allowed"


def _to_json(value: Any) -> Any:
    """Return the value of a release's field as JSON types."""
    if isinstance(value, (FileEntry, FileSource, ReleaseLink)):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, (tuple, list)):
        return [_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _to_json(item) for name, item in value.items()}
    return value


def _parse_file(value: Any) -> FileEntry:
    values = check_fields(value, FileEntry)
    if check_type(values["size"], int) < 0:
        raise ValueError(f"a file's size cannot be {values['size']}")
    check_pattern(SHA256, values["sha256"])
    check_pattern(_MEDIA, values["media_type"])
    check_text(values["path"])
    return FileEntry(**values)


def is_builtin(path: str | None) -> bool:
    """Return whether a source's path is that of a file that ships with nip-run."""
    return path is not None and path.startswith(BUILTIN)


def _parse_source(value: Any) -> FileSource:
    values = check_fields(value, FileSource)
    check_type(values["clean"], bool)
    for name in ("repository", "commit", "path", "why"):
        check_text_or_null(values[name])
    if values["commit"] is not None:
        check_pattern(COMMIT, values["commit"])
    origin = (values["repository"], values["commit"], values["path"])
    if values["clean"] and None in origin and not is_builtin(values["path"]):
        raise ValueError("a source is marked clean, but has no repository, commit or path")
    if _PASSWORD.search(values["repository"] or ""):
        raise ValueError("the URL of a source's repository has a password")
    return FileSource(**values)


def _parse_link(value: Any) -> ReleaseLink:
    values = check_fields(value, ReleaseLink)
    check_pattern(_ROLE, values["role"])
    check_text_or_null(values["identity"])
    if values["release"] is not None:
        folder, sign, version = check_text(values["release"]).rpartition("@")
        if not sign or Reference.of_folder(f"{folder}/{version}") is None:
            raise ValueError(f"a link names {shortened(values['release'])!r}, which is not KIND/OWNER/NAME@VERSION")
    if values["sha256"] is not None:
        check_pattern(SHA256, values["sha256"])
    return ReleaseLink(**values)


def _parse_fields(cls: type[Release], content: Any) -> dict[str, Any]:
    """Return the fields of a manifest, checked and converted to their types."""
    values = check_fields(content, cls)
    for name in ("owner", "name", "version"):
        if problem := identifier_problem(check_text(values[name])):
            raise ValueError(problem)
    if values["visibility"] not in VISIBILITIES:
        raise ValueError(f"unknown visibility {shortened(repr(values['visibility']))}")
    if is_too_deep(values["facts"]):
        raise ValueError(f"the facts are nested deeper than {MAX_DEPTH} levels")
    return {
        **values,
        "kind": Kind(check_text(values["kind"], 20)),
        "description": check_text(values["description"]),
        "licence": check_text_or_null(values["licence"]),
        "identity": {name: check_pattern(SHA256, value) for name, value in check_names(values["identity"]).items()},
        "sources": {name: _parse_source(value) for name, value in check_names(values["sources"]).items()},
        "links": tuple(_parse_link(item) for item in check_type(values["links"], list)),
        "facts": check_names(values["facts"]),
        "files": tuple(_parse_file(item) for item in check_type(values["files"], list)),
    }


MAX_TEXT = 4_000
MAX_DEPTH = 24
MAX_NAMES = 1_000


# Checks of untrusted values. A failed check raises TypeError or ValueError with a short message for the caller's error.


def check_type(value: Any, *types: type) -> Any:
    """Return a value that has exactly one of these types; subclasses are refused, so `True` is not an `int`."""
    if type(value) not in types:
        raise TypeError(f"unexpected value {shortened(repr(value))}")
    return value


def check_text(value: Any, max_length: int = MAX_TEXT) -> str:
    checked: str = check_type(value, str)
    if len(checked) > max_length:
        raise ValueError(f"a text of {len(checked):,} characters; at most {max_length:,} are allowed")
    return checked


def check_text_or_null(value: Any) -> str | None:
    return None if value is None else check_text(value)


def check_pattern(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(check_type(value, str)):
        raise ValueError(f"{shortened(value)!r} is not of the form {pattern.pattern}")
    return str(value)


def check_fields(value: Any, cls: type) -> dict[str, Any]:
    """Return a copy of a mapping whose keys are exactly the fields of a dataclass."""
    names = {field.name for field in fields(cls)}
    if set(check_type(value, dict)) != names:
        differing = [shortened(name) for name in sorted(set(value) ^ names)[:5]]
        raise ValueError(f"missing or unknown keys: {', '.join(differing)}")
    return dict(value)


def check_names(value: Any) -> dict[str, object]:
    """Return a mapping with text keys; its values are not checked."""
    mapping: dict[str, Any] = check_type(value, dict)
    if len(mapping) > MAX_NAMES:
        raise ValueError(f"{len(mapping):,} names; at most {MAX_NAMES:,} are allowed")
    return {check_text(name, 200): value for name, value in mapping.items()}


def is_too_deep(value: Any) -> bool:
    """Return whether data is nested deeper than `MAX_DEPTH` levels, without recursion."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = [container for container in level if isinstance(container, (dict, list))]
        level = [
            item for container in inner for item in (container.values() if isinstance(container, dict) else container)
        ]
        depth += 1
    return depth > MAX_DEPTH
