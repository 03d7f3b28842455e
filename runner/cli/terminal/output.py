"""Print lines, tables, JSON and notes. No other module of the command line writes to a terminal.

Printed text may come from files, servers or the command line. Each function here makes such text safe: it escapes
control and invisible characters, and ignores markup.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from runner.base.text import NOT_ESTIMABLE, escape_controls

if TYPE_CHECKING:
    from datetime import datetime

DEFAULT_TERMINAL_WIDTH = 160
"""Width of a terminal that cannot be measured."""

MAX_PIPE_COLUMN = 200
"""Maximum width of a column if there is no terminal. A longer cell moves the rest of its row to the right."""

MIN_WRAP_WIDTH = 20
"""Minimum width at which text is wrapped."""


class OutputError(OSError):
    """Stdout or stderr cannot be written, for example because the disk with the output file is full."""


def configure_streams() -> None:
    """Print characters that the terminal's encoding lacks as escapes, and discard the output of closed streams."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell has closed the stream, for example by `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str = "", style: str = "") -> None:
    """Print one or more lines on stdout. `style` has ANSI codes such as `1;36`, used on terminals with colors."""
    print(_style(text, style, sys.stdout))


def say_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        say(line)


def say_wrapped(text: str, indent: str = "", style: str = "") -> None:
    """Print a text on stdout like `say`, wrapped to the width of the terminal, with `indent` before each line."""
    from runner.cli.terminal.wrapping import wrap_lines

    for line in wrap_lines(text, wrap_width(), indent):
        say(line, style)


def wrap_width() -> int | None:
    """Return the width at which text is wrapped: $COLUMNS, or the terminal's width. None means no wrapping."""
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()):
        return None
    import shutil

    return max(shutil.get_terminal_size().columns, MIN_WRAP_WIDTH)


def can_print(characters: str) -> bool:
    """Return whether the encoding of stdout has these characters."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def note(*lines: str) -> None:
    """Print lines for a person on stderr."""
    for line in lines:
        print(escape_controls(line), file=sys.stderr)


def print_heading(text: str) -> None:
    """Print a heading on stdout, in bold on a terminal."""
    say(text, "1")


def warn(text: str) -> None:
    """Print a warning on stderr, in yellow on a terminal."""
    print(_style(text, "33", sys.stderr), file=sys.stderr)


def _style(text: str, style: str, stream: TextIO) -> str:
    """Escape a text, and style it if the stream is a terminal with colors and `NO_COLOR` is not set."""
    escaped = escape_controls(text)
    has_colors = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return f"\x1b[{style}m{escaped}\x1b[0m" if style and escaped and has_colors else escaped


class StatusLine:
    """A line on stderr at the bottom of the terminal, which is overwritten without colors and escape sequences."""

    def __init__(self) -> None:
        self._length = 0

    @property
    def width(self) -> int:
        """The maximum length of the line. The last column stays free, since some terminals wrap there."""
        return terminal_width() - 1

    def draw(self, text: str) -> None:
        """Replace the line by this text."""
        text = escape_controls(text)
        self._write(f"\r{text}{' ' * (min(self._length, self.width) - len(text))}")
        self._length = len(text)

    def clear(self) -> None:
        """Clear the line, so that other output can be printed."""
        if self._length:
            self._write(f"\r{' ' * min(self._length, self.width)}\r")
            self._length = 0

    def _write(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)


def print_block(text: str) -> None:
    """Print text on stdout that already ends with a line feed."""
    print(escape_controls(text), end="")


def print_json(value: Any) -> None:
    """Print JSON in ASCII on stdout. Lone surrogates become escapes; NaN and infinity become null."""
    import json

    print(json.dumps(to_jsonable(value), indent=2, ensure_ascii=True, allow_nan=False))


def to_jsonable(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinity become None, and values of unknown types become text."""
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else str(name): to_jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
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
    """Print a table, without line breaks in ids, numbers and intervals.

    If a terminal is too narrow, long texts are wrapped; if that is not enough, columns are left out in the order of
    `drop`. In a pipe, nothing is wrapped or left out. `styles` has a Rich style for each row.
    """
    from runner.cli.terminal.layout import fit_columns, measure_column

    terminal = sys.stdout.isatty()
    headers = [escape_controls(name) for name in columns]
    cells = [
        [format_cell(value) if terminal else " ".join(format_cell(value).split("\n")) for value in row] for row in rows
    ]
    column_sizes = [measure_column(header, [row[index] for row in cells]) for index, header in enumerate(headers)]
    width = terminal_width()
    drop_indexes = [list(columns).index(name) for name in drop if name in columns]
    widths = (
        fit_columns(column_sizes, width, drop_indexes)
        if terminal
        else {i: min(size.max_width, MAX_PIPE_COLUMN) for i, size in enumerate(column_sizes)}
    )
    if title is not None:
        print_heading(title)
    numeric = {i for i in widths if rows and all(isinstance(row[i], (int, float, type(None))) for row in rows)}
    shown_columns = [(headers[i], widths[i], i in numeric) for i in widths]
    shown_rows = [[row[i] for i in widths] for row in cells]
    if terminal:
        _print_wrapped_table(shown_columns, shown_rows, styles or [""] * len(rows))
    else:
        _print_unwrapped_table(shown_columns, shown_rows)
    if len(widths) < len(columns):
        omitted = ", ".join(header for i, header in enumerate(headers) if i not in widths)
        note(f"left out at a width of {width}: {omitted} (--json has all)")


