"""Git repositories with arbitrary content, valid or hostile, and git servers for them."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import wait_until
from tests.support.threaded_server import serve_in_thread

REMOTE_URL = "https://example.org/acme/games.git"
"""The URL of a remote that is never contacted."""
IDENTITY = {
    "GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.org", "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_NAME": "Ann", "GIT_COMMITTER_EMAIL": "ann@example.org", "GIT_COMMITTER_DATE": "1700000000 +0000",
}  # fmt: skip

Tree = Mapping[bytes, tuple[str, Any]]
"""Modes and contents by name: the bytes of a file, a subtree, or the hash of an object, which may be missing."""


def git_environment(**variables: str) -> dict[str, str]:
    """Return an environment without the user's git configuration and without variables that a git hook sets."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**inherited, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **IDENTITY, **variables}


def git(folder: Path, *arguments: str, feed: bytes = b"", check: bool = True) -> str:
    process = subprocess.run(
        ("git", *arguments), cwd=folder, env=git_environment(), input=feed, capture_output=True, check=False,
        timeout=HANG_SECONDS,
    )  # fmt: skip
    assert not check or process.returncode == 0, (arguments, process.stderr)
    return process.stdout.decode("utf-8", "backslashreplace").strip()


def init_bare(folder: Path, *settings: str) -> Path:
    """Create an empty bare repository with the branch `main`."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "--bare", "--initial-branch=main", ".")
    for setting in settings:
        git(folder, "config", *setting.split("=", 1))
    return folder


def write_object(repository: Path, kind: str, data: bytes) -> str:
    """Write an object without checking its content; return its hash."""
    stored = f"{kind} {len(data)}\0".encode() + data
    name = hashlib.sha1(stored).hexdigest()
    path = repository / "objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(stored, 1))
    return name


def write_tree(repository: Path, tree: Tree, *, ordered: bool = True) -> str:
    """Write a tree object without checking its entries; return its hash."""
    lines = b""
    for name, (mode, content) in sorted(tree.items(), key=_sort_key) if ordered else tree.items():
        if isinstance(content, bytes):
            sha1 = write_object(repository, "blob", content)
        else:
            sha1 = content if isinstance(content, str) else write_tree(repository, content)
        lines += mode.encode() + b" " + name + b"\0" + bytes.fromhex(sha1)
    return write_object(repository, "tree", lines)


def _sort_key(item: tuple[bytes, tuple[str, Any]]) -> bytes:
    name, (mode, _) = item
    return name + b"/" if mode == "40000" else name


def commit(repository: Path, tree: str, branch: str = "main") -> str:
    """Commit a tree to a branch; return the commit."""
    sha1 = git(repository, "commit-tree", tree, "-m", "planted")
    git(repository, "update-ref", f"refs/heads/{branch}", sha1)
    return sha1


def commit_folder(folder: Path, *paths: str) -> str:
    """Make a repository of a folder, commit all its files or these paths, and return the commit."""
    git(folder, "init", "-q")
    git(folder, "add", *(paths or (".",)))
    git(folder, "commit", "-q", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


def commit_and_push(folder: Path, *paths: str, url: str = REMOTE_URL) -> str:
    """Commit a folder and record that the remote has the commit, as git does after a push."""
    sha1 = commit_folder(folder, *paths)
    git(folder, "remote", "add", "origin", url)
    git(folder, "update-ref", "refs/remotes/origin/main", sha1)
    return sha1


# Servers on loopback


@contextmanager
def run_git_daemon(root: Path) -> Iterator[str]:
    """Run `git daemon` for the repositories in a folder, with read and write access; yield its address."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            ["git", "daemon", "--reuseaddr", "--listen=127.0.0.1", f"--port={port}", f"--base-path={root}",
             "--export-all", "--enable=receive-pack", str(root)],
            env=git_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        wait_until(lambda port=port, process=process: process.poll() is not None or _is_open(port))  # type: ignore[misc]
        if process.poll() is None:
            break  # else another process took the port in between
    try:
        yield f"git://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


RequestHook = Callable[[BaseHTTPRequestHandler], bool]
"""Handles a request before git does. It returns True if it has sent the response."""


@contextmanager
def run_git_http(root: Path, before: RequestHook = lambda _: False) -> Iterator[str]:
    """Run `git http-backend` for the repositories in a folder, with read and write access; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            if not before(self):
                _answer_with_git(self, root)

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *args: object) -> None:
            del args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serve_in_thread(server):
        yield f"http://127.0.0.1:{server.server_port}"


def _read_body(handler: BaseHTTPRequestHandler) -> bytes:
    if "chunked" not in handler.headers.get("Transfer-Encoding", ""):
        return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    body = b""
    while size := int(handler.rfile.readline(), 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


def _answer_with_git(handler: BaseHTTPRequestHandler, root: Path) -> None:
    path, _, query = handler.path.partition("?")
    body = _read_body(handler)
    variables = {
        "GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
        "REQUEST_METHOD": handler.command, "CONTENT_TYPE": handler.headers.get("Content-Type", ""),
        "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding", ""), "REMOTE_USER": "ann",
        "REMOTE_ADDR": "127.0.0.1", "CONTENT_LENGTH": str(len(body)),
        "GIT_PROTOCOL": handler.headers.get("Git-Protocol", ""),
    }  # fmt: skip
    process = subprocess.run(
        ["git", "http-backend"], input=body, env=git_environment(**variables), capture_output=True, check=False,
        timeout=HANG_SECONDS,
    )  # fmt: skip
    head, _, content = process.stdout.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
    handler.send_response(int(fields.pop("Status", "200").split()[0]))
    for name, value in fields.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
