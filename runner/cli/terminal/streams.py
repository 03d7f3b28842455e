"""What is printed, without secrets: tracebacks of other people's libraries, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from runner.base.redaction import MIN_LENGTH, count_remembered, current_redactor


class _Filtered:
    """A stream that writes texts without secrets, and is otherwise the one it stands for."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._redactor, self._known = current_redactor(), count_remembered()

    def write(self, text: str) -> int:
        if self._known != count_remembered():  # a key was read meanwhile
            self._redactor, self._known = current_redactor(), count_remembered()
        self._stream.write(text if len(text) < MIN_LENGTH else self._redactor.redact_text(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def without_secrets() -> Iterator[None]:
    """Filter stdout and stderr for as long as the block runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Filtered(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
