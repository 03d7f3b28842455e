"""Git as tests use it: repositories with any content, good or hostile, and the servers that hand them out."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import until

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.org", "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_NAME": "Ann", "GIT_COMMITTER_EMAIL": "ann@example.org", "GIT_COMMITTER_DATE": "1700000000 +0000",
}  # fmt: skip

Tree = Mapping[bytes, tuple[str, Any]]
"""Names to modes and content: bytes of a file, a folder, or the hash of what is there already or nowhere."""


def environment(**variables: str) -> dict[str, str]:
    """Nothing of the person's own: neither their configuration nor what a hook sets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **IDENTITY, **variables}


def git(folder: Path, *words: str, feed: bytes = b"", check: bool = True) -> str:
    done = subprocess.run(
        ("git", *words), cwd=folder, env=environment(), input=feed, capture_output=True, check=False,
        timeout=HANG_SECONDS,
    )  # fmt: skip
    assert not check or done.returncode == 0, (words, done.stderr)
    return done.stdout.decode("utf-8", "backslashreplace").strip()


def bare(folder: Path, *settings: str) -> Path:
    """An empty bare repository, whose branch is `main`."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "--bare", "--initial-branch=main", ".")
    for setting in settings:
        git(folder, "config", *setting.split("=", 1))
    return folder


def put(repository: Path, kind: str, data: bytes) -> str:
    """An object with this content, whatever it is: nothing is checked. Its hash."""
    whole = f"{kind} {len(data)}\0".encode() + data
    name = hashlib.sha1(whole).hexdigest()
    path = repository / "objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(whole, 1))
    return name


def write_tree(repository: Path, tree: Tree, *, ordered: bool = True) -> str:
    """A folder of git's with these entries, whatever they are. Its hash."""
    lines = b""
    for name, (mode, content) in sorted(tree.items(), key=_order) if ordered else tree.items():
        if isinstance(content, bytes):
            found = put(repository, "blob", content)
        else:
            found = content if isinstance(content, str) else write_tree(repository, content)
        lines += mode.encode() + b" " + name + b"\0" + bytes.fromhex(found)
    return put(repository, "tree", lines)


def _order(item: tuple[bytes, tuple[str, Any]]) -> bytes:
    name, (mode, _) = item
    return name + b"/" if mode == "40000" else name


def commit(repository: Path, tree: str, branch: str = "main") -> str:
    """A commit of a tree as a branch."""
    made = git(repository, "commit-tree", tree, "-m", "planted")
    git(repository, "update-ref", f"refs/heads/{branch}", made)
    return made


# Servers on loopback


@contextmanager
def daemon(root: Path) -> Iterator[str]:
    """`git daemon` with all repositories in a folder, to read and to write; its address."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            ["git", "daemon", "--reuseaddr", "--listen=127.0.0.1", f"--port={port}", f"--base-path={root}",
             "--export-all", "--enable=receive-pack", str(root)],
            env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        until(lambda port=port, process=process: process.poll() is not None or _is_open(port))  # type: ignore[misc]
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


Answer = Callable[[BaseHTTPRequestHandler], bool]
"""What a server does before git's own answer; True where that was the answer."""


@contextmanager
def http(root: Path, before: Answer = lambda _: False) -> Iterator[str]:
    """Git's own `http-backend` with all repositories in a folder, to read and to write; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            if not before(self):
                _backend(self, root)

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *args: object) -> None:
            del args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if "chunked" not in handler.headers.get("Transfer-Encoding", ""):
        return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    body = b""
    while size := int(handler.rfile.readline(), 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


def _backend(handler: BaseHTTPRequestHandler, root: Path) -> None:
    path, _, query = handler.path.partition("?")
    body = _body(handler)
    asked = {
        "GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
        "REQUEST_METHOD": handler.command, "CONTENT_TYPE": handler.headers.get("Content-Type", ""),
        "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding", ""), "REMOTE_USER": "ann",
        "REMOTE_ADDR": "127.0.0.1", "CONTENT_LENGTH": str(len(body)),
        "GIT_PROTOCOL": handler.headers.get("Git-Protocol", ""),
    }  # fmt: skip
    done = subprocess.run(
        ["git", "http-backend"], input=body, env=environment(**asked), capture_output=True, check=False,
        timeout=HANG_SECONDS,
    )  # fmt: skip
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
    handler.send_response(int(fields.pop("Status", "200").split()[0]))
    for name, value in fields.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
