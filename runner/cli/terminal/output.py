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
from datetime import datetime
from typing import Any, TextIO

from runner.base.text import NOT_ESTIMABLE, escape_controls
from runner.cli.terminal.layout import GAP, column, fitted

WIDE = 160
"""Columns of a terminal that cannot be measured."""

LINE = 200
"""Where there is no terminal, columns stand below each other to this width; a longer text moves what follows it."""

NARROWEST = 20
"""No text is wrapped at less."""


def prepare() -> None:
    """Have characters that the terminal's encoding lacks printed as escapes, and not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str = "", style: str = "") -> None:
    """A line, or several, on stdout; on a terminal with colours in a style (the parameters of SGR, as `1;36`)."""
    print(_styled(text, style, sys.stdout))


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


def heading(text: str) -> None:
    """A line on stdout above others: bold on a terminal."""
    say(text, "1")


def warn(text: str) -> None:
    """A line on stderr that says what went wrong: yellow on a terminal."""
    print(_styled(text, "33", sys.stderr), file=sys.stderr)


def _styled(text: str, style: str, stream: TextIO) -> str:
    """A text in a style, where the stream is a terminal with colours and `NO_COLOR` is not set."""
    shown = escape_controls(text)
    has_colours = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return f"\x1b[{style}m{shown}\x1b[0m" if style and shown and has_colours else shown


class StatusLine:
    """A line at the bottom of the terminal, on stderr, that is written over: without colour or escape sequences."""

    def __init__(self) -> None:
        self._length = 0

    @property
    def width(self) -> int:
        """What it may take; the last column stays free, since some terminals wrap there."""
        return terminal_width() - 1

    def draw(self, text: str) -> None:
        """Show this text in place of the one before."""
        text = escape_controls(text)
        self._write(f"\r{text}{' ' * (min(self._length, self.width) - len(text))}")
        self._length = len(text)

    def clear(self) -> None:
        """Leave an empty line, for what is to be said."""
        if self._length:
            self._write(f"\r{' ' * min(self._length, self.width)}\r")
            self._length = 0

    def _write(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)


def print_block(text: str) -> None:
    """Lines on stdout, each with its end."""
    print(escape_controls(text), end="")


def print_json(value: Any) -> None:
    """JSON in ASCII on stdout: half a character is an escape as any other, and a number that JSON lacks is null."""
    print(json.dumps(jsonable(value), indent=2, ensure_ascii=True, allow_nan=False))


def jsonable(value: Any) -> Any:
    """A value with what JSON lacks replaced: a number that is none is null, and what it has no form for is text."""
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else str(name): jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, type(None))) else str(value)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    title: str | None = None,
    *,
    drop: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> None:
    """Print a table that breaks no id, number or interval.

    In a terminal, texts fold first, then the columns that `drop` names are left out, in that order. In a pipe, nothing
    is left out or folded, and a row is a line. `styles` has a Rich style for each row.
    """
    from rich.cells import cell_len

    terminal = sys.stdout.isatty()
    heads = [escape_controls(column) for column in columns]
    cells = [[cell(value) if terminal else " ".join(cell(value).split("\n")) for value in row] for row in rows]
    measured = [
        column(cell_len(head), texts, [cell_len(text) for text in texts], max(map(cell_len, head.split()), default=0))
        for index, head in enumerate(heads)
        for texts in [[line for row in cells for line in row[index].split("\n")]]
    ]
    width = terminal_width()
    dropped = [list(columns).index(name) for name in drop if name in columns]
    widths = fitted(measured, width, dropped) if terminal else {i: min(c.most, LINE) for i, c in enumerate(measured)}
    if title is not None:
        heading(title)
    numeric = {i for i in widths if rows and all(isinstance(row[i], (int, float, type(None))) for row in rows)}
    shown = [(heads[i], widths[i], i in numeric) for i in widths]
    chosen = [[row[i] for i in widths] for row in cells]
    if terminal:
        _print_columns(shown, chosen, styles or [""] * len(rows))
    else:
        _print_lines(shown, chosen)
    if len(widths) < len(columns):
        left_out = ", ".join(head for i, head in enumerate(heads) if i not in widths)
        note(f"left out at {width} columns: {left_out} (--json has all)")


def _print_lines(columns: Sequence[tuple[str, int, bool]], rows: Sequence[Sequence[str]]) -> None:
    """As `_print_columns`, each row in a line, however long."""
    from rich.cells import cell_len

    for row in ([head for head, _, _ in columns], *rows):
        line = ""
        for text, (_, width, numeric) in zip(row, columns, strict=True):
            pad = " " * (width - cell_len(text))
            line += f"{pad}{text}" if numeric else f"{text}{pad}"
            line += " " * GAP
        say(line.rstrip())


def _print_columns(
    columns: Sequence[tuple[str, int, bool]], rows: Sequence[Sequence[str]], styles: Sequence[str]
) -> None:
    """Print columns, each given as a header, a width and whether it is right-aligned; wider texts are folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # main knows what to do; the library would exit as if something had failed

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, width, numeric in columns:
        # A header that is a `str` would be read as markup.
        table.add_column(Text(head), width=width, justify="right" if numeric else "left", overflow="fold")
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*map(Text, row), style=style)
    terminal = sys.stdout.isatty()
    console = Output(
        file=sys.stdout,
        width=sum(width + GAP for _, width, _ in columns),
        color_system="auto" if terminal and "NO_COLOR" not in os.environ else None,
        highlight=False,
    )
    console.print(table)


def terminal_width() -> int:
    """The columns of the terminal, or of what COLUMNS says."""
    return shutil.get_terminal_size((WIDE, 24)).columns


def wrapped(text: str, indent: str = "  ") -> str:
    """A paragraph on stderr: in lines of the terminal's width, all but the first indented; elsewhere in one line."""
    if not sys.stderr.isatty():
        return text
    import textwrap

    return textwrap.fill(
        escape_controls(text), terminal_width() - 1, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False, drop_whitespace=True,
    )  # fmt: skip


def short_time(told: str | None, now: datetime | None = None) -> str:
    """A time of a manifest (ISO 8601) for a person: `2 min ago`, `12:31` of today, `21 Nov 12:31`, `2025-11-21`.

    It is told in the time zone of `now`, or else in this machine's.
    """
    if not told:
        return "-"
    now = now or datetime.now().astimezone()
    try:
        then = datetime.fromisoformat(told).astimezone(now.tzinfo)
    except ValueError:
        return told
    minutes = (now - then).total_seconds() / 60
    if 0 <= minutes < 1:
        return "just now"
    if 0 <= minutes < 60:
        return f"{int(minutes)} min ago"
    if then.date() == now.date():
        return f"{then:%H:%M}"
    return f"{then:%-d %b %H:%M}" if then.year == now.year else f"{then:%Y-%m-%d}"


def duration(seconds: float) -> str:
    """`0:07`, `12:31`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else NOT_ESTIMABLE
    return escape_controls(str(value))


def calls_and_cost(calls: int | None, cost: float | None) -> str:
    """`calls: 12, cost: $0.0034`."""
    return f"calls: {calls}, cost: {'unknown (no price)' if cost is None else f'${cost:.4f}'}"
