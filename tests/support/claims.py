"""Several claims of one test or benchmark, each printed with its figures, that fail together at the end."""

from __future__ import annotations

import time


class Claims:
    """Prints whether each claim holds, and collects those that do not, so that one run shows all of them."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._start = time.monotonic()

    def __call__(self, holds: object, claim: str) -> None:
        if not holds:
            self.failures.append(claim)
        print(f"{'ok  ' if holds else 'FAIL'}  {claim}", flush=True)

    def exit_code(self) -> int:
        """Print the number of failures and return the exit code of a script."""
        print(f"{len(self.failures)} claims failed; {time.monotonic() - self._start:.0f} s")
        return 1 if self.failures else 0
