"""`nip-run serve` in its own process, with accounts and tokens, and requests to it.

    with run_server(folder) as server:
        server.request("/api/v1", token=server.tokens["alice"])

`alice` and `bob` are members of the organization `acme`, and `mallory` is a stranger. `tokens` has a token that can
publish for each of them, under the name of the account, and one that can only read, under `NAME-reads`. The token of
`keeper` can administer the server. `shared_empty_server` is one server without accounts for all tests of a process.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from sqlalchemy import delete, select

from runner.documents.releases.bundle import Bundle
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import Registry
from runner.server.accounts.accounts import Scope, add_account, add_member, create_token
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import accounts, meta, metadata
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment, wait_or_kill

_ENVIRONMENT = threading.Lock()
PEOPLE, ORGANIZATION, STRANGER, ADMIN = ("alice", "bob"), "acme", "mallory", "keeper"


@dataclass(frozen=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str]
    """Values by name in lower case; repeated headers are joined with a comma."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


_SERVE_WITH_SETTINGS = """
import json, sys
from pathlib import Path
from runner.server.settings import Settings
from runner.server.web.serving import serve
values = json.loads(sys.argv[1])
on_start = lambda address, listening: print(json.dumps({"listening": listening}, indent=2), flush=True)
settings = Settings(folder=Path(values.pop("folder")), **values)
serve(settings, "127.0.0.1", int(sys.argv[2]), on_start, address=None, without_tls=False)
"""


