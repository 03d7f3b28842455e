"""Unexpected errors: the response has the default headers and is counted and logged by its status."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from runner.base.storage.safe_files import make_folders
from runner.documents.releases.reference import Kind
from runner.pages.report.served import ServedPage, render_served
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.web.app import DEFAULTS, create_app
from tests.support.registry_locations import bundle
from tests.support.server_process import ServerProcess


def make_scope(path: str) -> dict[str, Any]:
    return {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
        "scheme": "http", "server": ("x", 80), "client": ("127.0.0.1", 1), "root_path": "", "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }  # fmt: skip


def raise_unexpected_error() -> None:
    raise RuntimeError("nobody thought of it")


def test_unexpected_error_is_answered_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    app = create_app(server)
    app.add_api_route("/broken", raise_unexpected_error)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    with caplog.at_level("INFO", "nip_run.server"):
        asyncio.run(app(make_scope("/broken"), receive, send))
    server.database.close()
    assert sent[0]["status"] == 500
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert headers.items() >= DEFAULTS.items()
    assert b"nobody thought of it" not in sent[1]["body"]
    assert app.state.request_metrics.requests["GET", "/broken", 500] == 1
    records = [record for record in caplog.records if record.name == "nip_run.server"]
    assert [vars(record)["status"] for record in records if record.getMessage() == "request"] == [500]
    assert any(record.exc_info for record in records)


def test_page_that_is_still_being_built_reloads_itself() -> None:
    assert b'<meta http-equiv="refresh" content="3">' in render_served(ServedPage("In a moment", [], reload_seconds=3))


def test_download_while_a_stored_file_cannot_be_read_is_not_reported_as_a_refused_release(
    served: ServerProcess,
) -> None:
    release = bundle("rows", kind=Kind.DATASET)
    served.publish("alice", release)
    file = release.release.files[0]
    blob = served.folder / "blobs" / file.sha256[:2] / file.sha256
    blob.rename(blob.with_suffix(".moved"))
    blob.symlink_to(blob)
    response = served.request(f"/api/v1/tree/{release.release.reference.folder}/{file.path}")
    blob.unlink()
    blob.with_suffix(".moved").rename(blob)
    assert (response.status, response.json["code"], response.headers["retry-after"]) == (503, "busy", "2")
    assert "blob" not in response.json["message"]
