"""What no process of the tests can do: talk to another machine, or write outside a temporary folder.

`close` is called by `conftest` for the process of the tests, and by `startup/sitecustomize` in each Python process that
a test starts with `variables` in its environment. Python's audit hooks see every use of a socket and of the file system
from Python; what native code does on its own (DuckDB writing its files) they do not see, but its folder they do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from tests.support.paths import ROOT

FOLDERS = "NIP_RUN_TESTS_FOLDERS"
"""The environment variable that names the folders in which a process may write."""
STARTUP = str(ROOT / "tests" / "support" / "startup")
REPOSITORY = str(ROOT)
SECRETS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_HEADERS", "_PROXY")
"""How variables end that hold a key, or lead to another machine."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Refused(BaseException):
    """Not an `Exception`, so that no retry and no handler takes it for a fault that the program has to bear."""


class _State:
    """An audit hook cannot be taken away, so there is one, and this is what it follows."""

    installed = False
    folders: tuple[str, ...] | None = None
    """None: nothing is refused."""


def without_secrets(environ: MutableMapping[str, str]) -> None:
    """Take away every key, which could spend money, and every proxy, which makes another machine a local one."""
    for name in [name for name in environ if name.upper().endswith(SECRETS)]:
        del environ[name]


def variables() -> dict[str, str]:
    """What has a Python process guard itself, and find the repository."""
    import tempfile  # not for the processes that are guarded: it is not light

    folders = _State.folders or (tempfile.gettempdir(),)
    return {"PYTHONPATH": os.pathsep.join((STARTUP, REPOSITORY)), FOLDERS: os.pathsep.join(folders)}


def close(folders: Iterable[str]) -> None:
    """Refuse from now on, but for writing in these folders."""
    _State.folders = tuple(os.path.realpath(folder) for folder in folders)
    if not _State.installed:
        _State.installed = True
        sys.addaudithook(_hook)


@contextmanager
def closed(folders: Iterable[str]) -> Iterator[None]:
    """Refuse for as long as the block runs."""
    close(folders)
    try:
        yield
    finally:
        _State.folders = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    check = _CHECKS.get(event)
    if check is not None and _State.folders is not None:
        check(*arguments)


# The network


def _local(host: object) -> bool:
    name = host.decode("latin-1") if isinstance(host, bytes) else host
    return isinstance(name, str) and (name in ("localhost", "::1") or name.startswith("127."))


def _peer(_: object, address: object) -> None:
    """An address of the Internet is a tuple that starts with a host; a Unix socket's is a path."""
    if isinstance(address, tuple) and isinstance(address[0], (str, bytes)) and not _local(address[0]):
        raise Refused(f"tests talk to 127.0.0.1 alone, not to {address[0]!r}")


def _name(host: object, *_: object) -> None:
    if host and not _local(host):
        raise Refused(f"tests talk to 127.0.0.1 alone, and do not look up {host!r}")


# The file system


def _opened(path: object, _: object, flags: int) -> None:
    if flags & WRITES:
        _written(path)


def _written(path: object, folder: int | None = None) -> None:
    """`folder` is an open folder's number, to which the path is relative."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    name = os.fsdecode(path)
    if folder not in (None, -1) and not name.startswith(os.sep):
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)  # noqa: PTH115, PTH118 - at every write
    if not _allowed(os.path.abspath(name)) and not _allowed(os.path.realpath(name)):  # noqa: PTH100 - at every write
        raise Refused(f"tests write in temporary folders alone, not {name!r}")


def _allowed(path: str) -> bool:
    if path.startswith(("/dev/", "/proc/")) or f"{os.sep}__pycache__{os.sep}" in path + os.sep:
        return True
    found = [folder for folder in _State.folders or () if _within(path, folder)]
    # A checkout in the folder for temporary files is not itself temporary.
    return bool(found) and (not _within(path, REPOSITORY) or any(_within(folder, REPOSITORY) for folder in found))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _moved(source: object, target: object, source_folder: int = -1, target_folder: int = -1) -> None:
    _written(source, source_folder)
    _written(target, target_folder)


def _connected(database: object) -> None:
    """A database that SQLite opens; one that is named by a URL may be opened to read."""
    name = os.fsdecode(database) if isinstance(database, (str, bytes, os.PathLike)) else ":memory:"
    path, _, options = name.removeprefix("file:").partition("?")
    if name != ":memory:" and not (name.startswith("file:") and "mode=ro" in options.split("&")):
        _written(path if name.startswith("file:") else name)


_CHECKS: dict[str, Callable[..., None]] = {
    "socket.connect": _peer,
    "socket.bind": _peer,
    "socket.sendto": _peer,
    "socket.sendmsg": _peer,
    "socket.getaddrinfo": _name,
    "socket.gethostbyname": _name,
    "socket.gethostbyaddr": _name,
    "open": _opened,
    "sqlite3.connect": _connected,
    "os.mkdir": lambda path, mode, folder: _written(path, folder),
    "os.remove": _written,
    "os.rmdir": _written,
    "os.chmod": lambda path, mode, folder: _written(path, folder),
    "os.chown": lambda path, owner, group, folder: _written(path, folder),
    "os.utime": lambda path, times, ns, folder: _written(path, folder),
    "os.truncate": lambda path, length: _written(path),
    "os.rename": _moved,
    "os.link": lambda source, target, source_folder, target_folder: _written(target, target_folder),
    "os.symlink": lambda source, target, folder: _written(target, folder),
}
