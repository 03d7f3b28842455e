"""The API for readers: list the releases of the server's registry and their files, and download files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import IO, Annotated

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from runner.base.errors import NotFoundError
from runner.documents.releases.bundle import PIECE_BYTES
from runner.documents.releases.reference import Reference
from runner.registry.transports.http.prefetch import MAX_BYTES_AT_ONCE, MAX_FILE_BYTES_AT_ONCE, MAX_FILES_AT_ONCE
from runner.server.accounts.accounts import Viewer
from runner.server.store.blobs import BlobStore
from runner.server.visible_releases import MAX_PAGE_SIZE, VisibleReleases
from runner.server.web.api.schemas import FILE_RESPONSE, RequestBody, ResponseBody, errors
from runner.server.web.api_errors import ApiError, error_response
from runner.server.web.authentication import AnyViewer, server_of
from runner.server.web.request_bodies import json_body
from runner.version import __version__

_OPEN_ENDED_RANGE = re.compile(r"bytes=([0-9]{1,15})-")
"""A `Range` header that requests all bytes from a position on."""

router = APIRouter(prefix="/api/v1", tags=["releases"])


class ServerResponse(ResponseBody):
    """The server, the permissions of the request's token, and the limits on releases.

    `file_bytes`, `total_bytes` and `files` are limits.
    """

    name: str = "nip-run registry"
    version: str
    account: str | None
    """The account of the request's token."""
    owners: list[str]
    """The names that the token may publish under."""
    file_bytes: int
    """Maximum size of one file of a release."""
    total_bytes: int
    """Maximum size of all files of one release."""
    files: int
    """Maximum number of files in one release."""


class ListingQuery(BaseModel):
    """The requested part of a list."""

    prefix: Annotated[str, Field(max_length=800)] = ""
    after: Annotated[str, Field(max_length=800)] = ""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = MAX_PAGE_SIZE


@router.get("")
def get_server(request: Request, viewer: AnyViewer) -> ServerResponse:
    """Get the server's version and limits, and the permissions of the request's token."""
    limits = server_of(request).settings.limits
    owners = sorted(owner for owner in viewer.account_names if viewer.can_publish_as(owner))
    return ServerResponse(
        version=__version__, account=viewer.account or None, owners=owners, file_bytes=limits.file_bytes,
        total_bytes=limits.total_bytes, files=limits.files,
    )  # fmt: skip


class ReleaseResponse(ResponseBody):
    """A release and its status."""

    folder: str
    """KIND/OWNER/NAME/VERSION."""
    sha256: str
    """SHA-256 of the release's manifest."""
    yanked: str | None
    """Content of the release's `yanked.json`; null if it is not yanked."""
    signed: bool
    tier: str | None
    """Verification tier of a public run: `recomputed`, `reproduced by N`, or `self-reported` if the server cannot
    recompute its numbers. Null if the newest board does not have the run yet, and for other kinds of releases."""


class ReleaseListResponse(ResponseBody):
    """Releases of the registry, in order of publication."""

    releases: list[ReleaseResponse]
    next: str | None
    """The value of `after` for the next request; null if there are no more."""


@router.get("/releases")
def list_releases(request: Request, viewer: AnyViewer, query: Annotated[ListingQuery, Query()]) -> ReleaseListResponse:
    """List the releases, oldest first, whose path `KIND/OWNER/NAME/VERSION/` starts with `prefix`."""
    after = "" if query.after == "0" else query.after  # clients of earlier versions send 0 for the first page
    page = _visible_releases(request, viewer).list_release_page(query.prefix, after, query.limit)
    next_after = page[-1].folder if len(page) == query.limit else None
    tiers = _find_tiers(request, [release.folder for release in page])
    entries = [
        ReleaseResponse(
            folder=release.folder, sha256=release.sha256, signed=release.signed, tier=tiers.get(release.folder),
            yanked=None if release.yanked is None else release.yanked.decode(),
        )
        for release in page
    ]  # fmt: skip
    return ReleaseListResponse(releases=entries, next=next_after)


def _find_tiers(request: Request, folders: list[str]) -> dict[str, str]:
    """Return the verification tier of each run, by folder. Runs that the newest board does not have are omitted."""
    board = request.app.state.site.boards.newest
    if board is None:
        return {}
    folders_by_reference = {
        str(reference): folder for folder in folders if (reference := Reference.of_folder(folder)) is not None
    }
    return {
        folders_by_reference[reference]: tier
        for reference, tier in board.find_tiers(list(folders_by_reference)).items()
    }


