"""A Ray cluster of several nodes on this machine, in a network namespace that has only the loopback interface.

Ray listens on every interface, and anybody who can reach it can run code, so the tests start it nowhere else. The
namespace also has its own processes, which end with it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support import guard

LOOPBACK = "127.0.0.1"
STORE_BYTES = 100 * 2**20

_UNSHARE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
_REAP_ORPHANS = '"$@"; exit $?'
"""The first process of the namespace: a shell, which reaps orphans, because Ray checks that its processes are gone."""

_INSIDE = "NIP_RUN_TESTS_IN_NAMESPACE"
_SET_FLAGS, _UP = 0x8914, 0x1


def find_missing_requirement() -> str | None:
    """Return why Ray cannot be started in its own namespace on this machine, or None if it can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed (pip install 'nip-run[ray]')"
    if shutil.which("unshare") is None:
        return "no unshare (util-linux), which creates the network namespace for Ray"
    attempt = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, check=False)
    if attempt.returncode:
        return f"no network namespace for Ray ({attempt.stderr.strip()})"
    return None


def find_missing_dashboard() -> str | None:
    """Return why Ray's dashboard, which accepts jobs, cannot be started, or None if it can."""
    modules = ("aiohttp_cors", "opencensus", "prometheus_client")  # Ray checks for the dashboard by importing these
    if any(importlib.util.find_spec(name) is None for name in modules):
        return "Ray's dashboard is not installed (pip install 'ray[default]')"
    return None


def _unshare() -> list[str]:
    return _UNSHARE if os.geteuid() == 0 else [*_UNSHARE, "--map-root-user"]


def in_namespace(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` in a network namespace with only the loopback interface."""
    return [*_unshare(), "sh", "-c", _REAP_ORPHANS, "sh", "env", f"{_INSIDE}=1", *command]


def is_in_namespace() -> bool:
    """Return whether this process was started with `in_namespace`."""
    return _INSIDE in os.environ


def has_only_loopback() -> bool:
    """Return whether this process sees only the loopback interface."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def check_only_loopback() -> None:
    """Raise RuntimeError if another machine could reach Ray; bring the loopback interface up."""
    if not has_only_loopback():
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise RuntimeError(f"Ray may only be started in a network namespace with lo alone, but this one has {names}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))


class RayCluster:
    """A cluster. Each node stands for a machine, with its own environment variables."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        """The folder of Ray's sessions, logs and sockets. Its path must be short enough for sockets."""
        self._cluster: Any = Cluster()

    def add_node(self, cpus: int, *, dashboard: bool = False, **environment: str) -> Any:
        """Add a node. The first one is the head, which can have a dashboard."""
        # With its first job the dashboard looks up its cloud provider. The guard would end the dashboard for that.
        variables = {"PYTHONPATH": guard.REPOSITORY} if dashboard else {}
        # The head writes the default address of clusters here, and not where the user's own Ray looks for it.
        variables |= {"RAY_TMPDIR": str(self.folder)}
        (self.folder / "ray").mkdir(exist_ok=True, parents=True)
        with patch.dict(os.environ, variables):
            return self._cluster.add_node(
                num_cpus=cpus, node_ip_address=LOOPBACK, object_store_memory=STORE_BYTES, include_dashboard=dashboard,
                dashboard_host=LOOPBACK, temp_dir=str(self.folder), env_vars=environment,
            )  # fmt: skip

    def kill_node(self, node: Any) -> None:
        """Remove a node without a shutdown, as a power cut would."""
        self._cluster.remove_node(node, allow_graceful=False)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def jobs_address(self) -> str:
        """The address to submit jobs to."""
        return f"http://{self._cluster.webui_url}"

    def shutdown(self) -> None:
        self._cluster.shutdown()


@contextmanager
def run_cluster(folder: Path, *cpus: int, dashboard: bool = False, **environment: str) -> Iterator[RayCluster]:
    """Run a cluster with a node for each of these numbers of CPUs."""
    check_only_loopback()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster = RayCluster(folder)
    try:
        for number, count in enumerate(cpus):
            cluster.add_node(count, dashboard=dashboard and number == 0, **environment)
        yield cluster
    finally:
        cluster.shutdown()


def find_processes(title: bytes) -> list[int]:
    """Return the processes whose command line starts with `title`."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # the process has just ended
                if (folder / "cmdline").read_bytes().startswith(title):
                    pids.append(int(folder.name))
    return pids


def find_actors() -> list[int]:
    """Return the workers of runs."""
    return find_processes(b"ray::NipRunWorker")


def find_files_with(data: bytes, *folders: Path) -> list[str]:
    """Return the files below these folders that contain a word."""
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in paths if data in path.read_bytes()]


def find_stores_with(data: bytes) -> list[int]:
    """Return the raylets whose object store, an unnamed file in shared memory, contains a word."""
    pids = []
    for pid in find_raylets():
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if "plasma" in str(fd.readlink()) and fd.stat().st_size and _contains(fd, data):
                    pids.append(pid)
    return pids


def find_raylets() -> list[int]:
    """Return the raylets. There is one per node."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # A zombie still has its name, but no command line.
                if (folder / "comm").read_text().strip() == "raylet" and (folder / "cmdline").read_bytes():
                    pids.append(int(folder.name))
    return pids


def _contains(path: Path, data: bytes) -> bool:
    """Return whether a file, which can be large and mostly empty, contains a word."""
    with path.open("rb") as file:
        rest = b""
        while block := file.read(1 << 20):
            if data in rest + block:
                return True
            rest = block[-len(data) :]
    return False
