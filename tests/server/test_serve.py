"""`nip-run serve`: startup, refused options, health checks, metrics, logs, rate limits and shutdown."""

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
def rate_limited_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a low rate limit, behind a trusted proxy."""
    with run_server(
        tmp_path_factory.mktemp("slow"),
        "--rate",
        "0.5",
        "--behind-proxy",
        "127.0.0.1",
        "--address",
        "https://x.example/",
    ) as server:
        yield server


def test_published_release_can_be_read_by_others(served: ServerProcess) -> None:
    served.publish("alice", bundle("council", kind=Kind.DATASET))
    with served.registry() as registry:
        (entry,) = (candidate for candidate in registry.entries() if candidate.reference.name == "council")
        assert not list(registry.find_problems(entry))


def test_health_and_readiness_endpoints_answer(served: ServerProcess) -> None:
    assert (served.request("/healthz").status, served.request("/readyz").body) == (200, b"ok\n")


def test_metrics_are_only_for_administrators_behind_a_proxy(
    served: ServerProcess, rate_limited_server: ServerProcess
) -> None:
    served.request("/healthz")
    metrics_text = served.request("/metrics").body.decode()
    assert re.search(
        r'^nip_run_requests_total\{method="GET",route="/healthz",status="200"\} [1-9]', metrics_text, re.MULTILINE
    )
    assert re.search(r"^nip_run_revision \d+$", metrics_text, re.MULTILINE)
    # Behind a proxy, every request comes from this machine.
    for account, status in ((None, 403), ("alice", 403), ("keeper", 200)):
        token = None if account is None else rate_limited_server.tokens[account]
        assert rate_limited_server.request("/metrics", token=token, X_Forwarded_For="203.0.113.9").status == status


def test_request_log_lines_are_json_without_token_or_query(served: ServerProcess) -> None:
    path = "/api/v1/releases?prefix=SECRETQUERY"
    served.request(path, token=served.tokens["alice"])
    served.request("/nothing\x1b[31m".encode("unicode_escape").decode(), token="nip_WRONGTOKEN")
    records = [json.loads(line) for line in served.log.splitlines()]
    assert any(record.get("path") == "/api/v1/releases" and record["account"] == "alice" for record in records)
    assert "SECRETQUERY" not in served.log
    assert "WRONGTOKEN" not in served.log
    assert served.tokens["alice"].split("_", 2)[2] not in served.log


@pytest.mark.full
def test_unknown_proxy_is_logged_once(tmp_path: Path) -> None:
    options = ("--behind-proxy", "10.0.0.0/8", "--address", "https://x.example/")
    with run_server(tmp_path / "server", *options, people=False) as server:
        for _ in range(3):
            server.request("/healthz")
            server.request("/healthz", X_Forwarded_For="203.0.113.9")
        (warning,) = (
            record for record in map(json.loads, server.log.splitlines()) if record["message"] == "unknown proxy"
        )
    assert (warning["level"], warning["from"], warning["named"]) == ("warning", "127.0.0.1", "10.0.0.0/8")


def test_rate_limited_caller_gets_retry_after_and_other_callers_are_not_limited(
    rate_limited_server: ServerProcess,
) -> None:
    responses = [rate_limited_server.request("/api/v1", X_Forwarded_For="1.2.3.4, 198.51.100.7") for _ in range(14)]
    assert {response.status for response in responses} == {200, 429}
    retry_after = [response.headers["retry-after"] for response in responses if response.status == 429]
    assert min(map(int, retry_after)) >= 1
    # Only the last address of the header, which the proxy adds, identifies the caller.
    # One request is allowed every two seconds, perhaps just now.
    assert 429 in {
        rate_limited_server.request("/api/v1", X_Forwarded_For="9.9.9.9, 198.51.100.7").status for _ in range(3)
    }
    assert rate_limited_server.request("/api/v1", X_Forwarded_For="198.51.100.8").status == 200
    assert (
        rate_limited_server.request(
            "/api/v1", token=rate_limited_server.tokens["alice"], X_Forwarded_For="198.51.100.7"
        ).status
        == 200
    )


def test_guessing_tokens_is_rate_limited_in_the_api_and_at_login(served: ServerProcess) -> None:
    form_token = "w" * 32
    assert served.request("/api/v1", token=served.tokens["alice"]).status == 200  # the server now knows this token
    form = {"Cookie": f"nip-run-form={form_token}", "Content-Type": "application/x-www-form-urlencoded"}
    for number in range(200):  # the allowance refills; on a slow machine, every second request may pass
        token = f"nip_{number:012d}_{'x' * 43}"
        responses = (
            served.request("/api/v1", token=token),
            served.request("/login", "POST", f"word={form_token}&token={token}".encode(), **form),
        )
        if number < 25:
            assert [response.status for response in responses] == [401, 401]
        if [response.status for response in responses] == [429, 429]:
            break
    assert [response.status for response in responses] == [429, 429]
    assert served.request("/api/v1").status == served.request("/login").status == 200
    assert served.request("/api/v1", token=served.tokens["alice"]).status == 200


@pytest.mark.parametrize("path", ["/api/v1/uploads/", "/api/v1/competitions/", "/login/", "/search/"])
def test_response_never_redirects_to_the_requested_host(rate_limited_server: ServerProcess, path: str) -> None:
    for method in ("GET", "POST"):
        for host, status in (("evil.example", {421}), ("x.example", {404, 405})):
            response = rate_limited_server.request(
                path, method, b"", Host=host, X_Forwarded_For=f"203.0.113.{len(path)}"
            )
            assert response.status in status
            assert "location" not in response.headers
    assert rate_limited_server.request("/healthz", Host="evil.example").status == 200


def test_request_head_sent_in_parts_is_answered(served: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        connection.sendall(b"Host: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.full
def test_incomplete_request_head_closes_the_connection(served: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=HANG_SECONDS) as connection:
        started = time.monotonic()
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert connection.recv(100) == b""
        assert time.monotonic() - started > 15


def expect_serve_error(*options: str | Path, cwd: Path) -> str:
    process = nip_run_here("serve", *options, cwd=cwd)
    assert process.returncode in (1, 2)
    assert "Traceback" not in process.stderr
    assert "This is a bug" not in process.stderr
    return process.stderr


@pytest.mark.full
def test_invalid_serve_options_are_refused_with_the_next_step(served: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "stop that server first" in expect_serve_error(served.folder, "--port", "0", cwd=tmp_path)
    assert "Choose another --port" in expect_serve_error("new", "--port", str(served.port), cwd=tmp_path)
    assert "--behind-proxy NETWORK" in expect_serve_error("new", "--port", "0", "--host", "0.0.0.0", cwd=tmp_path)
    assert "also needs --address" in expect_serve_error("new", "--behind-proxy", "127.0.0.1", cwd=tmp_path)
    assert "such as 127.0.0.1" in expect_serve_error(
        "new", "--behind-proxy", "nginx", "--address", "https://x", cwd=tmp_path
    )
    for address in ("registry.example.org", "https://", "https://x.example/registry", "https://x?y", "ftp://x.example"):
        assert "write https://HOST" in expect_serve_error("new", "--port", "0", "--address", address, cwd=tmp_path), (
            address
        )
    assert "could read tokens" in expect_serve_error(
        "new", "--port", "0", "--address", "http://x.example", cwd=tmp_path
    )
    assert "cannot write to the server's folder" in expect_serve_error("file", "--port", "0", cwd=tmp_path)
    assert "--database names mysql, which is not supported" in expect_serve_error(
        "new", "--port", "0", "--database", "mysql://x/y", cwd=tmp_path
    )
    assert "invalid URL of a blob store" in expect_serve_error(
        "new", "--port", "0", "--blobs", "nowhere://x", cwd=tmp_path
    )
    for limit in ("inf", "nan", "0"):
        assert "numbers greater than 0" in expect_serve_error("new", "--check-seconds", limit, cwd=tmp_path)
    assert "70000 is not a port; use 1 to 65535" in expect_serve_error("new", "--port", "70000", cwd=tmp_path)
    with closing(sqlite3.connect(tmp_path / "new" / "registry.sqlite")) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(VERSION + 1),))
        connection.commit()
    assert "upgrade nip-run" in expect_serve_error("new", "--port", "0", cwd=tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_server_shuts_down_cleanly_on_a_signal(tmp_path: Path, signal_number: int) -> None:
    with run_server(tmp_path) as server:
        server.publish("alice", bundle("council", kind=Kind.DATASET))
        time.sleep(1.5)  # a board is being built
        os.kill(server.process.pid, signal_number)
        assert wait_or_kill(server.process) == 0
        assert "trace" not in server.log
