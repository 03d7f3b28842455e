"""The API for publishers: declare an upload, send its blobs in pieces, commit the upload, and get its state.

A blob is the content of a file, named by its SHA-256. `runner.server.uploads.uploads` describes uploads and their
states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Header, HTTPException, Path, Request
from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from runner.documents.releases.paths import MAX_PATH
from runner.documents.releases.reference import Kind, Reference
from runner.server.competitions.board import submission_notes
from runner.server.settings import Settings
from runner.server.store.schema import is_release, releases
from runner.server.uploads.declaration import Declaration
from runner.server.uploads.pieces import BlobWriter
from runner.server.uploads.uploads import CHECKING, OPEN, PUBLISHED, TAKEN, Upload
from runner.server.web.api.schemas import RequestBody, ResponseBody, errors
from runner.server.web.api_errors import error_response
from runner.server.web.authentication import PublishingViewer, require_publisher, server_of
from runner.server.web.request_bodies import json_body
from runner.server.web.views import href_of, private_href

router = APIRouter(prefix="/api/v1/uploads", tags=["uploads"])

_BUFFER_BYTES = 1 << 18
"""Bytes to collect in memory before a write to disk."""

_PART = "[A-Za-z0-9_]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?"
_PATH = f"^{_PART}(/{_PART}){{0,7}}$"
_NAME = "[a-z0-9]([a-z0-9._-]{0,98}[a-z0-9])?"
_FOLDER = f"^({'|'.join(Kind)})/{_NAME}/{_NAME}/{_NAME}(/(yanked|signature))?$"

UploadId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


class UploadFile(RequestBody):
    path: Annotated[str, Field(max_length=MAX_PATH, json_schema_extra={"pattern": _PATH})]
    """Path in the folder. (The pattern is only documentation: `Declaration` checks paths, with better messages.)"""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, lt=1 << 53)]


class UploadFolder(RequestBody):
    folder: Annotated[str, Field(max_length=500, json_schema_extra={"pattern": _FOLDER})]
    """`KIND/OWNER/NAME/VERSION` for a release, with `/yanked` or `/signature` at the end for an addition to it."""
    files: Annotated[list[UploadFile], Field(min_length=1, max_length=5_000, fail_fast=True)]


class CreateUploadRequest(RequestBody):
    """An upload to declare. Its releases become visible together."""

    folders: Annotated[list[UploadFolder], Field(min_length=1, max_length=1_000, fail_fast=True)]


class MissingBlob(ResponseBody):
    sha256: str
    size: int
    have: int
    """Number of bytes of the blob that the server has received. Send the rest."""


class UploadResponse(ResponseBody):
    id: str
    state: Literal["open", "checking", "published", "refused", "taken"]
    problems: list[str]
    missing: list[MissingBlob]
    notes: list[str] = Field(default_factory=list)
    """Messages for the publisher: the URL of the release's page, and the competitions that a run is submitted to."""


class ReceivedBlobResponse(ResponseBody):
    have: int
    """Bytes of the blob that are stored durably."""


_UPLOAD_LINKS = {
    operation: {"operationId": operation, "parameters": {"upload": "$response.body#/id"}}
    for operation in ("upload_state", "upload_commit", "upload_abandon")
}
"""OpenAPI links from a declared upload to the operations on it."""


@router.post("", responses={**errors(400, 403, 409, 507), 200: {"links": _UPLOAD_LINKS}})
def declare(
    request: Request,
    viewer: PublishingViewer,
    body: Annotated[CreateUploadRequest, json_body(CreateUploadRequest, require_publisher)],
) -> UploadResponse:
    """Declare an upload. If you declare the same upload again, it resumes."""
    server = server_of(request)
    folders = [folder.model_dump() for folder in body.folders]
    settings = server.settings
    declaration = Declaration.parse(folders, settings.limits, settings.releases_at_once, settings.files_at_once)
    return _state_response(request, server.publishing.uploads.declare(viewer, declaration))


@router.get("/{upload}", operation_id="upload_state", responses=errors(403, 404))
def get_state(request: Request, viewer: PublishingViewer, upload: UploadId) -> UploadResponse:
    """Get the state of an upload."""
    return _state_response(request, server_of(request).publishing.uploads.find(viewer, upload))


