"""The API for who publishes: declare what comes, send it in pieces, have it checked, and ask what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Header, HTTPException, Path, Request
from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from runner.documents.releases.paths import MAX_PATH
from runner.documents.releases.reference import Kind, Reference
from runner.server.competitions.board import notes
from runner.server.settings import Settings
from runner.server.store.schema import is_release, releases
from runner.server.uploads.declaration import Declaration
from runner.server.uploads.pieces import Receiving
from runner.server.uploads.uploads import CHECKING, OPEN, SEEN, TAKEN, Upload
from runner.server.web.api.schemas import RequestBody, ResponseBody, faults
from runner.server.web.api_errors import fault
from runner.server.web.authentication import Publisher, publishing, server_of
from runner.server.web.request_bodies import json_of
from runner.server.web.views import href_of

router = APIRouter(prefix="/api/v1/uploads", tags=["uploads"])

_GATHERED = 1 << 18
"""Bytes that are written at once."""

_PART = "[A-Za-z0-9_]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?"
_PATH = f"^{_PART}(/{_PART}){{0,7}}$"
_NAME = "[a-z0-9]([a-z0-9._-]{0,98}[a-z0-9])?"
_FOLDER = f"^({'|'.join(Kind)})/{_NAME}/{_NAME}/{_NAME}(/(yanked|signature))?$"

Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


class UploadFile(RequestBody):
    path: Annotated[str, Field(max_length=MAX_PATH, json_schema_extra={"pattern": _PATH})]
    """Inside its folder. What is wrong with it `Declaration` says in words, and not by a pattern."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, lt=1 << 53)]


class UploadFolder(RequestBody):
    folder: Annotated[str, Field(max_length=500, json_schema_extra={"pattern": _FOLDER})]
    """`KIND/OWNER/NAME/VERSION`, or below it `yanked` or `signature`."""
    files: Annotated[list[UploadFile], Field(min_length=1, max_length=5_000, fail_fast=True)]


class CreateUploadRequest(RequestBody):
    """What is seen whole, or not at all."""

    folders: Annotated[list[UploadFolder], Field(min_length=1, max_length=1_000, fail_fast=True)]


class MissingBlob(ResponseBody):
    sha256: str
    size: int
    have: int
    """Bytes that are there: send what follows them."""


class UploadResponse(ResponseBody):
    id: str
    state: Literal["open", "checking", "published", "refused", "taken"]
    problems: list[str]
    missing: list[MissingBlob]
    notes: list[str] = Field(default_factory=list)
    """What else became of it, once it is published: such as what it was submitted to."""


class ReceivedBlobResponse(ResponseBody):
    have: int
    """Bytes of the blob that are there for good."""


_OF_UPLOAD = {
    operation: {"operationId": operation, "parameters": {"upload": "$response.body#/id"}}
    for operation in ("upload_state", "upload_commit", "upload_abandon")
}
"""What may be done with an upload that was declared."""


@router.post("", responses={**faults(400, 403, 409, 507), 200: {"links": _OF_UPLOAD}})
def begin(
    request: Request, viewer: Publisher, body: Annotated[CreateUploadRequest, json_of(CreateUploadRequest, publishing)]
) -> UploadResponse:
    """Declare an upload. Who declares the same again goes on with it."""
    server = server_of(request)
    folders = [one.model_dump() for one in body.folders]
    settings = server.settings
    declaration = Declaration.of(folders, settings.limits, settings.releases_at_once, settings.files_at_once)
    return _state(request, server.publishing.uploads.begin(viewer, declaration, time.time()))


@router.get("/{upload}", operation_id="upload_state", responses=faults(403, 404))
def state(request: Request, viewer: Publisher, upload: Id) -> UploadResponse:
    """What became of an upload."""
    return _state(request, server_of(request).publishing.uploads.find(viewer, upload))


