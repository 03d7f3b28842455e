"""One server for all tests of a file, which leave in it what they like under names of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running
