"""One call of whatever answers requests."""

from __future__ import annotations

from collections.abc import Awaitable

from runner.models.interface import Completion


async def answer_to(call: Awaitable[Completion]) -> Completion:
    """A coroutine, which `asyncio.run` and `create_task` want, of what need be no more than awaitable."""
    return await call
