"""Every answer is one of ours: with our headers, counted and logged by its status, whatever went wrong behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from runner.base.storage.safe_files import make_folders
from runner.pages.report.served import ServedPage, render_served
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.web.app import create_app
from runner.server.web.headers import DEFAULTS


def scope(path: str) -> dict[str, Any]:
    return {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
        "scheme": "http", "server": ("x", 80), "client": ("127.0.0.1", 1), "root_path": "", "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }  # fmt: skip


def broken() -> None:
    raise RuntimeError("nobody thought of it")


def test_a_request_that_breaks_the_server_is_answered_counted_and_logged_as_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    app = create_app(server)
    app.add_api_route("/broken", broken)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    with caplog.at_level("INFO", "nip_run.server"):
        asyncio.run(app(scope("/broken"), receive, send))
    server.database.close()
    assert sent[0]["status"] == 500
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert headers.items() >= DEFAULTS.items()
    assert b"nobody thought of it" not in sent[1]["body"]
    assert app.state.request_metrics.requests["GET", "/broken", 500] == 1
    said = [one for one in caplog.records if one.name == "nip_run.server"]
    assert [vars(one)["status"] for one in said if one.getMessage() == "request"] == [500]
    assert any(one.exc_info for one in said)


def test_a_page_that_is_still_made_asks_again_by_itself() -> None:
    assert b'<meta http-equiv="refresh" content="3">' in render_served(ServedPage("In a moment", [], reload_seconds=3))
