"""Assertions that do not stop a long test or benchmark at the first failure."""

from __future__ import annotations

import time


class SoftAssertions:
    """Prints the result of each check with its figures and collects the failures, so that one run shows all of them."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._started = time.monotonic()

    def __call__(self, condition: object, message: str) -> None:
        """Record whether `condition` is true; `message` says what was expected, with the measured figures."""
        if not condition:
            self.failures.append(message)
        print(f"{'ok  ' if condition else 'FAIL'}  {message}", flush=True)

    def exit_code(self) -> int:
        """Print the number of failures and return the exit code of a script."""
        print(f"{len(self.failures)} checks failed; {time.monotonic() - self._started:.0f} s")
        return 1 if self.failures else 0
