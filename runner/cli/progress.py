"""A run's progress on stderr: one line that is redrawn on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, NamedTuple

from runner.cli.output import StatusLine, duration, note
from runner.text import escape_controls, in_one_line

if TYPE_CHECKING:
    from runner.runs.accounting import Progress

LINE_SECONDS = 10.0
DRAW_SECONDS = 0.1
TICK_SECONDS = 1.0
"""The line is redrawn this often though nothing has come in: time goes on, and a terminal is made narrower."""
RATE_SECONDS = 60.0
"""The rate is over this many last seconds."""
ERROR_SECONDS = 15.0
"""The last error is shown this long after the last call that failed."""
SHORTEST_ERROR = 20
"""Columns below which the start of an error says nothing."""


@contextmanager
def watching(
    name: str, told: set[str], *, quiet: bool, point: tuple[int, int] = (1, 1)
) -> Iterator[Callable[[Progress], None] | None]:
    """A function that shows progress, and adds the notes that it shows to `told`; None where none is wanted.

    `point` says which run of how many this is.
    """
    shown = Shown(escape_controls(name), f"point {point[0]} of {point[1]}" if point[1] > 1 else "")
    if quiet:
        yield None
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _drawn(shown, _News(told)) as watch:
            yield watch
    else:
        yield _lines(shown, _News(told))


def _lines(shown: Shown, news: _News) -> Callable[[Progress], None]:
    last = time.monotonic()
    stage = ""

    def watch(progress: Progress) -> None:
        nonlocal last, stage
        for warning in news.of(progress):
            note(f"{shown.name}: {warning}")
        if progress.stage != stage:
            stage = progress.stage
            note(f"{shown.name}: {stage}")
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            note(f"{shown.name}: {shown.whole(progress)}")

    return watch


class _News:
    """What is wrong or was noticed and was not shown yet, to be shown at once."""

    def __init__(self, told: set[str]) -> None:
        self._shown: dict[str, str] = {}
        self._told = told
        self._of: list[str] = []
        self._notes = 0

    def of(self, progress: Progress) -> list[str]:
        if progress.notes is not self._of:  # the games of another iteration
            self._of, self._notes = progress.notes, 0
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
def _drawn(shown: Shown, news: _News) -> Iterator[Callable[[Progress], None]]:
    """One line at the bottom of the terminal, without colour or escape sequences; gone at the end."""
    line, lock, ended = StatusLine(), RLock(), Event()
    last, now = 0.0, None

    def draw(progress: Progress) -> None:
        nonlocal last, now
        with lock:
            last, now = time.monotonic(), progress
            line.draw(shown.within(progress, line.width))

    def watch(progress: Progress) -> None:
        warnings = news.of(progress)
        if warnings:
            with lock:
                line.clear()
                for warning in warnings:
                    note(warning)
        if warnings or time.monotonic() - last >= DRAW_SECONDS:
            draw(progress)

    def tick() -> None:
        while not ended.wait(TICK_SECONDS):
            if now is not None and time.monotonic() - last >= TICK_SECONDS / 2:
                draw(now)

    ticker = Thread(target=tick, name="nip-run-progress", daemon=True)
    ticker.start()
    try:
        yield watch
    finally:
        ended.set()
        ticker.join()
        line.clear()


class Part(NamedTuple):
    """A piece of the line, and its place among those that are kept where there is no room for all: 1 is the first."""

    rank: int
    text: str


NAME_RANK = 6
ERROR_RANK = 3
"""Parts behind this rank leave room for the start of the last error."""


def composed(name: str, count: str, parts: Sequence[Part], width: int, error: str = "") -> str:
    """The line: the count, which is never cut, and as many parts as fit, the most important first.

    The name stands before the count, all others behind it in the order given. The last error alone may be cut; it gets
    what room is left.
    """
    left = Part(NAME_RANK, f"{name} ")
    kept: set[Part] = set()

    def line(kept: set[Part]) -> str:
        return (left.text if left in kept else "") + ", ".join([count, *(p.text for p in parts if p in kept)])

    for part in sorted((left, *(part for part in parts if part.text))):
        reserved = min(len(error), SHORTEST_ERROR) + len("; ") if error and part.rank > ERROR_RANK else 0
        if len(line({*kept, part})) + reserved <= width:
            kept.add(part)
    shown = line(kept)
    room = width - len(shown) - len("; ")
    if not error or room < min(len(error), SHORTEST_ERROR):
        return shown
    return f"{shown}; {error if len(error) <= room else error[: room - 3] + '...'}"


@dataclass
class Shown:
    """What is shown of one run: its name, its place in a sweep, and what has become of it since the start."""

    name: str
    point: str = ""
    clock: Callable[[], float] = time.monotonic
    _begun: float = field(init=False)
    _seen: deque[tuple[float, int]] = field(init=False)
    """When how many games were done, over the time that the rate is of."""
    _of: Progress | None = None
    _failures: int = 0
    _failed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self._failed_at = self.clock()
        self._seen = deque()

    def within(self, progress: Progress, width: int) -> str:
        """One line of at most `width` columns."""
        count, parts, error = self._parts(progress)
        return composed(self.name, count, parts, width, error)

    def whole(self, progress: Progress) -> str:
        """One line with all there is to say."""
        count, parts, error = self._parts(progress)
        return ", ".join([count, *(part.text for part in parts if part.text), *([error] if error else [])])

    def _parts(self, progress: Progress) -> tuple[str, list[Part], str]:
        now = self.clock()
        elapsed = Part(1, duration(now - self._begun))
        if not progress.total:
            return progress.stage or "starting", [Part(5, self.point), elapsed], ""
        per_second = self._rate(progress, now)
        return (
            f"{progress.jobs}/{progress.total} {progress.of}",
            [
                Part(5, self.point),
                Part(5, progress.stage),
                elapsed,
                Part(2, _left(progress, per_second)),
                Part(3, _accuracy(progress)),
                Part(4, f"{flying} in flight" if (flying := progress.in_flight()) else ""),
                Part(8, _counted(progress.failures, "failed call")),
                Part(9, _counted(progress.repeats, "repeat")),
                Part(10, _per_time(per_second)),
                Part(14 if progress.cost_usd is None else 11, _cost(progress)),
                Part(12, _counted(progress.calls, "call")),
                Part(13, _tokens(progress)),
            ],
            self._error(progress, now),
        )

    def _error(self, progress: Progress, now: float) -> str:
        """The last error, as long as it is new."""
        if progress.failures != self._failures:
            self._failures, self._failed_at = progress.failures, now
        is_old = now - self._failed_at > ERROR_SECONDS
        return (
            "" if is_old or not progress.last_error else f"error: {in_one_line(_without_address(progress.last_error))}"
        )

    def _rate(self, progress: Progress, now: float) -> float:
        """Games a second, of late."""
        if progress is not self._of:  # the games of another iteration
            self._of = progress
            self._seen = deque([(now, progress.jobs)])
        seen = self._seen
        seen.append((now, progress.jobs))
        while len(seen) > 2 and now - seen[1][0] >= RATE_SECONDS:
            seen.popleft()
        then, jobs = seen[0]
        return (progress.jobs - jobs) / (now - then) if now > then else 0.0


def _without_address(error: str) -> str:
    """An error without the address that it begins with: of what is shown of it, that would be all."""
    address, colon, said = error.partition(": ")
    return said if colon and "://" in address else error


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}" if number else ""


def _left(progress: Progress, per_second: float) -> str:
    if not per_second or progress.jobs >= progress.total:
        return ""
    return f"{duration((progress.total - progress.jobs) / per_second)} left"


def _accuracy(progress: Progress) -> str:
    return f"accuracy {progress.right / progress.judged:.2f} (n={progress.judged})" if progress.judged else ""


def _cost(progress: Progress) -> str:
    if not progress.calls:
        return ""
    return "cost unknown" if progress.cost_usd is None else f"${progress.cost_usd:.2f}"


def _tokens(progress: Progress) -> str:
    tokens = progress.prompt_tokens + progress.completion_tokens
    return f"{_short(tokens)} tokens" if tokens else ""


def _per_time(per_second: float) -> str:
    for seconds, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:.{0 if per_second * seconds >= 10 else 1}f}/{unit}"
    return ""


def _short(number: int) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)
