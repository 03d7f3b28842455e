"""What every answer says of itself, what a cookie may do, and what forms are taken; without a process of its own."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlencode

import pytest
from fastapi import FastAPI
from starlette.types import Message

from runner.server.accounts.accounts import Scope, add_account, create_token
from runner.server.boards.builder import as_csv
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.web.app import create_app
from tests.support.hang_guard import HANG_SECONDS

FORM = (b"content-type", b"application/x-www-form-urlencoded")
HOST = (b"host", b"x.example")


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found == name]

    def one(self, name: str) -> str:
        (found,) = self.all(name)
        return found


@dataclass
class Application:
    """An application behind TLS, and a token of acme's there."""

    app: FastAPI
    token: str

    def ask(self, method: str, path: str, *headers: tuple[bytes, bytes], body: bytes = b"") -> Answer:
        sent: list[Message] = []
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return waiting.pop() if waiting else await asyncio.sleep(60, {"type": "http.disconnect"})

        async def send(message: Message) -> None:
            sent.append(message)

        where, _, query = path.partition("?")
        scope = {
            "type": "http", "method": method, "path": where, "raw_path": where.encode(), "headers": [HOST, *headers],
            "query_string": query.encode(), "scheme": "http", "server": ("x", 80), "client": ("127.0.0.1", 1),
            "root_path": "", "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.3"},
        }  # fmt: skip
        asyncio.run(asyncio.wait_for(self.app(scope, receive, send), HANG_SECONDS))
        said = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        return Answer(int(sent[0]["status"]), said, b"".join(one.get("body", b"") for one in sent[1:]))

    def signed(
        self, word: str | None = None, *more: tuple[bytes, bytes], kind: tuple[bytes, bytes] = FORM, beside: str = ""
    ) -> Answer:
        """To sign in by the form; `word` in place of the form's own."""
        page = self.ask("GET", "/login")
        found = re.search(rb'name="word" value="([^"]+)"', page.body)
        assert found is not None
        said = urlencode(
            {"word": found[1].decode() if word is None else word, "token": self.token, "more": beside}
        ).encode()
        cookie = (b"cookie", page.one("set-cookie").partition(";")[0].encode())
        return self.ask("POST", "/login", cookie, kind, *more, body=said)


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    server = Service.open(Settings(folder=tmp_path_factory.mktemp("asked"), address="https://x.example"))
    with closing(server.database):
        with server.database.writing() as connection:
            add_account(connection, "acme", time.time())
            token = create_token(connection, "acme", Scope.PUBLISH, time.time(), lifetime_seconds=None)
        yield Application(create_app(server), token)


def test_a_page_of_a_server_that_has_no_board_yet_asks_again_by_itself(application: Application) -> None:
    for path in ("/", "/board/0123456789ab", "/run/alice/first/1", "/owner/alice", "/search?q=x", "/dataset/a/b"):
        answer = application.ask("GET", path)
        assert (answer.status, answer.one("retry-after")) == (503, "3"), (path, answer.body)
        assert b'http-equiv="refresh" content="3"' in answer.body


def test_what_says_to_come_later_says_when_as_the_document_does(application: Application) -> None:
    for path in ("/board.duckdb", "/board/0123456789ab.json", "/board/0123456789ab.csv"):
        answer = application.ask("GET", path)
        assert (answer.status, json.loads(answer.body)["code"], answer.one("retry-after")) == (503, "making", "3"), path
    document = application.app.openapi()["paths"]
    assert len(document) > 20
    for path, operations in document.items():
        for operation in operations.values():
            for status in ("429", *(() if path == "/readyz" else ("503",))):  # what is not ready says what is wrong
                assert operation["responses"][status]["headers"]["Retry-After"]["required"], (path, status)


def test_what_an_answer_does_not_say_is_said_of_it(application: Application) -> None:
    for path in ("/healthz", "/api/v1", "/api/v1/tree/no", "/nothing", "/board/x", "/login", "/mine", "/board.duckdb"):
        answer = application.ask("GET", path)
        policy = answer.one("content-security-policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "base-uri 'none'" in policy
        assert "form-action 'none'" in policy or "form-action 'self'" in policy
        assert not re.search("unsafe|\\*|http:|https:|script-src [^;]*data:", policy)
        assert answer.one("x-frame-options") == "DENY"
        assert answer.one("x-content-type-options") == "nosniff"
        assert answer.one("cross-origin-opener-policy") == "same-origin"
        assert answer.one("cross-origin-resource-policy") == "same-origin"
        assert "no-store" in answer.one("cache-control"), path
        assert not answer.all("access-control-allow-origin")


def test_a_cookie_behind_tls_is_of_this_host_alone_and_not_for_scripts_or_other_sites(application: Application) -> None:
    done = application.signed()
    assert (done.status, done.one("location")) == (303, "/mine")
    said = next(one for one in done.all("set-cookie") if one.startswith("__Host-nip-run-session="))
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(said.split("; "))
    assert not re.search("(?i)domain=", said)
    assert application.token not in said
    cookie = said.partition(";")[0]
    page = application.ask("GET", "/mine", (b"cookie", cookie.encode()))
    assert (page.status, page.one("cache-control"), page.all("etag")) == (200, "private, no-store", [])
    # Set by another host of the domain it is none.
    assert application.ask("GET", "/mine", (b"cookie", cookie.removeprefix("__Host-").encode())).status == 303
    api = application.ask("GET", "/api/v1", (b"cookie", cookie.encode()))
    assert b'"account":null' in api.body


@pytest.mark.parametrize(
    ("word", "more"),
    [
        ("guessed", ()), ("", ()), (None, ((b"origin", b"https://evil.example"),)),
        (None, ((b"sec-fetch-site", b"cross-site"),)), (None, ((b"sec-fetch-site", b"same-site"),)),
        (None, ((b"origin", b"null"),)),
    ],
)  # fmt: skip
def test_a_form_of_elsewhere_signs_nobody_in_or_out(
    application: Application, word: str | None, more: tuple[tuple[bytes, bytes], ...]
) -> None:
    refused = application.signed(word, *more)
    assert refused.status == 403
    assert not [one for one in refused.all("set-cookie") if "session" in one]
    cookie = next(one for one in application.signed().all("set-cookie") if "session=" in one).partition(";")[0].encode()
    page = application.ask("GET", "/mine", (b"cookie", cookie))
    found = re.search(rb'name="word" value="([^"]+)"', page.body)
    assert found is not None
    said = urlencode({"word": found[1].decode() if word is None else word}).encode()
    assert application.ask("POST", "/logout", (b"cookie", cookie), FORM, *more, body=said).status == 403
    assert application.ask("GET", "/mine", (b"cookie", cookie)).status == 200


def test_what_is_no_form_or_a_long_one_signs_nobody_in(application: Application) -> None:
    assert application.signed(kind=(b"content-type", b"text/plain")).status == 403
    assert application.signed(beside="x" * 5_000).status == 403
    assert application.signed(beside="x" * 500).status == 303


def test_no_cell_of_a_boards_file_is_a_formula() -> None:
    cells = ["=1", "+1", "-1", "@x", "\t=1", " =1", "a=1", "1"]
    (_, *rows) = csv.reader(io.StringIO(as_csv([{"name": cell} for cell in cells])))
    assert [row[0] for row in rows] == [*(f"'{cell}" for cell in cells[:6]), "a=1", "1"]
    (_, row) = csv.reader(io.StringIO(as_csv([{"a": ["=1", "x"], "b": -1.5, "c": {"=": 1}}])))
    assert row == ["'=1; x", "-1.5", '{"=":1}']
