"""The body of a request that is short: refused where it comes too slowly, on an application of its own."""

from __future__ import annotations

import asyncio
import socket
from typing import Annotated

import pytest
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from starlette.types import Message

from runner.server.accounts.accounts import Viewer
from runner.server.web.api_errors import add_error_handlers
from runner.server.web.request_bodies import BodyLimit, json_body
from tests.support.hang_guard import HANG_SECONDS
from tests.support.server_process import ServerProcess

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"4")]


def echoing() -> FastAPI:
    """An application that takes a list of numbers."""
    app = FastAPI()
    add_error_handlers(app)

    @app.post("/")
    def echo(body: list[int]) -> int:
        return len(body)

    return app


def send_body(app: FastAPI, pieces: list[Message]) -> int:
    """The status that an application has for pieces of a body, after which nothing comes."""
    bounded = BodyLimit(app, 100, 0.2)
    sent: list[Message] = []
    waiting = iter(pieces)

    async def receive() -> Message:
        for message in waiting:
            return message
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": HEADERS,
        "scheme": "http", "server": ("x", 80), "client": ("x", 1), "root_path": "", "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(bounded(scope, receive, send), HANG_SECONDS))
    return int(sent[0]["status"])


def test_a_body_that_stops_in_its_middle_is_given_up() -> None:
    assert send_body(echoing(), [{"type": "http.request", "body": b"[1", "more_body": True}]) == 408


def test_a_body_that_comes_whole_is_answered() -> None:
    halves: list[Message] = [
        {"type": "http.request", "body": b"[1", "more_body": True},
        {"type": "http.request", "body": b",2]", "more_body": False},
    ]
    assert send_body(echoing(), halves) == 200


class RequestBody(BaseModel):
    number: int


def nobody() -> Viewer:
    raise HTTPException(401)


def of_nobody(wanted: Annotated[RequestBody, json_body(RequestBody, nobody)]) -> int:
    """An operation that needs its body first."""
    return wanted.number


def test_a_body_waits_for_who_asks_whatever_else_an_operation_needs() -> None:
    app = FastAPI()
    app.post("/")(of_nobody)
    for body in (b"{", b'{"number": 1}'):
        assert send_body(app, [{"type": "http.request", "body": body, "more_body": False}]) == 401


OPERATIONS = (
    ("POST", "/api/v1/uploads"), ("POST", "/api/v1/competitions"), ("PUT", "/api/v1/hidden/run/acme/tiny/1"),
)  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_body_is_read_before_it_is_known_whose_it_is(served: ServerProcess, method: str, path: str) -> None:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(f"{head}Content-Length: 9000\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
    assert served.request(path, method, b"{", token="nip_" + "a" * 12 + "_no").status == 401


@pytest.mark.parametrize(("method", "path", "most"), [
    ("POST", "/api/v1/files", 512 << 10), ("PUT", "/api/v1/hidden/run/acme/tiny/1", 16 << 10),
    ("POST", "/login", 16 << 10), ("POST", f"/api/v1/uploads/{'0' * 32}/commit", 16 << 10),
])  # fmt: skip
def test_a_request_that_needs_little_may_have_little(served: ServerProcess, method: str, path: str, most: int) -> None:
    assert served.request(path, method, b" " * (most + 1), token=served.tokens["keeper"]).status == 413


def test_a_body_is_taken_by_its_type_and_told_what_is_wrong(served: ServerProcess) -> None:
    alice = served.tokens["alice"]
    said = served.request("/api/v1/uploads", "POST", {"folders": [{"folder": 5}]}, token=alice)
    assert said.status == 422
    assert said.json["problems"][0].startswith("body.folders.0.folder: ")
    many = served.request("/api/v1/files", "POST", b'{"paths":[' + b",".join([b"[]"] * 150_000) + b"]}", token=alice)
    assert many.status == 422
    assert len(many.body) < 1_000
    assert served.request("/api/v1/uploads", "POST", {"folders": []}, token=alice).status != 500


def test_a_form_of_many_fields_is_no_form(served: ServerProcess) -> None:
    form = "&".join(f"a{number}=1" for number in range(40)).encode()
    said = served.request("/login", "POST", form, content_type="application/x-www-form-urlencoded")
    assert said.status == 403
