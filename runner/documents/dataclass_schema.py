"""Dataclasses as the one source of a document's keys: into JSON Schema, and from validated data.

A key is declared once, as a field with `key(...)`. Its type, default, bounds, description and example
become the schema that checks a document, the help an editor shows, and the type the program works with.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

T = TypeVar("T")

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def option(
    doc: str,
    *,
    default: Any = MISSING,
    factory: Any = MISSING,
    example: Any = MISSING,
    path: bool = False,
    **constraints: Any,
) -> Any:
    """Declare one key of a document.

    `example` may be left out where the default is one. `path` marks a file or folder that is looked up
    beside the file that names it. `constraints` are JSON Schema keywords (`minimum=0`, `pattern=...`).
    """
    metadata = {"doc": doc, "example": example, "path": path, "constraints": constraints}
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    if default is not MISSING:
        return dataclasses.field(default=default, metadata=metadata)
    return dataclasses.field(metadata=metadata)


def key_of(field: Field[Any]) -> str:
    """The key that a field declares: its name, without the `_` that keeps it apart from a word of Python's."""
    return field.name.removesuffix("_")


@cache
def _types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """`T | None` as (T, True), anything else as (it, False)."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [arm for arm in get_args(hint) if arm is not type(None)]
        if len(rest) < len(get_args(hint)):
            return (rest[0] if len(rest) == 1 else Union[tuple(rest)]), True  # noqa: UP007 - built at run time
    return hint, False


def schema(cls: type, title: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document whose keys are the fields of `cls`."""
    definitions: dict[str, Any] = {}
    root = _object_schema(cls, definitions)
    return {"$schema": DIALECT, "title": title, **root, "$defs": dict(sorted(definitions.items()))}


def _object_schema(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    properties, required = {}, []
    for field in dataclasses.fields(cls):
        properties[key_of(field)] = _field_schema(field, _types(cls)[field.name], definitions)
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(key_of(field))
    result: dict[str, Any] = {"type": "object", "description": _first_paragraph(cls), "properties": properties}
    if required:
        result["required"] = required
    return {**result, "additionalProperties": False}


def _first_paragraph(cls: type) -> str:
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def _field_schema(field: Field[Any], hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    result = {"description": field.metadata["doc"], **_type_schema(hint, definitions)}
    if "type" in field.metadata["constraints"]:
        result.pop("anyOf", None)  # what a key of several types may hold is said by keywords for each of them
    result.update(field.metadata["constraints"])
    if field.default is not MISSING:
        result["default"] = to_plain(field.default)
    elif field.default_factory is not MISSING:
        result["default"] = to_plain(field.default_factory())
    example = field.metadata["example"]
    result["examples"] = [result["default"] if example is MISSING else to_plain(example)]
    return result


def _type_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hint, optional = _without_none(hint)
    result = _bare_type_schema(hint, definitions)
    if not optional:
        return result
    if "type" in result:
        result["type"] = [result["type"], "null"]
        if "enum" in result:
            result["enum"] = [*result["enum"], None]
        return result
    return (
        {"anyOf": [*result["anyOf"], {"type": "null"}]} if "anyOf" in result else {"anyOf": [result, {"type": "null"}]}
    )


def _bare_type_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = get_origin(hint)
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is Any:
        return {}
    if origin is Literal:
        return _enum_schema(get_args(hint))
    if origin is tuple:
        return {"type": "array", "items": _type_schema(get_args(hint)[0], definitions)}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _type_schema(get_args(hint)[1], definitions)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type_schema(arm, definitions) for arm in get_args(hint)]}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _reference(hint, definitions)
    raise TypeError(f"no JSON Schema for {hint!r}")


