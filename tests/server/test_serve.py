"""`nip-run serve`: how it starts, says where it is, what it refuses, and ends; what it says of itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runner.documents.releases.reference import Kind
from runner.server.store.schema import VERSION
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run_here, wait_or_kill
from tests.support.registry_locations import bundle
from tests.support.server_process import ServerProcess, run_server


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that lets callers ask little."""
    with run_server(
        tmp_path_factory.mktemp("slow"),
        "--rate",
        "0.5",
        "--behind-proxy",
        "127.0.0.1",
        "--address",
        "https://x.example/",
    ) as running:
        yield running


def test_what_one_publishes_another_reads(served: ServerProcess) -> None:
    served.publish("alice", bundle("council", kind=Kind.DATASET))
    with served.registry() as registry:
        (entry,) = (one for one in registry.entries() if one.reference.name == "council")
        assert not list(registry.find_problems(entry))


def test_it_says_whether_it_lives_and_can_work(served: ServerProcess) -> None:
    assert (served.request("/healthz").status, served.request("/readyz").body) == (200, b"ok\n")


def test_its_numbers_are_for_who_keeps_it(served: ServerProcess, slow: ServerProcess) -> None:
    served.request("/healthz")
    said = served.request("/metrics").body.decode()
    assert re.search(r'^nip_run_requests_total\{method="GET",route="/healthz",status="200"\} [1-9]', said, re.MULTILINE)
    assert re.search(r"^nip_run_revision \d+$", said, re.MULTILINE)
    # Behind a proxy everybody comes from this machine.
    for who, status in ((None, 403), ("alice", 403), ("keeper", 200)):
        token = None if who is None else slow.tokens[who]
        assert slow.request("/metrics", token=token, X_Forwarded_For="203.0.113.9").status == status


def test_every_request_is_a_line_of_json_without_token_or_query(served: ServerProcess) -> None:
    path = "/api/v1/releases?prefix=SECRETQUERY"
    served.request(path, token=served.tokens["alice"])
    served.request("/nothing\x1b[31m".encode("unicode_escape").decode(), token="nip_WRONGTOKEN")
    lines = [json.loads(line) for line in served.log.splitlines()]
    assert any(one.get("path") == "/api/v1/releases" and one["account"] == "alice" for one in lines)
    assert "SECRETQUERY" not in served.log
    assert "WRONGTOKEN" not in served.log
    assert served.tokens["alice"].split("_", 2)[2] not in served.log


@pytest.mark.full
def test_a_proxy_that_is_not_named_is_told_once(tmp_path: Path) -> None:
    words = ("--behind-proxy", "10.0.0.0/8", "--address", "https://x.example/")
    with run_server(tmp_path / "server", *words, people=False) as behind:
        for _ in range(3):
            behind.request("/healthz")
            behind.request("/healthz", X_Forwarded_For="203.0.113.9")
        (told,) = (one for one in map(json.loads, behind.log.splitlines()) if one["message"] == "unknown proxy")
    assert (told["level"], told["from"], told["named"]) == ("warning", "127.0.0.1", "10.0.0.0/8")


def test_who_asks_too_much_is_told_when_to_come_again_and_others_are_not_held_up(slow: ServerProcess) -> None:
    answers = [slow.request("/api/v1", X_Forwarded_For="1.2.3.4, 198.51.100.7") for _ in range(14)]
    assert {one.status for one in answers} == {200, 429}
    told = [one.headers["retry-after"] for one in answers if one.status == 429]
    assert min(map(int, told)) >= 1
    # What a caller writes before the proxy's own word is no other caller; what the proxy says is.
    # One request comes back in two seconds, perhaps just now.
    assert 429 in {slow.request("/api/v1", X_Forwarded_For="9.9.9.9, 198.51.100.7").status for _ in range(3)}
    assert slow.request("/api/v1", X_Forwarded_For="198.51.100.8").status == 200
    assert slow.request("/api/v1", token=slow.tokens["alice"], X_Forwarded_For="198.51.100.7").status == 200


