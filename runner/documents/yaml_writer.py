"""Write data as YAML text that reads back unchanged.

Saved specs, registry components and quoted values in messages use it.
"""

from __future__ import annotations

import re
from typing import Any

import yaml


def dump(data: Any) -> str:
    """Return data as YAML text that `yaml_reader.read_yaml` reads back unchanged."""
    return yaml.dump(escape_interpolations(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def dump_inline(value: Any) -> str:
    """Return a value as one line of YAML."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=True
    )
    return text.removesuffix("...\n").strip()


def escape_interpolations(value: Any) -> Any:
    """Return resolved data with every `${` escaped, so that reading it back does not interpolate."""
    if isinstance(value, dict):
        return {name: escape_interpolations(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [escape_interpolations(item) for item in value]
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value) if isinstance(value, str) else value


class _Dumper(yaml.SafeDumper):
    """Writes every text in quotes except plain words, because some YAML readers read other texts as numbers."""


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
_RESERVED = frozenset(("yes", "no", "on", "off", "true", "false", "null", "y", "n", "nan", "inf"))


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _RESERVED
    style = None if is_plain else "|" if "\n" in text and _is_block(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _is_block(text: str) -> bool:
    """Return whether a text of several lines reads back unchanged from a literal block."""
    return text.isprintable() or (
        all(c == "\n" or c.isprintable() for c in text) and not re.search(r" \n| \Z|\A\s", text)
    )


_Dumper.add_representer(str, _text_node)
