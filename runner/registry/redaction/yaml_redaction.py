"""Redact the string values in a YAML text, without changing the rest of the text."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from runner.documents.yaml_reader import MAX_BYTES
from runner.documents.yaml_writer import dump_inline
from runner.registry.redaction.rules import COMMENT, RedactionRules, is_open


def redact_yaml(text: str, rules: RedactionRules, *, comments: bool = True) -> str:
    """Return a YAML text with redacted values; `comments` says whether its comments stay.

    Values are redacted like those of the loaded spec, because the recomputed hash of the spec depends on them. A text
    that is not YAML is redacted line by line.
    """
    try:
        changes = {start: (end, value) for start, end, value in _changes(text, rules)}
        spans = [] if comments else list(_comments(text))
    except (yaml.YAMLError, RecursionError):
        return "".join(rules.redact_message(line) for line in text.splitlines(keepends=True))
    rules.counts[COMMENT] += len(spans)
    changes |= {start: (end, "") for start, end in spans}
    for start, (end, value) in sorted(changes.items(), reverse=True):
        text = text[:start] + value + text[end:]
    return text


def values_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each string value after its keys, which are joined by dots; nothing if the text is not YAML."""
    try:
        yield from ((key, node.value) for key, node in _nodes(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, RecursionError):
        return


def _changes(text: str, rules: RedactionRules) -> Iterator[tuple[int, int, str]]:
    """Yield the start and end of each value to replace, and its replacement."""
    # Use the loader in Python: its positions count characters, and those of the loader in C count bytes.
    for key, node in _nodes(text, yaml.SafeLoader):
        redacted = rules.redact_string(node.value, key.rpartition(".")[2], in_open_mapping=is_open(key))
        if redacted != node.value:
            start, end = node.start_mark.index, node.end_mark.index
            is_block = node.style in ("|", ">") and text[start:end].endswith("\n")
            yield start, end, _in_one_line(redacted) + "\n" * is_block


def _in_one_line(value: str) -> str:
    if "\n" not in value:
        return dump_inline(value)
    text: str = yaml.dump(value, Dumper=yaml.SafeDumper, default_style='"', width=10**6, allow_unicode=True)
    return text.strip()


def _comments(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each comment. Comments are between tokens, or after the `|` or `>` of a long text."""
    if len(text) > MAX_BYTES:
        return
    position = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        start, end = token.start_mark.index, token.end_mark.index
        yield from _comments_between(text, position, start)
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            line_end = text.find("\n", start)
            yield from _comments_between(text, start, end if line_end < 0 else min(line_end, end))
        position = max(position, end)
    yield from _comments_between(text, position, len(text))


def _comments_between(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
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
    """Yield each scalar after its keys. The items of a list have the key of the list."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _scalars(value, f"{key}.{name.value}" if key else str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, key)
    elif isinstance(node, yaml.ScalarNode):
        yield key, node
