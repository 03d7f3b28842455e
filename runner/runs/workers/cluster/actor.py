"""The class of the actors. Ray sends it to nodes by value, so it also runs on a node without nip-run."""

from __future__ import annotations

from typing import Any


def worker_class() -> type[Any]:
    """Return the class, which is local to this function so that Ray does not import it from a module on the node."""

    class NipRunWorker:
        def __init__(self) -> None:
            self._channel: Any = None

        async def describe(self) -> dict[str, Any]:
            """Return the node, the process and its version of nip-run; None and the error if nip-run is missing."""
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

                gc.set_threshold(50_000, 20, 50)  # as `relaxed_gc` sets it, for the life of the process
                self._channel = ActorChannel()
            answer: bytes = await self._channel.exchange(number, pieces)
            return answer

        async def wait_until_finished(self) -> None:
            if self._channel is not None:
                await self._channel.worker.finished.wait()

    return NipRunWorker
