"""Starts the provider that keeps accounts in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.server.client import ROOT, Loopback


class Provider(Loopback):
    """A running provider: `stats()` has its counts, and `billed` what it would ask for."""

    def billed_usd(self, dollars_in: float, dollars_out: float) -> float:
        """The bill at these prices for a million tokens."""
        billed = self.stats()["billed"]
        return float(billed["prompt_tokens"] * dollars_in + billed["completion_tokens"] * dollars_out) / 1e6


@contextmanager
def providing(**options: Any) -> Iterator[Provider]:
    """A provider with these options (see `tests.batch_server.main.Options`) for as long as the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.batch_server.main", "--options", json.dumps(options)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the provider did not start (exit code {process.wait(10)})")
        yield Provider(int(port), process.pid)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
