"""What every test is kept from: a real key, another machine, and writing outside a temporary folder."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support import guard
from tests.support.claims import Claims
from tests.support.process_state import changes, process_state, restore_ctrl_c


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests of signals, kills and rates wait for half of their time."""
    return (os.cpu_count() or 1) + 1


def pytest_configure() -> None:
    """Before any module of tests is imported."""
    guard.without_secrets(os.environ)
    restore_ctrl_c()


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put each test into one tier: `full` after the first n of a `sample(n)`, and `full` rather than `gate`."""
    counts: Counter[tuple[object, str]] = Counter()
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is not None:
            test = (item.parent, getattr(item, "originalname", item.name))
            counts[test] += 1
            if counts[test] > sample.args[0]:
                item.add_marker("full")
        if item.get_closest_marker("full") is not None:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "gate"]


def pytest_sessionfinish() -> None:
    serving = sys.modules.get("tests.support.serving")
    if serving is not None:
        serving.stop_shared()


@pytest.fixture(autouse=True, scope="session")
def _guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever the developer's shell exports; `tests/support/test_guard.py` proves that each guard refuses."""
    with guard.closed((str(tmp_path_factory.getbasetemp()), tempfile.gettempdir())):
        os.environ.update(guard.variables())
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_maker_of_tables() -> Iterator[None]:
    """Runs in this process share what reads and writes small tables: to make it anew was a fifth of what they cost."""
    from runner.base.storage.duckdb_connections import reuse_connections

    with reuse_connections():
        yield


@pytest.fixture(autouse=True)
def _unchanged_process_state() -> Iterator[None]:
    """Fail the test that changes what other tests share, instead of whichever test comes later."""
    before = process_state()
    yield
    assert changes(before, process_state()) == []


@pytest.fixture
def claims() -> Iterator[Claims]:
    claims = Claims()
    yield claims
    assert claims.failures == []
