"""Unexpected errors: the response has the default headers and is counted and logged by its status."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from runner.base.errors import ReleaseError
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.manifest import MANIFEST
from runner.documents.releases.reference import Kind
from runner.pages.report.served import ServedPage, render_served
from runner.registry.transports.yanks import YANKED_FILE, format_yanked_file
from runner.server.boards.public_registry import PublicRegistry
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.store.blobs import DiskBlobStore
from runner.server.web.app import DEFAULTS, create_app
from tests.server.test_uploads import contents_by_folder, make_bundle
from tests.support.raw_uploads import RawUploadClient
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


def test_release_with_a_lost_file_does_not_prevent_readers_from_listing_the_others(
    server: ServerProcess, acme: RawUploadClient
) -> None:
    contents = {name: contents_by_folder(make_bundle(name, data=name.encode())) for name in ("good", "bad", "yanked")}
    for folders in contents.values():
        acme.publish(folders)
    yank = format_yanked_file("a leak")
    acme.publish({"dataset/acme/yanked/1/yanked": {YANKED_FILE: yank}})
    for data in (contents["bad"]["dataset/acme/bad/1"][MANIFEST], yank):
        sha256 = hashlib.sha256(data).hexdigest()
        (server.folder / "blobs" / sha256[:2] / sha256).unlink()
    with server.registry() as registry:
        entries = {entry.reference.name: entry for entry in registry.entries()}
        registry.plan_prefetch((entry, MANIFEST) for entry in entries.values())
        assert registry.read_manifest(entries["good"])[0].name == "good"
        for name, problem in (("bad", "release.json is missing"), ("yanked", "yanked.json is damaged")):
            with pytest.raises(ReleaseError, match=problem):
                registry.read_manifest(entries[name])
    with closing(server.open_database()) as database:
        board = PublicRegistry(database, DiskBlobStore(server.folder / "blobs"), "", server.settings.limits)
    assert {entry.reference.name for entry in board.entries() if entry.unreadable is None} == {"good", "bad"}
