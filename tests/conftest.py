"""Keep every test from real API keys, other machines, and writing outside a temporary folder."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import guard
from tests.support.paths import ROOT
from tests.support.process_state import describe_changes, read_process_state, restore_ctrl_c
from tests.support.soft_assertions import SoftAssertions

TESTS = ROOT / "tests"
FULL_FOLDERS = (TESTS / "browser", TESTS / "full")
"""Folders whose `conftest` marks all tests as `full`."""
FULL_MODULE = re.compile(rb"^pytestmark = \[?\s*pytest\.mark\.full\b", re.MULTILINE)


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the number of cores, because tests of signals, kills and rates wait half of the time."""
    return (os.cpu_count() or 1) + 1


def pytest_configure() -> None:
    """Prepare the process before any test module is imported."""
    guard.remove_secrets(os.environ)
    restore_ctrl_c()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without tests of the selected tier, because importing a file takes longer than many of its tests."""
    if config.option.markexpr not in ("not gate and not full", "gate"):
        return None
    if not collection_path.match("test_*.py"):
        return collection_path in FULL_FOLDERS or None
    text = collection_path.read_bytes()
    skipped = FULL_MODULE.search(text) or (config.option.markexpr == "gate" and b"mark.gate" not in text)
    return True if skipped else None


def pytest_collection(session: pytest.Session) -> None:
    """Import the files in another order in each worker, so that a worker loads bytecode that another one has stored."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    modules = list(find_modules(TESTS, session.config))
    first = len(modules) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for module in modules[first:] + modules[:first]:
        with suppress(Exception, pytest.skip.Exception):  # pytest imports it again, and reports the error
            importlib.import_module(module)


def find_modules(folder: Path, config: pytest.Config) -> Iterator[str]:
    """Return the names of the modules that pytest collects in a folder."""
    for path in sorted(folder.iterdir()):
        if pytest_ignore_collect(path, config):
            continue
        if path.is_dir():
            yield from find_modules(path, config)
        elif path.match("test_*.py"):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


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
    serving = sys.modules.get("tests.support.server_process")
    if serving is not None:
        serving.stop_shared()


@pytest.fixture(autouse=True, scope="session")
def _guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Guard the process and its children (see `tests/support/guard.py`)."""
    with guard.access_forbidden((str(tmp_path_factory.getbasetemp()), tempfile.gettempdir())):
        os.environ.update(guard.guard_variables())
        yield


@pytest.fixture(autouse=True, scope="session")
def _shared_duckdb_connections() -> Iterator[None]:
    """Let the runs of this process share DuckDB connections. Opening new ones takes a fifth of the time of a run."""
    from runner.base.storage.duckdb_connections import reuse_connections

    with reuse_connections():
        yield


@pytest.fixture(autouse=True, scope="session")
def _shared_empty_board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the runs of this process copy new leaderboards (see `tests/support/empty_board.py`)."""
    from tests.support.empty_board import copy_new_boards

    with copy_new_boards(tmp_path_factory.mktemp("board")):
        yield


@pytest.fixture(autouse=True)
def _unchanged_process_state() -> Iterator[None]:
    """Fail the test that changes shared state, instead of a later test."""
    before = read_process_state()
    processes = sys.modules.get("tests.support.processes")
    if processes is not None:
        processes.started.clear()  # those of fixtures of a module, which outlive this test
    yield
    processes = sys.modules.get("tests.support.processes")
    if processes is not None:
        processes.kill_started()
    assert describe_changes(before, read_process_state()) == []


@pytest.fixture
def check() -> Iterator[SoftAssertions]:
    """Collect failed checks, and fail the test at its end."""
    check = SoftAssertions()
    yield check
    assert check.failures == []
