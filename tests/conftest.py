"""What every test is kept from: a real key, another machine, and writing outside a temporary folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.support import guard


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests of signals, kills and rates wait for half of their time."""
    return (os.cpu_count() or 1) + 1


def pytest_configure() -> None:
    """Before any module of tests is imported."""
    guard.without_secrets(os.environ)


@pytest.fixture(autouse=True, scope="session")
def _guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever the developer's shell exports; `tests/support/test_guard.py` proves that each guard refuses."""
    with guard.closed((str(tmp_path_factory.getbasetemp()), tempfile.gettempdir())):
        os.environ.update(guard.variables())
        yield