@router.patch(
    "/{upload}/blobs/{sha256}",
    responses=faults(403, 404, 409, 507),
    openapi_extra={
        "requestBody": {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    },
)
async def piece(
    request: Request,
    viewer: Publisher,
    upload: Id,
    sha256: Hash,
    upload_offset: Annotated[int, Header(ge=0, lt=1 << 53)],
) -> ReceivedBlobResponse:
    """Send what follows the first `Upload-Offset` bytes of a blob, all of it or some. What came stays."""
    server = server_of(request)
    into = await asyncio.to_thread(server.publishing.uploads.receive, viewer, upload, sha256, upload_offset)
    try:
        try:
            await _received(request, into, server.settings)
        except (TimeoutError, ClientDisconnect) as error:
            raise HTTPException(408, f"nothing more came; {into.have:,} bytes are there") from error
        await asyncio.to_thread(into.end)
    finally:
        await asyncio.to_thread(into.close)
    return ReceivedBlobResponse(have=into.have)


async def _received(request: Request, into: Receiving, settings: Settings) -> None:
    """Write what comes as it comes.

    Raises:
        TimeoutError: it comes too slowly.
        ClientDisconnect: it ends before its end.
        ReleaseError: it is too much, or cannot be kept.
    """
    came, gathered = request.stream(), bytearray()
    async with asyncio.timeout(settings.piece_seconds):
        try:
            while True:
                async with asyncio.timeout(settings.piece_wait):
                    data = await anext(came, None)
                if data is None:
                    return
                gathered += data
                if len(gathered) >= _GATHERED:
                    await asyncio.to_thread(into.write, bytes(gathered))
                    gathered.clear()
        finally:
            if gathered:
                await asyncio.to_thread(into.write, bytes(gathered))


@router.post(
    "/{upload}/commit",
    operation_id="upload_commit",
    response_model=UploadResponse,
    responses={**faults(403, 404, 409), 202: {"model": UploadResponse, "description": "It is being checked."}},
)
def commit(request: Request, viewer: Publisher, upload: Id) -> Response:
    """Have an upload be checked and then seen. 202: it is being checked; ask again what became of it."""
    server = server_of(request)
    server.publishing.commit(server.publishing.uploads.find(viewer, upload), time.time())
    return _ended(request, server.publishing.uploads.find(viewer, upload))


@router.delete("/{upload}", operation_id="upload_abandon", status_code=204, responses=faults(403))
def abandon(request: Request, viewer: Publisher, upload: Id) -> None:
    """Forget an upload, and what was sent of it."""
    server_of(request).publishing.uploads.abandon(viewer, upload)


def _ended(request: Request, upload: Upload) -> Response:
    if upload.state == TAKEN:
        return fault(409, "taken", "a name and version of it is another release's", upload.problems)
    if upload.state not in (CHECKING, SEEN, OPEN):
        return fault(422, "refused", "nothing of the upload was published", upload.problems)
    return JSONResponse(_state(request, upload).model_dump(), 202 if upload.state == CHECKING else 200)


def _state(request: Request, upload: Upload) -> UploadResponse:
    missing = [MissingBlob(sha256=sha256, size=size, have=have) for sha256, (size, have) in upload.missing.items()]
    told = _notes(request, upload) if upload.state == SEEN else []
    said = {"id": upload.id, "state": upload.state, "problems": list(upload.problems), "notes": told}
    return UploadResponse.model_validate({**said, "missing": missing})


def _notes(request: Request, upload: Upload) -> list[str]:
    named = [folder.reference for folder in upload.declaration.folders if folder.part == ""]
    runs = [reference for reference in named if reference.kind == Kind.RUN]
    server = server_of(request)
    with server.database.reading() as connection:
        return [*_pages(connection, named, server.settings.address), *notes(connection, runs, server.settings.address)]


def _pages(connection: Connection, named: Sequence[Reference], address: str) -> list[str]:
    """Where people find what was published: the first of it, which all else comes with, and the rest with its owner."""
    found = []
    for one in sorted(named, key=lambda one: (one.kind != Kind.RUN, len(one.name)))[:1]:
        is_public = connection.execute(select(releases.c.visibility).where(is_release(one))).scalar() == "public"
        page = href_of(str(one)) if is_public else f"/mine{href_of(str(one))}" if one.kind == Kind.RUN else "/mine"
        found.append(f"its page, in some seconds: {address}{page}")
        if len(named) > 1:
            found.append(f"all of its owner: {address}{f'/owner/{one.owner}' if is_public else '/mine'}")
    return found
