"""Derive a document's JSON Schema from dataclasses, and build the dataclasses from validated data.

A key is declared once, as a field with `option(...)`. The schema with the key's type, default, bounds, description and
example checks documents, and editors show it as help. The program uses the dataclass.
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

TYPE_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping (KEY: VALUE lines)",
    "null": "nothing",
}
"""The types of JSON Schema as messages name them."""


LARGEST_NUMBER = 1e50
"""The largest reward, price or value of an answer. Statistics add up powers of such numbers, which must be finite."""


def option(
    doc: str,
    *,
    default: Any = MISSING,
    factory: Any = MISSING,
    example: Any = MISSING,
    path: bool = False,
    **constraints: Any,
) -> Any:
    """Return a dataclass field that declares one key of a document.

    Omit `example` if the default is a good example. `path` marks the path of a file or folder, which is relative to the
    document that names it. `constraints` are JSON Schema keywords, such as `minimum=0` or `pattern=...`.
    """
    metadata = {"doc": doc, "example": example, "path": path, "constraints": constraints}
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    if default is not MISSING:
        return dataclasses.field(default=default, metadata=metadata)
    return dataclasses.field(metadata=metadata)


def key_of(field: Field[Any]) -> str:
    """Return the key that a field declares: its name, without the trailing `_` of names such as `class_`."""
    return field.name.removesuffix("_")


@cache
def _types(cls: type) -> dict[str, object]:
    return typing.get_type_hints(cls)


def _split_optional(hint: Any) -> tuple[Any, bool]:
    """Return `T | None` as (T, True), and any other hint as (hint, False)."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [arm for arm in get_args(hint) if arm is not type(None)]
        if len(rest) < len(get_args(hint)):
            return (rest[0] if len(rest) == 1 else Union[tuple(rest)]), True  # noqa: UP007 - built at run time
    return hint, False


def build_schema(cls: type, title: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document whose keys are the fields of `cls`."""
    definitions: dict[str, Any] = {}
    root = _object_schema(cls, definitions)
    return {"$schema": DIALECT, "title": title, **root, "$defs": dict(sorted(definitions.items()))}


def _object_schema(cls: type, definitions: dict[str, Any]) -> dict[str, object]:
    """Return the schema of a section; schemas of inner sections are added to `definitions`."""
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


def _field_schema(field: Field[Any], hint: Any, definitions: dict[str, Any]) -> dict[str, object]:
    result = {"description": field.metadata["doc"], **_type_schema(hint, definitions)}
    if "type" in field.metadata["constraints"]:
        result.pop("anyOf", None)  # the constraints describe each allowed type
    result.update(field.metadata["constraints"])
    if field.default is not MISSING:
        result["default"] = to_plain(field.default)
    elif field.default_factory is not MISSING:
        result["default"] = to_plain(field.default_factory())
    example = field.metadata["example"]
    result["examples"] = [result["default"] if example is MISSING else to_plain(example)]
    return result


def _type_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hint, optional = _split_optional(hint)
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


def _enum_schema(values: tuple[Any, ...]) -> dict[str, object]:
    kinds = {_SCALARS[type(value)] for value in values}
    return {"type": kinds.pop() if len(kinds) == 1 else sorted(kinds), "enum": list(values)}


def _reference(cls: type, definitions: dict[str, Any]) -> dict[str, object]:
    """Return a `$ref` to the schema of a section, and define that schema if it is new."""
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}
        definitions[cls.__name__] = _object_schema(cls, definitions)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def from_plain(cls: type[T], data: Mapping[str, object]) -> T:
    """Return a `cls` built from data that its schema has accepted."""
    hints = _types(cast("type", cls))
    names = {key_of(field): field.name for field in dataclasses.fields(cast("type", cls))}
    return cls(**{names[key]: _build_value(hints[names[key]], value) for key, value in data.items()})


def _build_value(hint: Any, value: Any) -> Any:
    """Return a value of plain data as the type that a field declares."""
    hint, _ = _split_optional(hint)
    if value is None or hint is Any:
        return value
    origin = get_origin(hint)
    if hint in (float, int) and not isinstance(value, bool):
        return hint(value)
    if origin is tuple:
        return tuple(_build_value(get_args(hint)[0], item) for item in value)
    if origin in (Union, types.UnionType) and isinstance(value, Mapping):
        hint = next((arm for arm in get_args(hint) if get_origin(arm) in (dict, collections.abc.Mapping)), hint)
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return from_plain(hint, value)
        if get_args(hint):
            return {name: _build_value(get_args(hint)[1], item) for name, item in value.items()}
    if origin in (Union, types.UnionType) and isinstance(value, list):
        return tuple(value)
    return value


def to_plain(value: Any) -> Any:
    """Return a built value as the plain data of a document, with every default written out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key_of(field): to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def changed_keys(value: Any) -> list[str]:
    """Return the keys of a built value that differ from their default; required keys are left out."""
    return [
        key_of(field)
        for field in dataclasses.fields(value)
        if field.default is not MISSING and getattr(value, field.name) != field.default
    ]


def path_keys(cls: type, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the keys declared with `path=True`, as tuples of names from the root."""
    keys: list[tuple[str, ...]] = []
    for field in dataclasses.fields(cls):
        hint, _ = _split_optional(_types(cls)[field.name])
        if field.metadata["path"]:
            keys.append((*prefix, key_of(field)))
        elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
            keys.extend(path_keys(hint, (*prefix, key_of(field))))
    return keys


@cache
def removable_keys(cls: type) -> frozenset[tuple[str, ...]]:
    """Return the keys that a null in a file deletes, because their value cannot be null; `*` matches any one name.

    These are the entries of mappings such as `agents`, and an optional mapping itself.
    """
    keys = [(key, field) for key, hint, field in _all_keys(cls, ()) if hint is not Any and not _split_optional(hint)[1]]
    entries = {key for key, field in keys if field is None}
    optional = {key for key, field in keys if field is not None and field.default_factory is not MISSING}
    return frozenset(entries | {key for key in optional if (*key, "*") in entries})


def resettable_keys(cls: type) -> frozenset[tuple[str, ...]]:
    """Return the keys, except `removable_keys`, where a null resets an inherited value to a non-null default."""
    keys = {
        key
        for key, hint, field in _all_keys(cls, ())
        if field is not None and hint is not Any and not _split_optional(hint)[1]
        if field.default is not MISSING or field.default_factory is not MISSING
    }
    return frozenset(keys) - removable_keys(cls)


def _all_keys(hint: Any, key_path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Field[Any] | None]]:
    """Yield every key below a type, with its type and field; the key of a mapping's entries is `*`, without a field."""
    hint, _ = _split_optional(hint)
    if get_origin(hint) in (Union, types.UnionType):
        for arm in get_args(hint):
            yield from _all_keys(arm, key_path)
    elif get_origin(hint) in (dict, collections.abc.Mapping):
        yield (*key_path, "*"), get_args(hint)[1], None
        yield from _all_keys(get_args(hint)[1], (*key_path, "*"))
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        for field in dataclasses.fields(hint):
            key, kind = (*key_path, key_of(field)), _types(hint)[field.name]
            yield key, kind, field
            yield from _all_keys(kind, key)
