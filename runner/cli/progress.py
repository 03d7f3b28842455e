"""A run's progress on stderr: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runner.cli.output import note
from runner.text import escape_controls

if TYPE_CHECKING:
    from runner.runs.accounting import Progress

LINE_SECONDS = 10.0
BAR_SECONDS = 0.1


@contextmanager
def watching(name: str, told: set[str], *, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A function that shows progress, and adds the notes that it shows to `told`; None where nobody wants to see it."""
    if quiet:
        yield None
    elif sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        with _bar(name, _News(told)) as watch:
            yield watch
    else:
        yield _lines(name, _News(told))


def _lines(name: str, news: _News) -> Callable[[Progress], None]:
    started = last = time.monotonic()

    def watch(progress: Progress) -> None:
        nonlocal last
        for warning in news.of(progress):
            note(f"{name}: {warning}")
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            note(f"{name}: {summary(progress, last - started)}")

    return watch


class _News:
    """What is wrong or was noticed and was not shown yet, to be shown at once."""

    def __init__(self, told: set[str]) -> None:
        self._shown: dict[str, str] = {}
        self._told = told
        self._notes = 0

    def of(self, progress: Progress) -> list[str]:
        notes = progress.notes[self._notes :]
        self._notes += len(notes)
        self._told.update(notes)
        return [*(escape_controls(f"note: {text}") for text in notes), *self._warnings(progress)]

    def _warnings(self, progress: Progress) -> list[str]:
        if progress.warnings == self._shown:
            return []
        new = [text for server, text in progress.warnings.items() if self._shown.get(server) != text]
        over = [f"{server} answers again" for server in self._shown if server not in progress.warnings]
        self._shown = dict(progress.warnings)
        return [escape_controls(text) for text in (*new, *over)]


@contextmanager
def _bar(name: str, news: _News) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    task = bar.add_task(escape_controls(name), total=None, detail="")
    started, last = time.monotonic(), 0.0

    def watch(progress: Progress) -> None:
        nonlocal last
        for warning in news.of(progress):
            bar.console.print(warning, markup=False, highlight=False)
        if time.monotonic() - last < BAR_SECONDS:
            return
        last = time.monotonic()
        bar.update(
            task,
            total=progress.total,
            completed=progress.jobs,
            detail=_detail(progress, last - started),
        )
        bar.refresh()

    with bar:
        yield watch


def summary(progress: Progress, seconds: float) -> str:
    """One line: games done, calls, tokens, cost, failures, time left."""
    return f"{progress.jobs}/{progress.total} {progress.of}, {_detail(progress, seconds)}"


def _detail(progress: Progress, seconds: float) -> str:
    parts = [
        f"{progress.calls} calls",
        f"{_short(progress.prompt_tokens + progress.completion_tokens)} tokens",
        "cost unknown" if progress.cost_usd is None else f"${progress.cost_usd:.2f}",
    ]
    if progress.failures:
        parts.append(f"{progress.failures} failed calls")
    if 0 < progress.jobs < progress.total:
        left = seconds / progress.jobs * (progress.total - progress.jobs)
        parts.append(f"{_clock(left)} left")
    return ", ".join(parts)


def _short(number: int) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
