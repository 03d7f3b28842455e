"""A schema of checked data into the schema of one file as it is written, by which an editor completes and underlines.

A file may leave out what its base says, refer to other keys by `${key}`, and take an inherited entry away by `null`.
The keywords are those that the YAML language server reads well: it stops completing at a `default: null`, completes
no section behind an `anyOf`, and shows a `patternErrorMessage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REFERENCE = r"\$\{[^{}]+\}"
"""A reference to another key, somewhere in a text."""

_WHOLE = f"^{REFERENCE}$"
_NO_TEXT = ("integer", "number", "boolean", "array", "object")
"""Types whose values a text can only stand for as a whole."""

_NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping (KEY: VALUE lines)",
}


def for_editors(checked: dict[str, Any], example: str) -> dict[str, Any]:
    """The schema for editors of a document that `checked` describes; `example` is a file that one may extend."""
    extends = {
        "description": "The files below this one: one, or a list in which later ones win. This file wins over all.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "examples": [example],
    }
    root = _object(checked)
    definitions = {name: _referable(_object(node)) for name, node in checked["$defs"].items()}
    return {**root, "properties": {"extends": extends, **root["properties"]}, "$defs": definitions}


def one_of(names: Sequence[str], otherwise: str) -> dict[str, Any]:
    """One of these names, or a text of another form, or a reference."""
    return {
        "anyOf": [{"type": "string", "enum": list(names)}, {"type": "string", "pattern": f"{otherwise}|{REFERENCE}"}]
    }


def _object(node: Mapping[str, Any]) -> dict[str, Any]:
    """An object of which nothing is required, since a base may give it."""
    result = {name: value for name, value in node.items() if name not in ("required", "$defs")}
    result["properties"] = {name: _or_default(value) for name, value in node["properties"].items()}
    return result


def _or_default(node: Mapping[str, Any]) -> dict[str, Any]:
    """What may stand at a key; null, too, where that sets an inherited value back to a default of its own type."""
    value = _value(node)
    if node.get("default") is None or "$ref" in node:
        return value
    if "anyOf" in value:
        return {
            **value,
            "anyOf": [*value["anyOf"], *([] if {"type": "null"} in value["anyOf"] else [{"type": "null"}])],
        }
    return or_null(value)


def _value(node: Mapping[str, Any]) -> dict[str, Any]:
    """What may stand at a key: its values, or a reference to a key that has one."""
    result = dict(node)
    if "default" in result:
        result["default"] = _without_null(result["default"])
        if result["default"] is None:
            del result["default"]
    if "examples" in result:
        result["examples"] = [_without_null(example) for example in result["examples"]]
    if "anyOf" in result:
        result["anyOf"] = [_value(arm) for arm in result["anyOf"]]
    if "items" in result:
        result["items"] = _value(result["items"])
    if "properties" in result:
        result["properties"] = {name: or_null(_value(item)) for name, item in result["properties"].items()}
    entries = result.get("additionalProperties")
    if isinstance(entries, dict):
        # An entry that a base has is taken away by null.
        result["additionalProperties"] = or_null(entries if "$ref" in entries else _value(entries))
    if result.get("default") == {} and entries:
        return or_null(_referable(result))  # such a section as a whole, too
    if "enum" in result:
        names = {name: result.pop(name) for name in ("type", "enum")}
        return {**result, "anyOf": [names, {"type": "string", "pattern": REFERENCE}]}
    if "pattern" in result:
        return {**result, "pattern": f"{result['pattern']}|{REFERENCE}"}
    return _referable(result)


def or_null(node: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that allows null, too, where it says a type or refers to one that does."""
    if "$ref" in node:
        return {"anyOf": [dict(node), {"type": "null"}]}
    kinds = node.get("type", "null")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    return dict(node) if "null" in kinds else {**node, "type": [*kinds, "null"]}


def _referable(node: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of one type, or none, that a reference may stand for; others are given back as they are."""
    kinds = node.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if not set(kinds) & set(_NO_TEXT):
        return dict(node)
    wanted = " or ".join(_NAMES[kind] for kind in kinds if kind in _NAMES)
    message = f"{wanted} belongs here, or ${{key}}"
    return {**node, "type": [*kinds, "string"], "pattern": _WHOLE, "patternErrorMessage": message}


def _without_null(value: Any) -> Any:
    """A value without the keys that are null in it: what is left out is null, too."""
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items() if item is not None}
    return value
