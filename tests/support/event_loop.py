"""Helpers for coroutines: an order of events that no load of the machine changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from runner.models.interface import Completion


async def as_coroutine(call: Awaitable[Completion]) -> Completion:
    """Wrap an awaitable in a coroutine, which `asyncio.run` and `create_task` require."""
    return await call


async def run_loop_turns(count: int) -> None:
    """Let the event loop run `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settle() -> None:
    """Let the event loop run until every task that can go on has done so."""
    await run_loop_turns(20)
