"""The progress of a command's runs on stderr: one line that is redrawn on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, NamedTuple

from runner.base.text import dollars, escape_controls, in_one_line
from runner.cli.terminal.output import StatusLine, duration, note

if TYPE_CHECKING:
    from runner.runs.execution.accounting import Progress

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


class WatchedRun(NamedTuple):
    """A run that is watched."""

    name: str
    jobs: int | None
    """How many games or trees it plays; None of a training run, which is shown by itself."""


@contextmanager
def watching(runs: Sequence[WatchedRun], told: set[str], *, quiet: bool) -> Iterator[Display]:
    """A display of the progress of runs, which adds the notes that it shows to `told`."""
    if quiet:
        yield Display(runs, told)
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        drawn = _Drawn(runs, told)
        with drawn.ticking():
            yield drawn
    else:
        yield _Lines(runs, told)


class Display:
    """What is shown of the runs of one command: of those that are played side by side, their sums. Here, nothing."""

    def __init__(self, runs: Sequence[WatchedRun], told: set[str]) -> None:
        self._runs = runs
        self._news = _News(told)
        self._latest: dict[int, Progress] = {}
        self._over: set[int] = set()
        self._sums: dict[int, Progress] = {}
        names = dict.fromkeys(escape_controls(run.name) for run in runs)
        self._together = RunProgress(", ".join(names))
        self._by_itself: dict[int, RunProgress] = {}

    def of(self, place: int) -> Callable[[Progress], None] | None:
        """What the run at this place is to call whenever its progress has moved; None where nothing is shown."""
        del place
        return None

    def ended(self, place: int) -> None:
        """The run at this place is over."""
        self._news.forget(place)
        self._over.add(place)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While something else is printed."""
        yield

    def _view(self, place: int) -> tuple[RunProgress, Progress]:
        """What is shown when the run at this place has moved."""
        size, jobs = len(self._runs), self._runs[place].jobs
        if jobs is not None and size > 1:
            return self._together, self._sum(place)
        if place not in self._by_itself:
            name = escape_controls(self._runs[place].name)
            self._by_itself[place] = RunProgress(name, f"point {place + 1} of {size}" if size > 1 else "")
        return self._by_itself[place], self._latest[place]

    def _sum(self, place: int) -> Progress:
        """All runs that play side by side as one, which has no accuracy: they are different systems."""
        of = self._latest[place]
        total = self._sums.setdefault(0, type(of)(of=of.of))
        total.total = sum(run.jobs or 0 for run in self._runs)
        moved = [progress for at, progress in self._latest.items() if self._runs[at].jobs is not None]
        total.count_calls_of(moved)
        shown_only = [at for at in self._over if at not in self._latest]  # they were finished before
        total.jobs = sum(progress.jobs for progress in moved) + sum(self._runs[at].jobs or 0 for at in shown_only)
        total.last_error = of.last_error or total.last_error
        in_play = [at for at, progress in self._latest.items() if progress.jobs < progress.total]
        self._together.point = _points(in_play, len(self._runs))
        return total


def _points(in_play: Sequence[int], size: int) -> str:
    if not in_play:
        return f"{size} points"
    first, last = min(in_play) + 1, max(in_play) + 1
    return f"point {first} of {size}" if first == last else f"points {first} to {last} of {size}"


class _Lines(Display):
    """Lines, now and then, for a file or a pipe."""

    def __init__(self, runs: Sequence[WatchedRun], told: set[str]) -> None:
        super().__init__(runs, told)
        self._last = time.monotonic()
        self._stage = ""

    def of(self, place: int) -> Callable[[Progress], None]:
        return partial(self._moved, place)

    def _moved(self, place: int, progress: Progress) -> None:
        self._latest[place] = progress
        for news in self._news.of(place, progress):
            note(f"{self._view(place)[0].name}: {news}")
        if progress.stage != self._stage:
            self._stage = progress.stage
            note(f"{self._view(place)[0].name}: {self._stage}")
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            shown, now = self._view(place)
            note(f"{shown.name}: {shown.whole(now)}")


