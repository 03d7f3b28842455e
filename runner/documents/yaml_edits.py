"""Single values of a YAML text replaced where they stand: comments, order and all other lines stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import yaml

from runner.documents.plain_values import KeyPath
from runner.documents.yaml_writer import dump_inline

New = Callable[[KeyPath, str], str | None]
"""A key and the text that it has, into the text that it is to have; None: it stays."""


def with_new_texts(text: str, new: New) -> str:
    """A document that `runner.documents.yaml_reader` has read without a problem, with other texts at some keys."""
    # The loader in C, which is faster, does not say at which character of the text a value stands.
    for at, node in reversed(list(_scalars(yaml.compose(text, Loader=yaml.SafeLoader), ()))):
        value = new(at, node.value)
        if value is not None:
            text = text[: node.start_mark.index] + dump_inline(value) + text[node.end_mark.index :]
    return text


def _scalars(node: yaml.Node | None, at: KeyPath) -> Iterator[tuple[KeyPath, yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield at, node
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _scalars(item, (*at, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, (*at, key.value))
