"""axe-core finds no violation on any page, light or dark, wide or narrow."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runner.results.folder import RunFolder
from tests.browser.conftest import PageOpener
from tests.browser.test_hostile_text import unfold_all
from tests.browser.test_run_pages import locate_rows
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import start_nip_run_silently
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.view_process import run_view

VIEW_TIMEOUT_MS = 60_000
"""Timeout, in milliseconds, for a view to show a run's new state."""

SETTINGS = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}


def find_violations(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)  # the debugger protocol bypasses the page's content policy
    results = page.evaluate("settings => axe.run(document, settings)", SETTINGS)
    return [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary']}"
        for violation in results["violations"]
        for node in violation["nodes"]
    ]


def show_route(page: Any, route: str) -> None:
    """Show a route of a view; retry, because the page may reload when its run ends."""
    from playwright.sync_api import Error

    for _ in range(5):
        with suppress(Error):
            page.evaluate("route => { location.hash = route; }", route)
            return
    raise AssertionError(f"the page was loading whenever {route} was to be shown")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_on_run_pages(
    scheme: str, width: int, small_report: Path, axe: str, open_watched: PageOpener
) -> None:
    page = open_watched(color_scheme=scheme, viewport={"width": width, "height": 800}).open(small_report)
    page.locator("h1").wait_for()
    assert find_violations(page, axe) == []
    page.get_by_role("link", name="Games", exact=True).click()
    locate_rows(page).first.wait_for()
    assert find_violations(page, axe) == []
    locate_rows(page).first.get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    unfold_all(page)
    assert find_violations(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_on_a_view_during_and_after_its_run(
    scheme: str, tmp_path: Path, axe: str, open_watched: PageOpener
) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path, server.base_url, size=40, rollouts={"concurrency": 2}, fine_tune=None)
        process = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
        folder = RunFolder(tmp_path / "results" / "runs" / "tiny")
        while not folder.manifest_path.is_file():
            assert process.poll() is None
        with run_view("tiny", cwd=tmp_path) as view:
            view.wait_for_state("tiny", lambda state: state["games"]["count"] >= 1)
            page = open_watched(color_scheme=scheme).open(view.address)
            standing = page.locator("section.live p.standing")
            standing.filter(has_text="Playing").wait_for(timeout=VIEW_TIMEOUT_MS)
            assert find_violations(page, axe) == []
            page.evaluate("() => { location.hash = '#/run/tiny/games'; }")
            locate_rows(page).first.wait_for(timeout=VIEW_TIMEOUT_MS)
            assert find_violations(page, axe) == []
            assert process.wait(HANG_SECONDS) == 0
            show_route(page, "#/run/tiny")
            standing.filter(has_text="Done").wait_for(timeout=VIEW_TIMEOUT_MS)
            page.get_by_role("heading", name="Metrics").wait_for(timeout=VIEW_TIMEOUT_MS)
            assert find_violations(page, axe) == []
            page.close()  # otherwise it would poll a stopped server


def test_first_tab_focuses_the_skip_link(small_report: Path, open_watched: PageOpener) -> None:
    page = open_watched().open(small_report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_focus_moves_to_the_heading_of_the_shown_page(small_report: Path, open_watched: PageOpener) -> None:
    page = open_watched().open(small_report)
    page.get_by_role("link", name="Games", exact=True).click()
    locate_rows(page).first.wait_for()
    locate_rows(page).first.get_by_role("link").click()
    page.wait_for_function("() => document.activeElement.tagName === 'H2'")
    assert page.locator("#announced").inner_text().startswith("Game ")
    button = page.get_by_role("group", name="Whose view").get_by_role("button").nth(1)
    label = button.inner_text()
    button.click()
    page.wait_for_function("() => document.activeElement.tagName === 'BUTTON'")
    assert page.evaluate("document.activeElement.textContent") == label
