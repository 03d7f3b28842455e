"""Overrides, as a command line or a sweep gives them, into changes of merged data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.documents.dump import escaped
from runner.documents.layered import Layered
from runner.documents.reader import Document, parse
from runner.errors import Place, Problem
from runner.text import did_you_mean


@dataclass(frozen=True)
class Override:
    """One change to what the files say: `KEY=VALUE`, `+KEY=VALUE` or `~KEY`, and where it was written.

    `value` holds the value where it is data already (a point of a sweep) and no text to be read.
    """

    text: str
    place: Place | None = None
    value: tuple[Any] | None = None


def apply_override(override: Override, layered: Layered) -> None:
    """`KEY=VALUE` sets, `+KEY=VALUE` adds to a mapping, `~KEY` deletes; keys are dotted."""
    text = override.text
    place = override.place or Place(f"override {text!r}")

    def refuse(key: str, message: str) -> None:
        layered.problems.append(Problem(place, key, message))

    sign = text[0] if text[:1] in ("+", "~") else ""
    name, equals, written = text.removeprefix(sign).partition("=")
    at = tuple(name.split("."))
    if not all(at):
        return refuse(name, "write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys")
    if sign == "~" and equals:
        return refuse(name, "a key is deleted by ~KEY alone, without a value")
    if sign != "~" and not equals:
        return refuse(name, "write KEY=VALUE, +KEY=VALUE or ~KEY")
    parent: Any = layered.data
    for depth, part in enumerate(at[:-1]):
        if not isinstance(parent, dict):
            return refuse(".".join(at[:depth]), f"{parent!r} is no mapping; {name!r} cannot be set in it")
        parent = parent.setdefault(part, {}) if sign != "~" else parent.get(part, {})
    if not isinstance(parent, dict):
        return refuse(".".join(at[:-1]), f"{parent!r} is no mapping; {name!r} cannot be set in it")
    if sign == "~":
        if at[-1] not in parent:
            return refuse(name, f"there is no such key to delete{did_you_mean(at[-1], parent)}")
        del parent[at[-1]]
        return None
    if sign == "+" and at[-1] in parent:
        return refuse(name, f"the key is there already; write {name}=... to change it")
    if override.value is not None:
        parent[at[-1]] = escaped(override.value[0])
    else:
        document = parse(f"value: {written}" if written.strip() else "value: null", Document(place.file, Path()))
        if document.problems:
            # YAML's columns count from our own prefix; the place of an override is the override.
            return refuse(name, document.problems[0].message)
        if set(document.data) != {"value"}:
            return refuse(name, "one value belongs here, not several lines")
        parent[at[-1]] = document.data["value"]
    layered.forget_below(at)
    for end in range(1, len(at) + 1):
        layered.places.setdefault(at[:end], place)
    layered.places[at] = place
    return None
