"""A local Hub for the tests of registries on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.hub_registry import NO_FAULTS, SHORT_TIMEOUTS, bundle, registry
from tests.support.servers.client import LoopbackServer
from tests.support.servers.hub_client import WRITE_TOKEN, run_hub


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[LoopbackServer, LoopbackServer]]:
    repositories = {"acme/open": {}, "acme/closed": {"private": True}, "acme/gated": {"gated": True}}
    with run_hub(repositories=repositories) as hub_and_storage:
        yield hub_and_storage


@pytest.fixture
def hub(servers: tuple[LoopbackServer, LoopbackServer], monkeypatch: pytest.MonkeyPatch) -> LoopbackServer:
    monkeypatch.setenv("HF_ENDPOINT", servers[0].root)
    monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    servers[0].change(**NO_FAULTS)
    return servers[0]


@pytest.fixture(scope="module")
def published(servers: tuple[LoopbackServer, LoopbackServer]) -> str:
    """Return a repository with one release, which tests only read."""
    servers[0].change(**NO_FAULTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", servers[0].root)
        patch.setenv("HF_TOKEN", WRITE_TOKEN)
        with registry(
            "acme/read-only", timeouts=replace(SHORT_TIMEOUTS, read=30.0)
        ) as writing:  # a timeout here would fail many tests
            writing.publish([bundle()], "Publish")
    return "acme/read-only"
