"""Renders templates to HTML, and returns the style and the script of all pages.

All modules that build pages use it. A page loads nothing from other sites. The content security policy in its head
allows only nip-run's own script and style, which are identified by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from runner.base.text import HIDDEN_CATEGORIES, decimal_places, dollars, in_one_line, p_value
from runner.game.protocols.protocol import label_word
from runner.pages import numbers
from runner.results.sweep_points import format_point

_FOLDER = Path(__file__).parent
_NAMES = {  # of some hidden characters; other characters are named by their code
    0x00: "NUL", 0x1B: "ESC", 0x7F: "DEL", 0xAD: "SHY", 0x200B: "ZWSP", 0x200C: "ZWNJ", 0x200D: "ZWJ", 0x200E: "LRM",
    0x200F: "RLM", 0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF", 0x202D: "LRO", 0x202E: "RLO", 0x2066: "LRI",
    0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xFEFF: "BOM",
}  # fmt: skip


def mark_hidden(value: Any) -> Any:
    """Replace each character that is invisible or changes the direction of text with a mark that names it."""
    is_unmarked_text = isinstance(value, str) and not isinstance(value, Markup)
    if not is_unmarked_text or value.isprintable():  # a printable text has no hidden characters
        return value
    hidden = "".join(
        character for character in set(value) - {"\n", "\t"} if unicodedata.category(character) in HIDDEN_CATEGORIES
    )
    if not hidden:  # only line breaks and tabs; the template escapes the text
        return value
    pieces = re.split(f"([{re.escape(hidden)}])", value)  # pieces with an odd index are hidden characters
    return Markup("").join(_mark(piece) if index % 2 else piece for index, piece in enumerate(pieces))


def _mark(character: str) -> Markup:
    code = f"U+{ord(character):04X}"
    name = _NAMES.get(ord(character), code)
    return Markup('<span class="hidden-character" title="character {}">{}</span>').format(code, name)


def escape_plain(text: str) -> Markup:
    """Escape a text for an attribute or a title. These cannot contain marks, so hidden characters become codes."""
    return escape(in_one_line(text))


def as_json(data: Any) -> Markup:
    """Return data as JSON that is safe inside a script element of HTML."""
    text = orjson.dumps(data).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - it is escaped


@cache
def script(*names: str) -> str:
    """Return the script of all pages or, with names, a script of these files."""
    paths = [_FOLDER / "static" / name for name in names] or sorted((_FOLDER / "static").glob("*.js"))
    parts = [path.read_text("utf-8") for path in paths]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


@cache
def style(*names: str) -> str:
    """Return the style sheet of all pages or, with names, a style sheet of these files."""
    paths = [_FOLDER / "static" / name for name in names] or sorted((_FOLDER / "static").glob("*.css"))
    return "\n".join(path.read_text("utf-8") for path in paths)


def policy(*, connects: bool, code: str | None = None, css: str | None = None) -> str:
    """Return a page's content security policy; `connects` allows the page to read data from its own server.

    `code` and `css` are the page's script and style sheet, if they are not those of all pages.
    """
    allowed = {
        "default-src": "'none'",
        "script-src": _by_hash(script() if code is None else code),
        "style-src": _by_hash(style() if css is None else css),
        "img-src": "data:",
        **({"connect-src": "'self'"} if connects else {}),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _by_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=mark_hidden,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(json=as_json, plain=escape_plain, route=partial(quote, safe="/"), label=label_word)
    environment.filters.update(
        point=format_point, p_value=p_value, short_dollars=dollars, decimal_places=decimal_places
    )
    formats = (numbers.count, numbers.decimal, numbers.dollars, numbers.interval, numbers.percent, numbers.rank)
    environment.filters.update({function.__name__: function for function in formats})
    return environment


@dataclass(frozen=True, kw_only=True)
class PageView:
    """The content of `base.html`, a page with its own script and style sheet."""

    title: str
    policy: str
    style: Markup
    script: Markup = Markup()
    links: Sequence[tuple[str, str]] = ()
    """The route and the name of each link in the navigation."""
    sections: Sequence[tuple[str, Markup]] = ()
    """Route and HTML of each section; the page's script finds a section by its route."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Data that the script reads first."""
    carriers: Markup = Markup()
    """Elements with further data for the script."""


def render_template(template: str, view: object) -> Markup:
    """Render a template with the fields of a view, which is a dataclass.

    Every text is escaped, and each invisible character is replaced with a mark.
    """
    return Markup(_environment().get_template(template).render(vars(view)))  # noqa: S704 - the environment escapes
