"""The server that the tests share, emptied for each, with an account."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.raw_uploads import Raw
from tests.support.registry_server import RegistryServer, emptied


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with emptied() as running:
        yield running


@pytest.fixture
def acme(server: RegistryServer) -> Iterator[Raw]:
    """Who publishes as acme, without our client."""
    with Raw(server.address, server.account("acme")) as raw:
        yield raw
