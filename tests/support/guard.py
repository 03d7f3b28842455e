"""Keeps the processes of the tests from using the network beyond loopback, and from writing outside temporary folders.

`conftest` calls `forbid_access` for the process of the tests. `startup/sitecustomize` calls it in each Python process
that a test starts with `guard_variables` in its environment. Python's audit hooks see every use of sockets and the file
system from Python. They do not see what native code does, such as DuckDB writing its files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from tests.support.paths import ROOT

FOLDERS = "NIP_RUN_TESTS_FOLDERS"
"""The environment variable that lists the writable folders of a process."""
STARTUP = str(ROOT / "tests" / "support" / "startup")
REPOSITORY = str(ROOT)
SECRETS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_HEADERS", "_PROXY")
"""Suffixes of environment variables that contain secrets or proxies."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class AccessForbidden(BaseException):
    """Raised on forbidden access. It is not an `Exception`, so that the program cannot handle or retry it."""


class _State:
    """State of the only audit hook, because an audit hook cannot be removed."""

    installed = False
    folders: tuple[str, ...] | None = None
    """Writable folders of the process. None disables the guard."""


def remove_secrets(environ: MutableMapping[str, str]) -> None:
    """Remove secrets, which could spend money, and proxies, which could connect loopback to another machine."""
    for name in [name for name in environ if name.upper().endswith(SECRETS)]:
        del environ[name]


def guard_variables() -> dict[str, str]:
    """Return environment variables that make a Python process guard itself and find the repository."""
    import tempfile  # imported here because it would slow down the start of guarded processes

    folders = _State.folders or (tempfile.gettempdir(),)
    return {"PYTHONPATH": os.pathsep.join((STARTUP, REPOSITORY)), FOLDERS: os.pathsep.join(folders)}


def forbid_access(folders: Iterable[str]) -> None:
    """Forbid access to other machines, and writing outside these folders, from now on."""
    _State.folders = tuple(os.path.realpath(folder) for folder in folders)
    if not _State.installed:
        _State.installed = True
        sys.addaudithook(_hook)


@contextmanager
def access_forbidden(folders: Iterable[str]) -> Iterator[None]:
    """Forbid access within a `with` block (see `forbid_access`)."""
    forbid_access(folders)
    try:
        yield
    finally:
        _State.folders = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    check = _CHECKS.get(event)
    if check is not None and _State.folders is not None:
        check(*arguments)


# The network


def _is_loopback(host: object) -> bool:
    name = host.decode("latin-1") if isinstance(host, bytes) else host
    return isinstance(name, str) and (name in ("localhost", "::1") or name.startswith("127."))


def _check_address(_: object, address: object) -> None:
    """Check the address of a socket: an internet address is a tuple that starts with the host, a Unix one a path."""
    if isinstance(address, tuple) and isinstance(address[0], (str, bytes)) and not _is_loopback(address[0]):
        raise AccessForbidden(f"tests talk to 127.0.0.1 alone, not to {address[0]!r}")


def _check_host(host: object, *_: object) -> None:
    if host and not _is_loopback(host):
        raise AccessForbidden(f"tests talk to 127.0.0.1 alone, and do not look up {host!r}")


# The file system


def _check_open(path: object, _: object, flags: int) -> None:
    if flags & WRITES:
        _check_write(path)


def _check_write(path: object, folder: int | None = None) -> None:
    """Check a path to be written, which is relative to the open folder with the descriptor `folder`."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    name = os.fsdecode(path)
    if folder not in (None, -1) and not name.startswith(os.sep):
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)  # noqa: PTH115, PTH118 - at every write
    if not _is_writable(os.path.abspath(name)) and not _is_writable(os.path.realpath(name)):  # noqa: PTH100 - at every write
        raise AccessForbidden(f"tests write in temporary folders alone, not {name!r}")


def _is_writable(path: str) -> bool:
    if path.startswith(("/dev/", "/proc/")) or f"{os.sep}__pycache__{os.sep}" in path + os.sep:
        return True
    folders = [folder for folder in _State.folders or () if _is_within(path, folder)]
    # A checkout within the folder for temporary files is not itself temporary.
    is_checkout = _is_within(path, REPOSITORY) and not any(_is_within(folder, REPOSITORY) for folder in folders)
    return bool(folders) and not is_checkout


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _check_move(source: object, target: object, source_folder: int = -1, target_folder: int = -1) -> None:
    _check_write(source, source_folder)
    _check_write(target, target_folder)


def _check_database(database: object) -> None:
    """Check a database that SQLite opens. A URL with `mode=ro` is allowed, because it only reads."""
    name = os.fsdecode(database) if isinstance(database, (str, bytes, os.PathLike)) else ":memory:"
    path, _, options = name.removeprefix("file:").partition("?")
    if name != ":memory:" and not (name.startswith("file:") and "mode=ro" in options.split("&")):
        _check_write(path if name.startswith("file:") else name)


_CHECKS: dict[str, Callable[..., None]] = {
    "socket.connect": _check_address,
    "socket.bind": _check_address,
    "socket.sendto": _check_address,
    "socket.sendmsg": _check_address,
    "socket.getaddrinfo": _check_host,
    "socket.gethostbyname": _check_host,
    "socket.gethostbyaddr": _check_host,
    "open": _check_open,
    "sqlite3.connect": _check_database,
    "os.mkdir": lambda path, mode, folder: _check_write(path, folder),
    "os.remove": _check_write,
    "os.rmdir": _check_write,
    "os.chmod": lambda path, mode, folder: _check_write(path, folder),
    "os.chown": lambda path, owner, group, folder: _check_write(path, folder),
    "os.utime": lambda path, times, ns, folder: _check_write(path, folder),
    "os.truncate": lambda path, length: _check_write(path),
    "os.rename": _check_move,
    "os.link": lambda source, target, source_folder, target_folder: _check_write(target, target_folder),
    "os.symlink": lambda source, target, folder: _check_write(target, folder),
}
