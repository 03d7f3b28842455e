"""The mechanisms that can start a sandbox on this machine, from the strongest to the weakest."""

from __future__ import annotations

import inspect
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from runner.curation.sandbox import confinement, fork_server, values
from runner.curation.sandbox.syscalls import ARCHITECTURES, describe_filter

_SYSTEM_FILES = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo",
)  # fmt: skip
"""Files that Python needs in addition to its own: libraries and time zones."""

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_PYTHON_OPTIONS = ("-s", "-B", "-X", "utf8")
_VARIABLES = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The environment of a program. With one arena, threads need less address space."""
_INHERITED = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_RUNTIME_DIR")
"""Variables that a configured command gets. They do not reach the program."""


BUBBLEWRAP, LANDLOCK, CONFIGURED = "bubblewrap", "landlock", "configured command"


class ProcessStart(NamedTuple):
    """The command and the environment of a process."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


class Mechanism(NamedTuple):
    """A way to start the server of a sandbox.

    The server confines each program with a filter of system calls and limits on resources, and with Landlock if the
    kernel has it. `prefix` are the arguments before those of Python.
    """

    name: str
    prefix: tuple[str, ...] = ()

    @property
    def configuration(self) -> Mapping[str, object]:
        """The configuration of the server as JSON."""
        return {
            "readable": [*_SYSTEM_FILES, *_DEVICES],
            "writable": ["/dev/null"],
            "landlock_required": self.name == LANDLOCK,
            "filter": describe_filter(),
        }

    def start(self, hash_seed: int) -> ProcessStart:
        """Return the command that starts the server. Nothing in the sandbox gets the environment of nip-run."""
        variables = {**_VARIABLES, "PYTHONHASHSEED": str(hash_seed)}
        code = ("-c", _bootstrap_code())
        if self.name == CONFIGURED:
            inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
            assignments = (f"{name}={value}" for name, value in variables.items())
            python = ("env", "-i", *assignments, "python3", *_PYTHON_OPTIONS, *code)
            return ProcessStart((*self.prefix, *python), inherited)
        python = (str(_interpreter()), "-S", *_PYTHON_OPTIONS, *code)
        if self.name == BUBBLEWRAP:
            assignments = (word for variable in variables.items() for word in ("--setenv", *variable))
            return ProcessStart((*self.prefix, *assignments, "--", *python), {})
        return ProcessStart(python, variables)


class UnavailableMechanism(NamedTuple):
    """A mechanism that this machine lacks, and the reason."""

    name: str
    reason: str


def list_mechanisms(command: Sequence[str] = ()) -> Iterator[Mechanism | UnavailableMechanism]:
    """Yield the configured command if there is one, then the mechanisms of this machine, the strongest first."""
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        machine = f"{sys.platform} on {platform.machine()}"
        yield UnavailableMechanism("any", f"a sandbox needs Linux on {' or '.join(ARCHITECTURES)}; this is {machine}")
        return
    if command:
        yield Mechanism(CONFIGURED, tuple(command))
    if (bubblewrap := shutil.which("bwrap")) is None:
        yield UnavailableMechanism(BUBBLEWRAP, "`bwrap` is not installed; install the package bubblewrap")
    else:
        yield Mechanism(BUBBLEWRAP, (bubblewrap, *_bubblewrap_options()))
    yield Mechanism(LANDLOCK)


def _interpreter() -> Path:
    """Return the interpreter itself, not the link of a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _bubblewrap_options() -> list[str]:
    """Return options of bubblewrap: no network, no other processes, and only files that Python needs."""
    files = dict.fromkeys([*_SYSTEM_FILES, f"{sys.base_prefix}/lib", str(_interpreter())])
    binds = [word for path in files for word in ("--ro-bind-try", path, path)]
    devices = [word for path in _DEVICES for word in ("--dev-bind-try", path, path)]
    return [
        "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--new-session",
        "--die-with-parent", *binds, *devices, "--chdir", "/", "--remount-ro", "/",
    ]  # fmt: skip


def _bootstrap_code() -> str:
    """Return Python code that defines the modules of the server, in the order of their imports, and starts it."""
    sources = {module.__name__: inspect.getsource(module) for module in (confinement, values, fork_server)}
    return (
        "import sys, types\n"
        "sys.path[:] = [path for path in sys.path if path]\n"
        f"for name, source in {sources!r}.items():\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(source, name, 'exec'), module.__dict__)\n"
        "module.main()\n"
    )