def _print_unwrapped_table(columns: Sequence[tuple[str, int, bool]], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with each row on one line of any length. `columns` is as in `_print_wrapped_table`."""
    from runner.cli.terminal.layout import GAP
    from runner.cli.terminal.wrapping import display_width

    for row in ([header for header, _, _ in columns], *rows):
        line = ""
        for text, (_, width, numeric) in zip(row, columns, strict=True):
            padding = " " * (width - display_width(text))
            line += f"{padding}{text}" if numeric else f"{text}{padding}"
            line += " " * GAP
        say(line.rstrip())


def _print_wrapped_table(
    columns: Sequence[tuple[str, int, bool]], rows: Sequence[Sequence[str]], styles: Sequence[str]
) -> None:
    """Print a table with Rich, which wraps wide texts.

    `columns` has the header and the width of each column, and whether it is aligned to the right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from runner.cli.terminal.layout import GAP

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `main` handles this error; Rich itself would exit with an error code

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, width, numeric in columns:
        # Rich interprets markup in a header of type `str`, but not in `Text`.
        table.add_column(Text(header), width=width, justify="right" if numeric else "left", overflow="fold")
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
    """Return $COLUMNS, or the width of the terminal."""
    import shutil

    return shutil.get_terminal_size((DEFAULT_TERMINAL_WIDTH, 24)).columns


def wrap_for_stderr(text: str, indent: str = "  ") -> str:
    """Wrap a paragraph to the width of the terminal, with `indent` before all lines except the first.

    Without a terminal, return it unchanged.
    """
    if not sys.stderr.isatty():
        return text
    import textwrap

    return textwrap.fill(
        escape_controls(text), terminal_width() - 1, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False, drop_whitespace=True,
    )  # fmt: skip


def format_time(iso_time: str | None, now: datetime | None = None) -> str:
    """Format an ISO 8601 time of a manifest: `2 min ago`, `12:31` for today, `21 Nov 12:31`, `2025-11-21`.

    The time zone is that of `now`, by default the local one.
    """
    if not iso_time:
        return "-"
    from datetime import datetime

    now = now or datetime.now().astimezone()
    try:
        time = datetime.fromisoformat(iso_time).astimezone(now.tzinfo)
    except ValueError:
        return iso_time
    minutes = (now - time).total_seconds() / 60
    if 0 <= minutes < 1:
        return "just now"
    if 0 <= minutes < 60:
        return f"{int(minutes)} min ago"
    if time.date() == now.date():
        return f"{time:%H:%M}"
    return f"{time:%-d %b %H:%M}" if time.year == now.year else f"{time:%Y-%m-%d}"


def format_duration(seconds: float) -> str:
    """Format seconds as `0:07`, `12:31` or `1:02:03`."""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"


def format_range(first: int | None, last: int | None) -> str:
    """Format a range of numbers, such as `3-5`, or `3` if both ends are equal."""
    return str(first) if first == last else f"{first}-{last}"


def format_cell(value: Any) -> str:
    """Return a value as text for a table cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else NOT_ESTIMABLE
    return escape_controls(str(value))


def describe_usage(calls: int | None, cost: float | None) -> str:
    """Return a text such as `calls: 12, cost: $0.0034`."""
    return f"calls: {calls}, cost: {'unknown (no price)' if cost is None else f'${cost:.4f}'}"
