"""`nip-run view` in headless Chromium follows a run that plays against a slow server, is killed (-9), and goes on.

Three pages look at it: one at the summary, where a note is half typed; one at the list of games, filtered and scrolled;
one at a game. What is claimed: progress grows; the page says that the run was killed; it goes on and ends, and says so;
the note, the filter, the scrolled place and the open game are as they were; the note is kept. Of what following costs
the figures are its time of the processor over what went by, and over that of the run (Linux: read from /proc).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.browser import Watched, chromium
from tests.support.claims import Claims
from tests.support.processes import ended, started, until
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file
from tests.support.viewing import View, viewing

GAMES = 240
NOTE = "The prover says the same thing twice, half ty"
TOP = 340
"""Pixels that the list is scrolled: ten rows."""
SHARE = 0.1
"""Of one processor's time, that following a run, and three pages of it, may take at most."""


class Looked:
    """Three pages of a run, each with something of its reader's."""

    def __init__(self, browser: Any, view: View, run_id: str) -> None:
        self.watched = [Watched(browser, viewport={"width": 1100, "height": 700}) for _ in range(3)]
        self.run_id = run_id
        self.summary = self.watched[0].open(view.address, f"run/{run_id}")
        self.summary.locator("section.notes textarea").fill(NOTE)
        self.list = self.watched[1].open(view.address, f"run/{run_id}/games?only=right,wrong&sort=datapoint")
        self.list.locator("table.games tbody tr:not([aria-hidden]) a").first.wait_for()
        self.game = self.watched[2].open(view.address, self._first_game())
        self.game.locator("header.game h2").wait_for()
        self.heading = self.game.locator("header.game h2").inner_text()

    def _first_game(self) -> str:
        href = self.list.locator("table.games tbody tr:not([aria-hidden]) a").first.get_attribute("href")
        return str(href).removeprefix("#/")

    def scroll(self) -> None:
        self.list.evaluate("top => { document.querySelector('div.scrolled').scrollTop = top; }", TOP)

    @property
    def standing(self) -> str:
        """What the page says of how the run stands."""
        found = self.summary.locator("section.live p.standing b")
        return str(found.first.inner_text()) if found.count() else ""

    @property
    def done(self) -> int:
        found = self.summary.locator("section.live progress")
        return int(found.first.evaluate("bar => bar.value")) if found.count() else 0

    @property
    def listed(self) -> int:
        found = re.match(r"([\d,]+) of", self.list.locator("p.count").inner_text())
        return int(found[1].replace(",", "")) if found else 0

    def kept(self, claims: Claims, when: str) -> None:
        """What the reader did is as it was."""
        typed = self.summary.locator("section.notes textarea").first.input_value()
        claims(typed == NOTE, f"{when}: the note is still half typed")
        self.list.locator("p.count").wait_for()
        at = "() => document.querySelector('div.scrolled')?.scrollTop ?? -1"
        until(lambda: self.list.evaluate(at) == TOP)
        pressed = [self.list.get_by_role("button", name=name, exact=True) for name in ("Right", "Wrong")]
        filtered = all(one.get_attribute("aria-pressed") == "true" for one in pressed)
        is_filtered = filtered and "only=right" in self.list.url
        claims(is_filtered, f"{when}: the list is filtered, at its place, and {self.listed} long")
        claims(self.game.locator("header.game h2").inner_text() == self.heading, f"{when}: the open game is the same")

    def close(self) -> list[str]:
        return [problem for one in self.watched for problem in one.close()]


def cpu_seconds(process: subprocess.Popen[Any]) -> float:
    """What a process has taken of a processor."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def followed(claims: Claims, browser: Any, view: View, run: subprocess.Popen[str]) -> Looked:
    """From the run's first games to its death."""
    run_id = view.ask("state.json").json["runs"][0]["run_id"]
    view.until(run_id, lambda state: state.get("games", {}).get("count", 0) >= 30)
    began = [cpu_seconds(run), cpu_seconds(view.process), time.monotonic()]
    looked = Looked(browser, view, run_id)
    until(lambda: looked.standing == "Playing")
    first, listed = looked.done, looked.listed
    looked.scroll()
    until(lambda: looked.done > first and looked.listed > listed + 10)
    second = looked.done
    until(lambda: looked.done > second)
    grown = f"{first}, {second}, {looked.done} of {GAMES} games; the list from {listed} to {looked.listed}"
    claims(True, f"progress grows: {grown}")
    looked.kept(claims, "as it plays")
    took = [cpu_seconds(run) - began[0], cpu_seconds(view.process) - began[1], time.monotonic() - began[2]]
    claims(
        took[1] <= SHARE * took[2],
        f"following takes {took[1]:.2f} s of CPU in {took[2]:.1f} s: {took[1] / took[2]:.1%}, at most {SHARE:.0%}; "
        f"{took[1] / took[0]:.2f} of what the run takes, which waits for its server ({took[0]:.2f} s)",
    )
    run.kill()
    ended(run)
    until(lambda: looked.standing.startswith("Killed"))
    claims(0 < looked.done < GAMES, f"after kill -9 the page says {looked.standing!r}, {looked.done} games done")
    looked.kept(claims, "killed")
    return looked


def went_on(claims: Claims, looked: Looked, place: Path) -> None:
    """The same command again, to the end."""
    before, listed = looked.done, looked.listed
    run = started("run", "spec.yaml", "-q", cwd=place)
    until(lambda: looked.standing == "Playing" and looked.done > before)
    claims(True, f"the run goes on: {looked.done} of {GAMES} games")
    code, _, err = ended(run)
    claims(code == 0, f"the resumed run ends well {err.strip()[-200:]}")
    until(lambda: looked.standing == "Done")
    until(lambda: looked.listed > listed)
    claims(looked.done == GAMES, f"the page says {looked.standing!r}, {looked.done} of {GAMES}")
    looked.kept(claims, "done")
    looked.summary.get_by_role("button", name="Save", exact=True).first.click()
    looked.summary.get_by_text("Saved in the run's folder.").wait_for()
    (notes,) = place.glob("results/runs/*/notes.jsonl")
    claims(NOTE in notes.read_text("utf-8"), "the note stands beside the run")
    again = looked.summary.get_by_role("button", name="Reload")
    if again.count():
        again.click()
    looked.summary.get_by_role("heading", name="Metrics").wait_for()
    claims(True, "shown again, the page has the metrics of the whole run")


def test_pages_follow_a_run_that_is_killed_and_resumed(tmp_path: Path, claims: Claims) -> None:
    with serving(latency=(0.2, 0.6)) as server:
        spec_file(tmp_path, server.base_url, size=GAMES, rollouts={"concurrency": 10}, fine_tune=None)
        run = started("run", "spec.yaml", "-q", cwd=tmp_path)
        try:
            until(lambda: any(tmp_path.glob("results/runs/*/journal.jsonl")))
            with viewing(cwd=tmp_path) as view, chromium() as browser:
                looked = followed(claims, browser, view, run)
                went_on(claims, looked, tmp_path)
                problems = looked.close()
        finally:
            run.kill()
    claims(not problems, f"no word on the console, no request to anybody else {problems[:3] or ''}")
