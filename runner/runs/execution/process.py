"""Settings of the process that plays a run: log files, signals, garbage collection and the limit of open files."""

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
from runner.base.errors import ANSWERS_ARE_SAVED, Interrupted, RunError
from runner.base.redaction import redacted
from runner.base.storage.safe_files import append_to
from runner.rollouts.stop_switch import StopSwitch

GRACE_SECONDS = {signal.SIGINT: 30.0, signal.SIGTERM: 5.0}
"""The time that calls in flight have to end after the first signal.

The time is short for SIGTERM, because its sender usually kills the process soon. After SIGINT, a person can press
Ctrl-C again to end the wait.
"""

_LOGS: ContextVar[tuple[logging.Handler, ...]] = ContextVar("nip_run_logs", default=())
"""The handlers of this context's logs: of a run and, if the run is a part of a training run, of the training run."""

_logger = logging.getLogger("nip_run")


class _RunLog(logging.StreamHandler[TextIO]):
    """Writes the messages of one run to its log file, even if several runs are played at the same time.

    Errors such as a full disk are ignored, because the journal reports them.
    """

    original_level: int | None = None
    """The level to restore, if this handler lowered the logger's level; otherwise None."""

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
    """Write nip-run's log messages to a file, if they come from this context or from tasks started in it."""
    try:
        file = append_to(path)
    except OSError as error:
        raise RunError(
            f"cannot open the log {path}: {error.strerror}. Check the permissions of the folder, or choose another "
            "--results DIR"
        ) from error
    stream = io.TextIOWrapper(file, "utf-8", write_through=True)
    handler = _RunLog(stream)
    handler.setFormatter(_WithoutSecrets("%(asctime)s %(name)s %(message)s"))
    if _logger.getEffectiveLevel() > logging.INFO:
        handler.original_level = _logger.level
        _logger.setLevel(logging.INFO)
    _logger.addHandler(handler)
    context = _LOGS.set((*_LOGS.get(), handler))
    try:
        yield
    finally:
        _LOGS.reset(context)
        _logger.removeHandler(handler)
        _restore_level(handler)
        handler.close()
        with suppress(OSError):
            stream.close()


def _restore_level(handler: _RunLog) -> None:
    """Restore the logger's level. If logs of other runs are open, do it when one of these is closed."""
    if handler.original_level is None:
        return
    other_logs = [handler for handler in _logger.handlers if isinstance(handler, _RunLog)]
    if other_logs:
        other_logs[0].original_level = handler.original_level
    else:
        _logger.setLevel(handler.original_level)


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Collect garbage less often in this block.

    Thousands of games in flight have many objects but hardly any garbage. With the default thresholds, searching for
    garbage takes a fifth of the CPU time.
    """
    original_thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*original_thresholds)


@contextmanager
def stopping_on_signals(stop: StopSwitch, on_stop: Callable[[float], None] = lambda _: None) -> Iterator[None]:
    """Handle SIGINT and SIGTERM in this block: the first stops new calls, the second cancels calls in flight.

    At the first signal, `on_stop` is called with the seconds that calls in flight have left.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if task is not None:
            task.cancel()

    timers: list[asyncio.TimerHandle] = []

    def interrupt(signal_number: signal.Signals = signal.SIGINT) -> None:
        if stop.is_stopping:
            cancel()
        else:
            stop.stop()
            timers.append(loop.call_later(GRACE_SECONDS[signal_number], cancel))
            on_stop(GRACE_SECONDS[signal_number])

    with _handling_signals(loop, interrupt), on_interrupt(interrupt):
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


async def wait_for_signal_handlers() -> None:
    """Wait until the handlers of all signals that have arrived were called.

    The event loop reads a signal after it has run all ready tasks, and calls the handler in the next iteration.
    """
    for _ in range(3):
        await asyncio.sleep(0)


@contextmanager
def _handling_signals(loop: asyncio.AbstractEventLoop, handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Make the loop call `handle` with each SIGINT and SIGTERM. Outside of the main thread, do nothing."""
    signals = (signal.SIGINT, signal.SIGTERM)
    original_handlers = {signal_number: signal.getsignal(signal_number) for signal_number in signals}
    try:
        for signal_number in signals:
            loop.add_signal_handler(signal_number, handle, signal_number)
    except (ValueError, RuntimeError):
        pass  # not the main thread, as in a notebook, whose main thread calls the handler of `on_interrupt`
    try:
        yield
    finally:
        for signal_number in signals:
            with suppress(ValueError, RuntimeError):
                # The loop sets the system's default handler, not the original one.
                if loop.remove_signal_handler(signal_number):
                    signal.signal(signal_number, original_handlers[signal_number])


@contextmanager
def sigterm_as_keyboard_interrupt() -> Iterator[None]:
    """Make SIGTERM act like SIGINT in this block, for the work of a command before and after the games.

    The handler sends SIGINT instead of raising an exception, because the library code that runs at that moment could
    swallow the exception. While an event loop runs, SIGINT cancels the loop's task.
    """

    def interrupt(*_: object) -> None:
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:
            raise KeyboardInterrupt  # SIGINT is ignored, as in the background of a shell

    try:
        original_handler = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # this is not the main thread, and only the main thread can set handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, original_handler)


@contextmanager
def interruptible(run_id: str) -> Iterator[None]:
    """Raise `Interrupted` if SIGINT or SIGTERM ends this block, even while no game is played."""
    try:
        with sigterm_as_keyboard_interrupt():
            yield
    except KeyboardInterrupt:
        raise interrupted_error(run_id) from None


def interrupted_error(run_id: str) -> Interrupted:
    """Return the error for a run that was stopped."""
    return Interrupted(f"run {run_id} was interrupted; run the same command again to resume it. {ANSWERS_ARE_SAVED}")


def raise_open_files_limit(additional: int) -> None:
    """Raise this process's soft limit of open files by `additional`, or to its hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        target = soft + additional if hard == resource.RLIM_INFINITY else min(soft + additional, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


SPARE_FILES = 32
"""The number of open files to reserve for a run's journal, tables, log, DNS and leaderboard."""

FILES_OF_RUN = 12
"""The number of open files to reserve for each additional concurrent run."""


def reserve_connections(requested: int, run_count: int = 1) -> int:
    """Raise the soft limit of open files for these connections, and return how many of them the process may open.

    `run_count` is the number of concurrent runs.
    """
    spare = SPARE_FILES + FILES_OF_RUN * (run_count - 1)
    raise_open_files_limit(requested + spare)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return requested
    return max(min(requested, soft - _open_files() - spare), 1)


def _open_files() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return sum(1 for _ in Path(folder).iterdir()) - 1  # minus the file that the listing itself opens
    return SPARE_FILES


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
