"""The page of `nip-run view` while a run is running, killed, resumed and finished."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from runner.results.folder import RunFolder
from tests.browser.conftest import PageOpener
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import start_nip_run_silently
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.view_process import run_view

GAMES = 60
VIEW_TIMEOUT_MS = 60_000


def count_games(page: Any) -> int:
    """Return the total number of games; the list may show fewer."""
    count_text: str = page.locator("p.count").inner_text()
    return int(count_text.partition(" of ")[2].split(" ")[0])


def test_page_follows_a_run_through_kill_and_resume_and_keeps_its_filter(
    open_watched: PageOpener, tmp_path: Path
) -> None:
    with run_chat_server(latency=0.15) as server:
        spec_file(tmp_path, server.base_url, size=GAMES, rollouts={"concurrency": 4})
        process = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
        folder = RunFolder(tmp_path / "results" / "runs" / "tiny")
        while not folder.manifest_path.is_file():
            assert process.poll() is None
        with run_view("tiny", cwd=tmp_path) as view:
            view.wait_for_state("tiny", lambda state: state["games"]["count"] >= 2)
            page = open_watched().open(f"{view.address}#/run/tiny/games?q=p1&sort=-tokens")
            page.locator("p.count").wait_for()
            page.wait_for_function("() => / of [0-9]+ games$/.test(document.querySelector('p.count').textContent)")
            first_count = count_games(page)
            assert 2 <= first_count < GAMES
            page.wait_for_function(
                "first => Number(/ of (\\d+) games$/.exec(document.querySelector('p.count').textContent)?.[1]) > first",
                arg=first_count,
                timeout=VIEW_TIMEOUT_MS,
            )
            assert page.get_by_role("searchbox").input_value() == "p1"
            process.send_signal(signal.SIGKILL)
            process.wait()
            page.evaluate("() => { location.hash = '#/run/tiny'; }")
            standing = page.locator("section.live p.standing")
            standing.filter(has_text="Killed").wait_for(timeout=VIEW_TIMEOUT_MS)
            page.set_viewport_size({"width": 360, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.set_viewport_size({"width": 1280, "height": 900})
            page.evaluate("() => { location.hash = '#/run/tiny/games?q=p1&sort=-tokens'; }")
            resumed_process = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
            assert resumed_process.wait(HANG_SECONDS) == 0
            view.wait_for_state("tiny", lambda state: state["standing"] == "done" and state["games"]["count"] == GAMES)
            page.locator("p.count", has_text=f" of {GAMES} games").wait_for(timeout=VIEW_TIMEOUT_MS)
            assert page.get_by_role("searchbox").input_value() == "p1"
            assert page.locator("p.count").inner_text() == f"11 of {GAMES} games"  # p1, p10 to p19
            assert "sort=-tokens" in page.url
            page.evaluate("() => { location.hash = '#/run/tiny'; }")
            standing.filter(has_text="Done").wait_for(timeout=VIEW_TIMEOUT_MS)
            page.get_by_role("heading", name="Metrics").wait_for()
            page.close()  # otherwise it would poll a stopped server