class ReadFilesRequest(RequestBody):
    """Paths of small files to read in one request."""

    paths: Annotated[list[Annotated[str, Field(max_length=800)]], Field(max_length=MAX_FILES_AT_ONCE, fail_fast=True)]


@router.post("/files", response_class=Response, responses={200: FILE_RESPONSE})
def read_files(
    request: Request, viewer: AnyViewer, body: Annotated[ReadFilesRequest, json_body(ReadFilesRequest)]
) -> Response:
    """Read many small files, in the order of `paths`.

    For each file, the response has a line of JSON with its `path` and `size`, and then its bytes. `size` is null, and
    the bytes are missing, if the file does not exist or is larger than 1 MiB. The response contains at most 16 MiB of
    files; request the remaining paths again.
    """
    files = _visible_releases(request, viewer).find_files(body.paths)
    return StreamingResponse(
        _stream_files(server_of(request).blobs, body.paths, files), media_type="application/octet-stream"
    )


def _stream_files(blobs: BlobStore, paths: list[str], files: Mapping[str, tuple[str, int]]) -> Iterator[bytes]:
    """Yield the body of a response to `read_files`; `files` has the hash and the size of each existing file."""
    total, buffer = 0, bytearray()
    for path in paths:
        sha256, size = files.get(path, ("", MAX_FILE_BYTES_AT_ONCE + 1))
        data = None
        if size <= MAX_FILE_BYTES_AT_ONCE:
            if total + size > MAX_BYTES_AT_ONCE:
                break
            with suppress(NotFoundError), blobs.open(sha256) as source:  # a lost blob must not end the response
                data = source.read(size)
        content = data or b""
        buffer += orjson.dumps({"path": path, "size": None if data is None else len(data)}) + b"\n" + content
        total += len(content)
        if len(buffer) > PIECE_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


@router.get(
    "/tree/{path:path}",
    response_class=Response,
    responses={
        200: FILE_RESPONSE,
        206: {**FILE_RESPONSE, "description": "The bytes of the file from position N of `Range: bytes=N-`."},
        304: {"description": "The file has the hash in `If-None-Match`."},
        416: {"model": ApiError, "description": "N of `Range: bytes=N-` is at or after the end of the file."},
        **errors(404),
    },
)
def download_file(request: Request, viewer: AnyViewer, path: str) -> Response:
    """Download a file of a release. With the header `Range: bytes=N-`, download it from byte N."""
    entry = _visible_releases(request, viewer).find_file(path)
    if entry is None:
        raise NotFoundError("no such file; check the path, or use a token that may see the release")
    sha256, size = entry
    headers = {
        "etag": f'"{sha256}"', "content-length": str(size), "content-disposition": "attachment",
        "accept-ranges": "bytes",
    }  # fmt: skip
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers={"etag": headers["etag"]})
    start = _range_start(request, headers["etag"], size)
    if start >= size > 0:  # an empty file is sent even with a `Range`
        message = f"`Range` starts after the end of the file, which has {size:,} bytes; download the file from byte 0"
        return error_response(416, "range", message, headers={"content-range": f"bytes */{size}"})
    source = server_of(request).blobs.open(sha256)
    if start:
        source.seek(start)
        headers |= {"content-length": str(size - start), "content-range": f"bytes {start}-{size - 1}/{size}"}
    status = 206 if start else 200
    return StreamingResponse(_stream_file(source), status, media_type="application/octet-stream", headers=headers)


def _range_start(request: Request, etag: str, size: int) -> int:
    """Return the position of the first byte to send.

    A `Range` with an end is ignored, because nip-run's clients only resume downloads, which continue to the end.
    """
    match = _OPEN_ENDED_RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or request.headers.get("if-range", etag) != etag:
        return 0
    return min(int(match[1]), size)


def _visible_releases(request: Request, viewer: Viewer) -> VisibleReleases:
    server = server_of(request)
    return VisibleReleases(server.database, server.blobs, viewer)


def _stream_file(source: IO[bytes]) -> Iterator[bytes]:
    with source:
        while piece := source.read(PIECE_BYTES):
            yield piece
