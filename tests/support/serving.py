"""`nip-run serve` in a process of its own, with accounts and tokens that the library made, and requests to it.

    with serving(folder) as served: served.ask("/api/v1", token=served.tokens["alice"])

`alice` and `bob` are in the organisation `acme`; `mallory` is a stranger. Each has a token that publishes, by the
account's name, and one that reads, by `NAME-reads`; `root` has one that administers.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from runner.releases.bundle import Bundle
from runner.server.people.accounts import Scope, add_account, add_member, make_token
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.transports.connect import connect
from runner.transports.registry import Registry
from tests.support.processes import command, ended, environment

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


@dataclass(frozen=True)
class Served:
    """A server that is running."""

    process: subprocess.Popen[str]
    address: str
    folder: Path
    database: str | None
    tokens: Mapping[str, str]

    @property
    def port(self) -> int:
        found = urlsplit(self.address).port
        assert found is not None
        return found

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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
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
        return (self.folder / "log").read_text("utf-8")

    def records(self) -> Database:
        """The server's own database, opened a second time. The caller closes it."""
        return Database(Settings(folder=self.folder, database=self.database).database_url)


def populate(database: Database) -> dict[str, str]:
    """Make the accounts, and give their tokens."""
    now, tokens = time.time(), {}
    with database.writing() as connection:
        add_account(connection, ORGANISATION, now, organisation=True)
        for name in (*PEOPLE, STRANGER, ADMIN):
            add_account(connection, name, now)
            scope = Scope.ADMIN if name == ADMIN else Scope.PUBLISH
            tokens[name] = make_token(connection, name, scope, now, seconds=None)
            tokens[f"{name}-reads"] = make_token(connection, name, Scope.READ, now, seconds=None)
        for name in PEOPLE:
            add_member(connection, ORGANISATION, name, is_owner=name == PEOPLE[0])
    return tokens


@contextmanager
def serving(folder: Path, *words: str, database: str | None = None, people: bool = True) -> Iterator[Served]:
    """A server of its own; its accounts are made first, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = {}
    if people:
        opened = Database(Settings(folder=folder, database=database).database_url)
        try:
            tokens = populate(opened)
        finally:
            opened.close()
    where = () if database is None else ("--database", database)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command("serve", folder, "--port", "0", "--json", *where, *words), cwd=folder, env=environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        port = urlsplit(json.loads(_told(process, folder))["listening"]).port
        yield Served(process, f"http://127.0.0.1:{port}", folder, database, tokens)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        ended(process, 20)


def _told(process: subprocess.Popen[str], folder: Path) -> str:
    """What it says as it begins: one JSON document."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] not in ("}\n", ""):
        lines.append(process.stdout.readline())
    assert lines[-1], (folder / "log").read_text("utf-8")
    return "".join(lines)
