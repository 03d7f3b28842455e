"""Pages of every kind of run, of several runs and of leaderboards: all of them open and show text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import PageOpener
from tests.browser.every_page import NOT_FOUND, route_shape, visit_pages
from tests.browser.test_accessibility import find_violations
from tests.compatibility.old import FIXTURES, copy_old_files
from tests.support.browser import serve_folder
from tests.support.report_pages import board_report, report, report_folder

RUNS = sorted(path.name for path in (FIXTURES / "results" / "runs").iterdir())
"""Runs of version 0.1.0: benchmark, killed, training, tree, replayed and sweep runs."""


@pytest.fixture(scope="session")
def old_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_old_files(tmp_path_factory.mktemp("old")) / "results"


@pytest.mark.parametrize("name", RUNS)
def test_every_page_of_a_run_opens(name: str, old_results: Path, open_watched: PageOpener, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report(old_results / "runs" / name))
    texts = visit_pages(open_watched(), path)
    assert texts
    assert {route: text for route, text in texts.items() if not text.strip() or NOT_FOUND.search(text)} == {}


def test_every_page_of_several_runs_opens(old_results: Path, open_watched: PageOpener, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(
        report(*(old_results / "runs" / name for name in RUNS if name.startswith(("sweep", "served", "trees"))))
    )
    texts = visit_pages(open_watched(), path)
    assert {"run/*", "run/*/games", "run/*/game/*"} <= {route_shape(route) for route in texts}
    assert {route: text for route, text in texts.items() if not text.strip() or NOT_FOUND.search(text)} == {}


def test_every_page_of_a_report_folder_opens_from_a_file_server(
    old_results: Path, open_watched: PageOpener, tmp_path: Path
) -> None:
    report_folder(tmp_path / "site", old_results / "runs" / RUNS[0])
    with serve_folder(tmp_path / "site") as address:
        watched_page = open_watched()
        texts = visit_pages(watched_page, address)
        assert {"run/*/games", "run/*/game/*"} <= {route_shape(route) for route in texts}
        assert any("/data/" in request for request in watched_page.requests)


def test_every_page_of_a_leaderboard_opens(old_results: Path, open_watched: PageOpener, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(board_report(old_results))
    texts = visit_pages(open_watched(), path)
    assert texts
    assert {route: text for route, text in texts.items() if not text.strip() or NOT_FOUND.search(text)} == {}


MAX_FITTING_COLUMNS = {360: 5, 1280: 9}
"""Maximum number of columns that must fit without scrolling, by window width."""
COLUMNS_OF_SCROLLING_TABLES = """() => {
    const seen = (head) => getComputedStyle(head).display !== "none";
    const regions = [...document.querySelectorAll("section.page:not([hidden]) .scrolls")];
    return Object.fromEntries(regions.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) =>
        [one.getAttribute("aria-label"), [...one.querySelectorAll("thead tr:first-child th")].filter(seen).length]));
}"""


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_is_wider_than_the_window_and_narrow_tables_do_not_scroll(
    width: int, old_results: Path, open_watched: PageOpener, tmp_path: Path
) -> None:
    runs = {"one": ["served"], "several": ["sweep", "served-c534600bdb"], "training": ["learning", "trees"]}
    pages = {
        name: report(*(old_results / "runs" / run for run in RUNS if run.startswith(tuple(prefixes))))
        for name, prefixes in runs.items()
    }
    for name, content in {**pages, "board": board_report(old_results)}.items():
        path = tmp_path / f"{name}.html"
        path.write_bytes(content)
        watched_page = open_watched(viewport={"width": width, "height": 800})
        for route in visit_pages(watched_page, path, max_per_shape=1):
            watched_page.navigate(route)
            watched_page.page.wait_for_timeout(100)
            watched_page.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            assert watched_page.page.evaluate("document.documentElement.scrollWidth") <= width, (name, route)
            scrolling = watched_page.page.evaluate(COLUMNS_OF_SCROLLING_TABLES)
            assert all(columns > MAX_FITTING_COLUMNS[width] for columns in scrolling.values()), (name, route, scrolling)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_on_training_tree_and_board_pages(
    scheme: str, old_results: Path, open_watched: PageOpener, axe: str, tmp_path: Path
) -> None:
    for name, content in {
        "runs": report(*(old_results / "runs" / name for name in RUNS if name.startswith(("malt", "sweep", "killed")))),
        "board": board_report(old_results),
    }.items():
        path = tmp_path / f"{name}.html"
        path.write_bytes(content)
        watched_page = open_watched(color_scheme=scheme)
        violations_by_route: dict[str, list[str]] = {}
        for route in visit_pages(watched_page, path, max_per_shape=1):
            watched_page.navigate(route)
            watched_page.page.wait_for_timeout(100)
            if page_violations := find_violations(watched_page.page, axe):
                violations_by_route[route] = page_violations
        assert violations_by_route == {}
