"""Replace single values in a YAML text without changing comments, order or other lines. `nip-run freeze` uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import yaml

from runner.documents.plain_values import KeyPath
from runner.documents.yaml_writer import dump_inline

NewText = Callable[[KeyPath, str], str | None]
"""Returns the new text for a key and its current text, or None if the text stays as it is."""


def replace_texts(text: str, new: NewText) -> str:
    """Return a YAML text with the texts of some keys replaced, after it was read without problems."""
    # The faster loader in C does not report the character positions of values.
    for key_path, node in reversed(list(_scalars(yaml.compose(text, Loader=yaml.SafeLoader), ()))):
        value = new(key_path, node.value)
        if value is not None:
            text = text[: node.start_mark.index] + dump_inline(value) + text[node.end_mark.index :]
    return text


def _scalars(node: yaml.Node | None, key_path: KeyPath) -> Iterator[tuple[KeyPath, yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield key_path, node
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _scalars(item, (*key_path, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, (*key_path, key.value))
