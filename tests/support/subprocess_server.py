"""A server in a process of its own: its first line on stdout is its port, and it ends when its stdin closes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def server_process(module: str, options: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """The port and the process id of `python -m MODULE --options JSON`, for as long as the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--options", json.dumps(options)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"{module} did not start (exit code {process.wait(10)})")
        yield int(port), process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


async def serve(connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], limit: int) -> None:
    """In that process: listen on a free port, say which, and end when stdin closes; `limit` bytes are buffered."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    listening = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=4096, limit=limit)
    print(listening.sockets[0].getsockname()[1], flush=True)

    def until_stdin_closes() -> None:
        while sys.stdin.buffer.read(1):
            pass
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=until_stdin_closes, daemon=True).start()
    await ended.wait()
    listening.close()
