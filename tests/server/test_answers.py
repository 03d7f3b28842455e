"""Response headers, cookies and form checks of the application, called in this process."""

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
class Response:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header_values(self, name: str) -> list[str]:
        return [value for header, value in self.headers if header == name]

    def single_header(self, name: str) -> str:
        (value,) = self.header_values(name)
        return value


@dataclass
class Application:
    """An application behind TLS, with a token of acme."""

    app: FastAPI
    token: str

    def request(self, method: str, path: str, *headers: tuple[bytes, bytes], body: bytes = b"") -> Response:
        sent: list[Message] = []
        incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return incoming.pop() if incoming else await asyncio.sleep(60, {"type": "http.disconnect"})

        async def send(message: Message) -> None:
            sent.append(message)

        url_path, _, query = path.partition("?")
        scope = {
            "type": "http", "method": method, "path": url_path, "raw_path": url_path.encode(),
            "headers": [HOST, *headers],
            "query_string": query.encode(), "scheme": "http", "server": ("x", 80), "client": ("127.0.0.1", 1),
            "root_path": "", "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.3"},
        }  # fmt: skip
        asyncio.run(asyncio.wait_for(self.app(scope, receive, send), HANG_SECONDS))
        header_pairs = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        return Response(int(sent[0]["status"]), header_pairs, b"".join(part.get("body", b"") for part in sent[1:]))

    def sign_in(
        self,
        form_token: str | None = None,
        *extra_headers: tuple[bytes, bytes],
        kind: tuple[bytes, bytes] = FORM,
        padding: str = "",
    ) -> Response:
        """Submit the login form, with the given `form_token` or the page's own."""
        page = self.request("GET", "/login")
        match = re.search(rb'name="word" value="([^"]+)"', page.body)
        assert match is not None
        form = urlencode(
            {"word": match[1].decode() if form_token is None else form_token, "token": self.token, "more": padding}
        ).encode()
        cookie = (b"cookie", page.single_header("set-cookie").partition(";")[0].encode())
        return self.request("POST", "/login", cookie, kind, *extra_headers, body=form)


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    service = Service.open(Settings(folder=tmp_path_factory.mktemp("asked"), address="https://x.example"))
    with closing(service.database):
        with service.database.writing() as connection:
            add_account(connection, "acme", time.time())
            token = create_token(connection, "acme", Scope.PUBLISH, time.time(), lifetime_seconds=None)
        yield Application(create_app(service), token)


def test_page_reloads_itself_until_the_first_board_is_built(application: Application) -> None:
    for path in ("/", "/board/0123456789ab", "/run/alice/first/1", "/owner/alice", "/search?q=x", "/dataset/a/b"):
        response = application.request("GET", path)
        assert (response.status, response.single_header("retry-after")) == (503, "3"), (path, response.body)
        assert b'http-equiv="refresh" content="3"' in response.body


def test_503_responses_have_retry_after_as_the_openapi_document_says(application: Application) -> None:
    for path in ("/board.duckdb", "/board/0123456789ab.json", "/board/0123456789ab.csv"):
        response = application.request("GET", path)
        assert (response.status, json.loads(response.body)["code"], response.single_header("retry-after")) == (
            503,
            "making",
            "3",
        ), path
    document = application.app.openapi()["paths"]
    assert len(document) > 20
    for path, operations in document.items():
        for operation in operations.values():
            for status in ("429", *(() if path == "/readyz" else ("503",))):  # /readyz answers 503 with its own body
                assert operation["responses"][status]["headers"]["Retry-After"]["required"], (path, status)


def test_every_response_has_default_security_headers(application: Application) -> None:
    for path in ("/healthz", "/api/v1", "/api/v1/tree/no", "/nothing", "/board/x", "/login", "/mine", "/board.duckdb"):
        response = application.request("GET", path)
        policy = response.single_header("content-security-policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "base-uri 'none'" in policy
        assert "form-action 'none'" in policy or "form-action 'self'" in policy
        assert not re.search("unsafe|\\*|http:|https:|script-src [^;]*data:", policy)
        assert response.single_header("x-frame-options") == "DENY"
        assert response.single_header("x-content-type-options") == "nosniff"
        assert response.single_header("cross-origin-opener-policy") == "same-origin"
        assert response.single_header("cross-origin-resource-policy") == "same-origin"
        assert response.single_header("referrer-policy") in ("no-referrer", "same-origin")
        assert "no-store" in response.single_header("cache-control"), path
        assert not response.header_values("access-control-allow-origin")


def test_session_cookie_behind_tls_is_host_only_httponly_and_same_site(application: Application) -> None:
    response = application.sign_in()
    assert (response.status, response.single_header("location")) == (303, "/mine")
    cookie_header = next(
        header for header in response.header_values("set-cookie") if header.startswith("__Host-nip-run-session=")
    )
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie_header.split("; "))
    assert not re.search("(?i)domain=", cookie_header)
    assert application.token not in cookie_header
    cookie = cookie_header.partition(";")[0]
    page = application.request("GET", "/mine", (b"cookie", cookie.encode()))
    assert (page.status, page.single_header("cache-control"), page.header_values("etag")) == (
        200,
        "private, no-store",
        [],
    )
    # A cookie without the __Host- prefix could come from another host of the domain; the server ignores it.
    assert application.request("GET", "/mine", (b"cookie", cookie.removeprefix("__Host-").encode())).status == 303
    api_response = application.request("GET", "/api/v1", (b"cookie", cookie.encode()))
    assert b'"account":null' in api_response.body


@pytest.mark.parametrize(
    ("form_token", "headers"),
    [
        ("guessed", ()), ("", ()), (None, ((b"origin", b"https://evil.example"),)),
        (None, ((b"sec-fetch-site", b"cross-site"),)), (None, ((b"sec-fetch-site", b"same-site"),)),
        (None, ((b"origin", b"null"),)),
    ],
)  # fmt: skip
def test_cross_site_forms_neither_sign_in_nor_sign_out(
    application: Application, form_token: str | None, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    refused = application.sign_in(form_token, *headers)
    assert refused.status == 403
    assert not [header for header in refused.header_values("set-cookie") if "session" in header]
    cookie = (
        next(header for header in application.sign_in().header_values("set-cookie") if "session=" in header)
        .partition(";")[0]
        .encode()
    )
    page = application.request("GET", "/mine", (b"cookie", cookie))
    match = re.search(rb'name="word" value="([^"]+)"', page.body)
    assert match is not None
    form = urlencode({"word": match[1].decode() if form_token is None else form_token}).encode()
    assert application.request("POST", "/logout", (b"cookie", cookie), FORM, *headers, body=form).status == 403
    assert application.request("GET", "/mine", (b"cookie", cookie)).status == 200


def test_wrong_content_type_or_oversized_form_signs_nobody_in(application: Application) -> None:
    assert application.sign_in(kind=(b"content-type", b"text/plain")).status == 403
    assert application.sign_in(padding="x" * 5_000).status == 403
    assert application.sign_in(padding="x" * 500).status == 303


def test_csv_board_escapes_formula_cells() -> None:
    cells = ["=1", "+1", "-1", "@x", "\t=1", " =1", "a=1", "1"]
    (_, *rows) = csv.reader(io.StringIO(as_csv([{"name": cell} for cell in cells])))
    assert [row[0] for row in rows] == [*(f"'{cell}" for cell in cells[:6]), "a=1", "1"]
    (_, row) = csv.reader(io.StringIO(as_csv([{"a": ["=1", "x"], "b": -1.5, "c": {"=": 1}}])))
    assert row == ["'=1; x", "-1.5", '{"=":1}']
