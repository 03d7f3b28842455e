"""A server in the event loop of the test itself, which has closed its connections when the block ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def run_in_event_loop(connected: ConnectionHandler) -> AsyncIterator[str]:
    """Yield the address of a server that calls `connected` for each connection.

    A connection that is still open when the loop is closed would fail whichever test runs when it is collected. On a
    busy machine, a connection is often still open when the client is done.
    """
    active: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        active[task] = writer
        await connected(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task, writer in active.items():
            task.cancel()
            writer.close()
        await asyncio.gather(*active, return_exceptions=True)
        await asyncio.gather(*(writer.wait_closed() for writer in active.values()), return_exceptions=True)
