"""A YAML text with values taken out by rule: everything else of it, comments and order too, stays as it was written."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from runner.documents.dump import dump_inline
from runner.documents.reader import MAX_BYTES
from runner.registry.rules import Rules


def clean_yaml(text: str, rules: Rules) -> str:
    """The text by the rules; one that is no YAML, as a text of somebody's."""
    for start, end, value in sorted(_changes(text, rules), reverse=True):
        text = text[:start] + value + text[end:]
    return rules.written(text)


def values_in(text: str) -> Iterator[tuple[str, str]]:
    """Every value that is a text, with its key; none where the text is no YAML."""
    yield from ((key, node.value) for key, node in _nodes(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _changes(text: str, rules: Rules) -> Iterator[tuple[int, int, str]]:
    """Where values stand that are not for others, and what does instead."""
    # The loader in Python: it counts characters, as a text does.
    for key, node in _nodes(text, yaml.SafeLoader):
        if node.style in ("|", ">"):
            continue  # what somebody wrote in lines
        by_rule = rules.scalar(node.value, key)
        if by_rule != node.value:
            yield node.start_mark.index, node.end_mark.index, dump_inline(by_rule)


def _nodes(text: str, loader: type[yaml.SafeLoader]) -> Iterator[tuple[str, yaml.ScalarNode]]:
    if len(text) > MAX_BYTES:
        return
    try:
        root = yaml.compose(text, Loader=loader)
    except (yaml.YAMLError, RecursionError):
        return
    yield from ((key, node) for key, node in _scalars(root, "") if node.tag.endswith(":str"))


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
