"""Remove secrets from everything that a command prints, including tracebacks of third-party libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from runner.base.redaction import MIN_LENGTH, count_remembered, current_redactor
from runner.cli.terminal.output import OutputError


class _RedactedStream:
    """A stream that removes secrets from written text, and otherwise behaves like the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._redactor, self._secret_count = current_redactor(), count_remembered()

    def write(self, text: str) -> int:
        if self._secret_count != count_remembered():  # a new secret was read since the last write
            self._redactor, self._secret_count = current_redactor(), count_remembered()
        with _output_errors():
            self._stream.write(text if len(text) < MIN_LENGTH else self._redactor.redact_text(text))
        return len(text)

    def flush(self) -> None:
        with _output_errors():
            self._stream.flush()

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _output_errors() -> Iterator[None]:
    """Raise an `OutputError` if the stream cannot be written, so that it is not taken for an error of a data file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.errno, error.strerror) from error


@contextmanager
def redact_output() -> Iterator[None]:
    """Remove secrets from stdout and stderr within this context."""
    originals = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _RedactedStream(stream)) for stream in originals)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = originals
