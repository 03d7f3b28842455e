"""A worker's process, over the socket that it was started with: it ends with the writer, whatever becomes of that."""

from __future__ import annotations

import asyncio
import gc
import os
import socket

from runner.runs.execution.process import relaxed_gc
from runner.runs.workers.link import SocketLink
from runner.runs.workers.shared_memory import Arena
from runner.runs.workers.worker import Playing


def main(descriptor: int, memory: int | None) -> None:
    """Play what the writer leases, until it lets go; `memory` is what is shared with it."""
    gc.freeze()  # of what is imported nothing is garbage, and it is looked through no more
    gc.enable()
    arena = None
    if memory is not None:
        arena = Arena(memory)
        os.close(memory)
    with relaxed_gc():
        asyncio.run(_play(socket.socket(fileno=descriptor), arena))


async def _play(end: socket.socket, arena: Arena | None) -> None:
    playing = Playing()
    link = await SocketLink.over(end, playing.receive, _alone, outgoing=arena)
    playing.connected(link)
    await playing.left.wait()
    link.close()
    await asyncio.sleep(1.0)  # `_alone` comes first, once all is sent


def _alone() -> None:
    """The writer is gone, or has all: nothing that is here is of use to anybody any more."""
    os._exit(0)
