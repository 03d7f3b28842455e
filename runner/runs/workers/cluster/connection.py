"""This process' connection to a Ray cluster: one that is there, or one of its own, which ends with it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any

from runner.errors import RunError, UsageError
from runner.runs.workers.cluster.words import in_a_line
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
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"execution.engine=ray needs the package ray ({error}); pip install 'nip-run[ray]', on every node"
        ) from error
    package: ModuleType = ray
    return package


@asynccontextmanager
async def connected(execution: Execution) -> AsyncIterator[None]:
    """While this lasts, this process is a driver of the cluster; one that was connected before stays so.

    Raises:
        RunError: there is no such cluster, or none can be started.
    """
    ray = ray_package()
    if ray.is_initialized():
        yield
        return
    with _silent(ray):
        connecting = asyncio.ensure_future(asyncio.to_thread(_connect, ray, execution))
        try:
            try:
                await asyncio.shield(connecting)
            except asyncio.CancelledError:
                await asyncio.wait([connecting])  # what it has started by then is ended below
                raise
            yield
        finally:
            await asyncio.to_thread(ray.shutdown)


def _connect(ray: Any, execution: Execution) -> None:
    """Connect; in a thread, so that signals stay the loop's, and because it takes seconds."""
    address = execution.address or os.environ.get("RAY_ADDRESS") or None
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
            "the cluster (`ray status` there shows it), with the same versions of Python and Ray; nothing was asked"
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
