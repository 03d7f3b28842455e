"""A command that is followed until it ends, or has taken more than it may."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from runner.registry.transports.git.errors import without_secrets


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """What a repository may take of this machine before it is refused."""

    idle_seconds: float = 120.0
    """Without a word of git."""
    seconds: float = 300.0
    """The fixed part of the time of a command; each transferred byte adds to it."""
    rate: int = 8 << 10
    """Minimum rate of a transfer in bytes a second, in either direction."""
    pack_bytes: int = 16 << 30
    """On the disk; not more than half of what is free there."""
    memory_bytes: int = 4 << 30
    answer_bytes: int = 64 << 20
    """Of what git says, such as all branches."""
    entries: int = 1_000_000
    """Files and folders of a registry."""
    pushes: int = 200
    """How often what is to be added is tried again because somebody else's came first."""


USUAL = ProcessLimits()

_KEEP = 16 << 10
_PIECE = 1 << 16


class GitFailed(Exception):
    """Git ended with an error, in words; `said` is what it wrote, without secrets."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with all that it started."""
    if process.poll() is None:  # once it was waited for, another process may have its number
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


class Feeder:
    """Writes to a command beside the reading of what it says."""

    def __init__(self, process: subprocess.Popen[bytes], pieces: Iterable[bytes]) -> None:
        assert process.stdin is not None
        self._process, self._pieces, self._to = process, pieces, process.stdin
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for piece in self._pieces:
                self._to.write(piece)
            self._to.close()
        except BrokenPipeError:
            return  # its end says why
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            self._error = error
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Once the command has ended, or is to.

        Raises:
            OSError: what was to be fed could not be read.
        """
        if self._process.poll() is None:
            end(self._process)
        self._thread.join()
        if self._error is not None:
            raise self._error


class Watch:
    """Reads what a command says, until it ends or has taken more than it may."""

    def __init__(
        self, process: subprocess.Popen[bytes], bounds: ProcessLimits, transferred: Callable[[], int] = lambda: 0
    ) -> None:
        """`transferred` counts the bytes for which the command gets additional time."""
        self._process, self._bounds, self._transferred = process, bounds, transferred
        self._out, self._errors, self._heard = bytearray(), bytearray(), 0

    @property
    def answer(self) -> bytes:
        return bytes(self._out)

    def said(self) -> str:
        """The last of what it wrote on stderr, without secrets."""
        return without_secrets(self._errors.decode("utf-8", "backslashreplace"))

    def follow(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        begun = last = time.monotonic()
        with selectors.DefaultSelector() as pipes:
            pipes.register(self._process.stdout, selectors.EVENT_READ, self._hear_answer)
            pipes.register(self._process.stderr, selectors.EVENT_READ, self._hear_error)
            while pipes.get_map():
                now = time.monotonic()
                if now - last > self._bounds.idle_seconds:
                    raise GitFailed(f"nothing came for {self._bounds.idle_seconds:g} seconds", self.said())
                self._check_rate(now - begun)
                ended = self._process.poll() is not None
                ready = pipes.select(0 if ended else min(0.5, self._bounds.idle_seconds, self._bounds.seconds))
                for key, _ in ready:
                    piece = os.read(key.fd, _PIECE)
                    last = time.monotonic()
                    if piece:
                        key.data(piece)
                    else:
                        pipes.unregister(key.fileobj)
                if ended and not ready:
                    break  # what it left behind, such as a connection that is shared, may hold the pipes
        self._process.wait()

    def _check_rate(self, waited: float) -> None:
        if waited > self._bounds.seconds:  # before that, nothing needs to be counted
            size = self._transferred()
            if waited > self._bounds.seconds + size / self._bounds.rate:
                raise GitFailed(f"it took more than {waited:.0f} seconds for {size:,} bytes", self.said())

    def _hear_answer(self, piece: bytes) -> None:
        self._out += piece
        if len(self._out) > self._bounds.answer_bytes:
            raise GitFailed(f"its answer is larger than {self._bounds.answer_bytes:,} bytes", self.said())

    def _hear_error(self, piece: bytes) -> None:
        self._errors += piece
        self._heard += len(piece)
        del self._errors[:-_KEEP]
        if self._heard > self._bounds.answer_bytes:
            raise GitFailed(f"it says more than {self._bounds.answer_bytes:,} bytes", self.said())