def test_who_tries_tokens_is_slowed_down_whatever_is_tried_and_wherever(served: ServerProcess) -> None:
    word = "w" * 32
    assert served.request("/api/v1", token=served.tokens["alice"]).status == 200  # whose token is known from now on
    form = {"Cookie": f"nip-run-form={word}", "Content-Type": "application/x-www-form-urlencoded"}
    for number in range(200):  # what is allowed comes back while they are tried, on a slow machine one in two
        token = f"nip_{number:012d}_{'x' * 43}"
        tried = (
            served.request("/api/v1", token=token),
            served.request("/login", "POST", f"word={word}&token={token}".encode(), **form),
        )
        if number < 25:
            assert [one.status for one in tried] == [401, 401]
        if [one.status for one in tried] == [429, 429]:
            break
    assert [one.status for one in tried] == [429, 429]
    assert served.request("/api/v1").status == served.request("/login").status == 200
    assert served.request("/api/v1", token=served.tokens["alice"]).status == 200


@pytest.mark.parametrize("path", ["/api/v1/uploads/", "/api/v1/competitions/", "/login/", "/search/"])
def test_no_answer_leads_to_the_name_that_somebody_asked_by(slow: ServerProcess, path: str) -> None:
    for method in ("GET", "POST"):
        for host, status in (("evil.example", {421}), ("x.example", {404, 405})):
            found = slow.request(path, method, b"", Host=host, X_Forwarded_For=f"203.0.113.{len(path)}")
            assert found.status in status
            assert "location" not in found.headers
    assert slow.request("/healthz", Host="evil.example").status == 200


def test_a_head_that_comes_in_parts_is_answered(served: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        connection.sendall(b"Host: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.full
def test_a_head_that_does_not_come_ends_its_connection(served: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=HANG_SECONDS) as connection:
        begun = time.monotonic()
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert connection.recv(100) == b""
        assert time.monotonic() - begun > 15


def refused(*words: str | Path, cwd: Path) -> str:
    done = nip_run_here("serve", *words, cwd=cwd)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "This is a bug" not in done.stderr
    return done.stderr


@pytest.mark.full
def test_what_cannot_be_served_is_refused_with_the_next_step(served: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "stop that server first" in refused(served.folder, "--port", "0", cwd=tmp_path)
    assert "Choose another --port" in refused("new", "--port", str(served.port), cwd=tmp_path)
    assert "--behind-proxy NETWORK" in refused("new", "--port", "0", "--host", "0.0.0.0", cwd=tmp_path)
    assert "also needs --address" in refused("new", "--behind-proxy", "127.0.0.1", cwd=tmp_path)
    assert "such as 127.0.0.1" in refused("new", "--behind-proxy", "nginx", "--address", "https://x", cwd=tmp_path)
    for said in ("registry.example.org", "https://", "https://x.example/registry", "https://x?y", "ftp://x.example"):
        assert "write https://HOST" in refused("new", "--port", "0", "--address", said, cwd=tmp_path), said
    assert "could read tokens" in refused("new", "--port", "0", "--address", "http://x.example", cwd=tmp_path)
    assert "cannot write to the server's folder" in refused("file", "--port", "0", cwd=tmp_path)
    assert "--database names mysql, which is not supported" in refused(
        "new", "--port", "0", "--database", "mysql://x/y", cwd=tmp_path
    )
    assert "invalid URL of a blob store" in refused("new", "--port", "0", "--blobs", "nowhere://x", cwd=tmp_path)
    assert "70000 is not a port; use 1 to 65535" in refused("new", "--port", "70000", cwd=tmp_path)
    with closing(sqlite3.connect(tmp_path / "new" / "registry.sqlite")) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(VERSION + 1),))
        connection.commit()
    assert "upgrade nip-run" in refused("new", "--port", "0", cwd=tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_it_ends_well_when_it_is_told_to(tmp_path: Path, number: int) -> None:
    with run_server(tmp_path) as running:
        running.publish("alice", bundle("council", kind=Kind.DATASET))
        time.sleep(1.5)  # a board is being made
        os.kill(running.process.pid, number)
        assert wait_or_kill(running.process) == 0
        assert "trace" not in running.log
