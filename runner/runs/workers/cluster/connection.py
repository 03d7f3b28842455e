"""Connects this process to a Ray cluster: an existing cluster, or one that this command starts and ends.

`runner.runs.workers.cluster.pool` opens the connection, and `runner.runs.session.execution_check` lets the runs of a
command share it.
"""

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
"""The object store's size in a cluster that nip-run starts. The store stays empty, so this is near Ray's minimum."""

REACH_SECONDS = 10.0
"""The timeout of the check that a cluster's address can be reached."""


def ray_package() -> ModuleType:
    """Import Ray and return its package.

    Raises:
        UsageError: Ray is not installed.
    """
    # Ray reads this variable on import. The variable does not affect an existing cluster.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray prints a stack trace at SIGTERM, which is a normal way to end a run.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"execution.engine=ray needs the package ray ({error}); run pip install 'nip-run[ray]' on every node"
        ) from error
    package: ModuleType = ray
    return package


class _Connection:
    """This process's connection to a cluster, which successive runs can share."""

    def __init__(self) -> None:
        self._exit_stack = ExitStack()
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
        # Ray's processes end together with the thread that started them, so this thread must live until `close`.
        thread = self._exit_stack.enter_context(ThreadPoolExecutor(1, "nip-run-ray"))
        self._exit_stack.enter_context(_without_ray_output(ray))
        self._exit_stack.callback(lambda: thread.submit(ray.shutdown).result())
        self._address, self._cpus, self._is_open = address, execution.count, True
        await _connect_in(thread, ray, execution)

    def close(self) -> None:
        """Disconnect, and end a cluster that this command started."""
        self._is_open = False
        self._exit_stack.close()


_SHARED: ContextVar[_Connection | None] = ContextVar("nip_run_ray", default=None)


@contextmanager
def shared_connection() -> Iterator[None]:
    """Share one connection among the runs in this block. The first run opens the connection.

    Starting a local cluster takes about 8 s and ending it 2 s, so a sweep or a training run saves this time.
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
    """Connect in a thread. On cancellation, wait for the thread before raising, so that the caller can disconnect."""
    connect_future = asyncio.get_running_loop().run_in_executor(thread, _connect, ray, execution)
    try:
        await asyncio.shield(connect_future)
    except asyncio.CancelledError:
        await asyncio.wait([connect_future])
        raise


def _address_of(execution: Execution) -> str | None:
    return execution.address or os.environ.get("RAY_ADDRESS") or None


def _connect(ray: Any, execution: Execution) -> None:
    """Connect to the cluster or start one, which takes seconds.

    This runs outside of the main thread, so that Ray does not handle signals.
    """
    address = _address_of(execution)
    try:
        if address is not None:
            _check_reachable(address)
        if address is None:
            _set_cluster_token()
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
    except Exception as error:  # Ray does not document which exceptions it raises
        reason = one_line(error)
        if address is None:
            raise RunError(
                f"cannot start Ray on this machine: {reason}; no model was called. Use execution.engine=processes "
                "instead, or connect to a running cluster with execution.address=HOST:PORT"
            ) from error
        where = "execution.address" if execution.address else "RAY_ADDRESS"
        raise RunError(
            f"cannot connect to the Ray cluster at {address} ({where}): {reason}. Run this command on a node of the "
            "cluster (`ray status` shows the cluster there), with the same versions of Python and Ray, and with the "
            "cluster's token if it has one (RAY_AUTH_MODE=token); no model was called"
        ) from error


def _check_reachable(address: str) -> None:
    """Check that a server listens at an address. If none does, Ray itself would retry for minutes.

    Raises:
        OSError: no server listens at the address.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS):
            pass


def _set_cluster_token() -> None:
    """Set a token that protects a new cluster from other processes. Otherwise Ray writes one to the home folder."""
    if not any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def _without_ray_output(ray: Any) -> Iterator[None]:
    """Prevent Ray from writing to this command's output while the block runs."""
    logger, worker = logging.getLogger("ray"), ray._private.worker  # noqa: SLF001 - Ray has no public option
    level, prints_worker_logs = logger.level, getattr(worker, "_worker_logs_enabled", None)
    logger.setLevel(logging.CRITICAL)
    worker._worker_logs_enabled = False  # noqa: SLF001 - otherwise Ray prints messages of its nodes to stdout
    try:
        yield
    finally:
        logger.setLevel(level)
        if prints_worker_logs is not None:
            worker._worker_logs_enabled = prints_worker_logs  # noqa: SLF001


def describe_capacity(ray: Any) -> str:
    """Describe the cluster's nodes, CPUs and free CPUs."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    total, free = _cpus(ray.cluster_resources()), _cpus(ray.available_resources())
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {total:g} CPUs ({free:g} free)"


def _cpus(resources: Mapping[str, float]) -> float:
    return resources.get("CPU", 0.0)
