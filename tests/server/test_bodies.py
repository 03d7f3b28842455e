"""The body of a request that is short: refused where it comes too slowly, on an application of its own."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from starlette.types import Message

from runner.server.web.bodies import Bodies
from runner.server.web.faults import handle_faults

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"4")]


def answered(pieces: list[Message]) -> int:
    """The status that an echo has for pieces of a body, after which nothing comes."""
    app = FastAPI()
    handle_faults(app)

    @app.post("/")
    def echo(body: list[int]) -> int:
        return len(body)

    bounded = Bodies(app, 100, 0.2)
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
    asyncio.run(asyncio.wait_for(bounded(scope, receive, send), 20))
    return int(sent[0]["status"])


def test_a_body_that_stops_in_its_middle_is_given_up() -> None:
    assert answered([{"type": "http.request", "body": b"[1", "more_body": True}]) == 408


def test_a_body_that_comes_whole_is_answered() -> None:
    halves: list[Message] = [
        {"type": "http.request", "body": b"[1", "more_body": True},
        {"type": "http.request", "body": b",2]", "more_body": False},
    ]
    assert answered(halves) == 200
