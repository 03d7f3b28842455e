"""Overrides, as a command line or a sweep gives them, into changes of merged data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from runner.base.errors import Place, Problem
from runner.base.text import did_you_mean, not_text
from runner.documents.layered_data import LayeredData
from runner.documents.plain_values import MAX_DEPTH, KeyPath, plain
from runner.documents.renamed_keys import rename_document
from runner.documents.yaml_errors import SECOND_COLON
from runner.documents.yaml_reader import WORDS, Document, parse
from runner.documents.yaml_writer import escaped

MAX_SHOWN = 200
"""So much of an override stands in messages as its place."""


@dataclass(frozen=True)
class Override:
    """One change to what the files say: `KEY=VALUE`, `+KEY=VALUE` or `~KEY`, and where it was written.

    `value` holds the value where it is data already (a point of a sweep) and no text to be read.
    """

    text: str
    place: Place | None = None
    value: tuple[Any] | None = None


class _Refused(Exception):
    """An override that cannot be applied: with which key, and why."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.message = message


def apply_override(override: Override, layered: LayeredData, names: Mapping[str, str]) -> None:
    """`KEY=VALUE` sets, `+KEY=VALUE` adds to a mapping, `~KEY` deletes; keys are dotted.

    Null deletes, too: an entry such as an agent, and a key that is set and may not be null. `names` are old dotted keys
    that still work, each with the new one.
    """
    place = override.place or Place(f"override {_shortened(override.text)!r}")
    try:
        _apply(override, place, layered, names)
    except _Refused as refused:
        is_own = place.is_own and not layered.has_others  # a message may name neighbours of the key
        layered.problems.append(Problem(replace(place, is_own=is_own), refused.key, refused.message))


def _apply(override: Override, place: Place, layered: LayeredData, names: Mapping[str, str]) -> None:
    sign, at, value = _read(override)
    at, value = _renamed(at, value, place, layered, names)
    name = ".".join(at)
    if sign == "" and value is None and layered.is_removable(at):
        sign = "~"
    parent = _parent(layered.data, at, make=sign != "~")
    if sign == "" and value is None and layered.is_resettable(at, parent):
        sign = "~"
    if sign == "~":
        if at[-1] not in parent:
            raise _Refused(name, f"no such key to delete{did_you_mean(at[-1], parent)}")
        del parent[at[-1]]
        return
    if sign == "+" and at[-1] in parent:
        raise _Refused(name, f"the key is there already; write {name}=... to change it")
    parent[at[-1]] = value
    layered.forget_below(at)
    for end in range(1, len(at) + 1):
        layered.places.setdefault(at[:end], place)
    layered.places[at] = place


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _read(override: Override) -> tuple[str, tuple[str, ...], Any]:
    """The sign (`+`, `~` or none), the key and the value.

    Raises:
        _Refused: this is no override.
    """
    wrong = not_text(override.text)
    if wrong is not None:
        raise _Refused("", wrong)
    sign = override.text[0] if override.text[:1] in ("+", "~") else ""
    name, equals, written = override.text.removeprefix(sign).partition("=")
    at = tuple(name.split("."))
    if len(at) > MAX_DEPTH:
        raise _Refused(_shortened(name), f"a key of {len(at):,} parts; at most {MAX_DEPTH} levels of keys are read")
    if not all(at):
        raise _Refused(name, "write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys")
    if sign == "~" and equals:
        raise _Refused(name, "a key is deleted by ~KEY alone, without a value")
    if sign != "~" and not equals:
        raise _Refused(name, "write KEY=VALUE, +KEY=VALUE or ~KEY")
    if sign == "~":
        return sign, at, None
    return sign, at, _value_of(name, written) if override.value is None else _value_as_it_is(name, override.value[0])


def _value_as_it_is(name: str, value: Any) -> Any:
    """The value of an override that is data already.

    Raises:
        _Refused: no file of a spec could hold it.
    """
    refused: list[tuple[KeyPath, str]] = []
    taken = plain({name: value}, refused).get(name)
    refused.extend((at, f"a key must be text, not {key!r}") for at, key in _odd_keys(taken, (name,)))
    for at, message in refused:
        raise _Refused(".".join(map(str, at)), message)
    return escaped(taken)


def _odd_keys(value: Any, at: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """The keys that are no texts, each with where it stands."""
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(value, dict) and not isinstance(name, str):
            yield at, name
        yield from _odd_keys(item, (*at, name))


def _parent(data: dict[str, Any], at: tuple[str, ...], *, make: bool) -> dict[str, Any]:
    """The mapping that holds a key; `make`: with the mappings that are not there yet.

    Raises:
        _Refused: something on the way is no mapping.
    """
    parent: Any = data
    for depth, part in enumerate((*at[:-1], None)):
        if not isinstance(parent, dict):
            raise _Refused(".".join(at[:depth]), f"{parent!r} is not a mapping; {'.'.join(at)!r} cannot be set in it")
        if part is not None:
            parent = parent.setdefault(part, {}) if make else parent.get(part, {})
    return cast("dict[str, Any]", parent)


def _value_of(name: str, written: str) -> Any:
    """The value of an override's text.

    Raises:
        _Refused: it is not one value.
    """
    at = tuple(name.split("."))
    below = ("value", *WORDS[len(at) :]) if at == WORDS[: len(at)] else WORDS
    text = f"value: {written}" if written.strip() else "value: null"
    document = parse(text, Document(name, Path(), words=below))
    if document.problems:
        # YAML's columns count from our own prefix; the place of an override is the override.
        problem = document.problems[0]
        is_colon = problem.what == SECOND_COLON
        raise _Refused(name, f"{SECOND_COLON}; write '{name}=\"...\"'" if is_colon else problem.message)
    if set(document.data) != {"value"}:
        raise _Refused(name, "one value belongs here, not several lines")
    return document.data["value"]


def _renamed(
    at: tuple[str, ...], value: Any, place: Place, layered: LayeredData, names: Mapping[str, str]
) -> tuple[tuple[str, ...], Any]:
    """A key and its value by their new names."""
    for part in reversed(at):
        value = {part: value}
    document = Document(place.file, Path(), value, {(): place})
    layered.renamed.extend(rename_document(document, names))
    layered.problems.extend(document.problems)
    value, path = document.data, []
    for _ in at:
        ((part, value),) = value.items()
        path.append(part)
    return tuple(path), value
