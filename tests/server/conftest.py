"""Server fixtures: one shared by all tests, and one that is emptied before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import ServerProcess, run_server, shared_empty_server


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that all tests of the process share; each test uses its own names in it."""
    with run_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with shared_empty_server() as running:
        yield running


@pytest.fixture
def acme(server: ServerProcess) -> Iterator[RawUploadClient]:
    """A raw HTTP client that publishes as acme."""
    with RawUploadClient(server.address, server.create_token("acme")) as raw:
        yield raw
