"""The process of a run while it is played: its log, signals, garbage collection and open files."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from runner.base.async_runner import on_interrupt
from runner.base.errors import Interrupted, RunError
from runner.base.redaction import redacted
from runner.base.storage.safe_files import append_to
from runner.rollouts.stop_switch import StopSwitch

GRACE_SECONDS = {signal.SIGINT: 30.0, signal.SIGTERM: 5.0}
"""The time that calls in flight have after the first signal.

It is short for SIGTERM, whose sender usually kills the process soon after. A person can press Ctrl-C again.
"""


_LOGS: ContextVar[tuple[logging.Handler, ...]] = ContextVar("nip_run_logs", default=())
"""The log handlers of this context: of a run, and of the training run that it is a part of."""

_logging = logging.getLogger("nip_run")


class _RunLog(logging.StreamHandler[TextIO]):
    """The log of one run, even if several are played at the same time.

    Errors such as a full disk are ignored, because the journal reports them.
    """

    level_before: int | None = None
    """The logger's level before this log lowered it."""

    def handle(self, record: logging.LogRecord) -> bool:
        return self in _LOGS.get() and super().handle(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        del record


class _WithoutSecrets(logging.Formatter):
    """Redacts secrets, because log messages contain text from servers."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Write the messages of limits, retries and batches in this context, and in tasks started in it, to a log file."""
    try:
        file = append_to(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    stream = io.TextIOWrapper(file, "utf-8", write_through=True)
    handler = _RunLog(stream)
    handler.setFormatter(_WithoutSecrets("%(asctime)s %(name)s %(message)s"))
    if _logging.getEffectiveLevel() > logging.INFO:
        handler.level_before = _logging.level
        _logging.setLevel(logging.INFO)
    _logging.addHandler(handler)
    context = _LOGS.set((*_LOGS.get(), handler))
    try:
        yield
    finally:
        _LOGS.reset(context)
        _logging.removeHandler(handler)
        _restore_level(handler)
        handler.close()
        with suppress(OSError):
            stream.close()


def _restore_level(handler: _RunLog) -> None:
    """Restore the logger's level when the last log that lowered it ends."""
    if handler.level_before is None:
        return
    other_logs = [handler for handler in _logging.handlers if isinstance(handler, _RunLog)]
    if other_logs:
        other_logs[0].level_before = handler.level_before
    else:
        _logging.setLevel(handler.level_before)


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Collect garbage less often: thousands of games in flight are many objects but no garbage.

    With the default thresholds, the collector takes a fifth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def stopping_on_signals(stop: StopSwitch, tell: Callable[[float], None] = lambda _: None) -> Iterator[None]:
    """Handle signals while games are played: the first stops new requests, the second cancels calls in flight.

    The signals are SIGINT and SIGTERM. `tell` is called at the first, with the seconds that calls in flight have left.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if task is not None:
            task.cancel()

    timers: list[asyncio.TimerHandle] = []

    def interrupt(number: signal.Signals = signal.SIGINT) -> None:
        if stop.stopping:
            cancel()
        else:
            stop.stop()
            timers.append(loop.call_later(GRACE_SECONDS[number], cancel))
            tell(GRACE_SECONDS[number])

    with _handling_signals(loop, interrupt), on_interrupt(interrupt):
        try:
            yield
        finally:
            for handle in timers:
                handle.cancel()


async def wait_for_signals() -> None:
    """Wait until a signal that has arrived has reached its handler.

    The loop reads it after all ready tasks, this one included, and calls the handler one iteration later.
    """
    for _ in range(3):
        await asyncio.sleep(0)


@contextmanager
def _handling_signals(loop: asyncio.AbstractEventLoop, act: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Make the loop call `act` with the signal at each SIGINT and SIGTERM, if it runs in the main thread."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            loop.add_signal_handler(number, act, number)
    except (ValueError, RuntimeError):
        pass  # not the main thread, as in a notebook; the main thread forwards interrupts
    try:
        yield
    finally:
        for number in numbers:
            with suppress(ValueError, RuntimeError):
                # The loop restores the system's default, not the handler from before the games.
                if loop.remove_signal_handler(number):
                    signal.signal(number, before[number])


@contextmanager
def sigterm_as_keyboard_interrupt() -> Iterator[None]:
    """Make SIGTERM interrupt like SIGINT, outside of the games.

    While a loop runs, SIGINT cancels its task. (An exception raised here could be lost in the library code that is
    running at that moment.)
    """

    def interrupt(*_: object) -> None:
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:
            raise KeyboardInterrupt  # SIGINT is ignored, as in the background of a shell

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, where signals are handled
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible(run_id: str) -> Iterator[None]:
    """Raise `Interrupted` at SIGINT and SIGTERM, also before and after the games of a run."""
    try:
        with sigterm_as_keyboard_interrupt():
            yield
    except KeyboardInterrupt:
        raise Interrupted(f"run {run_id} was interrupted; all paid answers are saved") from None


def allow_open_files(more: int) -> None:
    """Raise this process's limit of open files by `more`, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        target = soft + more if hard == resource.RLIM_INFINITY else min(soft + more, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


SPARE_FILES = 32
"""The number of files that a run opens in addition to connections: journal, tables, log, DNS, the leaderboard."""


FILES_OF_RUN = 12
"""The number of files that each additional concurrent run opens."""


def connections_within_limits(requested: int, runs: int = 1) -> int:
    """Raise the soft limit of open files, and return how many of the requested connections the process may open.

    `runs` is the number of concurrent runs.
    """
    spare = SPARE_FILES + FILES_OF_RUN * (runs - 1)
    allow_open_files(requested + spare)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return requested
    return max(min(requested, soft - _open_files() - spare), 1)


def _open_files() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return sum(1 for _ in Path(folder).iterdir()) - 1  # without the file of the listing itself
    return SPARE_FILES


def cores_here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
