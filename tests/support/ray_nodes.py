"""A Ray cluster of several nodes on this machine, in a network namespace that has nothing but the loopback.

Ray listens on every interface that it finds, and whoever reaches it runs what they like. So it is started nowhere else.
The processes of the namespace are its own too, and end with it.
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
_REAPING = '"$@"; exit $?'
"""The first process of a namespace is a shell, which reaps orphans: Ray looks whether those that it knew are gone."""

_INSIDE = "NIP_RUN_TESTS_IN_NAMESPACE"
_SET_FLAGS, _UP = 0x8914, 0x1


def missing() -> str | None:
    """What keeps Ray from being started in a namespace of its own here; None where nothing does."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed (pip install 'nip-run[ray]')"
    if shutil.which("unshare") is None:
        return "no unshare (util-linux), and Ray is started in a network namespace of its own alone"
    tried = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no network namespace ({tried.stderr.strip()}), and Ray is started nowhere else"
    return None


def missing_dashboard() -> str | None:
    """What keeps Ray's dashboard, which takes jobs, from being started here; None where nothing does."""
    wanted = ("aiohttp_cors", "opencensus", "prometheus_client")  # Ray's own test of it is to import them
    if any(importlib.util.find_spec(name) is None for name in wanted):
        return "Ray's dashboard is not installed (pip install 'ray[default]')"
    return None


def _unshare() -> list[str]:
    return _UNSHARE if os.geteuid() == 0 else [*_UNSHARE, "--map-root-user"]


def in_namespace(command: Sequence[str]) -> list[str]:
    """A command as one that runs where there is nothing but a loopback, with all that it starts."""
    return [*_unshare(), "sh", "-c", _REAPING, "sh", "env", f"{_INSIDE}=1", *command]


def is_inside() -> bool:
    """Whether this process was begun by `in_namespace`."""
    return _INSIDE in os.environ


def is_alone() -> bool:
    """Whether this process sees no interface but the loopback."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def check_alone() -> None:
    """Refuse to go on where Ray would be reached from elsewhere; bring the loopback up."""
    if not is_alone():
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise RuntimeError(f"Ray is started in a network namespace that has nothing but lo, and here there is {names}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))


class Nodes:
    """The nodes of a cluster; each stands for a machine, with an environment of its own."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        """Ray's own: sessions, with their logs and sockets; its path is short, as sockets want it."""
        self._cluster: Any = Cluster()

    def add(self, cpus: int, *, dashboard: bool = False, **environment: str) -> Any:
        """Another node; the first is the head, which may have a dashboard."""
        # With its first job the dashboard asks what cloud it is in, where the guard would end it; no one answers.
        own = {"PYTHONPATH": guard.REPOSITORY} if dashboard else {}
        # Where the head writes its address, for who asks for none: not where a person's own Ray has it.
        own |= {"RAY_TMPDIR": str(self.folder)}
        (self.folder / "ray").mkdir(exist_ok=True, parents=True)
        with patch.dict(os.environ, own):
            return self._cluster.add_node(
                num_cpus=cpus, node_ip_address=LOOPBACK, object_store_memory=STORE_BYTES, include_dashboard=dashboard,
                dashboard_host=LOOPBACK, temp_dir=str(self.folder), env_vars=environment,
            )  # fmt: skip

    def remove(self, node: Any) -> None:
        """Take a node away as a power cut does."""
        self._cluster.remove_node(node, allow_graceful=False)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def jobs_address(self) -> str:
        """Where jobs are submitted."""
        return f"http://{self._cluster.webui_url}"

    def shutdown(self) -> None:
        self._cluster.shutdown()


@contextmanager
def nodes(folder: Path, *cpus: int, dashboard: bool = False, **environment: str) -> Iterator[Nodes]:
    """A cluster with a node for each of these numbers of CPUs, for as long as the block runs."""
    check_alone()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Nodes(folder)
    try:
        for number, count in enumerate(cpus):
            cluster.add(count, dashboard=dashboard and number == 0, **environment)
        yield cluster
    finally:
        cluster.shutdown()


def processes(title: bytes) -> list[int]:
    """The processes whose command line begins so."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                if (folder / "cmdline").read_bytes().startswith(title):
                    found.append(int(folder.name))
    return found


def actors() -> list[int]:
    """The workers of runs."""
    return processes(b"ray::NipRunWorker")


def files_with(word: bytes, *folders: Path) -> list[str]:
    """The files below these folders that hold the word."""
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in paths if word in path.read_bytes()]


def stores_with(word: bytes) -> list[int]:
    """The raylets whose object store, which is a file without a name in shared memory, holds the word."""
    found = []
    for pid in raylets():
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if "plasma" in str(fd.readlink()) and fd.stat().st_size and _holds(fd, word):
                    found.append(pid)
    return found


def raylets() -> list[int]:
    """What stands for a node, each."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # One that has ended and that nobody waits for has its name still, and no command line.
                if (folder / "comm").read_text().strip() == "raylet" and (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return found


def _holds(path: Path, word: bytes) -> bool:
    """Whether a file that may be large and mostly empty holds the word."""
    with path.open("rb") as file:
        rest = b""
        while block := file.read(1 << 20):
            if word in rest + block:
                return True
            rest = block[-len(word) :]
    return False
