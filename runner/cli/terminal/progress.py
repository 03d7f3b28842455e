"""Print the progress of a command's runs on stderr: one redrawn line on a terminal, occasional lines elsewhere."""

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
from runner.cli.terminal.output import StatusLine, format_duration, note

if TYPE_CHECKING:
    from runner.runs.execution.accounting import Progress

LINE_INTERVAL_SECONDS = 10.0
"""Without a terminal, a line is printed at most this often."""
MIN_DRAW_SECONDS = 0.1
"""On a terminal, the line is redrawn at most this often."""
REDRAW_SECONDS = 1.0
"""The line is redrawn at least this often, since time passes and the terminal may be resized."""
RATE_WINDOW_SECONDS = 60.0
"""The length of the window before now in which finished games are counted for the rate."""
SHOW_ERROR_SECONDS = 15.0
"""The last error is shown for this long after the last failed call."""
MIN_ERROR_WIDTH = 20
"""An error is left out if there is room for fewer characters than this."""


class WatchedRun(NamedTuple):
    """A run whose progress is shown."""

    name: str
    jobs: int | None
    """Number of games or trees; None for a training run, which is shown on a separate line."""


@contextmanager
def show_progress(runs: Sequence[WatchedRun], printed: set[str], *, quiet: bool) -> Iterator[Display]:
    """Show the progress of runs, and add the notes that are printed to `printed`."""
    if quiet:
        yield Display(runs, printed)
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        display = _StatusLineDisplay(runs, printed)
        with display.ticking():
            yield display
    else:
        yield _LineDisplay(runs, printed)


