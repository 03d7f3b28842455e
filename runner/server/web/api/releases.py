"""The API for who reads: files of the registry's tree, listed and sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import IO, Annotated

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from runner.base.errors import NotPublished
from runner.documents.releases.bundle import PIECE
from runner.documents.releases.reference import Reference
from runner.registry.transports.http.prefetch import BYTES_AT_ONCE, LARGEST_AT_ONCE, MOST_AT_ONCE
from runner.server.accounts.accounts import Viewer
from runner.server.store.blobs import Blobs
from runner.server.visible_tree import PAGE, ServerTree
from runner.server.web.api.schemas import BYTES, RequestBody, ResponseBody, faults
from runner.server.web.api_errors import ApiError, fault
from runner.server.web.authentication import Asking, server_of
from runner.server.web.request_bodies import json_of
from runner.version import __version__

_FROM = re.compile(r"bytes=([0-9]{1,15})-")

router = APIRouter(prefix="/api/v1", tags=["releases"])


class ServerResponse(ResponseBody):
    """What answers, and what it takes."""

    name: str = "nip-run registry"
    version: str
    account: str | None
    """Whose token was given."""
    owners: list[str]
    """As whom that token may publish."""
    file_bytes: int
    total_bytes: int
    files: int
    """The most that is taken of one release."""


class ListedFile(ResponseBody):
    path: str
    size: int


class FileListResponse(ResponseBody):
    """Some files of the registry, in the order of their paths."""

    files: list[ListedFile]
    next: str | None
    """What to give as `after` for those that follow; null: these are the last."""


class ListingQuery(BaseModel):
    """Which part of a list is asked for."""

    prefix: Annotated[str, Field(max_length=800)] = ""
    after: Annotated[str, Field(max_length=800)] = ""
    limit: Annotated[int, Field(ge=1, le=PAGE)] = PAGE


@router.get("")
def about(request: Request, viewer: Asking) -> ServerResponse:
    """What this server is, and what it takes."""
    limits = server_of(request).settings.limits
    owners = sorted(owner for owner in viewer.owners if viewer.publishes_as(owner))
    return ServerResponse(
        version=__version__, account=viewer.account or None, owners=owners, file_bytes=limits.file_bytes,
        total_bytes=limits.total_bytes, files=limits.files,
    )  # fmt: skip


@router.get("/tree")
def tree(request: Request, viewer: Asking, query: Annotated[ListingQuery, Query()]) -> FileListResponse:
    """List files whose path begins with `prefix`, those that the token may see."""
    found = _tree(request, viewer).page(query.prefix, query.after, query.limit)
    following = found[-1].path if len(found) == query.limit else None
    return FileListResponse(files=[ListedFile(path=one.path, size=one.size or 0) for one in found], next=following)


class ReleaseResponse(ResponseBody):
    """One release, and what became of it."""

    folder: str
    """KIND/OWNER/NAME/VERSION."""
    sha256: str
    """Of its manifest."""
    yanked: str | None
    """What stands in its `yanked.json`."""
    signed: bool
    tier: str | None
    """How far this server has checked a public run: `self-reported`, `recomputed`, `reproduced by N`. Null: not yet, or
    it is none."""


class ReleaseListResponse(ResponseBody):
    """Some releases of the registry, in the order in which they were published."""

    releases: list[ReleaseResponse]
    next: str | None
    """What to give as `after` for those that follow; null: these are the last."""


@router.get("/releases")
def releases(request: Request, viewer: Asking, query: Annotated[ListingQuery, Query()]) -> ReleaseListResponse:
    """List the releases whose folder, with a slash behind it, begins with `prefix`, the first published first."""
    found = _tree(request, viewer).index_page(query.prefix, "" if query.after == "0" else query.after, query.limit)
    following = found[-1].folder if len(found) == query.limit else None
    tiers = _tiers(request, [one.folder for one in found])
    said = [
        ReleaseResponse(
            folder=one.folder, sha256=one.sha256, signed=one.signed, tier=tiers.get(one.folder),
            yanked=None if one.yanked is None else one.yanked.decode(),
        )
        for one in found
    ]  # fmt: skip
    return ReleaseListResponse(releases=said, next=following)


def _tiers(request: Request, folders: list[str]) -> dict[str, str]:
    """What the newest board says of runs, by their folders."""
    shown = request.app.state.site.boards.shown
    named = {str(reference): folder for folder in folders if (reference := Reference.of_folder(folder)) is not None}
    return {} if shown is None else {named[one]: tier for one, tier in shown.tiers(list(named)).items()}


class ReadFilesRequest(RequestBody):
    """Files that are wanted at once."""

    paths: Annotated[list[Annotated[str, Field(max_length=800)]], Field(max_length=MOST_AT_ONCE, fail_fast=True)]


@router.post("/files", response_class=Response, responses={200: BYTES})
def several(request: Request, viewer: Asking, body: Annotated[ReadFilesRequest, json_of(ReadFilesRequest)]) -> Response:
    """Small files, many at a time: of each a line of JSON (`path`, `size`), then its bytes, in the order asked for.

    `size` is null where there is no such file, or it is too large to come so. After some MiB no more are sent.
    """
    files = _tree(request, viewer).found(body.paths)
    return StreamingResponse(
        _stream_files(server_of(request).blobs, body.paths, files), media_type="application/octet-stream"
    )


def _stream_files(blobs: Blobs, paths: list[str], files: Mapping[str, tuple[str, int]]) -> Iterator[bytes]:
    total, gathered = 0, bytearray()
    for path in paths:
        sha256, size = files.get(path, ("", None))
        if size is not None and size > LARGEST_AT_ONCE:
            size = None
        if total + (size or 0) > BYTES_AT_ONCE:
            break
        data = b""
        if size is not None:
            with blobs.open(sha256) as source:
                data = source.read(size)
        gathered += orjson.dumps({"path": path, "size": size}) + b"\n" + data
        total += len(data)
        if len(gathered) > PIECE:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


@router.get(
    "/tree/{path:path}",
    response_class=Response,
    responses={
        200: BYTES,
        206: {**BYTES, "description": "From the byte on that `Range` says."},
        304: {"description": "It is the file that `If-None-Match` names."},
        416: {"model": ApiError, "description": "The file has no such byte."},
        **faults(404),
    },
)
def file(request: Request, viewer: Asking, path: str) -> Response:
    """A file of a release, as it was published; with a header `Range: bytes=N-`, from there on."""
    found = _tree(request, viewer).find(path)
    if found is None:
        raise NotPublished("there is no such file")
    sha256, size = found
    headers = {
        "etag": f'"{sha256}"', "content-length": str(size), "content-disposition": "attachment",
        "accept-ranges": "bytes",
    }  # fmt: skip
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers={"etag": headers["etag"]})
    start = _start(request, headers["etag"], size)
    if start >= size > 0:
        return fault(416, "range", f"it has {size:,} bytes", headers={"content-range": f"bytes */{size}"})
    source = server_of(request).blobs.open(sha256)
    if start:
        source.seek(start)
        headers |= {"content-length": str(size - start), "content-range": f"bytes {start}-{size - 1}/{size}"}
    status = 206 if start else 200
    return StreamingResponse(_pieces(source), status, media_type="application/octet-stream", headers=headers)


def _start(request: Request, etag: str, size: int) -> int:
    """Where to begin: what a client that was cut off has need not be sent again. Other ranges are not offered."""
    asked = _FROM.fullmatch(request.headers.get("range", ""))
    if asked is None or request.headers.get("if-range", etag) != etag:
        return 0
    return min(int(asked[1]), size)


def _tree(request: Request, viewer: Viewer) -> ServerTree:
    server = server_of(request)
    return ServerTree(server.database, server.blobs, viewer)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    with source:
        while piece := source.read(PIECE):
            yield piece
