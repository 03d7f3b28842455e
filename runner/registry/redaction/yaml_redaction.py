"""A YAML text with values taken out by rule: everything else of it, comments and order too, stays as it was written."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from runner.documents.yaml_reader import MAX_BYTES
from runner.documents.yaml_writer import dump_inline
from runner.registry.redaction.rules import COMMENT, Rules, is_free


def clean_yaml(text: str, rules: Rules, *, comments: bool = True) -> str:
    """The text by the rules, without comments if they are not to stay; one that is no YAML, line by line.

    Values by the very rule that a spec's values are cleaned by before they are hashed, however they are written.
    """
    try:
        changes = {start: (end, value) for start, end, value in _changes(text, rules)}
        said = list(_comments(text))
    except (yaml.YAMLError, RecursionError):
        return "".join(rules.error(line) for line in text.splitlines(keepends=True))
    for start, end in said:
        rules.taken[COMMENT] += 0 if comments else 1
        kept = rules.error(text[start:end]) if comments else ""
        if kept != text[start:end]:
            changes[start] = (end, kept)
    for start, (end, value) in sorted(changes.items(), reverse=True):
        text = text[:start] + value + text[end:]
    return text


def values_in(text: str) -> Iterator[tuple[str, str]]:
    """Every value that is a text, with its keys joined by dots; none where the text is no YAML."""
    try:
        yield from ((key, node.value) for key, node in _nodes(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, RecursionError):
        return


def _changes(text: str, rules: Rules) -> Iterator[tuple[int, int, str]]:
    """Where values stand that are not for others, and what does instead."""
    # The loader in Python: it counts characters, as a text does.
    for key, node in _nodes(text, yaml.SafeLoader):
        by_rule = rules.scalar(node.value, key.rpartition(".")[2], free=is_free(key))
        if by_rule != node.value:
            start, end = node.start_mark.index, node.end_mark.index
            in_lines = node.style in ("|", ">")
            yield start, end, _in_one_line(by_rule) + ("\n" if in_lines and text[start:end].endswith("\n") else "")


def _in_one_line(value: str) -> str:
    if "\n" not in value:
        return dump_inline(value)
    text: str = yaml.dump(value, Dumper=yaml.SafeDumper, default_style='"', width=10**6, allow_unicode=True)
    return text.strip()


def _comments(text: str) -> Iterator[tuple[int, int]]:
    """Where comments stand: between the tokens, and behind the sign that begins a value in lines."""
    if len(text) > MAX_BYTES:
        return
    at = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        start, end = token.start_mark.index, token.end_mark.index
        yield from _in(text, at, start)
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            yield from _in(text, start, min(text.find("\n", start) % (len(text) + 1), end))
        at = max(at, end)
    yield from _in(text, at, len(text))


def _in(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while (start := text.find("#", start, end)) >= 0:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop
        yield start, stop
        start = stop


def _nodes(text: str, loader: type[yaml.SafeLoader]) -> Iterator[tuple[str, yaml.ScalarNode]]:
    if len(text) > MAX_BYTES:
        return
    root = yaml.compose(text, Loader=loader)
    yield from ((key, node) for key, node in _scalars(root, "") if node.tag.endswith(":str"))


def _scalars(node: yaml.Node | None, key: str) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Every value with the keys that it stands under, be it in a list there."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _scalars(value, f"{key}.{name.value}" if key else str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, key)
    elif isinstance(node, yaml.ScalarNode):
        yield key, node
