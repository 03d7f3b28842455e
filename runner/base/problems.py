"""The problems that a document can have, each with its place. A `SpecError` carries all problems of a spec."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, order=True)
class Place:
    """A position in a document. Lines and columns count from 1."""

    file: str
    line: int = 1
    column: int = 1
    is_own: bool = field(default=True, compare=False)
    """Whether messages may quote the file: it belongs to the spec's folder tree, or the user named it."""
    source: str | None = field(default=None, compare=False, repr=False)
    """The line's text, if a message may quote it."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOT_SHOWN = (
    "its text is not shown, because the file is outside the folder tree of the spec (its git checkout, or the "
    "current folder if that contains the spec, otherwise the spec's own folder), or extends a file outside"
)


_FAULT = re.compile(r"""(?s:(?<!\w)'(?:[^'\\]|\\.)*'|(?<!\w)"(?:[^"\\]|\\.)*"|`[^`]*`|(?!;\ ).)*""", re.VERBOSE)
"""A message up to the first `; ` that is not in quotes."""


def split_message(message: str) -> tuple[str, str | None]:
    """Split a message into the fault and the next step, which is None if the message names none."""
    fault = _FAULT.match(message)
    end = fault.end() if fault else len(message)
    return message[:end], message[end:].removeprefix("; ") or None


PlaceOf = Callable[[str], Place]
"""Finds the place that set a dotted key."""


@dataclass(frozen=True)
class Problem:
    """A mistake in a document: its place, the key, and the message.

    `message` has the fault, then `; ` and the next step if there is one. `kind` names the type of mistake without
    quoting the file. If the file does not belong to the spec, the user sees only `kind`, since a hostile spec can name
    any file, and a message must not reveal its text.
    """

    place: Place
    key: str
    message: str
    kind: str = field(default="the file cannot be used", compare=False)

    def for_user(self) -> Problem:
        """Return the problem as the user may see it, without text from files that do not belong to the spec."""
        if self.place.is_own:
            return self
        return replace(self, place=replace(self.place, source=None), key="", message=f"{self.kind}; {NOT_SHOWN}")

    @property
    def what(self) -> str:
        """The message without the next step."""
        return split_message(self.message)[0]

    @property
    def hint(self) -> str | None:
        """The next step, if the message names one."""
        return split_message(self.message)[1]

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.message}" if self.key else f"{self.place}: {self.message}"
