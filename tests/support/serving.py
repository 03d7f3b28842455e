"""`nip-run serve` in a process of its own, with accounts and tokens that the library made, and requests to it.

    with serving(folder) as served: served.ask("/api/v1", token=served.tokens["alice"])

`alice` and `bob` are in the organisation `acme`; `mallory` is a stranger. Each has a token that publishes, by the
account's name, and one that reads, by `NAME-reads`; `keeper` has one that administers. `emptied` is one server for all
tests of a process, without any account.
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
from contextlib import contextmanager
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
from tests.support.processes import command, ended_or_killed, environment

_ENVIRONMENT = threading.Lock()
PEOPLE, ORGANISATION, STRANGER, ADMIN = ("alice", "bob"), "acme", "mallory", "keeper"


@dataclass(frozen=True)
class Answered:
    """What a request was answered with."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case; what is said twice is joined."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


_WITH_SETTINGS = """
import json, sys
from pathlib import Path
from runner.server.settings import Settings
from runner.server.web.serving import serve
said = json.loads(sys.argv[1])
tell = lambda address, listening: print(json.dumps({"listening": listening}, indent=2), flush=True)
settings = Settings(folder=Path(said.pop("folder")), **said)
serve(settings, "127.0.0.1", int(sys.argv[2]), tell, address=None, without_tls=False)
"""


@dataclass
class Served:
    """`nip-run serve` over one folder, which may be killed and begun again at the same address."""

    folder: Path
    words: Sequence[str] = ()
    """Of its command line, what is not as usual."""
    database: str | None = None
    blobs: str | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    """Of its settings, those that no word of the command line says."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """See `populate`."""
    port: int = 0
    """The one it has had; 0 before the first start."""
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
        """Begin, and answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self.folder, env=environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        port = urlsplit(json.loads(self._told())["listening"]).port
        assert port is not None
        assert self._process.stdout is not None
        self._process.stdout.close()  # it says no more
        self.port = port

    def _command(self) -> list[str]:
        if self.said:
            said = {"folder": str(self.folder), "database": self.database, "blobs": self.blobs, **self.said}
            return [sys.executable, "-c", _WITH_SETTINGS, json.dumps(said), str(self.port)]
        places = {"--database": self.database, "--blobs": self.blobs}
        where = [word for name, place in places.items() if place is not None for word in (name, place)]
        return command("serve", self.folder, "--port", str(self.port), "--json", *where, *self.words)

    def _told(self) -> str:
        """What it says as it begins: one JSON document."""
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] not in ("}\n", ""):
            lines.append(self.process.stdout.readline())
        assert lines[-1], self.log
        return "".join(lines)

    def kill(self) -> None:
        """As a power cut does it to a process."""
        self.process.kill()
        self._gone()

    def stop(self) -> None:
        """As who runs it ends it; one that is not running stays so."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)  # of one that has ended by itself, nothing
            self._gone()

    def _gone(self) -> None:
        ended_or_killed(self.process)  # it gives requests 20 seconds itself
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._process = None

    def resident(self) -> int:
        """Bytes of memory that the server has now."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def account(self, name: str, scope: Scope = Scope.PUBLISH, *, seconds: float | None = None) -> str:
        """A token of an account, which is made where it is not there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        database = self.records()
        try:
            with database.writing() as connection:
                if connection.execute(select(accounts.c.id).where(accounts.c.name == name)).scalar() is None:
                    add_account(connection, name, time.time())
                return create_token(connection, name, scope, time.time(), lifetime_seconds=seconds)
        finally:
            database.close()

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: bytes | dict[str, Any] | None = None,
        *,
        token: str | None = None,
        **headers: str,
    ) -> Answered:
        """One request on a connection of its own; a mapping is sent as JSON."""
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            said["Authorization"] = f"Bearer {token}"
        if isinstance(body, dict):
            body, said["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        try:
            connection.request(method, path, body, said)
            response = connection.getresponse()
            found: dict[str, str] = {}
            for name, value in response.getheaders():
                found[name.lower()] = f"{found[name.lower()]}, {value}" if name.lower() in found else value
            return Answered(response.status, found, response.read())
        finally:
            connection.close()

    @contextmanager
    def registry(self, who: str | None = None) -> Iterator[Registry]:
        """The registry as somebody's client has it; by several threads at once, too."""
        token = {} if who is None else {"NIP_RUN_TOKEN": self.tokens[who]}
        with _ENVIRONMENT, patch.dict(os.environ, {"NIP_RUN_REGISTRY": self.address} | token):
            connected = connect(self.address)
        with connected as registry:
            yield registry

    def publish(self, who: str, *bundles: Bundle) -> None:
        with self.registry(who) as registry:
            registry.publish(bundles, "a test")

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "log").read_text("utf-8", "replace")

    def records(self) -> Database:
        """The server's own database, opened a second time. The caller closes it."""
        return Database(self.settings.database_url)


def populate(database: Database) -> dict[str, str]:
    """Make the accounts, and give their tokens."""
    now, tokens = time.time(), {}
    with database.writing() as connection:
        add_account(connection, ORGANISATION, now, is_organization=True)
        for name in (*PEOPLE, STRANGER, ADMIN):
            add_account(connection, name, now)
            scope = Scope.ADMIN if name == ADMIN else Scope.PUBLISH
            tokens[name] = create_token(connection, name, scope, now, lifetime_seconds=None)
            tokens[f"{name}-reads"] = create_token(connection, name, Scope.READ, now, lifetime_seconds=None)
        for name in PEOPLE:
            add_member(connection, ORGANISATION, name, is_owner=name == PEOPLE[0])
    return tokens


@contextmanager
def serving(
    folder: Path, *words: str, database: str | None = None, blobs: str | None = None, people: bool = True, **said: Any
) -> Iterator[Served]:
    """A server of its own; its accounts are made first, unless they are there."""
    server = Served(folder, words, database, blobs, said)
    folder.mkdir(parents=True, exist_ok=True)
    if people:
        opened = server.records()
        try:
            server.tokens = populate(opened)
        finally:
            opened.close()
    try:
        server.start()
        yield server
    finally:
        server.stop()


_SHARED: list[tuple[Served, tempfile.TemporaryDirectory[str]]] = []


@contextmanager
def emptied() -> Iterator[Served]:
    """The server that all tests of this process share, with nothing published on it and no account."""
    if not _SHARED:
        place = tempfile.TemporaryDirectory(prefix="nip-run-server-")
        server = Served(Path(place.name))
        server.start()
        _SHARED.append((server, place))
    server, _ = _SHARED[0]
    database = server.records()
    with database.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            if table is not meta:
                connection.execute(delete(table))
        database.increment_revision(connection)
    database.close()
    yield server


def stop_shared() -> None:
    """Stop the server of `emptied` before the worker ends: pytest-xdist may kill a worker during its `atexit` calls."""
    while _SHARED:
        server, place = _SHARED.pop()
        server.stop()
        place.cleanup()


@contextmanager
def publishing_to(server: Served, token: str) -> Iterator[str]:
    """The server as a place to publish to, which the variables of the environment name while it is there."""
    with patch.dict(os.environ, {"NIP_RUN_REGISTRY": server.address, "NIP_RUN_TOKEN": token}):
        yield server.address
