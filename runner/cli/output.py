"""What several commands share: spec arguments, tables, JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import UsageError
from runner.text import escape_controls

if TYPE_CHECKING:
    from runner.spec.load import Spec

WIDE = 160
"""Columns of a table where there is no terminal to measure."""


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Spec files and overrides: a word with `=`, `+` or `~` is an override, unless there is such a file."""
    specs: list[str] = []
    overrides: list[str] = []
    for word in words:
        is_override = ("=" in word or word[:1] in "+~") and not Path(word).is_file()
        (overrides if is_override else specs).append(word)
    if not specs:
        raise UsageError(f"which spec? {' '.join(words)!r} holds overrides only")
    return specs, overrides


def load_all(words: Sequence[str]) -> list[tuple[str, Spec]]:
    """Every point of every spec with its file; all errors of all of them at once."""
    from runner.api import sweep_problems
    from runner.cli.main import COMMANDS
    from runner.errors import Problem, SpecError
    from runner.spec.load import load_specs

    specs, overrides = split_words(words)
    loaded: list[tuple[str, Spec]] = []
    problems: list[Problem] = []
    for path in specs:
        try:
            points = load_specs(path, overrides, also=list(COMMANDS))
            problems.extend(sweep_problems(path, points))
            loaded.extend((path, spec) for spec in points)
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return loaded


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str, ensure_ascii=True))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """A table on stdout; what came from models or datasets is made safe first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # main knows what to do; the library would exit as if something had failed

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
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


def note(text: str) -> None:
    """A line for a person, on stderr."""
    print(escape_controls(text), file=sys.stderr)
