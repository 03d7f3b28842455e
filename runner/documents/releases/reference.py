"""References to releases: `kind/owner/name@version`, or the hash of a manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean, shortened

LATEST = "latest"
"""The version that means the newest one, in commands and specs. It is resolved immediately and never recorded."""

IDENTIFIER = r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?"
"""Pattern of an owner, name or version. It is lower case because some file systems ignore case."""
_IDENTIFIER = re.compile(IDENTIFIER)
_SHAPE = re.compile(r"(?:(?P<kind>[^/@]+)/)?(?P<owner>[^/@]+)/(?P<name>[^/@]+)(?:@(?P<version>[^/@]+))?")
_DIGEST = re.compile(r"sha256:(?P<hex>[0-9a-f]{12,64})")

RESERVED = frozenset(
    ("con", "prn", "aux", "nul", "latest", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10)))
)
"""Names that are not allowed in a release: devices on Windows, and `latest`."""


class Kind(StrEnum):
    """The kind of a release: a run, or one of the components."""

    PROTOCOL = "protocol"
    PROMPTS = "prompts"
    DATASET = "dataset"
    AGENT = "agent"
    TRAINER = "trainer"
    SPEC = "spec"
    MODEL = "model"
    RUN = "run"


COMPONENTS = tuple(kind for kind in Kind if kind != Kind.RUN)


@dataclass(frozen=True, order=True)
class Reference:
    """A reference by name. Without a version it means the newest release that is not yanked."""

    kind: Kind
    owner: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.owner}/{self.name}" + ("" if self.version is None else f"@{self.version}")

    @property
    def folder(self) -> str:
        """The release's folder in a registry. The version must be set."""
        assert self.version is not None
        return f"{self.kind}/{self.owner}/{self.name}/{self.version}"

    @property
    def unversioned(self) -> Self:
        """The reference without its version."""
        return replace(self, version=None)

    @classmethod
    def of_folder(cls, folder: str) -> Self | None:
        """Return the reference of the release in this registry folder, or None if it is not a release's folder."""
        parts = folder.split("/")
        if len(parts) != 4 or parts[0] not in set(Kind) or any(identifier_problem(part) for part in parts[1:]):
            return None
        return cls(Kind(parts[0]), *parts[1:])


@dataclass(frozen=True)
class Digest:
    """A reference by the SHA-256 of a manifest, or at least its first 12 digits."""

    hex: str

    def __str__(self) -> str:
        return f"sha256:{self.hex}"


def identifier_problem(identifier: str) -> str | None:
    """Return why a text is not a valid owner, name or version, or None if it is."""
    if not _IDENTIFIER.fullmatch(identifier):
        form = "consist of 1 to 100 of a-z, 0-9, '.', '_' and '-', and begin and end with a letter or a digit"
        return f"{shortened(identifier)!r} must {form}"
    if ".." in identifier:
        return f"{shortened(identifier)!r} has two dots in a row, which is not allowed"
    if identifier.partition(".")[0] in RESERVED:
        return f"{shortened(identifier)!r} is a reserved name; choose another one"
    return None


def parse_reference(text: str, kind: Kind | None = None, *, default_kind: Kind | None = None) -> Reference | Digest:
    """Return the reference that a user wrote.

    If `kind` is given, the text must be of this kind, or name no kind. `default_kind` is the kind of a text that names
    none, if `kind` is not given.

    Raises:
        UsageError: the text is not a valid reference of that kind.
    """
    digest = _DIGEST.fullmatch(text)
    if digest is not None:
        return Digest(digest["hex"])
    default_kind = kind or default_kind
    shape, text = _SHAPE.fullmatch(text), shortened(text, 200)
    if shape is None:
        example = f"{default_kind or 'KIND'}/OWNER/NAME@VERSION"
        raise UsageError(f"{text!r} is not a reference; write {example}, or sha256:...")
    kind_text = shape["kind"]
    if kind_text is None and default_kind is None:
        raise UsageError(f"{text!r} has no kind; write KIND/OWNER/NAME@VERSION with one of {comma_join(Kind)}")
    if kind_text is not None and kind_text not in set(Kind):
        hint = did_you_mean(kind_text[:40], map(str, Kind)) or f"; the kinds are {comma_join(Kind)}"
        raise UsageError(f"{text!r}: unknown kind {shortened(kind_text)!r}{hint}")
    if kind_text is not None and kind is not None and kind_text != kind:
        raise UsageError(f"{text!r} is a {kind_text}; name a {kind} here")
    version = shape["version"]
    parts = [shape["owner"], shape["name"], *([] if version in (None, LATEST) else [version])]
    problems = [message for part in parts if (message := identifier_problem(part))]
    if problems:
        raise UsageError(f"{text!r} is not a valid reference: {problems[0]}")
    return Reference(
        Kind(kind_text or str(default_kind)), shape["owner"], shape["name"], None if version == LATEST else version
    )


def is_reference(text: str) -> bool:
    """Return whether a text is a reference rather than a path: `[kind/]owner/name@version`, or a hash."""
    return _DIGEST.fullmatch(text) is not None or ("@" in text and _SHAPE.fullmatch(text) is not None)


_PART = re.compile(r"[0-9]+|[a-z]+")
_LATER_SUFFIXES = frozenset(("post", "rev", "patch", "hotfix", "r"))
"""Suffixes that sort after their version; all others sort before it: 1.0rc1, 1.0, 1.0.post1."""

_BEFORE, _END, _AFTER, _NUMBER = range(-1, 3)
"""Ranks of the next part of a version: a pre-release, no further part, a later suffix, a number."""

VersionKey = tuple[tuple[tuple[int, int, str], ...], str]


def version_order(version: str) -> VersionKey:
    """Return a sort key for versions, so that 1.2 < 1.10 and 1.0-rc2 < 1.0-rc10 < 1.0 < 1.0-1.

    No two versions have the same key: 1.0 and 1.00 are ordered by their text.
    """
    release, dash, suffix = version.removeprefix("v").partition("-")
    parts = [_rank_part(part) for part in _PART.findall(release)]
    suffix_parts = [_rank_part(part) for part in _PART.findall(suffix)]
    if dash and suffix_parts and suffix_parts[0][0] == _NUMBER:  # a number after a dash is a revision
        parts.append((_AFTER, 0, ""))
    return (*parts, *suffix_parts, (_END, 0, "")), version


def _rank_part(part: str) -> tuple[int, int, str]:
    if part.isdigit():
        return _NUMBER, int(part), ""
    if part == "dev":
        return _BEFORE, -1, part
    return _AFTER if part in _LATER_SUFFIXES else _BEFORE, 0, part
