"""A browser for each worker, a fresh context for each test, and the runs whose pages are looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import WatchedPage, chromium
from tests.support.report_pages import report
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here drives Chromium, which only `.ci/full` installs."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker("full")


@pytest.fixture(scope="package")  # Playwright leaves an event loop running: no `asyncio.run` works until it is closed
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


Opens = Callable[..., WatchedPage]


@pytest.fixture
def watched(browser: Any) -> Iterator[Opens]:
    """Opens pages; a test in whose pages anything goes wrong fails."""
    made: list[WatchedPage] = []

    def opens(**options: Any) -> WatchedPage:
        made.append(WatchedPage(browser, **options))
        return made[-1]

    yield opens
    problems = [problem for one in made for problem in one.close()]
    assert problems == []


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of 12 games."""
    folder = tmp_path_factory.mktemp("small")
    run_spec(spec_file(folder), folder / "results")
    path = folder / "report.html"
    path.write_bytes(report(only_run(folder / "results")))
    return path


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core, which `.ci/full` installs by npm for as long as it runs, and names by `AXE`."""
    path = os.environ.get("AXE")
    if path is None:
        pytest.skip("AXE does not name axe-core's axe.min.js: npm install axe-core@4.14.1")
    return Path(path).read_text("utf-8")