@dataclass
class ServerProcess:
    """`nip-run serve` on one folder. It can be killed and started again at the same address."""

    folder: Path
    arguments: Sequence[str] = ()
    """Additional arguments of the command line."""
    database: str | None = None
    blobs: str | None = None
    extra_settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Settings` that have no option on the command line."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """See `create_accounts`."""
    port: int = 0
    """The port of the last start; 0 before the first start."""
    _process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    @property
    def settings(self) -> Settings:
        return Settings(folder=self.folder, database=self.database, blobs=self.blobs)

    def start(self) -> None:
        """Start the process and wait until it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self.folder, env=environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        port = urlsplit(json.loads(self._read_startup_message())["listening"]).port
        assert port is not None
        assert self._process.stdout is not None
        self._process.stdout.close()  # the server writes nothing else to stdout
        self.port = port

    def _command(self) -> list[str]:
        if self.extra_settings:
            settings = {
                "folder": str(self.folder), "database": self.database, "blobs": self.blobs, **self.extra_settings,
            }  # fmt: skip
            return [sys.executable, "-c", _SERVE_WITH_SETTINGS, json.dumps(settings), str(self.port)]
        stores = {"--database": self.database, "--blobs": self.blobs}
        options = [argument for name, url in stores.items() if url is not None for argument in (name, url)]
        return command("serve", self.folder, "--port", str(self.port), "--json", *options, *self.arguments)

    def _read_startup_message(self) -> str:
        """Read the JSON document that the server prints when it listens."""
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] not in ("}\n", ""):
            lines.append(self.process.stdout.readline())
        assert lines[-1], self.log
        return "".join(lines)

    def kill(self) -> None:
        """Kill the process without a warning, as a power cut would."""
        self.process.kill()
        self._wait()

    def stop(self) -> None:
        """Stop the process with SIGTERM, if it runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)  # has no effect if the process has ended by itself
            self._wait()

    def _wait(self) -> None:
        wait_or_kill(self.process)  # the server gives requests 20 seconds to finish
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._process = None

    def resident_bytes(self) -> int:
        """Return how much memory the server uses now."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def create_token(self, name: str, scope: Scope = Scope.PUBLISH, *, seconds: float | None = None) -> str:
        """Create a token of an account, and the account if it does not exist."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with closing(self.open_database()) as database, database.writing() as connection:
            if connection.execute(select(accounts.c.id).where(accounts.c.name == name)).scalar() is None:
                add_account(connection, name, time.time())
            return create_token(connection, name, scope, time.time(), lifetime_seconds=seconds)

    def request(
        self,
        path: str,
        method: str = "GET",
        body: bytes | dict[str, Any] | None = None,
        *,
        token: str | None = None,
        **headers: str,
    ) -> HttpResponse:
        """Send one request on a new connection. A dict is sent as JSON."""
        sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent_headers["Authorization"] = f"Bearer {token}"
        if isinstance(body, dict):
            body, sent_headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        try:
            connection.request(method, path, body, sent_headers)
            response = connection.getresponse()
            received: dict[str, str] = {}
            for name, value in response.getheaders():
                received[name.lower()] = f"{received[name.lower()]}, {value}" if name.lower() in received else value
            return HttpResponse(response.status, received, response.read())
        finally:
            connection.close()

    @contextmanager
    def registry(self, account: str | None = None) -> Iterator[Registry]:
        """Connect as an account, or as an anonymous reader. Threads may call this at the same time."""
        token = {} if account is None else {"NIP_RUN_TOKEN": self.tokens[account]}
        with _ENVIRONMENT, patch.dict(os.environ, {"NIP_RUN_REGISTRY": self.address} | token):
            connected = connect(self.address)
        with connected as registry:
            yield registry

    def publish(self, account: str, *bundles: Bundle) -> None:
        with self.registry(account) as registry:
            registry.publish(bundles, "a test")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def open_database(self) -> Database:
        """Open the server's database from the process of the test. The caller closes it."""
        return Database(self.settings.database_url)


def create_accounts(database: Database) -> dict[str, str]:
    """Create the accounts and return their tokens (see the docstring of this module)."""
    now, tokens = time.time(), {}
    with database.writing() as connection:
        add_account(connection, ORGANIZATION, now, is_organization=True)
        for name in (*PEOPLE, STRANGER, ADMIN):
            add_account(connection, name, now)
            scope = Scope.ADMIN if name == ADMIN else Scope.PUBLISH
            tokens[name] = create_token(connection, name, scope, now, lifetime_seconds=None)
            tokens[f"{name}-reads"] = create_token(connection, name, Scope.READ, now, lifetime_seconds=None)
        for name in PEOPLE:
            add_member(connection, ORGANIZATION, name, is_owner=name == PEOPLE[0])
    return tokens


@contextmanager
def run_server(
    folder: Path, *arguments: str, database: str | None = None, blobs: str | None = None, people: bool = True,
    **extra_settings: Any,
) -> Iterator[ServerProcess]:  # fmt: skip
    """Run a server on a folder. If `people` is true, create the accounts first."""
    server = ServerProcess(folder, arguments, database, blobs, extra_settings)
    folder.mkdir(parents=True, exist_ok=True)
    if people:
        with closing(server.open_database()) as opened:
            server.tokens = create_accounts(opened)
    try:
        server.start()
        yield server
    finally:
        server.stop()


_SHARED: list[tuple[ServerProcess, tempfile.TemporaryDirectory[str]]] = []


@contextmanager
def shared_empty_server() -> Iterator[ServerProcess]:
    """Empty the server that all tests of this process share, and yield it without accounts and releases."""
    if not _SHARED:
        folder = tempfile.TemporaryDirectory(prefix="nip-run-server-")
        server = ServerProcess(Path(folder.name))
        server.start()
        _SHARED.append((server, folder))
    server, _ = _SHARED[0]
    with closing(server.open_database()) as database, database.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            if table is not meta:
                connection.execute(delete(table))
        database.increment_revision(connection)
    yield server


def stop_shared() -> None:
    """Stop the server of `shared_empty_server`.

    An `atexit` call would be too late: pytest-xdist may kill a worker before it.
    """
    while _SHARED:
        server, folder = _SHARED.pop()
        server.stop()
        folder.cleanup()


@contextmanager
def registry_environment(server: ServerProcess, token: str) -> Iterator[str]:
    """Set the environment variables that make the server the default registry, and yield its address."""
    with patch.dict(os.environ, {"NIP_RUN_REGISTRY": server.address, "NIP_RUN_TOKEN": token}):
        yield server.address
