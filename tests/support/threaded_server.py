"""Servers that answer requests in a thread of the test process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer


@contextmanager
def serve_in_thread(server: BaseServer) -> Iterator[None]:
    """Answer requests until the block ends, also with an error.

    A server that is closed without being shut down keeps its thread busy until the process ends.
    """
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
