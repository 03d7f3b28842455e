"""How a release is named: `kind/owner/name@version`, or the hash of its manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean, shortened

LATEST = "latest"
"""A version on the command line and in specs; resolved at once, and never recorded."""

WORD = r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?"
"""An owner, a name, a version: lower case, so that no two differ by case alone on any disk."""
_WORD = re.compile(WORD)
_SHAPE = re.compile(r"(?:(?P<kind>[^/@]+)/)?(?P<owner>[^/@]+)/(?P<name>[^/@]+)(?:@(?P<version>[^/@]+))?")
_DIGEST = re.compile(r"sha256:(?P<hex>[0-9a-f]{12,64})")

RESERVED = frozenset(
    ("con", "prn", "aux", "nul", "latest", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10)))
)
"""Words that no part of a name may be: devices of one system, and our own."""


class Kind(StrEnum):
    """What a release is of. A run is of what was played; the others are components."""

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
    """A release by its name; without a version, the newest that is not yanked."""

    kind: Kind
    owner: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.owner}/{self.name}" + ("" if self.version is None else f"@{self.version}")

    @property
    def folder(self) -> str:
        """Where it stands in a registry. Its version must be known."""
        assert self.version is not None
        return f"{self.kind}/{self.owner}/{self.name}/{self.version}"

    def at(self, version: str) -> Self:
        return replace(self, version=version)

    @classmethod
    def of_folder(cls, folder: str) -> Self | None:
        """The release whose folder this is; None where it is no release's."""
        parts = folder.split("/")
        if len(parts) != 4 or parts[0] not in set(Kind) or any(wrong_word(part) for part in parts[1:]):
            return None
        return cls(Kind(parts[0]), *parts[1:])


@dataclass(frozen=True)
class Digest:
    """A release by the SHA-256 of its manifest, or the first digits of it, at least 12."""

    hex: str

    def __str__(self) -> str:
        return f"sha256:{self.hex}"


def wrong_word(word: str) -> str | None:
    """Why a text can be no owner, name or version; None where it can."""
    if not _WORD.fullmatch(word):
        form = "1 to 100 of a-z, 0-9, '.', '_' and '-', and begin and end with a letter or a digit"
        return f"{shortened(word)!r} must be {form}"
    if ".." in word:
        return f"{shortened(word)!r} has two dots in a row"
    if word.partition(".")[0] in RESERVED:
        return f"{shortened(word)!r} is a reserved word"
    return None


def parse(text: str, kind: Kind | None = None) -> Reference | Digest:
    """A reference as somebody writes it; `kind` is that of one which says none, and the only one that may be said.

    Raises:
        UsageError: it is none; what is wrong with it.
    """
    found = _DIGEST.fullmatch(text)
    if found is not None:
        return Digest(found["hex"])
    shape, text = _SHAPE.fullmatch(text), shortened(text, 200)
    if shape is None:
        raise UsageError(f"{text!r} is no reference; write {kind or 'KIND'}/OWNER/NAME@VERSION, or sha256:...")
    said = shape["kind"]
    if said is None and kind is None:
        raise UsageError(f"{text!r}: of which kind? write KIND/OWNER/NAME@VERSION with one of {comma_join(Kind)}")
    if said is not None and said not in set(Kind):
        hint = did_you_mean(said[:40], map(str, Kind)) or f"; there are {comma_join(Kind)}"
        raise UsageError(f"{text!r}: no kind {shortened(said)!r}{hint}")
    if said is not None and kind is not None and said != kind:
        raise UsageError(f"{text!r} is a {said}, and a {kind} belongs here")
    version = shape["version"]
    words = [shape["owner"], shape["name"], *([] if version in (None, LATEST) else [version])]
    wrong = [message for word in words if (message := wrong_word(word))]
    if wrong:
        raise UsageError(f"{text!r} is no reference: {wrong[0]}")
    return Reference(Kind(str(said or kind)), shape["owner"], shape["name"], None if version == LATEST else version)


def is_reference(text: str) -> bool:
    """Whether a text where a path may stand is a reference: `owner/name@version`, with a kind or without, or a hash."""
    return _DIGEST.fullmatch(text) is not None or ("@" in text and _SHAPE.fullmatch(text) is not None)