class Display:
    """The progress of a command's runs. This class prints nothing; its subclasses do.

    Benchmarks that play at the same time are shown as one line with their sums.
    """

    def __init__(self, runs: Sequence[WatchedRun], printed: set[str]) -> None:
        self._runs = runs
        self._notices = _Notices(printed)
        self._latest: dict[int, Progress] = {}
        self._finished: set[int] = set()
        self._total: Progress | None = None
        names = dict.fromkeys(escape_controls(run.name) for run in runs)
        self._combined_view = RunProgress(", ".join(names))
        self._own_views: dict[int, RunProgress] = {}

    def watcher(self, index: int) -> Callable[[Progress], None] | None:
        """Return the function that the run at this index calls on progress; None if nothing is printed."""
        del index
        return None

    def mark_finished(self, index: int) -> None:
        """Mark the run at this index as finished."""
        self._notices.forget(index)
        self._finished.add(index)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the display while something else is printed."""
        yield

    def _view(self, index: int) -> tuple[RunProgress, Progress]:
        """Return the view and the progress to show after progress of the run at this index."""
        size, jobs = len(self._runs), self._runs[index].jobs
        if jobs is not None and size > 1:
            return self._combined_view, self._sum_progress(index)
        if index not in self._own_views:
            name = escape_controls(self._runs[index].name)
            self._own_views[index] = RunProgress(name, f"point {index + 1} of {size}" if size > 1 else "")
        return self._own_views[index], self._latest[index]

    def _sum_progress(self, index: int) -> Progress:
        """Return the sum of all benchmarks, without an accuracy, since the benchmarks test different systems."""
        latest = self._latest[index]
        total = self._total = self._total or type(latest)(of=latest.of)
        total.total = sum(run.jobs or 0 for run in self._runs)
        started = [progress for i, progress in self._latest.items() if self._runs[i].jobs is not None]
        total.count_calls_of(started)
        skipped = [i for i in self._finished if i not in self._latest]  # already finished before this command
        total.jobs = sum(progress.jobs for progress in started) + sum(self._runs[i].jobs or 0 for i in skipped)
        total.last_error = latest.last_error or total.last_error
        in_play = [i for i, progress in self._latest.items() if progress.jobs < progress.total]
        self._combined_view.point = _describe_points(in_play, len(self._runs))
        return total


def _describe_points(active: Sequence[int], size: int) -> str:
    if not active:
        return f"{size} points"
    first, last = min(active) + 1, max(active) + 1
    return f"point {first} of {size}" if first == last else f"points {first} to {last} of {size}"


class _LineDisplay(Display):
    """Prints lines now and then, for a file or a pipe."""

    def __init__(self, runs: Sequence[WatchedRun], printed: set[str]) -> None:
        super().__init__(runs, printed)
        self._last = time.monotonic()
        self._stage = ""

    def watcher(self, index: int) -> Callable[[Progress], None]:
        return partial(self._on_progress, index)

    def _on_progress(self, index: int, progress: Progress) -> None:
        self._latest[index] = progress
        for notice in self._notices.take_new(index, progress):
            note(f"{self._view(index)[0].name}: {notice}")
        if progress.stage != self._stage:
            self._stage = progress.stage
            note(f"{self._view(index)[0].name}: {self._stage}")
        if time.monotonic() - self._last >= LINE_INTERVAL_SECONDS:
            self._last = time.monotonic()
            view, current = self._view(index)
            note(f"{view.name}: {view.full_line(current)}")


class _StatusLineDisplay(Display):
    """One line at the bottom of the terminal, without color or escape sequences, removed at the end."""

    def __init__(self, runs: Sequence[WatchedRun], printed: set[str]) -> None:
        super().__init__(runs, printed)
        self._line, self._lock, self._closed = StatusLine(), RLock(), Event()
        self._last = 0.0
        self._index: int | None = None

    def watcher(self, index: int) -> Callable[[Progress], None]:
        return partial(self._on_progress, index)

    def mark_finished(self, index: int) -> None:
        with self._lock:
            super().mark_finished(index)
            if self._runs[index].jobs is None or len(self._runs) == 1:
                self._index = None
                self._line.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            self._line.clear()
            yield

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Redraw the line regularly, and remove it at the end."""
        ticker = Thread(target=self._tick, name="nip-run-progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            self._closed.set()
            ticker.join()
            self._line.clear()

    def _on_progress(self, index: int, progress: Progress) -> None:
        with self._lock:
            self._latest[index] = progress
            self._index = index
            notices = self._notices.take_new(index, progress)
            if notices:
                self._line.clear()
                for line in notices:
                    note(line)
            if notices or time.monotonic() - self._last >= MIN_DRAW_SECONDS:
                self._draw()

    def _draw(self) -> None:
        with self._lock:
            self._last = time.monotonic()
            if self._index is not None:
                view, current = self._view(self._index)
                self._line.draw(view.fit_line(current, self._line.width))

    def _tick(self) -> None:
        while not self._closed.wait(REDRAW_SECONDS):
            if time.monotonic() - self._last >= REDRAW_SECONDS / 2:
                self._draw()


class _Notices:
    """Notes and warnings that were not printed yet. A note that several runs report is printed once."""

    def __init__(self, printed: set[str]) -> None:
        self._printed = printed
        self._notes: dict[int, tuple[list[str], int]] = {}
        self._warnings: dict[int, dict[str, str]] = {}
        self._shown_warnings: dict[str, str] = {}

    def take_new(self, index: int, progress: Progress) -> list[str]:
        """Return the notes and warnings of this run that were not printed yet."""
        previous, count = self._notes.get(index, ([], 0))
        if progress.notes is not previous:  # another iteration has started
            count = 0
        new_notes = [text for text in dict.fromkeys(progress.notes[count:]) if count or text not in self._printed]
        self._notes[index] = progress.notes, len(progress.notes)
        self._printed.update(new_notes)
        warnings = [] if progress.warnings == self._warnings.get(index, {}) else self._new_warnings(index, progress)
        return [*(escape_controls(f"note: {text}") for text in new_notes), *warnings]

    def _new_warnings(self, index: int, progress: Progress) -> list[str]:
        self._warnings[index] = dict(progress.warnings)
        current = {server: text for warnings in self._warnings.values() for server, text in warnings.items()}
        new = [text for server, text in current.items() if self._shown_warnings.get(server) != text]
        recovered = [f"{server} answers again" for server in self._shown_warnings if server not in current]
        self._shown_warnings = current
        return [escape_controls(text) for text in (*new, *recovered)]

    def forget(self, index: int) -> None:
        """Drop the warnings of a finished run."""
        for server in self._warnings.pop(index, {}):
            if not any(server in warnings for warnings in self._warnings.values()):
                self._shown_warnings.pop(server, None)


class LinePart(NamedTuple):
    """A part of the line. If the line is too long, parts with a large rank are left out first."""

    rank: int
    text: str


NAME_RANK = 8
ERROR_RANK = 4
"""Parts with a larger rank are left out if the last error needs their room."""


def compose_line(name: str, count: str, parts: Sequence[LinePart], width: int, error: str = "") -> str:
    """Return a line of the count and of the most important parts that fit into `width`.

    The line has the name, the count, the other parts in the given order, and the last error, which is truncated to
    the remaining room. The count is always there.
    """
    name_part = LinePart(NAME_RANK, f"{name} ")
    chosen: set[LinePart] = set()

    def join_parts(chosen: set[LinePart]) -> str:
        return (name_part.text if name_part in chosen else "") + ", ".join(
            [count, *(part.text for part in parts if part in chosen)]
        )

    for part in sorted((name_part, *(part for part in parts if part.text))):
        reserved = min(len(error), MIN_ERROR_WIDTH) + len("; ") if error and part.rank > ERROR_RANK else 0
        if len(join_parts({*chosen, part})) + reserved <= width:
            chosen.add(part)
    text = join_parts(chosen)
    room = width - len(text) - len("; ")
    if not error or room < min(len(error), MIN_ERROR_WIDTH):
        return text
    return f"{text}; {error if len(error) <= room else error[: room - 3] + '...'}"


@dataclass
class RunProgress:
    """Formats the progress line of a run, or of several runs that play at the same time."""

    name: str
    point: str = ""
    clock: Callable[[], float] = time.monotonic
    _started_at: float = field(init=False)
    _samples: deque[tuple[float, int]] = field(init=False)
    """Times and numbers of finished games, within the window of the rate."""
    _progress: Progress | None = None
    _failures: int = 0
    _failed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = self._failed_at = self.clock()
        self._samples = deque()

    def fit_line(self, progress: Progress, width: int) -> str:
        """Return the line, shortened to at most `width` characters."""
        count, parts, error = self._line_parts(progress)
        return compose_line(self.name, count, parts, width, error)

    def full_line(self, progress: Progress) -> str:
        """Return the line with all parts."""
        count, parts, error = self._line_parts(progress)
        return ", ".join([count, *(part.text for part in parts if part.text), *([error] if error else [])])

    def _line_parts(self, progress: Progress) -> tuple[str, list[LinePart], str]:
        now = self.clock()
        elapsed = LinePart(4, format_duration(now - self._started_at))
        usage = [
            LinePart(1, _format_cost(progress)),
            LinePart(2, f"{progress.in_flight()} in flight"),
            LinePart(3, _format_retries(progress)),
        ]
        if not progress.total:
            return progress.stage or "starting", [LinePart(7, self.point), elapsed, *usage], ""
        per_second = self._jobs_per_second(progress, now)
        return (
            f"{progress.jobs}/{progress.total} {progress.of}",
            [
                LinePart(7, self.point),
                LinePart(7, progress.stage),
                elapsed,
                *usage,
                LinePart(5, _format_time_left(progress, per_second)),
                LinePart(6, _format_accuracy(progress)),
                LinePart(10, _count_unless_zero(progress.failures, "failed call")),
                LinePart(11, _count_unless_zero(progress.repeats, "repeat")),
                LinePart(9, _format_rate(per_second)),
                LinePart(12, _count_unless_zero(progress.calls, "call")),
                LinePart(13, _format_tokens(progress)),
            ],
            self._recent_error(progress, now),
        )

    def _recent_error(self, progress: Progress, now: float) -> str:
        """Return the last error while it is recent."""
        if progress.failures != self._failures:
            self._failures, self._failed_at = progress.failures, now
        is_old = now - self._failed_at > SHOW_ERROR_SECONDS
        return (
            "" if is_old or not progress.last_error else f"error: {in_one_line(_without_address(progress.last_error))}"
        )

    def _jobs_per_second(self, progress: Progress, now: float) -> float:
        """Return the number of games per second over the last minute."""
        if progress is not self._progress:  # another iteration has started
            self._progress = progress
            self._samples = deque([(now, progress.jobs)])
        samples = self._samples
        samples.append((now, progress.jobs))
        while len(samples) > 2 and now - samples[1][0] >= RATE_WINDOW_SECONDS:
            samples.popleft()
        then, jobs = samples[0]
        return (progress.jobs - jobs) / (now - then) if now > then else 0.0


def _without_address(error: str) -> str:
    """Remove the address at the start of an error, which would fill all its room."""
    address, colon, message = error.partition(": ")
    return message if colon and "://" in address else error


def _count_unless_zero(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}" if number else ""


def _format_time_left(progress: Progress, per_second: float) -> str:
    if not per_second or progress.jobs >= progress.total:
        return ""
    return f"{format_duration((progress.total - progress.jobs) / per_second)} left"


def _format_accuracy(progress: Progress) -> str:
    return f"accuracy {progress.right / progress.judged:.2f} (n={progress.judged})" if progress.judged else ""


def _format_cost(progress: Progress) -> str:
    return "cost unknown" if progress.cost_usd is None else dollars(progress.cost_usd)


def _format_retries(progress: Progress) -> str:
    """Return the number of repeated calls, after a failure or after an answer that could not be used."""
    retries = max(progress.failures - progress.outcomes.get("transport_failed", 0), 0) + progress.repeats
    return f"{retries:,} {'retry' if retries == 1 else 'retries'}"


def _format_tokens(progress: Progress) -> str:
    tokens = progress.prompt_tokens + progress.completion_tokens
    return f"{_format_count(tokens)} tokens" if tokens else ""


def _format_rate(per_second: float) -> str:
    for seconds, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:.{0 if per_second * seconds >= 10 else 1}f}/{unit}"
    return ""


def _format_count(number: int) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)
