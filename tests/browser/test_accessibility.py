"""axe-core finds nothing to hold against any page, light or dark, wide or narrow."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runner.results.folder import RunFolder
from tests.browser.conftest import Opens
from tests.browser.test_hostile_text import unfolded
from tests.browser.test_run_pages import rows
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import start_nip_run_silently
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.view_process import run_view

SECONDS = 60_000
"""Milliseconds that a view may take to show what a run came to."""

SETTINGS = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}


def violations(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)  # by the browser's debugger, so past the page's policy
    found = page.evaluate("settings => axe.run(document, settings)", SETTINGS)
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def show_route(page: Any, route: str) -> None:
    """Show a route of a view whose run has just ended, so that the page may load itself again at this moment."""
    from playwright.sync_api import Error

    for _ in range(5):
        with suppress(Error):
            page.evaluate("route => { location.hash = route; }", route)
            return
    raise AssertionError(f"the page was loading whenever {route} was to be shown")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_of_a_run_has_a_fault(scheme: str, width: int, small: Path, axe: str, watched: Opens) -> None:
    page = watched(color_scheme=scheme, viewport={"width": width, "height": 800}).open(small)
    page.locator("h1").wait_for()
    assert violations(page, axe) == []
    page.get_by_role("link", name="Games", exact=True).click()
    rows(page).first.wait_for()
    assert violations(page, axe) == []
    rows(page).first.get_by_role("link").click()
    page.locator("header.game h2").wait_for()
    unfolded(page)
    assert violations(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_of_a_view_has_a_fault_while_its_run_plays_and_after(
    scheme: str, tmp_path: Path, axe: str, watched: Opens
) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path, server.base_url, size=40, rollouts={"concurrency": 2}, fine_tune=None)
        playing = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
        folder = RunFolder(tmp_path / "results" / "runs" / "tiny")
        while not folder.manifest_path.is_file():
            assert playing.poll() is None
        with run_view("tiny", cwd=tmp_path) as view:
            view.wait_for_state("tiny", lambda state: state["games"]["count"] >= 1)
            page = watched(color_scheme=scheme).open(view.address)
            standing = page.locator("section.live p.standing")
            standing.filter(has_text="Playing").wait_for(timeout=SECONDS)
            assert violations(page, axe) == []
            page.evaluate("() => { location.hash = '#/run/tiny/games'; }")
            rows(page).first.wait_for(timeout=SECONDS)
            assert violations(page, axe) == []
            assert playing.wait(HANG_SECONDS) == 0
            show_route(page, "#/run/tiny")
            standing.filter(has_text="Done").wait_for(timeout=SECONDS)
            page.get_by_role("heading", name="Metrics").wait_for(timeout=SECONDS)
            assert violations(page, axe) == []
            page.close()  # it would ask on once nobody answers


def test_the_first_key_leads_past_the_navigation(small: Path, watched: Opens) -> None:
    page = watched().open(small)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_reader_goes_on_at_the_heading_of_what_is_shown(small: Path, watched: Opens) -> None:
    page = watched().open(small)
    page.get_by_role("link", name="Games", exact=True).click()
    rows(page).first.wait_for()
    rows(page).first.get_by_role("link").click()
    page.wait_for_function("() => document.activeElement.tagName === 'H2'")
    assert page.locator("#announced").inner_text().startswith("Game ")
    button = page.get_by_role("group", name="Whose view").get_by_role("button").nth(1)
    said = button.inner_text()
    button.click()
    page.wait_for_function("() => document.activeElement.tagName === 'BUTTON'")
    assert page.evaluate("document.activeElement.textContent") == said
