"""A registry's server in a process of its own, as `nip-run serve` runs it; and accounts, tokens and places there."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
from sqlalchemy import delete, select

from runner.server.people.accounts import Scope, add_account, make_token
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import accounts, meta, metadata
from tests.support.paths import ROOT
from tests.support.processes import environment

_SERVE = """
import sys, json
from pathlib import Path
from runner.releases.limits import Limits
from runner.server.settings import Settings
from runner.server.web.running import serve
said = json.loads(sys.argv[1])
limits = {"limits": Limits(**said.pop("limits"))} if "limits" in said else {}
settings = Settings(folder=Path(said.pop("folder")), **said, **limits)
serve(settings, "127.0.0.1", int(sys.argv[2]), print, address=None, bare=False)
"""


@dataclass
class RegistryServer:
    """One server over one folder, which may be killed and begun again at the same address."""

    folder: Path
    said: dict[str, Any] = field(default_factory=dict)
    """Of its settings, what is not as usual."""
    variables: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> Settings:
        return Settings(folder=self.folder, database=self.said.get("database"), blobs=self.said.get("blobs"))

    def account(self, name: str, scope: Scope = Scope.PUBLISH, *, seconds: float | None = None) -> str:
        """A token of an account, which is made where it is not there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        database = Database(self.settings.database_url)
        try:
            with database.writing() as connection:
                if connection.execute(select(accounts.c.id).where(accounts.c.name == name)).scalar() is None:
                    add_account(connection, name, time.time())
                return make_token(connection, name, scope, time.time(), seconds=seconds)
        finally:
            database.close()

    def start(self) -> None:
        """Begin, and answer."""
        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        self.folder.mkdir(parents=True, exist_ok=True)
        said = json.dumps({"folder": str(self.folder), "address": self.address, **self.said})
        log = (self.folder / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, said, str(self.port)], cwd=ROOT,
                env=environment(**self.variables), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 240
        while True:
            try:
                httpx2.get(f"{self.address}/api/v1", timeout=10, trust_env=False)
            except httpx2.HTTPError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.02)
            else:
                return

    def log(self) -> str:
        return (self.folder / "server.log").read_text("utf-8", "replace")

    def kill(self) -> None:
        """As a power cut does it to a process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()

    def resident(self) -> int:
        """Bytes of memory that the server has now."""
        assert self.process is not None
        with open(f"/proc/{self.process.pid}/statm") as file:  # noqa: PTH123 - of /proc
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running(folder: Path, **said: Any) -> Iterator[RegistryServer]:
    """A server until the block ends."""
    server = RegistryServer(folder, said)
    server.start()
    try:
        yield server
    finally:
        server.stop()


_SHARED: list[RegistryServer] = []


@contextmanager
def emptied() -> Iterator[RegistryServer]:
    """The server that all tests of this process share, with nothing published on it and no account."""
    if not _SHARED:
        place = tempfile.TemporaryDirectory(prefix="nip-run-server-")
        server = RegistryServer(Path(place.name))
        server.start()
        _SHARED.append(server)
        atexit.register(place.cleanup)
        atexit.register(server.stop)
    server = _SHARED[0]
    database = Database(server.settings.database_url)
    with database.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            if table is not meta:
                connection.execute(delete(table))
        database.changed(connection)
    database.close()
    yield server


@contextmanager
def publishing_to(server: RegistryServer, token: str) -> Iterator[str]:
    """The server as a place to publish to, which the variables of the environment name while it is there."""
    with patch.dict(os.environ, {"NIP_RUN_REGISTRY": server.address, "NIP_RUN_TOKEN": token}):
        yield server.address
