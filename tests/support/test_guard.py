"""No test, and no process that it starts, can spend money, reach another machine, or write to other folders."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.guard import AccessForbidden
from tests.support.paths import ROOT
from tests.support.processes import environment, nip_run, python
from tests.support.specs import spec_file

UNUSED_ADDRESS = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""


def send_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", (UNUSED_ADDRESS, 9))


def listen_on_all_interfaces() -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: socket.create_connection((UNUSED_ADDRESS, 80)),
        lambda: socket.socket().connect((UNUSED_ADDRESS, 80)),
        lambda: asyncio.run(asyncio.open_connection(UNUSED_ADDRESS, 80)),
        lambda: socket.getaddrinfo("example.com", 80),
        lambda: socket.gethostbyname("example.com"),
        send_datagram,
        listen_on_all_interfaces,
    ],
    ids=["connection", "socket", "stream", "lookup", "old lookup", "datagram", "listening to all"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_tests_cannot_reach_another_machine(attempt: Callable[[], object]) -> None:
    with pytest.raises(AccessForbidden, match=r"127\.0\.0\.1 alone"):
        attempt()


def test_tests_can_reach_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        socket.create_connection(("localhost", server.getsockname()[1])).close()


CONNECT_CODE = f"import socket; socket.create_connection(({UNUSED_ADDRESS!r}, 80))"


def test_child_processes_of_tests_cannot_reach_another_machine() -> None:
    inherited = subprocess.run([sys.executable, "-c", CONNECT_CODE], capture_output=True, text=True, check=False)
    for process in (inherited, python(CONNECT_CODE)):
        assert process.returncode == 1
        assert f"do not look up '{UNUSED_ADDRESS}'" in process.stderr


@pytest.mark.full
def test_run_that_calls_another_machine_fails_at_once(tmp_path: Path) -> None:
    spec_file(tmp_path, f"http://{UNUSED_ADDRESS}/v1", retry={"transient": {"first_wait": 30.0}})
    process = nip_run("spec.yaml", "-q", cwd=tmp_path)
    assert process.returncode != 0
    assert "127.0.0.1 alone" in process.stderr


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: (ROOT / "results" / "left").write_text("x"),
        (ROOT / "results" / "left").mkdir,
        lambda: (ROOT / "results" / "gone").rename(ROOT / "results" / "left"),
        lambda: shutil.copytree(ROOT / "specs", ROOT / "results" / "specs"),
        (ROOT / "results" / "gone").unlink,
        lambda: sqlite3.connect(ROOT / "results" / "cache.sqlite"),
        lambda: os.close(os.open(ROOT / "results" / "left", os.O_CREAT | os.O_WRONLY)),
        lambda: Path("~/left").expanduser().write_text("x"),
        lambda: Path("results/left").write_text("x"),
        lambda: shutil.rmtree(ROOT / "results"),
        lambda: (ROOT / "README.md").chmod(0o600),
        lambda: os.utime(ROOT / "README.md"),
    ],
    ids=[
        "file",
        "folder",
        "renaming",
        "copy",
        "removing",
        "database",
        "descriptor",
        "home",
        "relative",
        "tree",
        "mode",
        "times",
    ],
)
def test_tests_can_write_only_to_temporary_folders(
    attempt: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(AccessForbidden, match="temporary folders alone"):
        attempt()
    assert not {path.name for path in (ROOT / "results").iterdir()} & {"left", "specs", "cache.sqlite"}


@pytest.mark.full
def test_a_run_in_the_repository_cannot_write_there() -> None:
    before = sorted((ROOT / "results").rglob("*"))
    process = nip_run("specs/quickstart.yaml", "-q", cwd=ROOT)
    assert process.returncode != 0
    assert "temporary folders alone" in process.stderr
    assert sorted((ROOT / "results").rglob("*")) == before


SECRETS_TEST = """\
import os

def test_there_are_none():
    assert not [name for name in os.environ if name.upper().endswith(("_API_KEY", "_TOKEN", "_PROXY"))]
"""


@pytest.mark.full
def test_keys_and_proxies_of_the_shell_are_removed(tmp_path: Path) -> None:
    (tmp_path / "test_secrets.py").write_text(SECRETS_TEST)
    shell_variables = {
        "OPENAI_API_KEY": "sk-mine",
        "HF_TOKEN": "hf-mine",
        "https_proxy": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]

    def run_pytest(*options: str) -> int:
        return subprocess.run(
            [*arguments, *options],
            cwd=tmp_path,
            env=environment(**shell_variables),
            stdout=subprocess.DEVNULL,
            check=False,
        ).returncode

    assert (run_pytest(), run_pytest("-p", "tests.conftest")) == (1, 0)
