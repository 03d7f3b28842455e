"""What a server answers, each part seen to be of its type, its form and its size before anything is done with it.

Whoever runs a server may mean harm to those who ask it: nothing else in the client looks into an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.errors import ReleaseError
from runner.base.text import in_one_line, shortened
from runner.registry.transports.interface import Indexed, Stored

MOST_FILES = 10_000_000
"""In one list of files;"""
MOST_RELEASES = 1_000_000
"""and of releases."""
_NOTES, _NOTE = 20, 500
"""The most notes that a server has told, and of how many characters each."""
_TIER = re.compile("recomputed|reproduced by [1-9][0-9]{0,5}")
"""What a server vouches for that says more than a run does itself."""
_NAME, _OWNERS = 100, 1_000
_ID, _HASH = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{64}")
OPEN, CHECKING, PUBLISHED, TAKEN = "open", "checking", "published", "taken"
_STATES = (OPEN, CHECKING, PUBLISHED, TAKEN, "refused")


@dataclass(frozen=True)
class UploadSaid:
    """What a server says of an upload."""

    id: str
    state: str
    missing: Mapping[str, int]
    """Of each blob that is not whole there, by its hash, how many bytes are."""
    notes: Sequence[str]

    @classmethod
    def of(cls, said: Mapping[str, Any], sizes: Mapping[str, int]) -> UploadSaid:
        """`sizes`: of the blobs that were declared.

        Raises:
            ReleaseError: it is none, or asks for what was not declared.
        """
        upload, state = said.get("id"), said.get("state")
        if not isinstance(upload, str) or not _ID.fullmatch(upload) or state not in _STATES:
            raise ReleaseError("what it says of an upload is none; is this a registry of nip-run?")
        missing: dict[str, int] = {}
        for one in list_of(said, "missing"):
            name, have = (one.get("sha256"), one.get("have")) if isinstance(one, dict) else (None, None)
            if not isinstance(name, str) or name not in sizes or name in missing:
                raise ReleaseError("it asks for a file that is none of these")
            if type(have) is not int or not 0 <= have <= sizes[name]:
                raise ReleaseError(f"it cannot have {shortened(repr(have))} bytes of a file of {sizes[name]:,}")
            missing[name] = have
        notes = list_of(said, "notes") if "notes" in said else []
        return cls(upload, state, missing, [in_one_line(shortened(str(one), _NOTE)) for one in notes[:_NOTES]])


def account_of(said: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """Whose token a server was given, and as whom it may publish; None: it says nobody's.

    Raises:
        ReleaseError: it is no answer to that.
    """
    account = said.get("account")
    if account is None:
        return None
    owners = list_of(said, "owners")
    if not isinstance(account, str) or any(not isinstance(one, str) for one in owners):
        raise ReleaseError("what it says of a token is none; is this a registry of nip-run?")
    return shortened(account, _NAME), [shortened(one, _NAME) for one in owners[:_OWNERS]]


def stored_of(one: Any) -> Stored:
    """A file of a list. Raises: ReleaseError: it is none."""
    if not isinstance(one, dict) or not isinstance(one.get("path"), str) or type(one.get("size")) is not int:
        raise ReleaseError("a list of files has what is no file")
    return Stored(one["path"], one["size"])


def indexed_of(one: Any) -> Indexed:
    """A release of a list. Raises: ReleaseError: it is none."""
    said = one if isinstance(one, dict) else {}
    folder, sha256, yanked = said.get("folder"), said.get("sha256"), said.get("yanked")
    if not isinstance(folder, str) or not isinstance(sha256, str) or not isinstance(yanked, str | None):
        raise ReleaseError("a list of releases has what is no release")
    if not _HASH.fullmatch(sha256):
        raise ReleaseError("a list of releases has one without a hash")
    told = said.get("tier")
    vouched = told if isinstance(told, str) and _TIER.fullmatch(told) else ""
    try:
        why = None if yanked is None else yanked.encode()
        return Indexed(folder, sha256, why, said.get("signed") is True, vouched)
    except UnicodeEncodeError as error:
        raise ReleaseError("a list of releases has what is no text") from error


def list_of(said: Mapping[str, Any], key: str) -> list[Any]:
    """A list of an answer. Raises: ReleaseError: it has none."""
    found = said.get(key)
    if not isinstance(found, list):
        raise ReleaseError(f"its answer has no {key}; is this a registry of nip-run?")
    return found
