"""Every kind of run, each leaderboard and several runs together: all their pages open, and say something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Opens
from tests.browser.every_page import NOWHERE, kind, visited
from tests.browser.test_accessibility import violations
from tests.compatibility.old import FIXTURES, opened
from tests.support.browser import serve_folder
from tests.support.report_pages import board_report, report, report_folder

RUNS = sorted(path.name for path in (FIXTURES / "results" / "runs").iterdir())
"""Of 0.1.0: benchmarks, one that was killed, training runs with their parts, trees, replays, points of a sweep."""


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return opened(tmp_path_factory.mktemp("old")) / "results"


@pytest.mark.parametrize("name", RUNS)
def test_every_page_of_a_run_opens(name: str, old: Path, watched: Opens, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report(old / "runs" / name))
    seen = visited(watched(), path)
    assert seen
    assert {route: text for route, text in seen.items() if not text.strip() or NOWHERE.search(text)} == {}


def test_every_page_of_several_runs_opens(old: Path, watched: Opens, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report(*(old / "runs" / name for name in RUNS if name.startswith(("sweep", "served", "trees")))))
    seen = visited(watched(), path)
    assert {"run/*", "run/*/games", "run/*/game/*"} <= {kind(route) for route in seen}
    assert {route: text for route, text in seen.items() if not text.strip() or NOWHERE.search(text)} == {}


def test_every_page_of_a_folder_opens_behind_a_server_of_files(old: Path, watched: Opens, tmp_path: Path) -> None:
    report_folder(tmp_path / "site", old / "runs" / RUNS[0])
    with serve_folder(tmp_path / "site") as address:
        one = watched()
        seen = visited(one, address)
        assert {"run/*/games", "run/*/game/*"} <= {kind(route) for route in seen}
        assert any("/data/" in request for request in one.requests)


def test_every_page_of_a_leaderboard_opens(old: Path, watched: Opens, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(board_report(old))
    seen = visited(watched(), path)
    assert seen
    assert {route: text for route, text in seen.items() if not text.strip() or NOWHERE.search(text)} == {}


FEW_COLUMNS = {360: 5, 1280: 9}
"""By the width of the window: a table with at most so many columns fits, and only a wider one scrolls in its region."""
COLUMNS_OF_SCROLLING_TABLES = """() => {
    const seen = (head) => getComputedStyle(head).display !== "none";
    const regions = [...document.querySelectorAll("section.page:not([hidden]) .scrolls")];
    return Object.fromEntries(regions.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) =>
        [one.getAttribute("aria-label"), [...one.querySelectorAll("thead tr:first-child th")].filter(seen).length]));
}"""


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_is_wider_than_the_window_and_tables_of_few_columns_fit(
    width: int, old: Path, watched: Opens, tmp_path: Path
) -> None:
    runs = {"one": ["served"], "several": ["sweep", "served-c534600bdb"], "training": ["learning", "trees"]}
    pages = {
        name: report(*(old / "runs" / run for run in RUNS if run.startswith(tuple(starts))))
        for name, starts in runs.items()
    }
    for name, content in {**pages, "board": board_report(old)}.items():
        path = tmp_path / f"{name}.html"
        path.write_bytes(content)
        one = watched(viewport={"width": width, "height": 800})
        for route in visited(one, path, most=1):
            one.navigate(route)
            one.page.wait_for_timeout(100)
            one.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            assert one.page.evaluate("document.documentElement.scrollWidth") <= width, (name, route)
            scrolling = one.page.evaluate(COLUMNS_OF_SCROLLING_TABLES)
            assert all(columns > FEW_COLUMNS[width] for columns in scrolling.values()), (name, route, scrolling)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_of_a_training_run_a_tree_or_a_board_has_a_fault(
    scheme: str, old: Path, watched: Opens, axe: str, tmp_path: Path
) -> None:
    for name, page_of in {
        "runs": report(*(old / "runs" / name for name in RUNS if name.startswith(("malt", "sweep", "killed")))),
        "board": board_report(old),
    }.items():
        path = tmp_path / f"{name}.html"
        path.write_bytes(page_of)
        one = watched(color_scheme=scheme)
        found: dict[str, list[str]] = {}
        for route in visited(one, path, most=1):
            one.navigate(route)
            one.page.wait_for_timeout(100)
            if wrong := violations(one.page, axe):
                found[route] = wrong
        assert found == {}
