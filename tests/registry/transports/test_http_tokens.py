"""A token is sent only to its own server: to no other origin or redirect, and it appears in no message."""

from __future__ import annotations

import http.server
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import ReleaseError, RunError, UsageError
from runner.registry.transports.http.tokens import normalize_address, store_token, token_for, tokens_path
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.timeouts import Timeouts
from runner.server.accounts.accounts import Scope
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment
from tests.support.server_process import shared_empty_server
from tests.support.threaded_server import serve_in_thread

SECRET = "nip_0123456789ab_" + "s" * 43


@contextmanager
def answer_all_requests(answer: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Run a server that gives one answer to all requests; yield its address and the headers of the requests."""
    requests: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append({name.lower(): value for name, value in self.headers.items()})
            status, headers, body = answer
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serve_in_thread(server):
        yield f"http://127.0.0.1:{server.server_port}", requests


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("NIP_RUN_TOKEN", "NIP_RUN_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config"


EMPTY_LIST = (200, {"content-type": "application/json"}, b'{"releases": [], "next": null}')


def list_releases(address: str) -> list[Any]:
    transport = HttpTransport(address, timeouts=Timeouts(tries=1, read=10))
    try:
        return list(transport.list_releases())
    finally:
        transport.close()


def test_token_of_the_environment_is_sent_only_to_the_registry_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        answer_all_requests(EMPTY_LIST) as (address, requests),
        answer_all_requests(EMPTY_LIST) as (other_address, other_requests),
    ):
        monkeypatch.setenv("NIP_RUN_TOKEN", SECRET)
        for invalid in ("", "registry"):
            monkeypatch.setenv("NIP_RUN_REGISTRY", invalid)
            with pytest.raises(UsageError, match="does not name its server"):
                list_releases(address)
        monkeypatch.setenv("NIP_RUN_REGISTRY", f"{address}/")
        assert (
            list_releases(address)
            == list_releases(other_address)
            == list_releases(address.replace("127.0.0.1", "localhost"))
            == []
        )
        assert requests[0]["authorization"] == f"Bearer {SECRET}"
        assert "authorization" not in other_requests[0] | requests[1]


def test_refused_user_is_told_that_the_token_belongs_to_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answer_all_requests((401, {"content-type": "application/json"}, b'{"message": "a token is needed"}')) as (
        address,
        _,
    ):
        monkeypatch.setenv("NIP_RUN_TOKEN", SECRET)
        monkeypatch.setenv("NIP_RUN_REGISTRY", "https://registry.example.org")
        with pytest.raises(ReleaseError, match="is for NIP_RUN_REGISTRY, which is not this server"):
            list_releases(address)


def test_address_with_a_wrong_path_is_reported() -> None:
    message = "no nip-run registry answers at .*/foo. Check the address"
    with (
        answer_all_requests((404, {"content-type": "application/json"}, b'{"message": "Not Found"}')) as (address, _),
        pytest.raises(ReleaseError, match=message),
    ):
        list_releases(f"{address}/foo")


def test_stored_token_is_private_and_sent_only_to_its_address(config: Path) -> None:
    with (
        answer_all_requests(EMPTY_LIST) as (address, requests),
        answer_all_requests(EMPTY_LIST) as (other_address, other_requests),
    ):
        assert store_token(address, SECRET) is False
        assert list_releases(address) == list_releases(other_address) == []
        assert (requests[0]["authorization"], "authorization" in other_requests[0]) == (f"Bearer {SECRET}", False)
    assert tokens_path() == config / "nip-run" / "tokens.json"
    assert stat.S_IMODE(tokens_path().stat().st_mode) == 0o600
    tokens_path().chmod(0o644)
    with pytest.raises(RunError, match="other users can read"):
        token_for(address)
    tokens_path().chmod(0o600)
    assert store_token(address, None) is True
    assert token_for(address) is None


def test_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with answer_all_requests(EMPTY_LIST) as (other_address, other_requests):
        for status in (301, 302, 303, 307, 308):
            with answer_all_requests((status, {"location": f"{other_address}/api/v1/tree"}, b"")) as (
                address,
                requests,
            ):
                monkeypatch.setenv("NIP_RUN_REGISTRY", address)
                monkeypatch.setenv("NIP_RUN_TOKEN", SECRET)
                with pytest.raises(ReleaseError, match="redirects to"):
                    list_releases(address)
                transport = HttpTransport(address, timeouts=Timeouts(tries=1))
                with pytest.raises(ReleaseError, match="redirects to"):
                    transport.open("a/b")
                transport.close()
                assert len(requests) == 2
        assert other_requests == []


def test_local_registry_is_not_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with answer_all_requests(EMPTY_LIST) as (address, _), answer_all_requests(EMPTY_LIST) as (proxy, proxy_requests):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        store_token(address, SECRET)
        assert list_releases(address) == []
        assert proxy_requests == []


@pytest.mark.parametrize(
    "address",
    [
        "http://registry.example.org", "https://user:pw@registry.example.org", "https://nip_x@registry.example.org",
        "ftp://registry.example.org", "https://", "https://registry.example.org/?token=x", "http://127.0.0.1.evil.example",
        "http://[::2]", "https://registry.example.org/#x", "http://localhost.evil.example", "http://0x7f000001",
    ],
)  # fmt: skip
def test_address_without_tls_or_with_a_misleading_host_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        normalize_address(address)


def test_server_address_is_normalized() -> None:
    assert normalize_address("HTTPS://Registry.Example.ORG:443/") == normalize_address("https://registry.example.org")
    assert normalize_address("http://127.0.0.1:8080/") == "http://127.0.0.1:8080"
    assert normalize_address("http://[::1]:8080") == "http://[::1]:8080"


@pytest.mark.full
def test_login_stores_an_accepted_token_and_shows_it_nowhere(config: Path, tmp_path: Path) -> None:
    with shared_empty_server() as server:
        token = server.create_token("acme")

        def run_login(*arguments: str, input_text: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                command("login", server.address, *arguments), input=input_text, cwd=tmp_path,
                capture_output=True, text=True, env=environment(XDG_CONFIG_HOME=str(config)), timeout=HANG_SECONDS,
                check=False,
            )  # fmt: skip

        done = run_login(input_text=f"{token}\n")
        assert done.returncode == 0, done.stderr
        assert "logged in as acme, who may publish as acme" in done.stdout
        assert json.loads(tokens_path().read_bytes()) == {server.address: token}
        refused = run_login(input_text=SECRET)
        assert (refused.returncode, "does not accept this token" in refused.stderr) == (2, True)
        assert token_for(server.address) == token  # the earlier token
        assert run_login("--logout").returncode == 0
        assert token_for(server.address) is None
        secrets = (token.split("_", 2)[2], SECRET.split("_", 2)[2])
        output = "".join(process.stdout + process.stderr for process in (done, refused))
        assert not any(secret in output + server.log for secret in secrets)


@pytest.mark.full
def test_token_in_a_server_error_is_redacted(tmp_path: Path, config: Path) -> None:
    with answer_all_requests((418, {}, json.dumps({"message": f"you said {SECRET}"}).encode())) as (address, _):
        store_token(address, SECRET)
        done = subprocess.run(
            [sys.executable, "-m", "runner", "search", "--from", address], cwd=tmp_path, capture_output=True, text=True,
            env=environment(XDG_CONFIG_HOME=str(config)), timeout=HANG_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 1
        assert "you said" in done.stderr
        assert SECRET not in done.stdout + done.stderr


@pytest.mark.full
def test_read_only_or_expired_token_cannot_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_empty_server() as server:
        monkeypatch.setenv("NIP_RUN_REGISTRY", server.address)
        read_token, expired = server.create_token("acme", Scope.READ), server.create_token("acme", seconds=0)
        for token, message in ((read_token, "scope is read"), (expired, "expired or revoked")):
            monkeypatch.setenv("NIP_RUN_TOKEN", token)
            transport = HttpTransport(server.address, timeouts=Timeouts(tries=1))
            with pytest.raises(UsageError, match=message):
                transport.add({"dataset/acme/x/1": [("release.json", b"")]}, "x")
            transport.close()
    assert os.environ["NIP_RUN_REGISTRY"] == server.address
