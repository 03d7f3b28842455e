"""`nip-run view` in its own process, and HTTP requests to it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import start_nip_run, wait_for_exit, wait_until
from tests.support.server_process import HttpResponse


@dataclass(frozen=True)
class ViewProcess:
    """A running `nip-run view`."""

    process: subprocess.Popen[str]
    address: str
    page: Path
    """The local file that redirects a browser to the address."""

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    @property
    def path(self) -> str:
        return urlsplit(self.address).path

    def request(self, name: str = "", method: str = "GET", body: bytes = b"", **headers: str | None) -> HttpResponse:
        """Send a request to a path relative to the secret address of the view."""
        return self.request_path(self.path + name, method, body, **headers)

    def request_path(self, path: str, method: str = "GET", body: bytes = b"", **headers: str | None) -> HttpResponse:
        """Send a request to an absolute path. A header with the value None is left out."""
        changes = {name.replace("_", "-"): value for name, value in headers.items()}
        length = {"Content-Length": str(len(body))} if body else {}
        all_headers = {"Host": f"127.0.0.1:{self.port}", **length, **changes}
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in all_headers.items() if value is not None),
        ]
        return self.send_raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def send_raw(self, data: bytes) -> HttpResponse:
        """Send bytes and read the response until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=HANG_SECONDS) as connection:
            connection.sendall(data)
            received = b""
            try:
                while chunk := connection.recv(1 << 16):
                    received += chunk
            except ConnectionResetError:
                pass  # the server closed the connection without reading all of `data`
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return HttpResponse(int(first.split()[1]), headers, body)

    def post_note(self, note: Any, **headers: str | None) -> HttpResponse:
        """Save a note as the script of the page does."""
        return self.request(
            "notes", "POST", json.dumps(note).encode(), **{"Content_Type": "application/json", **headers}
        )

    def run_state(self, run_id: str) -> dict[str, Any]:
        """Return the state of a run, which is empty if the view does not show the run."""
        runs = self.request("state.json").json["runs"]
        return next((state for state in runs if state.get("run_id") == run_id), {})

    def wait_for_state(self, run_id: str, is_expected: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the state of a run is as expected, and return the state."""
        state: dict[str, Any] = {}

        def check() -> bool:
            state.clear()
            state.update(self.run_state(run_id))
            return bool(state) and is_expected(state)

        wait_until(check)
        return state


@contextmanager
def run_view(*runs: str | Path, cwd: Path) -> Iterator[ViewProcess]:
    """Run `nip-run view` for these arguments."""
    process = start_nip_run("view", *runs, "--no-open", cwd=cwd)
    try:
        assert process.stdout is not None
        page = process.stdout.readline().strip()
        assert page.startswith("file://"), wait_for_exit(process)
        path = Path(unquote(urlsplit(page).path))
        address = re.search(r'href="(http://127\.0\.0\.1:[^"]+)"', path.read_text("utf-8"))
        assert address
        yield ViewProcess(process, address[1], path)
    finally:
        process.send_signal(signal.SIGINT)
        wait_for_exit(process)
