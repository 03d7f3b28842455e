"""Print the progress of a command's runs on stderr: one updated line on a terminal, a line now and then elsewhere.

A job is a game, or a tree of several games.
"""

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
"""Minimum time between two lines if there is no terminal."""
MIN_DRAW_SECONDS = 0.1
"""Minimum time between two updates of the line on a terminal."""
MAX_DRAW_SECONDS = 1.0
"""Maximum time between two updates of that line: it shows the time, and the terminal may be resized."""
RATE_WINDOW_SECONDS = 60.0
"""The number of games per second is computed from the games that finished within this time."""
SHOW_ERROR_SECONDS = 15.0
"""The last error is shown for this long after the last failed call."""
MIN_ERROR_WIDTH = 20
"""Minimum number of characters of an error that are shown; with less room, the error is left out."""


class WatchedRun(NamedTuple):
    """A run whose progress is shown."""

    name: str
    jobs: int | None
    """Number of jobs; None for a training run, which is shown on a separate line."""
    words: tuple[str, str] = ("point", "points")
    """The words for one of several runs of a command, and for several of them."""


@contextmanager
def show_progress(runs: Sequence[WatchedRun], printed: set[str], *, quiet: bool) -> Iterator[Display]:
    """Show the progress of runs, and add each note that is printed to `printed`."""
    if quiet:
        yield Display(runs, printed)
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        display = _StatusLineDisplay(runs, printed)
        with display.updating():
            yield display
    else:
        yield _LogDisplay(runs, printed)


class Display:
    """Collects the progress of a command's runs, and prints nothing. Its subclasses print the progress.

    Benchmarks of one command are shown together, on one line with their sums.
    """

    def __init__(self, runs: Sequence[WatchedRun], printed: set[str]) -> None:
        self._runs = runs
        self._notices = _NewNoticeFinder(printed)
        self._latest: dict[int, Progress] = {}
        self._finished: set[int] = set()
        self._total: Progress | None = None
        names = dict.fromkeys(escape_controls(run.name) for run in runs)
        self._combined_line = ProgressLine(", ".join(names))
        self._single_lines: dict[int, ProgressLine] = {}

    def on_progress_of(self, index: int) -> Callable[[Progress], None] | None:
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

    def _line_of(self, index: int) -> tuple[ProgressLine, Progress]:
        """Return the line that shows the run at this index, and the progress to show on it."""
        size, jobs = len(self._runs), self._runs[index].jobs
        if jobs is not None and size > 1:
            return self._combined_line, self._sum_progress(index)
        if index not in self._single_lines:
            name = escape_controls(self._runs[index].name)
            self._single_lines[index] = ProgressLine(
                name, f"{self._runs[index].words[0]} {index + 1} of {size}" if size > 1 else ""
            )
        return self._single_lines[index], self._latest[index]

    def _sum_progress(self, index: int) -> Progress:
        """Return the summed progress of all benchmarks, with the last error of the run at this index.

        It has no accuracy, since the benchmarks test different systems.
        """
        latest = self._latest[index]
        total = self._total = self._total or type(latest)(of=latest.of)
        total.total = sum(run.jobs or 0 for run in self._runs)
        started = [progress for i, progress in self._latest.items() if self._runs[i].jobs is not None]
        total.count_calls_of(started)
        already_finished = [i for i in self._finished if i not in self._latest]  # finished before this command
        total.jobs = sum(progress.jobs for progress in started) + sum(self._runs[i].jobs or 0 for i in already_finished)
        total.last_error = latest.last_error or total.last_error
        active = [i for i, progress in self._latest.items() if progress.jobs < progress.total]
        self._combined_line.point = _describe_points(active, len(self._runs), self._runs[index].words)
        return total


def _describe_points(active: Sequence[int], size: int, words: tuple[str, str]) -> str:
    if not active:
        return f"{size} {words[1]}"
    first, last = min(active) + 1, max(active) + 1
    return f"{words[0]} {first} of {size}" if first == last else f"{words[1]} {first} to {last} of {size}"


class _LogDisplay(Display):
    """Prints a line now and then, for a file or a pipe."""

    def __init__(self, runs: Sequence[WatchedRun], printed: set[str]) -> None:
        super().__init__(runs, printed)
        self._printed_at = time.monotonic()
        self._stage = ""

    def on_progress_of(self, index: int) -> Callable[[Progress], None]:
        return partial(self._on_progress, index)

    def _on_progress(self, index: int, progress: Progress) -> None:
        self._latest[index] = progress
        messages = self._notices.take_new(index, progress)
        if progress.stage != self._stage:
            self._stage = progress.stage
            messages.append(self._stage)
        is_due = time.monotonic() - self._printed_at >= LINE_INTERVAL_SECONDS
        if messages or is_due:
            line, shown_progress = self._line_of(index)
            if is_due:
                self._printed_at = time.monotonic()
                messages.append(line.full_text(shown_progress))
            for message in messages:
                note(f"{line.name}: {message}")


