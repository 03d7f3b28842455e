"""A browser for each worker, a new context for each test, and a run's report."""

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

BROWSER_TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here drives Chromium, which only `.ci/full` installs."""
    for item in items:
        if item.path.parent == BROWSER_TESTS:
            item.add_marker("full")


@pytest.fixture(scope="package")  # Playwright leaves an event loop running: no `asyncio.run` works until it is closed
def browser() -> Iterator[Any]:
    with chromium() as running_browser:
        yield running_browser


PageOpener = Callable[..., WatchedPage]


@pytest.fixture
def open_watched(browser: Any) -> Iterator[PageOpener]:
    """A function that opens pages; the test fails if a page reports any problem."""
    pages: list[WatchedPage] = []

    def open_page(**options: Any) -> WatchedPage:
        pages.append(WatchedPage(browser, **options))
        return pages[-1]

    yield open_page
    problems = [problem for page in pages for problem in page.close()]
    assert problems == []


@pytest.fixture(scope="session")
def small_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of 12 games."""
    folder = tmp_path_factory.mktemp("small")
    run_spec(spec_file(folder), folder / "results")
    path = folder / "report.html"
    path.write_bytes(report(only_run(folder / "results")))
    return path


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which `.ci/full` installs temporarily and names in `AXE`."""
    path = os.environ.get("AXE")
    if path is None:
        pytest.skip("AXE does not name axe-core's axe.min.js: npm install axe-core@4.14.1")
    return Path(path).read_text("utf-8")
