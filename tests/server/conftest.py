"""Servers for tests: one that all share, and one that is emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import ServerProcess, run_server, shared_empty_server


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Running for all tests of a process, which leave in it what they like under names of their own."""
    with run_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with shared_empty_server() as running:
        yield running


@pytest.fixture
def acme(server: ServerProcess) -> Iterator[RawUploadClient]:
    """Who publishes as acme, without our client."""
    with RawUploadClient(server.address, server.create_token("acme")) as raw:
        yield raw