class _Drawn(Display):
    """One line at the bottom of the terminal, without colour or escape sequences; gone at the end."""

    def __init__(self, runs: Sequence[WatchedRun], told: set[str]) -> None:
        super().__init__(runs, told)
        self._line, self._lock, self._closed = StatusLine(), RLock(), Event()
        self._last = 0.0
        self._place: int | None = None

    def of(self, place: int) -> Callable[[Progress], None]:
        return partial(self._moved, place)

    def ended(self, place: int) -> None:
        with self._lock:
            super().ended(place)
            if self._runs[place].jobs is None or len(self._runs) == 1:
                self._place = None
                self._line.clear()

    @contextmanager
    def apart(self) -> Iterator[None]:
        with self._lock:
            self._line.clear()
            yield

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Redraw the line now and then, and take it away in the end."""
        ticker = Thread(target=self._tick, name="nip-run-progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            self._closed.set()
            ticker.join()
            self._line.clear()

    def _moved(self, place: int, progress: Progress) -> None:
        with self._lock:
            self._latest[place] = progress
            self._place = place
            news = self._news.of(place, progress)
            if news:
                self._line.clear()
                for line in news:
                    note(line)
            if news or time.monotonic() - self._last >= DRAW_SECONDS:
                self._draw()

    def _draw(self) -> None:
        with self._lock:
            self._last = time.monotonic()
            if self._place is not None:
                shown, now = self._view(self._place)
                self._line.draw(shown.within(now, self._line.width))

    def _tick(self) -> None:
        while not self._closed.wait(TICK_SECONDS):
            if time.monotonic() - self._last >= TICK_SECONDS / 2:
                self._draw()


class _News:
    """What is wrong or was noticed and was not shown yet, to be shown at once; what several runs say alike, once."""

    def __init__(self, told: set[str]) -> None:
        self._told = told
        self._notes: dict[int, tuple[list[str], int]] = {}
        self._warnings: dict[int, dict[str, str]] = {}
        self._shown: dict[str, str] = {}

    def of(self, place: int, progress: Progress) -> list[str]:
        said, count = self._notes.get(place, ([], 0))
        if progress.notes is not said:  # the games of another iteration
            count = 0
        new = [text for text in dict.fromkeys(progress.notes[count:]) if count or text not in self._told]
        self._notes[place] = progress.notes, len(progress.notes)
        self._told.update(new)
        warnings = [] if progress.warnings == self._warnings.get(place, {}) else self._warned(place, progress)
        return [*(escape_controls(f"note: {text}") for text in new), *warnings]

    def _warned(self, place: int, progress: Progress) -> list[str]:
        self._warnings[place] = dict(progress.warnings)
        now = {server: text for warnings in self._warnings.values() for server, text in warnings.items()}
        new = [text for server, text in now.items() if self._shown.get(server) != text]
        over = [f"{server} answers again" for server in self._shown if server not in now]
        self._shown = now
        return [escape_controls(text) for text in (*new, *over)]

    def forget(self, place: int) -> None:
        """A run is over, and what it warned of with it."""
        for server in self._warnings.pop(place, {}):
            if not any(server in warnings for warnings in self._warnings.values()):
                self._shown.pop(server, None)


class LinePart(NamedTuple):
    """A piece of the line, and its place among those that are kept where there is no room for all: 1 is the first."""

    rank: int
    text: str


NAME_RANK = 8
ERROR_RANK = 4
"""Parts behind this rank leave room for the start of the last error; cost, calls in flight and retries do not."""


def composed(name: str, count: str, parts: Sequence[LinePart], width: int, error: str = "") -> str:
    """The line: the count, which is never cut, and as many parts as fit, the most important first.

    The name stands before the count, all others behind it in the order given. The last error alone may be cut; it gets
    what room is left.
    """
    left = LinePart(NAME_RANK, f"{name} ")
    kept: set[LinePart] = set()

    def line(kept: set[LinePart]) -> str:
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
class RunProgress:
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

    def _parts(self, progress: Progress) -> tuple[str, list[LinePart], str]:
        now = self.clock()
        elapsed = LinePart(4, duration(now - self._begun))
        money = [
            LinePart(1, _cost(progress)),
            LinePart(2, f"{progress.in_flight()} in flight"),
            LinePart(3, _retries(progress)),
        ]
        if not progress.total:
            return progress.stage or "starting", [LinePart(7, self.point), elapsed, *money], ""
        per_second = self._rate(progress, now)
        return (
            f"{progress.jobs}/{progress.total} {progress.of}",
            [
                LinePart(7, self.point),
                LinePart(7, progress.stage),
                elapsed,
                *money,
                LinePart(5, _left(progress, per_second)),
                LinePart(6, _accuracy(progress)),
                LinePart(10, _counted(progress.failures, "failed call")),
                LinePart(11, _counted(progress.repeats, "repeat")),
                LinePart(9, _per_time(per_second)),
                LinePart(12, _counted(progress.calls, "call")),
                LinePart(13, _tokens(progress)),
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
    return "cost unknown" if progress.cost_usd is None else dollars(progress.cost_usd)


def _retries(progress: Progress) -> str:
    """Return how many calls were repeated: after a failure that did not end its game, or for a usable answer."""
    retries = max(progress.failures - progress.outcomes.get("transport_failed", 0), 0) + progress.repeats
    return f"{retries:,} {'retry' if retries == 1 else 'retries'}"


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
