"""A token goes to its own server: to no other origin, along no redirect, and into no message, file or release."""

from __future__ import annotations

import http.server
import json
import os
import stat
import subprocess
import sys
import threading
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

SECRET = "nip_0123456789ab_" + "s" * 43


@contextmanager
def listening(answer: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers all with one answer, and what headers it was sent."""
    came: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append({name.lower(): value for name, value in self.headers.items()})
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

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}", came
        made.shutdown()


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("NIP_RUN_TOKEN", "NIP_RUN_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config"


GOOD = (200, {"content-type": "application/json"}, b'{"releases": [], "next": null}')


def list_releases(where: str) -> list[Any]:
    transport = HttpTransport(where, timeouts=Timeouts(tries=1, read=10))
    try:
        return list(transport.list_releases())
    finally:
        transport.close()


def test_a_token_of_the_environment_goes_to_the_registry_of_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with listening(GOOD) as (mine, mine_came), listening(GOOD) as (other, other_came):
        monkeypatch.setenv("NIP_RUN_TOKEN", SECRET)
        for nowhere in ("", "registry"):
            monkeypatch.setenv("NIP_RUN_REGISTRY", nowhere)
            with pytest.raises(UsageError, match="does not name its server"):
                list_releases(mine)
        monkeypatch.setenv("NIP_RUN_REGISTRY", f"{mine}/")
        assert (
            list_releases(mine) == list_releases(other) == list_releases(mine.replace("127.0.0.1", "localhost")) == []
        )
        assert mine_came[0]["authorization"] == f"Bearer {SECRET}"
        assert "authorization" not in other_came[0] | mine_came[1]


def test_who_is_refused_is_told_that_the_token_of_the_environment_is_for_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with listening((401, {"content-type": "application/json"}, b'{"message": "a token is needed"}')) as (mine, _):
        monkeypatch.setenv("NIP_RUN_TOKEN", SECRET)
        monkeypatch.setenv("NIP_RUN_REGISTRY", "https://registry.example.org")
        with pytest.raises(ReleaseError, match="is for NIP_RUN_REGISTRY, which is not this server"):
            list_releases(mine)


def test_an_address_that_leads_past_the_registry_is_told_as_that() -> None:
    words = "no nip-run registry answers at .*/foo. Check the address"
    with (
        listening((404, {"content-type": "application/json"}, b'{"message": "Not Found"}')) as (mine, _),
        pytest.raises(ReleaseError, match=words),
    ):
        list_releases(f"{mine}/foo")


def test_a_token_that_is_kept_goes_to_its_address_alone_and_nobody_else_may_read_it(config: Path) -> None:
    with listening(GOOD) as (mine, came), listening(GOOD) as (other, other_came):
        assert store_token(mine, SECRET) is False
        assert list_releases(mine) == list_releases(other) == []
        assert (came[0]["authorization"], "authorization" in other_came[0]) == (f"Bearer {SECRET}", False)
    assert tokens_path() == config / "nip-run" / "tokens.json"
    assert stat.S_IMODE(tokens_path().stat().st_mode) == 0o600
    tokens_path().chmod(0o644)
    with pytest.raises(RunError, match="other users can read"):
        token_for(mine)
    tokens_path().chmod(0o600)
    assert store_token(mine, None) is True
    assert token_for(mine) is None


def test_a_redirect_is_not_followed_and_takes_no_token_along(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(GOOD) as (other, other_came):
        for status in (301, 302, 303, 307, 308):
            with listening((status, {"location": f"{other}/api/v1/tree"}, b"")) as (mine, came):
                monkeypatch.setenv("NIP_RUN_REGISTRY", mine)
                monkeypatch.setenv("NIP_RUN_TOKEN", SECRET)
                with pytest.raises(ReleaseError, match="redirects to"):
                    list_releases(mine)
                transport = HttpTransport(mine, timeouts=Timeouts(tries=1))
                with pytest.raises(ReleaseError, match="redirects to"):
                    transport.open("a/b")
                transport.close()
                assert len(came) == 2
        assert other_came == []


def test_a_proxy_of_the_environment_is_not_shown_what_goes_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(GOOD) as (mine, _), listening(GOOD) as (proxy, proxy_came):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        store_token(mine, SECRET)
        assert list_releases(mine) == []
        assert proxy_came == []


@pytest.mark.parametrize(
    "address",
    [
        "http://registry.example.org", "https://user:pw@registry.example.org", "https://nip_x@registry.example.org",
        "ftp://registry.example.org", "https://", "https://registry.example.org/?token=x", "http://127.0.0.1.evil.example",
        "http://[::2]", "https://registry.example.org/#x", "http://localhost.evil.example", "http://0x7f000001",
    ],
)  # fmt: skip
def test_no_token_leaves_without_tls_or_by_an_address_that_looks_like_another(address: str) -> None:
    with pytest.raises(UsageError):
        normalize_address(address)


def test_one_server_has_one_address_however_it_is_written() -> None:
    assert normalize_address("HTTPS://Registry.Example.ORG:443/") == normalize_address("https://registry.example.org")
    assert normalize_address("http://127.0.0.1:8080/") == "http://127.0.0.1:8080"
    assert normalize_address("http://[::1]:8080") == "http://[::1]:8080"


@pytest.mark.full
def test_login_keeps_what_the_server_knows_and_shows_it_nowhere(config: Path, tmp_path: Path) -> None:
    with shared_empty_server() as server:
        token = server.create_token("acme")

        def said(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                command("login", server.address, *words), input=given, cwd=tmp_path, capture_output=True, text=True,
                env=environment(XDG_CONFIG_HOME=str(config)), timeout=HANG_SECONDS, check=False,
            )  # fmt: skip

        done = said(given=f"{token}\n")
        assert done.returncode == 0, done.stderr
        assert "logged in as acme, who may publish as acme" in done.stdout
        assert json.loads(tokens_path().read_bytes()) == {server.address: token}
        wrong = said(given=SECRET)
        assert (wrong.returncode, "does not accept this token" in wrong.stderr) == (2, True)
        assert token_for(server.address) == token  # which is the one from before
        assert said("--logout").returncode == 0
        assert token_for(server.address) is None
        secrets = (token.rpartition("_")[2], SECRET.rpartition("_")[2])
        shown = "".join(one.stdout + one.stderr for one in (done, wrong))
        assert not any(secret in shown + server.log for secret in secrets)


@pytest.mark.full
def test_a_server_that_shows_a_token_in_its_fault_has_it_taken_out(tmp_path: Path, config: Path) -> None:
    with listening((418, {}, json.dumps({"message": f"you said {SECRET}"}).encode())) as (mine, _):
        store_token(mine, SECRET)
        done = subprocess.run(
            [sys.executable, "-m", "runner", "search", "--from", mine], cwd=tmp_path, capture_output=True, text=True,
            env=environment(XDG_CONFIG_HOME=str(config)), timeout=HANG_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 1
        assert "you said" in done.stderr
        assert SECRET not in done.stdout + done.stderr


@pytest.mark.full
def test_a_token_that_only_reads_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_empty_server() as server:
        monkeypatch.setenv("NIP_RUN_REGISTRY", server.address)
        reads, expired = server.create_token("acme", Scope.READ), server.create_token("acme", seconds=0)
        for token, words in ((reads, "scope is read"), (expired, "expired or revoked")):
            monkeypatch.setenv("NIP_RUN_TOKEN", token)
            transport = HttpTransport(server.address, timeouts=Timeouts(tries=1))
            with pytest.raises(UsageError, match=words):
                transport.add({"dataset/acme/x/1": [("release.json", b"")]}, "x")
            transport.close()
    assert os.environ["NIP_RUN_REGISTRY"] == server.address
