"""A YAML text with values taken out by rule: everything else of it, comments and order too, stays as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from runner.documents.dump import dump_inline
from runner.documents.reader import Document, parse
from runner.registry.rules import Rules


def clean_yaml(text: str, rules: Rules) -> str:
    """The text by the rules; one that is no YAML as we read it, as a text of somebody's."""
    for start, end, value in sorted(_changes(text, rules), reverse=True):
        text = text[:start] + value + text[end:]
    return rules.written(text)


def _changes(text: str, rules: Rules) -> Iterator[tuple[int, int, str]]:
    """Where values stand that are not for others, and what does instead."""
    if parse(text, Document("text", Path())).problems:
        return
    for key, node in _scalars(yaml.compose(text, Loader=yaml.SafeLoader), ""):
        if not node.tag.endswith(":str") or node.style in ("|", ">"):
            continue
        by_rule = rules.scalar(node.value, key)
        if by_rule != node.value:
            yield node.start_mark.index, node.end_mark.index, dump_inline(by_rule)


def _scalars(node: yaml.Node | None, key: str) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Every value with the key that it stands under, be it in a list there."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _scalars(value, str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, key)
    elif isinstance(node, yaml.ScalarNode):
        yield key, node
