"""The process of a run while it is played: its log, signals, garbage collection, open files."""

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
"""How long calls in flight may still come in after the first signal. A person can press Ctrl-C once more; whoever sends
SIGTERM kills soon after."""


_LOGS: ContextVar[tuple[logging.Handler, ...]] = ContextVar("nip_run_logs", default=())
"""The logs of what is at work in this context: a run, and the training run that it is a part of."""

_logging = logging.getLogger("nip_run")


class _RunLog(logging.StreamHandler[TextIO]):
    """The log of one run among those that are played at the same time.

    A full disk may silence it: the journal is what counts, and says so itself.
    """

    level_before: int | None = None
    """What the logger's level was, where this log lowered it."""

    def handle(self, record: logging.LogRecord) -> bool:
        return self in _LOGS.get() and super().handle(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        del record


class _WithoutSecrets(logging.Formatter):
    """What a log says is made of what servers said."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send what limits, retries and batches say of themselves in this context, and in tasks begun in it, to a log."""
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


def _restore_level(ended: _RunLog) -> None:
    """Give the logger its level back, once the last of the logs has ended that needed a lower one."""
    if ended.level_before is None:
        return
    others = [handler for handler in _logging.handlers if isinstance(handler, _RunLog)]
    if others:
        others[0].level_before = ended.level_before
    else:
        _logging.setLevel(ended.level_before)


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Thousands of games in flight are many objects and no garbage; looking through them often costs a fifth."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def stopping_on_signals(stop: StopSwitch, tell: Callable[[float], None] = lambda _: None) -> Iterator[None]:
    """While games are played: the first SIGINT or SIGTERM stops new requests, the second cancels those in flight.

    `tell` is called at the first, with the seconds that those in flight have.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if task is not None:
            task.cancel()

    late: list[asyncio.TimerHandle] = []

    def interrupt(number: signal.Signals = signal.SIGINT) -> None:
        if stop.stopping:
            cancel()
        else:
            stop.stop()
            late.append(loop.call_later(GRACE_SECONDS[number], cancel))
            tell(GRACE_SECONDS[number])

    with _handling_signals(loop, interrupt), on_interrupt(interrupt):
        try:
            yield
        finally:
            for handle in late:
                handle.cancel()


async def signals_heard() -> None:
    """Let a signal that has come reach its handler.

    The loop reads it behind what is ready already, this task included, and calls the handler one turn later.
    """
    for _ in range(3):
        await asyncio.sleep(0)


@contextmanager
def _handling_signals(loop: asyncio.AbstractEventLoop, act: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Have the loop call `act` with its number at each SIGINT and SIGTERM, where it is in the main thread."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            loop.add_signal_handler(number, act, number)
    except (ValueError, RuntimeError):
        pass  # not the main thread, as in a notebook: the main thread passes interrupts on
    try:
        yield
    finally:
        for number in numbers:
            with suppress(ValueError, RuntimeError):
                # The loop puts the system's default in its place, not the handler from before the games.
                if loop.remove_signal_handler(number):
                    signal.signal(number, before[number])


@contextmanager
def sigterm_as_keyboard_interrupt() -> Iterator[None]:
    """Outside of the games: SIGTERM interrupts as SIGINT does.

    Where a loop runs, it has made SIGINT cancel its task. An exception from here may be lost in a library that is at
    work just then.
    """

    def interrupt(*_: object) -> None:
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:
            raise KeyboardInterrupt  # SIGINT is ignored, as in the background of a shell

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: signals are handled there
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible(run_id: str) -> Iterator[None]:
    """SIGINT and SIGTERM as `Interrupted`, in what a run does before and after its games too."""
    try:
        with sigterm_as_keyboard_interrupt():
            yield
    except KeyboardInterrupt:
        raise Interrupted(f"run {run_id} was interrupted; what was paid for is kept") from None


def allow_open_files(more: int) -> None:
    """Let this process keep so many more files open than it may by default, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        wanted = soft + more if hard == resource.RLIM_INFINITY else min(soft + more, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


SPARE_FILES = 32
"""Files that a run opens besides its connections: journal, tables, log, names looked up, the leaderboard."""


FILES_OF_RUN = 12
"""What each further run that is played at the same time opens."""


def connections_within_limits(wanted: int, runs: int = 1) -> int:
    """As many connections, of those wanted by so many runs at once, as this process may hold open.

    Its soft limit is raised for them.
    """
    spare = SPARE_FILES + FILES_OF_RUN * (runs - 1)
    allow_open_files(wanted + spare)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, soft - _open_files() - spare), 1)


def _open_files() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return sum(1 for _ in Path(folder).iterdir()) - 1  # without the one that lists
    return SPARE_FILES


def cores_here() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
