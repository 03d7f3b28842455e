"""The class of the actors. Ray carries it to nodes by value, so that it runs where nip-run is missing too."""

from __future__ import annotations

from typing import Any


def worker_class() -> type[Any]:
    """The class, which is within this function so that Ray does not look it up in a module of the node's own."""

    class NipRunWorker:
        def __init__(self) -> None:
            self._seat: Any = None

        async def hello(self) -> dict[str, Any]:
            """Where this is, and the version of nip-run there; None, and why, where it cannot be imported."""
            import os

            import ray

            said = {"node": ray.util.get_node_ip_address(), "pid": os.getpid(), "version": None, "missing": ""}
            try:
                from runner.version import __version__
            except ImportError as error:
                return {**said, "missing": str(error)}
            return {**said, "version": __version__}

        async def exchange(self, number: int, *pieces: bytes) -> bytes:
            if self._seat is None:
                import gc

                from runner.runs.workers.cluster.actor_link import ActorLink

                gc.set_threshold(50_000, 20, 50)  # as `runs.process.relaxed_gc` has it, while the process lives
                self._seat = ActorLink()
            answer: bytes = await self._seat.exchange(number, pieces)
            return answer

        async def left(self) -> None:
            if self._seat is not None:
                await self._seat.left()

    return NipRunWorker
