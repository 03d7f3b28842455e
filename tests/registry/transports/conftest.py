"""A Hub of one's own, for the tests of registries on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.hub import CALM, QUICK, bundle, registry
from tests.support.servers.client import Loopback
from tests.support.servers.hub_client import WRITE, running_hub


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Loopback, Loopback]]:
    made = {"acme/open": {}, "acme/closed": {"private": True}, "acme/gated": {"gated": True}}
    with running_hub(repositories=made) as both:
        yield both


@pytest.fixture
def hub(servers: tuple[Loopback, Loopback], monkeypatch: pytest.MonkeyPatch) -> Loopback:
    monkeypatch.setenv("HF_ENDPOINT", servers[0].root)
    monkeypatch.setenv("HF_TOKEN", WRITE)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    servers[0].change(**CALM)
    return servers[0]


@pytest.fixture(scope="module")
def published(servers: tuple[Loopback, Loopback]) -> str:
    """A repository that holds one release, and is only read."""
    servers[0].change(**CALM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", servers[0].root)
        patch.setenv("HF_TOKEN", WRITE)
        with registry("acme/read-only", timeouts=replace(QUICK, read=30.0)) as writing:  # many tests need it
            writing.publish([bundle()], "Publish")
    return "acme/read-only"
