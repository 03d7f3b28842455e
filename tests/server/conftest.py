"""Servers for tests: one that all share, and one that is emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.raw_uploads import Raw
from tests.support.serving import Served, emptied, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Running for all tests of a process, which leave in it what they like under names of their own."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def server() -> Iterator[Served]:
    with emptied() as running:
        yield running


@pytest.fixture
def acme(server: Served) -> Iterator[Raw]:
    """Who publishes as acme, without our client."""
    with Raw(server.address, server.account("acme")) as raw:
        yield raw
