"""This process's connection to a Ray cluster, which already exists or starts and ends with the command."""

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
from runner.runs.workers.cluster.errors import one_line
from runner.spec.experiment import Execution

LOOPBACK = "127.0.0.1"

STORE_BYTES = 100 * 2**20
"""The size of the object store of a cluster that we start; it stays empty, so this is near Ray's minimum."""

REACH_SECONDS = 10.0


def ray_package() -> ModuleType:
    """Import Ray.

    Raises:
        UsageError: it is not installed.
    """
    # Ray reads this on import. It does not affect an existing cluster.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray prints a stack trace at SIGTERM, which is a normal way to end a run.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"execution.engine=ray needs the package ray ({error}); pip install 'nip-run[ray]', on every node"
        ) from error
    package: ModuleType = ray
    return package


class _Connection:
    """This process's connection to a cluster, which successive runs can share."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._address: str | None = None
        self._cpus = 0
        self._is_open = False

    async def open(self, ray: Any, execution: Execution) -> None:
        """Connect as `execution` requires, unless this process already has such a connection."""
        address = _address_of(execution)
        if self._is_open and (address != self._address or (address is None and execution.count > self._cpus)):
            await asyncio.to_thread(self.close)
        if ray.is_initialized():
            return
        # The system ends Ray's processes together with the thread that started them, so this thread must live on.
        thread = self._closing.enter_context(ThreadPoolExecutor(1, "nip-run-ray"))
        self._closing.enter_context(_silent(ray))
        self._closing.callback(lambda: thread.submit(ray.shutdown).result())
        self._address, self._cpus, self._is_open = address, execution.count, True
        await _connect_in(thread, ray, execution)

    def close(self) -> None:
        self._is_open = False
        self._closing.close()


_SHARED: ContextVar[_Connection | None] = ContextVar("nip_run_ray", default=None)


@contextmanager
def shared_connection() -> Iterator[None]:
    """Share one connection among the runs in this block, opened by the first of them.

    Starting a local Ray takes about 8 s and ending it 2 s, so a sweep or a training run saves that time.
    """
    if _SHARED.get() is not None:
        yield
        return
    connection = _Connection()
    token = _SHARED.set(connection)
    try:
        yield
    finally:
        _SHARED.reset(token)
        connection.close()


@asynccontextmanager
async def connected(execution: Execution) -> AsyncIterator[None]:
    """Connect this process to the cluster as a driver, or use a connection that is already open.

    Raises:
        RunError: the cluster cannot be reached or started.
    """
    ray, shared = ray_package(), _SHARED.get()
    connection = shared or _Connection()
    try:
        await connection.open(ray, execution)
        yield
    finally:
        if shared is None:
            await asyncio.to_thread(connection.close)


async def _connect_in(thread: Executor, ray: Any, execution: Execution) -> None:
    """Connect in a thread; if this is canceled, wait for the thread first, so that the caller can disconnect."""
    connecting = asyncio.get_running_loop().run_in_executor(thread, _connect, ray, execution)
    try:
        await asyncio.shield(connecting)
    except asyncio.CancelledError:
        await asyncio.wait([connecting])
        raise


def _address_of(execution: Execution) -> str | None:
    return execution.address or os.environ.get("RAY_ADDRESS") or None


def _connect(ray: Any, execution: Execution) -> None:
    """Connect to or start the cluster, which takes seconds. Outside of the main thread, Ray does not handle signals."""
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
    except Exception as error:  # Ray documents none
        reason = one_line(error)
        if address is None:
            raise RunError(f"cannot start Ray on this machine: {reason}; no model was called") from error
        where = "execution.address" if execution.address else "RAY_ADDRESS"
        raise RunError(
            f"cannot connect to the Ray cluster at {address} ({where}): {reason}. This command must run on a node of "
            "the cluster (`ray status` shows it there), with the same versions of Python and Ray, and its token if it "
            "has one (RAY_AUTH_MODE=token); no model was called"
        ) from error


def _check_reached(address: str) -> None:
    """Check that a server listens at an address, because Ray itself would try for minutes.

    Raises:
        OSError: no server listens there.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS):
            pass


def _own_token() -> None:
    """Restrict a cluster that we start to its own processes, by a token that Ray does not write to the home folder."""
    if not any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def _silent(ray: Any) -> Iterator[None]:
    """Prevent Ray from writing to the output of this command."""
    logger, worker = logging.getLogger("ray"), ray._private.worker  # noqa: SLF001 - there is no public switch
    level, printing = logger.level, getattr(worker, "_worker_logs_enabled", None)
    logger.setLevel(logging.CRITICAL)
    worker._worker_logs_enabled = False  # noqa: SLF001 - otherwise messages of raylets go to stdout
    try:
        yield
    finally:
        logger.setLevel(level)
        if printing is not None:
            worker._worker_logs_enabled = printing  # noqa: SLF001


def describe_room(ray: Any) -> str:
    """Describe the CPUs of the cluster and how many are free."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    total, free = _cpus(ray.cluster_resources()), _cpus(ray.available_resources())
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {total:g} CPUs ({free:g} free)"


def _cpus(resources: Mapping[str, float]) -> float:
    return resources.get("CPU", 0.0)
