"""Apply overrides from the command line or a sweep to merged data.

`runner.documents.layer_loading` applies them after all files, and sweeps use the same syntax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from runner.base.problems import Place, Problem
from runner.base.text import did_you_mean, encoding_problem
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import MAX_DEPTH, KeyPath, dotted, to_plain_values
from runner.documents.renamed_keys import rename_document
from runner.documents.yaml_errors import SECOND_COLON
from runner.documents.yaml_reader import LABELS_KEY, Document, parse_yaml
from runner.documents.yaml_writer import escape_interpolations

MAX_SHOWN = 200
"""Maximum number of characters that messages show of an override."""


@dataclass(frozen=True)
class Override:
    """A change to the data of the files: `KEY=VALUE`, `+KEY=VALUE` or `~KEY`, and the place where it was written.

    If the value is already data, as in a point of a sweep, `value` is a 1-tuple with the data. Otherwise `value` is
    None, and the text is parsed.
    """

    text: str
    place: Place | None = None
    value: tuple[Any] | None = None

    @property
    def key(self) -> str:
        """The dotted key that the override sets, adds or deletes."""
        return self.text.partition("=")[0].lstrip("+~")


class _Refused(Exception):
    """Raised if an override cannot be applied; carries the key and the reason."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.message = message


def apply_override(override: Override, layered: LayeredData) -> None:
    """Apply an override to `layered`: `KEY=VALUE` sets a dotted key, `+KEY=VALUE` adds one, `~KEY` deletes one.

    The value null also deletes a removable key, or a resettable key that is set. An override that cannot be applied
    becomes a problem in `layered`.
    """
    place = override.place or Place(f"override {_shorten(override.text)!r}")
    try:
        _apply(override, place, layered)
    except _Refused as refused:
        is_own = place.is_own and not layered.has_foreign_data  # a message may name neighboring keys
        layered.problems.append(Problem(replace(place, is_own=is_own), refused.key, refused.message))


def _apply(override: Override, place: Place, layered: LayeredData) -> None:
    sign, key_path, value = _parse_override(override)
    key_path, value = _rename_old_keys(key_path, value, place, layered)
    name = ".".join(key_path)
    if sign == "" and value is None and layered.is_removable(key_path):
        sign = "~"
    parent = _parent_mapping(layered.data, key_path, create=sign != "~")
    if sign == "" and value is None and layered.is_resettable(key_path, parent):
        sign = "~"
    if sign == "~":
        if key_path[-1] not in parent:
            hint = did_you_mean(key_path[-1], parent) or "; remove the override"
            raise _Refused(name, f"no such key to delete{hint}")
        del parent[key_path[-1]]
        return
    if sign == "+" and key_path[-1] in parent:
        raise _Refused(name, f"the key is already set; write {name}=... to change it")
    parent[key_path[-1]] = value
    layered.drop_places(key_path)
    for end in range(1, len(key_path) + 1):
        layered.places.setdefault(key_path[:end], place)
    layered.places[key_path] = place


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _parse_override(override: Override) -> tuple[str, tuple[str, ...], Any]:
    """Return the sign (`+`, `~` or empty), key and value of an override.

    Raises:
        _Refused: the text is not an override.
    """
    problem = encoding_problem(override.text)
    if problem is not None:
        raise _Refused("", problem)
    sign = override.text[0] if override.text[:1] in ("+", "~") else ""
    name, equals, value_text = override.text.removeprefix(sign).partition("=")
    key_path = tuple(name.split("."))
    if len(key_path) > MAX_DEPTH:
        raise _Refused(_shorten(name), f"the key has {len(key_path):,} parts, but at most {MAX_DEPTH} are allowed")
    if not all(key_path):
        raise _Refused(name, "write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys")
    if sign == "~" and equals:
        raise _Refused(name, "to delete a key, write ~KEY without a value")
    if sign != "~" and not equals:
        raise _Refused(name, "write KEY=VALUE, +KEY=VALUE or ~KEY")
    if sign == "~":
        return sign, key_path, None
    value = _parse_value(name, value_text) if override.value is None else _plain_value(name, override.value[0])
    return sign, key_path, value


def _plain_value(name: str, value: Any) -> Any:
    """Return the value of an override that is already data, as plain YAML types.

    Raises:
        _Refused: a spec file could not hold the value.
    """
    refused: list[tuple[KeyPath, str]] = []
    plain_value = to_plain_values({name: value}, refused).get(name)
    refused.extend((path, f"a key must be text, not {key!r}") for path, key in _non_text_keys(plain_value, (name,)))
    for path, message in refused:
        raise _Refused(dotted(path), message)
    return escape_interpolations(plain_value)


def _non_text_keys(value: Any, key_path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each key that is not text, with the path of its mapping."""
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(value, dict) and not isinstance(name, str):
            yield key_path, name
        yield from _non_text_keys(item, (*key_path, name))


def _parent_mapping(data: dict[str, Any], key_path: tuple[str, ...], *, create: bool) -> dict[str, object]:
    """Return the mapping that has the last part of a key; with `create`, add missing mappings on the way.

    Raises:
        _Refused: a value on the way is not a mapping.
    """
    parent: Any = data
    for depth, part in enumerate((*key_path[:-1], None)):
        if not isinstance(parent, dict):
            raise _Refused(
                ".".join(key_path[:depth]),
                f"{parent!r} is not a mapping; {'.'.join(key_path)!r} cannot be set in this value",
            )
        if part is not None:
            parent = parent.setdefault(part, {}) if create else parent.get(part, {})
    return cast("dict[str, Any]", parent)


def _parse_value(name: str, value_text: str) -> Any:
    """Return the value of an override, parsed from its text as YAML.

    Raises:
        _Refused: the text is not exactly one value.
    """
    key_path = tuple(name.split("."))
    labels_path = ("value", *LABELS_KEY[len(key_path) :]) if key_path == LABELS_KEY[: len(key_path)] else LABELS_KEY
    text = f"value: {value_text}" if value_text.strip() else "value: null"
    document = parse_yaml(text, Document(name, Path(), labels_path=labels_path))
    if document.problems:
        # YAML counts columns from the added "value: ", so the place is the override itself.
        problem = document.problems[0]
        is_colon = problem.what == SECOND_COLON
        raise _Refused(name, f"{SECOND_COLON}; write '{name}=\"...\"'" if is_colon else problem.message)
    if set(document.data) != {"value"}:
        raise _Refused(name, "an override has one value, but this text has several lines; put the value in one line")
    return document.data["value"]


def _rename_old_keys(
    key_path: tuple[str, ...], value: Any, place: Place, layered: LayeredData
) -> tuple[tuple[str, ...], Any]:
    """Return a key and its value with old names replaced by new ones."""
    for part in reversed(key_path):
        value = {part: value}
    document = Document(place.file, Path(), value, {(): place})
    layered.renamed_keys.extend(rename_document(document, layered.rules.renamed))
    layered.problems.extend(document.problems)
    value, path = document.data, []
    for _ in key_path:
        ((part, value),) = value.items()
        path.append(part)
    return tuple(path), value
