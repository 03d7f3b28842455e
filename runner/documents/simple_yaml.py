"""Read simple YAML documents without OmegaConf, which is slow.

The resolved spec that every run saves is such a document. If OmegaConf might read a document differently, the caller
uses OmegaConf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
"""Prefix of the tags of YAML's own types."""
_NUMBER_STARTS = "+-.0123456789"
"""First characters of texts that OmegaConf may read as a number but YAML does not, such as 1e5."""
_CONSTANTS: Mapping[str, Mapping[str, bool | None]] = {
    "bool": {"true": True, "false": False},
    "null": {"null": None, "~": None, "": None},
}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+(?:e[-+][0-9]+)?")


class _NeedsOmegaConf(Exception):
    """Raised if OmegaConf may read the document differently."""


def read_simple_document(node: yaml.Node) -> Any | None:
    """Return the data of a simple document; None if OmegaConf must read it.

    The caller has checked that keys are unique, and that there are no aliases.
    """
    try:
        return _construct(node)
    except _NeedsOmegaConf:
        return None


def _construct(node: yaml.Node) -> Any:
    """Return the data of a node. Raises _NeedsOmegaConf: OmegaConf may read the node differently."""
    if isinstance(node, yaml.MappingNode):
        if not all(isinstance(key, yaml.ScalarNode) and _is_text(key) for key, _ in node.value):
            raise _NeedsOmegaConf
        return {key.value: _construct(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_construct(value) for value in node.value]
    if not isinstance(node, yaml.ScalarNode):
        raise _NeedsOmegaConf
    kind, text = node.tag.removeprefix(_TAG), node.value
    if _is_text(node):
        return text
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "float" and _FLOAT.fullmatch(text):
        return float(text)
    if text in (constants := _CONSTANTS.get(kind, {})):
        return constants[text]
    raise _NeedsOmegaConf


def _is_text(node: yaml.ScalarNode) -> bool:
    """Return whether OmegaConf also reads the node as plain text."""
    is_number = not node.style and node.value.startswith(tuple(_NUMBER_STARTS)) and "/" not in node.value
    return bool(node.tag == f"{_TAG}str" and "${" not in node.value and not is_number)


def is_resolved(data: Any) -> bool:
    """Return whether data has only plain types and no interpolation."""
    if type(data) is dict:
        return all(type(name) is str and is_resolved(value) for name, value in data.items())
    if type(data) is list:
        return all(map(is_resolved, data))
    return data is None or type(data) in (bool, int, float) or (type(data) is str and "${" not in data)
