"""This process' connection to a Ray cluster: one that is there, or one of its own, which ends with it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.runs.workers.cluster.errors import in_a_line
from runner.spec.experiment import Execution

LOOPBACK = "127.0.0.1"

STORE_BYTES = 100 * 2**20
"""The object store of a cluster of our own, which holds nothing of ours: near the least that Ray takes."""

REACH_SECONDS = 10.0


def ray_package() -> ModuleType:
    """Ray, which is imported where it is used and nowhere else.

    Raises:
        UsageError: it is not there.
    """
    # Read when Ray is imported. A cluster that somebody else started has its own say.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # At a SIGTERM, which ends a run in order, it would print a stack first.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"execution.engine=ray needs the package ray ({error}); pip install 'nip-run[ray]', on every node"
        ) from error
    package: ModuleType = ray
    return package


class _Kept:
    """A connection that is kept for the runs that follow: where it goes, and how many CPUs a cluster of our own has."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._address: str | None = None
        self._cpus = 0
        self._is_ours = False

    async def connect(self, ray: Any, execution: Execution) -> None:
        """Be connected as an execution wants it, by the connection that is there if that will do."""
        address = _address_of(execution)
        if self._is_ours and (address != self._address or (address is None and execution.count > self._cpus)):
            await asyncio.to_thread(self.close)
        if ray.is_initialized():
            return
        # The system ends what Ray starts with the thread that started it, so that has to last as long.
        thread = self._held.enter_context(ThreadPoolExecutor(1, "nip-run-ray"))
        self._held.enter_context(_silent(ray))
        self._held.callback(lambda: thread.submit(ray.shutdown).result())
        self._address, self._cpus, self._is_ours = address, execution.count, True
        await _connecting(thread, ray, execution)

    def close(self) -> None:
        self._is_ours = False
        self._held.close()


_KEPT: ContextVar[_Kept | None] = ContextVar("nip_run_ray", default=None)


@contextmanager
def kept() -> Iterator[None]:
    """While this lasts, runs that follow each other share the connection that the first of them makes.

    A Ray of our own takes some eight seconds to start and two to end, which a sweep or a training run pays once so.
    """
    if _KEPT.get() is not None:
        yield
        return
    connection = _Kept()
    before = _KEPT.set(connection)
    try:
        yield
    finally:
        _KEPT.reset(before)
        connection.close()


@asynccontextmanager
async def connected(execution: Execution) -> AsyncIterator[None]:
    """While this lasts, this process is a driver of the cluster; one that was connected before stays so.

    Raises:
        RunError: there is no such cluster, or none can be started.
    """
    ray = ray_package()
    connection = _KEPT.get()
    if connection is not None:
        await connection.connect(ray, execution)
        yield
        return
    connection = _Kept()
    try:
        await connection.connect(ray, execution)
        yield
    finally:
        await asyncio.to_thread(connection.close)


async def _connecting(thread: Executor, ray: Any, execution: Execution) -> None:
    """Connect, and let nothing that has begun go on where this is cancelled: the caller ends it."""
    connecting = asyncio.get_running_loop().run_in_executor(thread, _connect, ray, execution)
    try:
        await asyncio.shield(connecting)
    except asyncio.CancelledError:
        await asyncio.wait([connecting])
        raise


def _address_of(execution: Execution) -> str | None:
    return execution.address or os.environ.get("RAY_ADDRESS") or None


def _connect(ray: Any, execution: Execution) -> None:
    """Connect; in a thread, so that signals stay the loop's, and because it takes seconds."""
    address = _address_of(execution)
    try:
        if address is not None:
            _check_reached(address)
        if address is None:
            _own_token()
            ray.init(
                address="local",
                num_cpus=execution.count,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
                _node_ip_address=LOOPBACK,
            )
        else:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # whatever Ray, or what it is made of, ends with
        said = in_a_line(error)
        if address is None:
            raise RunError(f"cannot start Ray on this machine: {said}; nothing was asked") from error
        where = "execution.address" if execution.address else "RAY_ADDRESS"
        raise RunError(
            f"cannot connect to the Ray cluster at {address} ({where}): {said}. This command must run on a node of "
            "the cluster (`ray status` there shows it), with the same versions of Python and Ray, and its token if it "
            "has one (RAY_AUTH_MODE=token); nothing was asked"
        ) from error


def _check_reached(address: str) -> None:
    """See that somebody listens at an address: Ray itself tries for minutes.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS):
            pass


def _own_token() -> None:
    """Have a cluster of ours let in its own processes alone, by a token that Ray does not leave in the home folder."""
    if not any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def _silent(ray: Any) -> Iterator[None]:
    """Keep Ray from writing between what this command says: its words on workers reach the run's log by us."""
    logger, worker = logging.getLogger("ray"), ray._private.worker  # noqa: SLF001 - there is no public switch
    level, printing = logger.level, getattr(worker, "_worker_logs_enabled", None)
    logger.setLevel(logging.CRITICAL)
    worker._worker_logs_enabled = False  # noqa: SLF001 - what raylets report goes to stdout otherwise
    try:
        yield
    finally:
        logger.setLevel(level)
        if printing is not None:
            worker._worker_logs_enabled = printing  # noqa: SLF001


def room_in_words(ray: Any) -> str:
    """What the cluster has, and what of it is free, by what Ray says of it."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    there, free = _cpus(ray.cluster_resources()), _cpus(ray.available_resources())
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {there:g} CPUs, of which {free:g} are free"


def _cpus(resources: Mapping[str, float]) -> float:
    return resources.get("CPU", 0.0)
