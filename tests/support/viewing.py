"""`nip-run view` in a process of its own, and requests to it, byte for byte."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import ended, started, until


@dataclass(frozen=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class View:
    """A view that is running."""

    process: subprocess.Popen[str]
    address: str
    page: Path
    """The file that leads a browser to the address."""

    @property
    def port(self) -> int:
        found = urlsplit(self.address).port
        assert found is not None
        return found

    @property
    def path(self) -> str:
        return urlsplit(self.address).path

    def ask(self, name: str = "", method: str = "GET", body: bytes = b"", **headers: str | None) -> Answered:
        """What is said at a name behind the word."""
        return self.ask_at(self.path + name, method, body, **headers)

    def ask_at(self, path: str, method: str = "GET", body: bytes = b"", **headers: str | None) -> Answered:
        """What is said at a path; None takes a header away."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        said = {"Host": f"127.0.0.1:{self.port}", **({"Content-Length": str(len(body))} if body else {}), **given}
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in said.items() if value is not None),
        ]
        return self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def raw(self, data: bytes) -> Answered:
        """What bytes are answered with, until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=HANG_SECONDS) as connection:
            connection.sendall(data)
            found = b""
            try:
                while piece := connection.recv(1 << 16):
                    found += piece
            except ConnectionResetError:
                pass  # what was sent was not read to its end
        head, _, body = found.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Answered(int(first.split()[1]), headers, body)

    def note(self, note: Any, **headers: str | None) -> Answered:
        """A note as the page's script keeps it."""
        return self.ask("notes", "POST", json.dumps(note).encode(), **{"Content_Type": "application/json", **headers})

    def state(self, run_id: str) -> dict[str, Any]:
        """How a run stands."""
        runs = self.ask("state.json").json["runs"]
        return next((state for state in runs if state.get("run_id") == run_id), {})

    def until(self, run_id: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """How a run stands, once that is so."""
        found: dict[str, Any] = {}

        def is_so() -> bool:
            found.clear()
            found.update(self.state(run_id))
            return bool(found) and holds(found)

        until(is_so)
        return found


@contextmanager
def viewing(*words: str | Path, cwd: Path) -> Iterator[View]:
    """A view of some runs, for as long as the block runs."""
    process = started("view", *words, "--no-open", cwd=cwd)
    try:
        assert process.stdout is not None
        page = process.stdout.readline().strip()
        assert page.startswith("file://"), ended(process)
        path = Path(unquote(urlsplit(page).path))
        address = re.search(r'href="(http://127\.0\.0\.1:[^"]+)"', path.read_text("utf-8"))
        assert address
        yield View(process, address[1], path)
    finally:
        process.send_signal(signal.SIGINT)
        ended(process)
