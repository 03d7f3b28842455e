"""The main function of a worker process, which `LocalPool` starts. It ends when the writer (the main process) ends."""

from __future__ import annotations

import asyncio
import gc
import os
import socket

from runner.runs.execution.process import relaxed_gc
from runner.runs.workers.channel import SocketChannel
from runner.runs.workers.worker import Worker


def main(descriptor: int) -> None:
    """Play the games that the writer leases over this socket, until either side closes the socket."""
    gc.freeze()  # let collections skip the imported modules, which are never garbage
    with relaxed_gc():
        asyncio.run(_play(socket.socket(fileno=descriptor)))


async def _play(sock: socket.socket) -> None:
    worker = Worker()
    channel = await SocketChannel.open(sock, worker.receive, _exit)
    worker.connect(channel)
    await worker.finished.wait()
    channel.close()
    await asyncio.Event().wait()  # until the channel has sent everything and `_exit` is called


def _exit() -> None:
    """End immediately, because the writer is gone or has received everything."""
    os._exit(0)
