"""Request bodies: slow, oversized, invalid and unauthenticated ones are refused."""

from __future__ import annotations

import asyncio
import socket
from typing import Annotated

import pytest
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ValidationError
from starlette.types import Message

from runner.server.accounts.accounts import Viewer
from runner.server.web.api.accounts import CreateTokenRequest, SetMemberRequest
from runner.server.web.api.competitions import ChangeCompetitionRequest
from runner.server.web.api_errors import add_error_handlers
from runner.server.web.request_bodies import BodyLimit, json_body
from tests.support.hang_guard import HANG_SECONDS
from tests.support.server_process import ServerProcess

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"4")]


def make_echo_app() -> FastAPI:
    """Create an application that accepts a list of numbers."""
    app = FastAPI()
    add_error_handlers(app)

    @app.post("/")
    def echo(body: list[int]) -> int:
        return len(body)

    return app


def send_body(app: FastAPI, pieces: list[Message]) -> int:
    """Send the pieces of a body and nothing more, and return the response's status."""
    limited_app = BodyLimit(app, 100, 0.2)
    sent: list[Message] = []
    remaining = iter(pieces)

    async def receive() -> Message:
        for message in remaining:
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
    asyncio.run(asyncio.wait_for(limited_app(scope, receive, send), HANG_SECONDS))
    return int(sent[0]["status"])


def test_body_that_stalls_times_out() -> None:
    assert send_body(make_echo_app(), [{"type": "http.request", "body": b"[1", "more_body": True}]) == 408


def test_complete_body_is_answered() -> None:
    halves: list[Message] = [
        {"type": "http.request", "body": b"[1", "more_body": True},
        {"type": "http.request", "body": b",2]", "more_body": False},
    ]
    assert send_body(make_echo_app(), halves) == 200


class RequestBody(BaseModel):
    number: int


def reject_viewer() -> Viewer:
    raise HTTPException(401)


def read_number(body: Annotated[RequestBody, json_body(RequestBody, reject_viewer)]) -> int:
    """Return the body's number; the body is the first parameter."""
    return body.number


def test_caller_is_checked_before_the_body_is_parsed() -> None:
    app = FastAPI()
    app.post("/")(read_number)
    for body in (b"{", b'{"number": 1}'):
        assert send_body(app, [{"type": "http.request", "body": body, "more_body": False}]) == 401


OPERATIONS = (
    ("POST", "/api/v1/uploads"), ("POST", "/api/v1/competitions"), ("PUT", "/api/v1/hidden/run/acme/tiny/1"),
)  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_unauthenticated_request_is_refused_before_its_body_is_read(
    served: ServerProcess, method: str, path: str
) -> None:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(f"{head}Content-Length: 9000\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
    assert served.request(path, method, b"{", token="nip_" + "a" * 12 + "_no").status == 401


@pytest.mark.parametrize(("method", "path", "max_bytes"), [
    ("POST", "/api/v1/files", 512 << 10), ("PUT", "/api/v1/hidden/run/acme/tiny/1", 16 << 10),
    ("POST", "/login", 16 << 10), ("POST", f"/api/v1/uploads/{'0' * 32}/commit", 16 << 10),
])  # fmt: skip
def test_body_size_limit_depends_on_the_route(served: ServerProcess, method: str, path: str, max_bytes: int) -> None:
    assert served.request(path, method, b" " * (max_bytes + 1), token=served.tokens["keeper"]).status == 413


def test_invalid_body_gets_422_with_a_short_list_of_problems(served: ServerProcess) -> None:
    alice = served.tokens["alice"]
    response = served.request("/api/v1/uploads", "POST", {"folders": [{"folder": 5}]}, token=alice)
    assert response.status == 422
    assert response.json["problems"][0].startswith("body.folders.0.folder: ")
    large_response = served.request(
        "/api/v1/files", "POST", b'{"paths":[' + b",".join([b"[]"] * 150_000) + b"]}", token=alice
    )
    assert large_response.status == 422
    assert len(large_response.body) < 1_000
    assert served.request("/api/v1/uploads", "POST", {"folders": []}, token=alice).status != 500


def test_form_with_too_many_fields_is_refused(served: ServerProcess) -> None:
    form = "&".join(f"a{number}=1" for number in range(40)).encode()
    response = served.request("/login", "POST", form, content_type="application/x-www-form-urlencoded")
    assert response.status == 403


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (SetMemberRequest, '{"is_owner": 0}'), (SetMemberRequest, '{"is_owner": "true"}'),
        (CreateTokenRequest, '{"days": "3"}'), (ChangeCompetitionRequest, '{"day_limit": "3"}'),
        (ChangeCompetitionRequest, '{"closes": 1900000000}'),
    ],
)  # fmt: skip
def test_value_of_another_type_is_refused(model: type[BaseModel], body: str) -> None:
    with pytest.raises(ValidationError, match="Input should be a"):
        model.model_validate_json(body)


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (SetMemberRequest, '{"is_owner": true}'), (CreateTokenRequest, '{"scope": "read", "days": 3}'),
        (ChangeCompetitionRequest, '{"day_limit": 3, "closes": "2030-01-01T00:00:00Z"}'),
        (ChangeCompetitionRequest, '{"closes": null}'),
    ],
)  # fmt: skip
def test_value_of_the_declared_type_is_accepted(model: type[BaseModel], body: str) -> None:
    model.model_validate_json(body)
