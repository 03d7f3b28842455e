"""The page of `nip-run view` while a run plays, is killed, goes on and ends."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from runner.results.folder import RunFolder
from tests.browser.conftest import Opens
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import start_nip_run_silently
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.view_process import run_view

GAMES = 60
SECONDS = 60_000


def count_games(page: Any) -> int:
    """How many games the list has, of which it may show fewer."""
    found: str = page.locator("p.count").inner_text()
    return int(found.partition(" of ")[2].split(" ")[0])


def test_a_page_follows_a_run_through_its_kill_and_its_resume_with_its_filter(watched: Opens, tmp_path: Path) -> None:
    with run_chat_server(latency=0.15) as server:
        spec_file(tmp_path, server.base_url, size=GAMES, rollouts={"concurrency": 4})
        playing = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
        folder = RunFolder(tmp_path / "results" / "runs" / "tiny")
        while not folder.manifest_path.is_file():
            assert playing.poll() is None
        with run_view("tiny", cwd=tmp_path) as view:
            view.wait_for_state("tiny", lambda state: state["games"]["count"] >= 2)
            page = watched().open(f"{view.address}#/run/tiny/games?q=p1&sort=-tokens")
            page.locator("p.count").wait_for()
            page.wait_for_function("() => / of [0-9]+ games$/.test(document.querySelector('p.count').textContent)")
            first = count_games(page)
            assert 2 <= first < GAMES
            page.wait_for_function(
                "first => Number(/ of (\\d+) games$/.exec(document.querySelector('p.count').textContent)?.[1]) > first",
                arg=first,
                timeout=SECONDS,
            )
            assert page.get_by_role("searchbox").input_value() == "p1"
            playing.send_signal(signal.SIGKILL)
            playing.wait()
            page.evaluate("() => { location.hash = '#/run/tiny'; }")
            standing = page.locator("section.live p.standing")
            standing.filter(has_text="Killed").wait_for(timeout=SECONDS)
            page.set_viewport_size({"width": 360, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.set_viewport_size({"width": 1280, "height": 900})
            page.evaluate("() => { location.hash = '#/run/tiny/games?q=p1&sort=-tokens'; }")
            again = start_nip_run_silently("spec.yaml", "--run-id", "tiny", cwd=tmp_path)
            assert again.wait(HANG_SECONDS) == 0
            view.wait_for_state("tiny", lambda state: state["standing"] == "done" and state["games"]["count"] == GAMES)
            page.locator("p.count", has_text=f" of {GAMES} games").wait_for(timeout=SECONDS)
            assert page.get_by_role("searchbox").input_value() == "p1"
            assert page.locator("p.count").inner_text() == f"11 of {GAMES} games"  # p1, p10 to p19
            assert "sort=-tokens" in page.url
            page.evaluate("() => { location.hash = '#/run/tiny'; }")
            standing.filter(has_text="Done").wait_for(timeout=SECONDS)
            page.get_by_role("heading", name="Metrics").wait_for()
            page.close()  # it would ask on once nobody answers