@router.patch(
    "/{upload}/blobs/{sha256}",
    responses=errors(403, 404, 409, 507),
    openapi_extra={
        "requestBody": {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    },
)
async def receive_piece(
    request: Request,
    viewer: PublishingViewer,
    upload: UploadId,
    sha256: Sha256,
    upload_offset: Annotated[int, Header(ge=0, lt=1 << 53)],
) -> ReceivedBlobResponse:
    """Send a piece of a blob that starts at byte `Upload-Offset`. Received bytes stay if the connection breaks."""
    server = server_of(request)
    writer = await asyncio.to_thread(server.publishing.uploads.open_writer, viewer, upload, sha256, upload_offset)
    try:
        try:
            await _write_stream(request, writer, server.settings)
        except (TimeoutError, ClientDisconnect) as error:
            message = f"the request ended early; send the rest of the file with Upload-Offset: {writer.stored_bytes}"
            raise HTTPException(408, message) from error
        await asyncio.to_thread(writer.finish)
    finally:
        await asyncio.to_thread(writer.close)
    return ReceivedBlobResponse(have=writer.stored_bytes)


async def _write_stream(request: Request, writer: BlobWriter, settings: Settings) -> None:
    """Write the body of a request as it arrives.

    Raises:
        TimeoutError: the body arrives too slowly.
        ClientDisconnect: the connection breaks.
        ReleaseError: the body is longer than declared, or cannot be stored.
    """
    stream, buffer = request.stream(), bytearray()
    async with asyncio.timeout(settings.piece_seconds):
        try:
            while True:
                async with asyncio.timeout(settings.piece_idle_seconds):
                    data = await anext(stream, None)
                if data is None:
                    return
                buffer += data
                if len(buffer) >= _BUFFER_BYTES:
                    await asyncio.to_thread(writer.write, bytes(buffer))
                    buffer.clear()
        finally:
            if buffer:
                await asyncio.to_thread(writer.write, bytes(buffer))


@router.post(
    "/{upload}/commit",
    operation_id="upload_commit",
    response_model=UploadResponse,
    responses={
        **errors(403, 404, 409),
        202: {"model": UploadResponse, "description": "The server is checking the upload."},
    },
)
def commit(request: Request, viewer: PublishingViewer, upload: UploadId) -> Response:
    """Commit a complete upload: the server checks and then publishes it. Status 202: get the state later."""
    server = server_of(request)
    server.publishing.commit(server.publishing.uploads.find(viewer, upload))
    return _commit_response(request, server.publishing.uploads.find(viewer, upload))


@router.delete("/{upload}", operation_id="upload_abandon", status_code=204, responses=errors(403))
def abandon(request: Request, viewer: PublishingViewer, upload: UploadId) -> None:
    """Delete an upload and its received bytes."""
    server_of(request).publishing.uploads.abandon(viewer, upload)


def _commit_response(request: Request, upload: Upload) -> Response:
    if upload.state == TAKEN:
        message = "a name and version in this upload exist already; publish a new version (--as OWNER/NAME@VERSION)"
        return error_response(409, "taken", message, upload.problems)
    if upload.state not in (CHECKING, PUBLISHED, OPEN):
        message = "the server refused the upload and published nothing; correct these problems and publish again"
        return error_response(422, "refused", message, upload.problems)
    return JSONResponse(_state_response(request, upload).model_dump(), 202 if upload.state == CHECKING else 200)


def _state_response(request: Request, upload: Upload) -> UploadResponse:
    missing = [MissingBlob(sha256=sha256, size=size, have=have) for sha256, (size, have) in upload.missing.items()]
    messages = _publication_notes(request, upload) if upload.state == PUBLISHED else []
    fields = {"id": upload.id, "state": upload.state, "problems": list(upload.problems), "notes": messages}
    return UploadResponse.model_validate({**fields, "missing": missing})


def _publication_notes(request: Request, upload: Upload) -> list[str]:
    """Return messages about a published upload: the URLs of its pages, and the competitions of its runs."""
    references = [folder.reference for folder in upload.declaration.folders if folder.part == ""]
    runs = [reference for reference in references if reference.kind == Kind.RUN]
    server, address = server_of(request), server_of(request).settings.address
    with server.database.reading() as connection:
        return [*_page_notes(connection, references, address), *submission_notes(connection, runs, address)]


def _page_notes(connection: Connection, references: Sequence[Reference], address: str) -> list[str]:
    """Return messages with URLs: the page of the main release and, for several releases, the page of their owner."""
    if not references:  # the upload yanks or signs existing releases
        return []
    # The main release is the run with the shortest name, because the names of a training run's parts are longer.
    main_release = min(references, key=lambda reference: (reference.kind != Kind.RUN, len(reference.name)))
    if connection.execute(select(releases.c.visibility).where(is_release(main_release))).scalar() == "public":
        page, list_page = href_of(str(main_release)), f"/owner/{main_release.owner}"
    else:
        page, list_page = private_href(main_release), "/mine"
    messages = [f"page of {main_release}, in a few seconds: {address}{page}"]
    if len(references) > 1:
        messages.append(f"all releases of {main_release.owner}: {address}{list_page}")
    return messages
