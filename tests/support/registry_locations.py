"""Empty registries at every kind of location, and small releases to publish there.

Each function in `LOCATIONS` creates a registry and yields the value that a user would write after `--to`. Its
server and its environment variables, if any, exist until the `with` block ends.
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
from tests.support import git_repositories, server_process
from tests.support.servers.hub_client import WRITE_TOKEN, run_hub

Location = Callable[[Path], AbstractContextManager[str]]


@contextmanager
def folder(root: Path) -> Iterator[str]:
    yield f"file:{root / 'registry'}"


@contextmanager
def git_path(root: Path) -> Iterator[str]:
    """Create a bare repository on the same disk: git fetches all files at once."""
    yield f"git:{git_repositories.init_bare(root / 'registry.git')}"


@contextmanager
def git_daemon(root: Path) -> Iterator[str]:
    git_repositories.init_bare(root / "served" / "registry.git")
    with git_repositories.run_git_daemon(root / "served") as address:
        yield f"git:{address}/registry.git"


@contextmanager
def git_http(root: Path) -> Iterator[str]:
    """Serve a repository over HTTP, configured as at large hosts: git fetches a large file when it is read."""
    git_repositories.init_bare(root / "served" / "registry.git", "uploadpack.allowFilter=true", "http.receivepack=true")
    with git_repositories.run_git_http(root / "served") as address:
        yield f"git:{address}/registry.git"


@contextmanager
def hub(root: Path) -> Iterator[str]:
    """Run a local Hub with a dataset repository; environment variables point to it."""
    del root
    with run_hub() as (server, _), patch.dict(os.environ, {"HF_ENDPOINT": server.root, "HF_TOKEN": WRITE_TOKEN}):
        os.environ.pop("HF_HUB_OFFLINE", None)
        yield "hf:acme/registry"


@contextmanager
def server(root: Path) -> Iterator[str]:
    """Use the server that all tests of this process share, with a token of `acme`."""
    del root
    with (
        server_process.shared_empty_server() as running,
        server_process.registry_environment(running, running.create_token("acme")) as where,
    ):
        yield where


LOCATIONS: Mapping[str, Location] = {
    "folder": folder, "git": git_path, "git-daemon": git_daemon, "git-http": git_http, "hub": hub,
    "server": server,
}  # fmt: skip
SIMILAR_LOCATIONS = ("git-daemon", "git-http", "hub")
"""Locations whose code differs little from that of another, or has other tests; the gate skips them."""


def bundle(
    name: str = "council",
    contents: Mapping[str, Content] | None = None,
    *,
    version: str = "1",
    kind: Kind = Kind.PROMPTS,
) -> Bundle:
    """Return a small release of `acme`."""
    release = Release(kind=kind, owner="acme", name=name, version=version, description="for tests")
    return Bundle.of(release, {"verifier.jinja": b"Judge.\n"} if contents is None else contents)
