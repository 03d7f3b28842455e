"""`nip-run view` in Chromium follows a run that is killed with SIGKILL and resumed.

Three pages show the run: the summary with a note that is being typed, the list of games with a filter and scrolled, and
a game. The pages must show the progress and the status of the run, and keep what the reader did. Following must take
little CPU time, which is read from /proc (Linux only).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.browser import WatchedPage, chromium
from tests.support.processes import start_nip_run, wait_for_exit, wait_until
from tests.support.servers.chat_client import run_chat_server
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file
from tests.support.view_process import ViewProcess, run_view

GAMES = 240
NOTE = "The prover says the same thing twice, half ty"
SCROLL_TOP = 340
"""Scroll position of the list in pixels: ten rows."""
MAX_CPU_SHARE = 0.1
"""Maximum share of one CPU that `nip-run view` may use to follow a run on three pages."""


class OpenPages:
    """Three pages of a run, each with an action of the reader."""

    def __init__(self, browser: Any, view: ViewProcess, run_id: str) -> None:
        self.watched_pages = [WatchedPage(browser, viewport={"width": 1100, "height": 700}) for _ in range(3)]
        self.run_id = run_id
        self.summary = self.watched_pages[0].open(view.address, f"run/{run_id}")
        self.summary.locator("section.notes textarea").fill(NOTE)
        self.list = self.watched_pages[1].open(view.address, f"run/{run_id}/games?only=right,wrong&sort=datapoint")
        self.list.locator("table.games tbody tr:not([aria-hidden]) a").first.wait_for()
        self.game = self.watched_pages[2].open(view.address, self._first_game())
        self.game.locator("header.game h2").wait_for()
        self.heading = self.game.locator("header.game h2").inner_text()

    def _first_game(self) -> str:
        href = self.list.locator("table.games tbody tr:not([aria-hidden]) a").first.get_attribute("href")
        return str(href).removeprefix("#/")

    def scroll(self) -> None:
        self.list.evaluate("top => { document.querySelector('div.scrolled').scrollTop = top; }", SCROLL_TOP)

    @property
    def run_status(self) -> str:
        """The status of the run on the summary page."""
        elements = self.summary.locator("section.live p.standing b")
        return str(elements.first.inner_text()) if elements.count() else ""

    @property
    def games_done(self) -> int:
        elements = self.summary.locator("section.live progress")
        return int(elements.first.evaluate("bar => bar.value")) if elements.count() else 0

    @property
    def games_listed(self) -> int:
        elements = re.match(r"([\d,]+) of", self.list.locator("p.count").inner_text())
        return int(elements[1].replace(",", "")) if elements else 0

    def check_unchanged(self, check: SoftAssertions, when: str) -> None:
        """Check that note, filter, scroll position and open game are unchanged."""
        note = self.summary.locator("section.notes textarea").first.input_value()
        check(note == NOTE, f"{when}: the note is unchanged: {note!r}")
        self.list.locator("p.count").wait_for()
        script = "() => document.querySelector('div.scrolled')?.scrollTop ?? -1"
        wait_until(lambda: self.list.evaluate(script) == SCROLL_TOP)
        buttons = [self.list.get_by_role("button", name=name, exact=True) for name in ("Right", "Wrong")]
        are_pressed = all(page.get_attribute("aria-pressed") == "true" for page in buttons)
        is_filtered = are_pressed and "only=right" in self.list.url
        check(is_filtered, f"{when}: the list is still filtered ({self.games_listed} games)")
        check(self.game.locator("header.game h2").inner_text() == self.heading, f"{when}: the open game is the same")

    def close(self) -> list[str]:
        return [problem for page in self.watched_pages for problem in page.close()]


def cpu_seconds(process: subprocess.Popen[Any]) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def follow_until_killed(
    check: SoftAssertions, browser: Any, view: ViewProcess, run: subprocess.Popen[str]
) -> OpenPages:
    """Follow the run from its first games until it is killed."""
    run_id = view.request("state.json").json["runs"][0]["run_id"]
    view.wait_for_state(run_id, lambda state: state.get("games", {}).get("count", 0) >= 30)
    start = [cpu_seconds(run), cpu_seconds(view.process), time.monotonic()]
    pages = OpenPages(browser, view, run_id)
    wait_until(lambda: pages.run_status == "Playing")
    first_count, games_listed = pages.games_done, pages.games_listed
    pages.scroll()
    wait_until(lambda: pages.games_done > first_count and pages.games_listed > games_listed + 10)
    second_count = pages.games_done
    wait_until(lambda: pages.games_done > second_count)
    progress = (
        f"{first_count}, {second_count}, {pages.games_done} of {GAMES} games; "
        f"the list from {games_listed} to {pages.games_listed}"
    )
    check(True, f"the progress grows: {progress}")
    pages.check_unchanged(check, "while the run plays")
    seconds = [cpu_seconds(run) - start[0], cpu_seconds(view.process) - start[1], time.monotonic() - start[2]]
    check(
        seconds[1] <= MAX_CPU_SHARE * seconds[2],
        f"following takes at most {MAX_CPU_SHARE:.0%} of a CPU: {seconds[1]:.2f} s in {seconds[2]:.1f} s; "
        f"the run takes {seconds[0]:.2f} s",
    )
    run.kill()
    wait_for_exit(run)
    wait_until(lambda: pages.run_status.startswith("Killed"))
    check(0 < pages.games_done < GAMES, f"the page shows the kill: {pages.run_status!r}, {pages.games_done} games")
    pages.check_unchanged(check, "after the kill")
    return pages


def follow_resumed_run(check: SoftAssertions, pages: OpenPages, folder: Path) -> None:
    """Follow the resumed run to its end."""
    before, games_listed = pages.games_done, pages.games_listed
    run = start_nip_run("run", "spec.yaml", "-q", cwd=folder)
    wait_until(lambda: pages.run_status == "Playing" and pages.games_done > before)
    check(True, f"the page shows the resumed run: {pages.games_done} of {GAMES} games")
    code, _, err = wait_for_exit(run)
    check(code == 0, f"the resumed run succeeds {err.strip()[-200:]}")
    wait_until(lambda: pages.run_status == "Done")
    wait_until(lambda: pages.games_listed > games_listed)
    check(
        pages.games_done == GAMES, f"the page shows the end: {pages.run_status!r}, {pages.games_done} of {GAMES} games"
    )
    pages.check_unchanged(check, "after the end")
    pages.summary.get_by_role("button", name="Save", exact=True).first.click()
    pages.summary.get_by_text("Saved in the run's folder.").wait_for()
    (notes,) = folder.glob("results/runs/*/notes.jsonl")
    check(NOTE in notes.read_text("utf-8"), "the note is saved in the folder of the run")
    reload_button = pages.summary.get_by_role("button", name="Reload")
    if reload_button.count():
        reload_button.click()
    pages.summary.get_by_role("heading", name="Metrics").wait_for()
    check(True, "the page shows the metrics after a reload")


def test_pages_follow_a_run_that_is_killed_and_resumed(tmp_path: Path, check: SoftAssertions) -> None:
    with run_chat_server(latency=(0.2, 0.6)) as server:
        spec_file(tmp_path, server.base_url, size=GAMES, rollouts={"concurrency": 10}, fine_tune=None)
        run = start_nip_run("run", "spec.yaml", "-q", cwd=tmp_path)
        try:
            wait_until(lambda: any(tmp_path.glob("results/runs/*/journal.jsonl")))
            with run_view(cwd=tmp_path) as view, chromium() as browser:
                pages = follow_until_killed(check, browser, view, run)
                follow_resumed_run(check, pages, tmp_path)
                problems = pages.close()
        finally:
            run.kill()
    check(not problems, f"the pages have no errors and send no request to other hosts {problems[:3] or ''}")
