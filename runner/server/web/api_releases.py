"""The API for who reads: files of the registry's tree, listed and sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from runner.errors import NotPublished
from runner.releases.bundle import PIECE
from runner.server.accounts import Viewer
from runner.server.tree import PAGE, ServerTree
from runner.server.web.asking import Asking, server_of
from runner.version import __version__

router = APIRouter(prefix="/api/v1", tags=["releases"])


class About(BaseModel):
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


class Listed(BaseModel):
    path: str
    size: int


class Tree(BaseModel):
    """Some files of the registry, in the order of their paths."""

    files: list[Listed]
    next: str | None
    """What to give as `after` for those that follow; null: these are the last."""


@router.get("")
def about(request: Request, viewer: Asking) -> About:
    """What this server is, and what it takes."""
    limits = server_of(request).settings.limits
    owners = sorted(owner for owner in viewer.owners if viewer.publishes_as(owner))
    return About(
        version=__version__, account=viewer.account or None, owners=owners, file_bytes=limits.file_bytes,
        total_bytes=limits.total_bytes, files=limits.files,
    )  # fmt: skip


@router.get("/tree")
def tree(
    request: Request,
    viewer: Asking,
    prefix: Annotated[str, Query(max_length=800)] = "",
    after: Annotated[str, Query(max_length=800)] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
) -> Tree:
    """List files whose path begins with `prefix`, those that the token may see."""
    found = _tree(request, viewer).page(prefix, after, limit)
    following = found[-1].path if len(found) == limit else None
    return Tree(files=[Listed(path=one.path, size=one.size or 0) for one in found], next=following)


@router.get("/tree/{path:path}", response_class=Response)
def file(request: Request, viewer: Asking, path: str) -> Response:
    """A file of a release, as it was published."""
    found = _tree(request, viewer).find(path)
    if found is None:
        raise NotPublished(f"there is no file {path}")
    sha256, size = found
    headers = {"etag": f'"{sha256}"', "content-length": str(size), "content-disposition": "attachment"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers={"etag": headers["etag"]})
    source = server_of(request).blobs.open(sha256)
    return StreamingResponse(_pieces(source), media_type="application/octet-stream", headers=headers)


def _tree(request: Request, viewer: Viewer) -> ServerTree:
    server = server_of(request)
    return ServerTree(server.database, server.blobs, viewer)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    with source:
        while piece := source.read(PIECE):
            yield piece
