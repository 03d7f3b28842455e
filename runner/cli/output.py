"""All that the command line prints: lines, tables, JSON, notes. Nothing else writes to a terminal.

Whatever is printed may hold what came from a file, a server or the command line itself, and each function here makes
all of it safe: control and invisible characters become escapes, and no text is read as markup.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from runner.text import escape_controls

WIDE = 160
"""Columns of a table where there is no terminal to measure."""

NARROWEST = 20
"""No text is wrapped at less."""


def prepare() -> None:
    """Have characters that the terminal's encoding lacks printed as escapes, and not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str = "", style: str = "") -> None:
    """A line, or several, on stdout; on a terminal with colours in a style (the parameters of SGR, as `1;36`)."""
    shown = escape_controls(text)
    print(f"\x1b[{style}m{shown}\x1b[0m" if style and shown and _has_colours() else shown)


def _has_colours() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def columns_of_output() -> int | None:
    """The width that text is wrapped at: the terminal's, or what COLUMNS says; None where lines go on as they are."""
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()):
        return None
    return max(shutil.get_terminal_size().columns, NARROWEST)


def can_print(characters: str) -> bool:
    """Whether the encoding of stdout has these characters."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def note(text: str) -> None:
    """A line for a person, on stderr."""
    print(escape_controls(text), file=sys.stderr)


def print_json(value: Any) -> None:
    """JSON in ASCII on stdout: half a character is an escape as any other, and a number that JSON lacks is null."""
    print(json.dumps(_jsonable(value), indent=2, ensure_ascii=True, allow_nan=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else str(name): _jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, type(None))) else str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """A table on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # main knows what to do; the library would exit as if something had failed

    # A title that is a `str` would be read as markup.
    heading = None if title is None else Text(escape_controls(title), style="table.title")
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float, type(None))) for row in rows)
        table.add_column(Text(escape_controls(column)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    terminal = sys.stdout.isatty()
    console = Output(
        file=sys.stdout,
        width=None if terminal else WIDE,
        color_system="auto" if terminal and "NO_COLOR" not in os.environ else None,
        highlight=False,
    )
    console.print(table)


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape_controls(str(value))


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """`0.71 [0.62, 0.79]`."""
    if value is None:
        return "-"
    return f"{value:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def calls_and_cost(calls: int | None, cost: float | None) -> str:
    """`calls: 12, cost: $0.0034`."""
    return f"calls: {calls}, cost: {'unknown (no price)' if cost is None else f'${cost:.4f}'}"


def shown_point(point: Mapping[str, Any]) -> str:
    """What tells a sweep's points apart, as overrides."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in point.items())
