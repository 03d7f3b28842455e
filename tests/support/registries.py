"""Every place that a registry can be at, empty and ready to be published to; and small releases to publish there.

A row of `PLACES` makes a place in a folder and gives what a user would write for it: the words after `--to`. Whatever
it needs besides (a server, a variable of the environment) is there until it ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest.mock import patch

from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from tests.support import git, serving
from tests.support.servers.hub_client import WRITE, running_hub

Place = Callable[[Path], AbstractContextManager[str]]


@contextmanager
def folder(root: Path) -> Iterator[str]:
    yield f"file:{root / 'registry'}"


@contextmanager
def git_path(root: Path) -> Iterator[str]:
    """A bare repository on the same disk, as git makes it: everything is fetched at once."""
    yield f"git:{git.bare(root / 'registry.git')}"


@contextmanager
def git_daemon(root: Path) -> Iterator[str]:
    git.bare(root / "served" / "registry.git")
    with git.daemon(root / "served") as address:
        yield f"git:{address}/registry.git"


@contextmanager
def git_http(root: Path) -> Iterator[str]:
    """As the large hosts serve it: large files are fetched when they are asked for."""
    git.bare(root / "served" / "registry.git", "uploadpack.allowFilter=true", "http.receivepack=true")
    with git.http(root / "served") as address:
        yield f"git:{address}/registry.git"


@contextmanager
def hub(root: Path) -> Iterator[str]:
    """A dataset repository on a Hub of one's own, which the variables of the environment name while it is there."""
    del root
    with running_hub() as (server, _), patch.dict(os.environ, {"HF_ENDPOINT": server.root, "HF_TOKEN": WRITE}):
        os.environ.pop("HF_HUB_OFFLINE", None)
        yield "hf:acme/registry"


@contextmanager
def server(root: Path) -> Iterator[str]:
    """A server in a process of its own, shared by the tests of this one, with a token of acme's."""
    del root
    with serving.emptied() as running, serving.publishing_to(running, running.account("acme")) as where:
        yield where


PLACES: Mapping[str, Place] = {
    "folder": folder, "git": git_path, "git-daemon": git_daemon, "git-http": git_http, "hub": hub,
    "server": server,
}  # fmt: skip
ALIKE = ("git-daemon", "git-http", "hub")
"""Those whose way differs little from another's, or is tried elsewhere, too; the gate leaves them out."""


def bundle(
    name: str = "council",
    contents: Mapping[str, Content] | None = None,
    *,
    version: str = "1",
    kind: Kind = Kind.PROMPTS,
) -> Bundle:
    """A small release of acme's."""
    release = Release(kind=kind, owner="acme", name=name, version=version, description="for tests")
    return Bundle.of(release, {"verifier.jinja": b"Judge.\n"} if contents is None else contents)
