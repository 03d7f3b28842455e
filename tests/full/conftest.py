"""Every test in this folder takes minutes, or needs what only `.ci/full` installs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.claims import Claims


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("full")


@pytest.fixture
def claims() -> Iterator[Claims]:
    claims = Claims()
    yield claims
    assert claims.failures == []
