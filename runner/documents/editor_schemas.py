"""Derive the schema that editors use for one spec file from the schema that checks merged data.

Unlike merged data, a file may omit keys that its base file sets, refer to other keys by `${key}`, and delete an
inherited entry with `null`. The schema's keywords are chosen for the YAML language server: it offers no completion
after a `default: null` or inside an `anyOf`, and shows a `patternErrorMessage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.documents.dataclass_schema import TYPE_NAMES

REFERENCE = r"\$\{[^{}]+\}"
"""Pattern of a reference to another key, anywhere in a text."""

_REFERENCE_ONLY = f"^{REFERENCE}$"
_NOT_TEXT_TYPES = ("integer", "number", "boolean", "array", "object")
"""Types other than text. Their keys accept a text only if the whole text is one reference."""


def derive_editor_schema(checked: dict[str, Any], example: str) -> dict[str, Any]:
    """Return the schema for editors from the schema of merged data; `example` is an example of a file to extend."""
    extends = {
        "description": "The base file or files. Later ones override earlier ones; this file overrides all.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "examples": [example],
    }
    root = _optional_object(checked)
    definitions = {name: _or_reference(_optional_object(node)) for name, node in checked["$defs"].items()}
    return {**root, "properties": {"extends": extends, **root["properties"]}, "$defs": definitions}


def name_or_pattern(names: Sequence[str], otherwise: str) -> dict[str, Any]:
    """Return a schema that accepts one of these names, a text that matches `otherwise`, or a reference."""
    return {
        "anyOf": [{"type": "string", "enum": list(names)}, {"type": "string", "pattern": f"{otherwise}|{REFERENCE}"}]
    }


def _optional_object(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object without required keys, since a base file may set them."""
    result = {name: value for name, value in node.items() if name not in ("required", "$defs")}
    result["properties"] = {name: _value_or_reset(value) for name, value in node["properties"].items()}
    return result


def _value_or_reset(node: Mapping[str, object]) -> dict[str, Any]:
    """Return the schema of a key's value, with null allowed if that resets an inherited value to the default."""
    value = _value_or_reference(node)
    if node.get("default") is None or "$ref" in node:
        return value
    if "anyOf" in value:
        return {
            **value,
            "anyOf": [*value["anyOf"], *([] if {"type": "null"} in value["anyOf"] else [{"type": "null"}])],
        }
    return allow_null(value)


def _allow_references_in_parts(node: dict[str, Any]) -> None:
    """Let each alternative, element and entry of a schema also be a reference."""
    if "anyOf" in node:
        node["anyOf"] = [_value_or_reference(arm) for arm in node["anyOf"]]
    if "items" in node:
        node["items"] = _value_or_reference(node["items"])
    if "properties" in node:
        node["properties"] = {name: allow_null(_value_or_reference(item)) for name, item in node["properties"].items()}
    entries = node.get("additionalProperties")
    if isinstance(entries, dict):
        # Null deletes an entry of the base file.
        node["additionalProperties"] = allow_null(entries if "$ref" in entries else _value_or_reference(entries))


def _value_or_reference(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a key's value: a value of its type, or a reference to another key."""
    result = dict(node)
    if "default" in result:
        result["default"] = _without_null(result["default"])
        if result["default"] is None:
            del result["default"]
    if "examples" in result:
        result["examples"] = [_without_null(example) for example in result["examples"]]
    _allow_references_in_parts(result)
    if result.get("default") == {} and result.get("additionalProperties"):
        return allow_null(_or_reference(result))  # null and references are also valid for the section itself
    if "enum" in result:
        names = {name: result.pop(name) for name in ("type", "enum")}
        return {**result, "anyOf": [names, {"type": "string", "pattern": REFERENCE}]}
    if "pattern" in result:
        return {**result, "pattern": f"{result['pattern']}|{REFERENCE}"}
    return _or_reference(result)


def allow_null(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that also allows null."""
    if "$ref" in node:
        return {"anyOf": [dict(node), {"type": "null"}]}
    kinds = node.get("type", "null")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    return dict(node) if "null" in kinds else {**node, "type": [*kinds, "null"]}


def _or_reference(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that also allows a reference, if its type is not text; otherwise the schema unchanged."""
    kinds = node.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if not set(kinds) & set(_NOT_TEXT_TYPES):
        return dict(node)
    expected = " or ".join(TYPE_NAMES[kind] for kind in kinds if kind in _NOT_TEXT_TYPES)
    message = f"expected {expected}, or ${{key}}"
    return {**node, "type": [*kinds, "string"], "pattern": _REFERENCE_ONLY, "patternErrorMessage": message}


def _without_null(value: Any) -> Any:
    """Return a value without its null keys; a missing key also means null."""
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items() if item is not None}
    return value
