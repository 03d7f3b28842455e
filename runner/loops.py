"""Coroutines run to their end from plain code, in a notebook too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end; in a thread of its own where a loop is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(start())
    with ThreadPoolExecutor(1, "nip-run") as thread:
        return thread.submit(lambda: asyncio.run(start())).result()
