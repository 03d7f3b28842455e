"""The API for who publishes: declare what comes, send it in pieces, have it checked, and ask what became of it."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from runner.server.declared import Declaration
from runner.server.uploads import CHECKING, SEEN, TAKEN, Receiving, Upload
from runner.server.web.asking import Publisher, server_of
from runner.server.web.faults import Fault, fault

router = APIRouter(prefix="/api/v1/uploads", tags=["uploads"])

Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


class FileOfUpload(BaseModel):
    path: Annotated[str, Field(max_length=240)]
    """Inside its folder."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, lt=1 << 53)]


class FolderOfUpload(BaseModel):
    folder: Annotated[str, Field(max_length=500)]
    """`KIND/OWNER/NAME/VERSION`, or below it `yanked` or `signature`."""
    files: Annotated[list[FileOfUpload], Field(max_length=5_000)]


class Declared(BaseModel):
    """What is seen whole, or not at all."""

    folders: Annotated[list[FolderOfUpload], Field(max_length=1_000)]


class Missing(BaseModel):
    sha256: str
    size: int
    have: int
    """Bytes that are there: send what follows them."""


class UploadState(BaseModel):
    id: str
    state: str
    """open, checking, published, refused or taken."""
    problems: list[str]
    missing: list[Missing]


class Received(BaseModel):
    have: int
    """Bytes of the blob that are there for good."""


_FAULTS: dict[int | str, dict[str, Any]] = {code: {"model": Fault} for code in (400, 401, 403, 404, 409, 413, 422, 429)}


@router.post("", responses=_FAULTS)
def begin(request: Request, viewer: Publisher, declared: Declared) -> UploadState:
    """Declare an upload. Who declares the same again goes on with it."""
    server = server_of(request)
    folders = [one.model_dump() for one in declared.folders]
    declaration = Declaration.of(folders, server.settings.limits, server.settings.releases_at_once)
    return _state(server.publishing.uploads.begin(viewer, declaration, time.time()))


@router.get("/{upload}", responses=_FAULTS)
def state(request: Request, viewer: Publisher, upload: Id) -> UploadState:
    """What became of an upload."""
    return _state(server_of(request).publishing.uploads.find(viewer, upload))


@router.patch(
    "/{upload}/blobs/{sha256}",
    responses=_FAULTS,
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
) -> Received:
    """Send what follows the first `Upload-Offset` bytes of a blob, all of it or some."""
    uploads = server_of(request).publishing.uploads
    found = await asyncio.to_thread(uploads.find, viewer, upload)
    receiving = uploads.receiving(found, sha256, upload_offset)
    into: Receiving = await asyncio.to_thread(receiving.__enter__)
    try:
        async for data in request.stream():
            if data:
                await asyncio.to_thread(into.write, data)
    except BaseException as error:
        kept = await asyncio.shield(asyncio.to_thread(receiving.__exit__, type(error), error, error.__traceback__))
        assert not kept
        raise
    await asyncio.to_thread(receiving.__exit__, None, None, None)
    return Received(have=into.have)


@router.post("/{upload}/commit", responses={**_FAULTS, 202: {"model": UploadState}})
def commit(request: Request, viewer: Publisher, upload: Id) -> Response:
    """Have an upload be checked and then seen. 202: it is being checked; ask again what became of it."""
    server = server_of(request)
    server.publishing.commit(server.publishing.uploads.find(viewer, upload), viewer, time.time())
    return _ended(server.publishing.uploads.find(viewer, upload))


@router.delete("/{upload}", status_code=204, responses=_FAULTS)
def abandon(request: Request, viewer: Publisher, upload: Id) -> None:
    """Forget an upload, and what was sent of it."""
    server_of(request).publishing.uploads.abandon(viewer, upload)


def _ended(upload: Upload) -> Response:
    if upload.state == TAKEN:
        return fault(409, "taken", "a name and version of it is another release's", upload.problems)
    if upload.state not in (CHECKING, SEEN):
        return fault(422, "refused", "nothing of the upload was published", upload.problems)
    return JSONResponse(_state(upload).model_dump(), 202 if upload.state == CHECKING else 200)


def _state(upload: Upload) -> UploadState:
    missing = [Missing(sha256=sha256, size=size, have=have) for sha256, (size, have) in upload.missing.items()]
    return UploadState(id=upload.id, state=upload.state, problems=list(upload.problems), missing=missing)
