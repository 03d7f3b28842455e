"""What OmegaConf would read as it stands, so that it need not be asked: it takes its time for every single value.

A resolved spec, as every run saves it, is such a document. Where there is any doubt, OmegaConf is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_NUMBER_BEGINS = "+-.0123456789"
"""What OmegaConf reads as a number and YAML as text, such as 1e5, begins so."""
_WORDS: Mapping[str, Mapping[str, bool | None]] = {
    "bool": {"true": True, "false": False},
    "null": {"null": None, "~": None, "": None},
}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+(?:e[-+][0-9]+)?")


class _Doubtful(Exception):
    """OmegaConf may read it otherwise."""


def settled_document(node: yaml.Node) -> Any | None:
    """The data of a document whose keys are scalars, each once, and that has no aliases; None: ask OmegaConf."""
    try:
        return _constructed(node)
    except _Doubtful:
        return None


def _constructed(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        if not all(isinstance(key, yaml.ScalarNode) and _is_text(key) for key, _ in node.value):
            raise _Doubtful
        return {key.value: _constructed(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_constructed(value) for value in node.value]
    if not isinstance(node, yaml.ScalarNode):
        raise _Doubtful
    kind, text = node.tag.removeprefix(_TAG), node.value
    if _is_text(node):
        return text
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "float" and _FLOAT.fullmatch(text):
        return float(text)
    if text in (words := _WORDS.get(kind, {})):
        return words[text]
    raise _Doubtful


def _is_text(node: yaml.ScalarNode) -> bool:
    """Whether it is a text to OmegaConf, too."""
    is_number = not node.style and node.value.startswith(tuple(_NUMBER_BEGINS))
    return bool(node.tag == f"{_TAG}str" and "${" not in node.value and not is_number)


def is_settled(data: Any) -> bool:
    """Whether data is plain, and has no interpolation."""
    if type(data) is dict:
        return all(type(name) is str and is_settled(value) for name, value in data.items())
    if type(data) is list:
        return all(map(is_settled, data))
    return data is None or type(data) in (bool, int, float) or (type(data) is str and "${" not in data)