def _enum_schema(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = {_SCALARS[type(value)] for value in values}
    return {"type": kinds.pop() if len(kinds) == 1 else sorted(kinds), "enum": list(values)}


def _reference(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema of a section, which is defined once."""
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}
        definitions[cls.__name__] = _object_schema(cls, definitions)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def from_plain(cls: type[T], data: Mapping[str, Any]) -> T:
    """A frozen `cls` from data that its schema has accepted."""
    hints = _types(cast("type", cls))
    names = {key_of(field): field.name for field in dataclasses.fields(cast("type", cls))}
    return cls(**{names[key]: _value(hints[names[key]], value) for key, value in data.items()})


def _value(hint: Any, value: Any) -> Any:
    hint, _ = _without_none(hint)
    if value is None or hint is Any:
        return value
    origin = get_origin(hint)
    if hint in (float, int) and not isinstance(value, bool):
        return hint(value)
    if origin is tuple:
        return tuple(_value(get_args(hint)[0], item) for item in value)
    if origin in (Union, types.UnionType) and isinstance(value, Mapping):
        hint = next((arm for arm in get_args(hint) if get_origin(arm) in (dict, collections.abc.Mapping)), hint)
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return from_plain(hint, value)
        if get_args(hint):
            return {name: _value(get_args(hint)[1], item) for name, item in value.items()}
    if origin in (Union, types.UnionType) and isinstance(value, list):
        return tuple(value)
    return value


def to_plain(value: Any) -> Any:
    """A built value back as the data a document would hold, with every default written out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key_of(field): to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def changed(value: Any) -> list[str]:
    """The keys of a built value that are not as they are by default; those that must be given are left out."""
    return [
        key_of(field)
        for field in dataclasses.fields(value)
        if field.default is not MISSING and getattr(value, field.name) != field.default
    ]


def path_keys(cls: type, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The keys declared with `path=True`, as tuples of names from the root."""
    found: list[tuple[str, ...]] = []
    for field in dataclasses.fields(cls):
        hint, _ = _without_none(_types(cls)[field.name])
        if field.metadata["path"]:
            found.append((*prefix, key_of(field)))
        elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found.extend(path_keys(hint, (*prefix, key_of(field))))
    return found


def removable_keys(cls: type) -> frozenset[tuple[str, ...]]:
    """The keys that null in a file takes away, since null is no value of theirs; `*` is any one name.

    They are the entries of mappings such as `agents`, and such mappings as a whole where they need not be given.
    """
    return frozenset(_removable(cls, ()))


def _removable(hint: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    hint, _ = _without_none(hint)
    if get_origin(hint) in (Union, types.UnionType):
        for arm in get_args(hint):
            yield from _removable(arm, at)
    elif get_origin(hint) in (dict, collections.abc.Mapping):
        item = get_args(hint)[1]
        if item is not Any and not _without_none(item)[1]:
            yield (*at, "*")
            yield from _removable(item, (*at, "*"))
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        for field in dataclasses.fields(hint):
            key, kind = (*at, key_of(field)), _types(hint)[field.name]
            below = list(_removable(kind, key))
            if (*key, "*") in below and not _without_none(kind)[1] and field.default_factory is not MISSING:
                yield key
            yield from below


def resettable_keys(cls: type) -> frozenset[tuple[str, ...]]:
    """The other keys that have a default which is not null: null takes away what is inherited, and is no value."""
    return frozenset(_resettable(cls, ())) - removable_keys(cls)


def _resettable(hint: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    hint, _ = _without_none(hint)
    if get_origin(hint) in (Union, types.UnionType):
        for arm in get_args(hint):
            yield from _resettable(arm, at)
    elif get_origin(hint) in (dict, collections.abc.Mapping):
        yield from _resettable(get_args(hint)[1], (*at, "*"))
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        for field in dataclasses.fields(hint):
            kind = _types(hint)[field.name]
            has_default = field.default is not MISSING or field.default_factory is not MISSING
            if has_default and kind is not Any and not _without_none(kind)[1]:
                yield (*at, key_of(field))
            yield from _resettable(kind, (*at, key_of(field)))
