"""The class of the Ray actors that play the games of a run.

Ray sends the class to nodes by value. A node can therefore load it and report its version even without nip-run.
"""

from __future__ import annotations

from typing import Any


def worker_class() -> type[Any]:
    """Return the actor class. It is local to this function, because Ray would import a global class on the node."""

    class NipRunWorker:
        def __init__(self) -> None:
            self._channel: Any = None

        async def describe(self) -> dict[str, object]:
            """Return the node, the process id and the version of nip-run there, or the error if nip-run is missing."""
            import os

            import ray

            info = {"node": ray.util.get_node_ip_address(), "pid": os.getpid(), "version": None, "missing": ""}
            try:
                from runner.version import __version__
            except ImportError as error:
                return {**info, "missing": str(error)}
            return {**info, "version": __version__}

        async def exchange(self, number: int, *pieces: bytes) -> bytes:
            if self._channel is None:
                import gc

                from runner.runs.workers.cluster.actor_channel import ActorChannel

                gc.set_threshold(50_000, 20, 50)  # the same values as in `relaxed_gc`
                self._channel = ActorChannel()
            answer: bytes = await self._channel.exchange(number, pieces)
            return answer

        async def wait_until_finished(self) -> None:
            if self._channel is not None:
                await self._channel.worker.finished.wait()

    return NipRunWorker