class _StatusLineDisplay(Display):
    """One line at the bottom of the terminal, without color or escape sequences, removed at the end."""

    def __init__(self, runs: Sequence[WatchedRun], printed: set[str]) -> None:
        super().__init__(runs, printed)
        self._status_line, self._lock, self._closed = StatusLine(), RLock(), Event()
        self._drawn_at = 0.0
        self._index: int | None = None
        """Index of the run that made progress last; None if no line is shown."""

    def on_progress_of(self, index: int) -> Callable[[Progress], None]:
        return partial(self._on_progress, index)

    def mark_finished(self, index: int) -> None:
        with self._lock:
            super().mark_finished(index)
            if self._runs[index].jobs is None or len(self._runs) == 1:
                self._index = None
                self._status_line.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            self._status_line.clear()
            yield

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Draw the line regularly within this context, and remove it at the end."""
        thread = Thread(target=self._draw_regularly, name="nip-run-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            thread.join()
            self._status_line.clear()

    def _on_progress(self, index: int, progress: Progress) -> None:
        with self._lock:
            self._latest[index] = progress
            self._index = index
            notices = self._notices.take_new(index, progress)
            if notices:
                self._status_line.clear()
                note(*notices)
            if notices or time.monotonic() - self._drawn_at >= MIN_DRAW_SECONDS:
                self._draw()

    def _draw(self) -> None:
        with self._lock:
            self._drawn_at = time.monotonic()
            if self._index is not None:
                line, shown_progress = self._line_of(self._index)
                self._status_line.draw(line.text_within(shown_progress, self._status_line.width))

    def _draw_regularly(self) -> None:
        while not self._closed.wait(MAX_DRAW_SECONDS):
            if time.monotonic() - self._drawn_at >= MAX_DRAW_SECONDS / 2:
                self._draw()


class _NewNoticeFinder:
    """Finds notes and warnings that were not printed yet. A note that several runs report is printed once."""

    def __init__(self, printed: set[str]) -> None:
        self._printed = printed
        self._notes: dict[int, tuple[list[str], int]] = {}
        self._warnings: dict[int, dict[str, str]] = {}
        self._shown_warnings: dict[str, str] = {}

    def take_new(self, index: int, progress: Progress) -> list[str]:
        """Return the notes and warnings of this run that were not printed yet."""
        previous, count = self._notes.get(index, ([], 0))
        if progress.notes is not previous:  # another iteration of a training run has started
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
    """A part of a progress line. If the line is too long, parts with a large rank are left out first."""

    rank: int
    text: str


NAME_RANK = 8
"""Rank of the run's name."""
ERROR_RANK = 4
"""Parts with a larger rank are left out if the last error needs their space."""


def compose_line(name: str, count: str, parts: Sequence[LinePart], width: int, error: str = "") -> str:
    """Return a line with the name, the count, the parts in the given order, and the last error.

    The count is always there. The others are left out by rank until the line fits into `width`, and the error is
    truncated.
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
    remaining = width - len(text) - len("; ")
    if not error or remaining < min(len(error), MIN_ERROR_WIDTH):
        return text
    return f"{text}; {error if len(error) <= remaining else error[: remaining - 3] + '...'}"


@dataclass
class ProgressLine:
    """Formats the progress line of a run, or of several runs together."""

    name: str
    point: str = ""
    clock: Callable[[], float] = time.monotonic
    _started_at: float = field(init=False)
    _samples: deque[tuple[float, int]] = field(init=False)
    """Pairs of a time within `RATE_WINDOW_SECONDS` and the number of jobs that were finished then."""
    _progress: Progress | None = None
    _failures: int = 0
    _failed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = self._failed_at = self.clock()
        self._samples = deque()

    def text_within(self, progress: Progress, width: int) -> str:
        """Return the line, shortened to at most `width` characters."""
        count, parts, error = self._line_parts(progress)
        return compose_line(self.name, count, parts, width, error)

    def full_text(self, progress: Progress) -> str:
        """Return the line with all parts except the name."""
        count, parts, error = self._line_parts(progress)
        return ", ".join([count, *(part.text for part in parts if part.text), *([error] if error else [])])

    def _line_parts(self, progress: Progress) -> tuple[str, list[LinePart], str]:
        """Return the count of finished jobs, the other parts, and the last error."""
        now = self.clock()
        elapsed = LinePart(4, format_duration(now - self._started_at))
        usage = [
            LinePart(1, _format_cost(progress)),
            LinePart(2, f"{progress.in_flight()} in flight"),
            LinePart(3, _format_retries(progress)),
            LinePart(3, _format_questions(progress)),
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
        """Return the last error, or an empty string if it is old."""
        if progress.failures != self._failures:
            self._failures, self._failed_at = progress.failures, now
        if not progress.last_error or now - self._failed_at > SHOW_ERROR_SECONDS:
            return ""
        return f"error: {in_one_line(_without_address(progress.last_error))}"

    def _jobs_per_second(self, progress: Progress, now: float) -> float:
        """Return the number of finished jobs per second, over the last `RATE_WINDOW_SECONDS`."""
        if progress is not self._progress:  # another iteration of a training run has started
            self._progress = progress
            self._samples = deque([(now, progress.jobs)])
        samples = self._samples
        samples.append((now, progress.jobs))
        while len(samples) > 2 and now - samples[1][0] >= RATE_WINDOW_SECONDS:
            samples.popleft()
        start, jobs = samples[0]
        return (progress.jobs - jobs) / (now - start) if now > start else 0.0


def _without_address(error: str) -> str:
    """Return an error without the server's address at its start, to leave space for the message."""
    address, colon, message = error.partition(": ")
    return message if colon and "://" in address else error


def _count_unless_zero(number: int, noun: str) -> str:
    """Return a count such as `3 repeats`, or an empty string for 0."""
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
    """Return the number of calls that were repeated, because a call failed or an answer was unusable."""
    retries = max(progress.failures - progress.outcomes.get("transport_failed", 0), 0) + progress.repeats
    return f"{retries:,} {'retry' if retries == 1 else 'retries'}"


def _format_questions(progress: Progress) -> str:
    """Return the number of questions that wait for people, and their page; an empty string if no people are asked."""
    if not progress.question_page:
        return ""
    count = _count_unless_zero(progress.questions(), "question") or "no questions"
    return f"{count} for people at {progress.question_page}"


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
