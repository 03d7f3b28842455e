"""The time and memory of pages of large runs in headless Chromium.

Claimed: with 10,000 games in one file, the list can be used after 2 s, and a game is there after 0.3 s; with 100,000
games in a folder behind a file server, the list can be used after 3 s. It can be used when its first rows are shown,
a filter and a search have worked, and all rows are read. Seconds count from the navigation to the page: the least of
three times, because machines also do other work. The JavaScript heap of the page, after a garbage collection, stays
under HEAP_MB while the list is scrolled from end to end, 50 games are opened and all messages are searched. Nothing is
written to the console, and no other server is asked. Runs are played with the provider `dummy`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import measured, temporary_folder

from tests.support.browser import WatchedPage, chromium, serve_folder
from tests.support.processes import command
from tests.support.soft_assertions import SoftAssertions

DATAPOINTS = 1_000
OPENED = 50
HEAP_MB = 150
TIMES = 3
USABLE_SECONDS = {False: 2.0, True: 3.0}
"""For a page in one file (False), and for one in a folder behind a server (True)."""
PATIENCE = 60_000
"""Milliseconds to wait for anything; much longer than any limit."""

USABLE = """async () => {
    const turn = () => new Promise((go) => setTimeout(go, 4));
    const counted = () => document.querySelector("p.count")?.textContent ?? "";
    const row = () => document.querySelector("table.games tbody tr:not([aria-hidden])");
    while (!row()) await turn();
    const first = performance.now();
    const all = counted();
    const wrong = [...document.querySelectorAll("button[aria-pressed]")].find((one) => one.textContent === "Wrong");
    wrong.click();
    while (wrong.getAttribute("aria-pressed") !== "true") await turn();
    const filtered = counted();
    wrong.click();
    while (wrong.getAttribute("aria-pressed") !== "false") await turn();
    const search = document.getElementById("search");
    search.value = "p77";
    search.dispatchEvent(new Event("input"));
    while (!location.hash.includes("p77")) await turn();
    while (counted() === all) await turn();
    const found = counted();
    search.value = "";
    search.dispatchEvent(new Event("input"));
    const used = performance.now();
    while (location.hash.includes("p77") || counted().includes("still") || counted() === found) await turn();
    return { first, used, all: performance.now(), counted: [all, filtered, found, counted()] };
}"""

SCROLLED = """async () => {
    const view = document.querySelector("div.scrolled");
    for (let part = 0; part <= 200; part++) {
        view.scrollTop = (view.scrollHeight * part) / 200;
        await new Promise(requestAnimationFrame);
    }
    const rows = document.querySelectorAll("table.games tbody tr").length;
    view.scrollTop = 0;
    return rows;
}"""

OPEN = """async (href) => {
    const turn = () => new Promise((go) => setTimeout(go, 2));
    const begun = performance.now();
    location.hash = href;
    const head = () => document.querySelector("header.game:not([data-seen])");
    while (!head()?.querySelector("h2")) await turn();
    head().dataset.seen = "";
    await new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
    return performance.now() - begun;
}"""

SAID = """async () => {
    const begun = performance.now();
    const search = document.getElementById("search");
    search.value = "zebra-that-nobody-said";
    [...document.querySelectorAll("button")].find((one) => one.textContent === "Search messages").click();
    const counted = () => document.querySelector("p.count").textContent;
    while (!counted().includes("messages included")) await new Promise((go) => setTimeout(go, 10));
    return [performance.now() - begun, counted()];
}"""


def made(folder: Path, games: int) -> Path:
    """Play a run with so many games, if it is not there, and make its page: one file, or a folder for many games."""
    page = folder / ("report.html" if games <= 20_000 else "site/index.html")
    if page.is_file():
        return page
    folder.mkdir(parents=True, exist_ok=True)
    rows = (
        {
            "id": f"p{number}", "label": number % 2, "level": ["easy", "hard"][number % 3 % 2],
            "question": f"Return x + {number}, and mind the limits of what is given. " * 3,
            "solution": f"def f(x):\n    return x + {number}\n",
        }
        for number in range(DATAPOINTS)
    )  # fmt: skip
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    spec = {
        "name": "large", "dataset": {"path": "data.jsonl"}, "protocol": {"use": "nip", "max_message_rounds": 2},
        "prompts": "prompts/code_validation/nip", "models": {"m": {"provider": "dummy"}},
        "agents": {"prover": {"model": "m"}, "verifier": {"model": "m"}},
        "rollouts": {"per_datapoint": games // DATAPOINTS, "concurrency": 64},
    }  # fmt: skip
    (folder / "spec.yaml").write_text(json.dumps(spec), "utf-8")
    measured(command("run", "spec.yaml", "-q"), folder)
    to = ["-o", "report.html"] if page.parent == folder else ["--dir", "site"]
    report = measured(command("report", "last", *to), folder)
    print(f"      {games:,} games: made in {report.wall:.1f} s with {report.peak_mb:.0f} MB")
    return page


def heap_mb(page: Any) -> float:
    """Return the size of the JavaScript heap after a garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return float(metrics["JSHeapUsedSize"]) / 1e6


def looked_at(browser: Any, check: SoftAssertions, address: str, run_id: str, games: int) -> None:
    """Open a run's list `TIMES` times; the last time, also scroll it, open games and search."""
    timings, problems, limit = [], [], USABLE_SECONDS[address.startswith("http")]
    for number in range(TIMES):
        watched = WatchedPage(browser)
        watched.context.set_default_timeout(PATIENCE)
        page = watched.open(address, f"run/{run_id}/games")
        timings.append(page.evaluate(USABLE))
        if number == TIMES - 1:
            used_and_held(page, check, games, run_id)
        problems += watched.close()
    best = min(timings, key=lambda timing: timing["all"])
    times = ", ".join(f"{timing['all'] / 1000:.2f}" for timing in timings)
    load = f"load {os.getloadavg()[0]:.1f}"
    summary = f"first rows after {best['first'] / 1000:.2f} s, filtered and searched by {best['used'] / 1000:.2f} s"
    check(
        best["all"] <= 1000 * limit,
        f"{games:,} games: {summary}, all read by {best['all'] / 1000:.2f} s (of {times}; {load}): at most {limit:g} s",
    )
    first, wrong, searched, last = best["counted"]
    check(
        len({first, wrong, searched}) == 3 and last == f"{games:,} of {games:,} games",
        f"{games:,} games: a filter and a search do it: {first!r}, {wrong!r}, {searched!r}, {last!r}",
    )
    check(not problems, f"{games:,} games: no word on the console, no request beyond the page {problems[:3] or ''}")


def used_and_held(page: Any, check: SoftAssertions, games: int, run_id: str) -> None:
    """Scroll, open games and search; measure the memory after each."""
    heap = {"read": heap_mb(page)}
    rows = page.evaluate(SCROLLED)
    heap["scrolled"] = heap_mb(page)
    hrefs = links(page)
    times = sorted(page.evaluate(OPEN, href) for href in hrefs)
    heap[f"{len(times)} games opened"] = heap_mb(page)
    middle, worst = times[len(times) // 2], times[-1]
    check(
        middle <= 300 and len(times) == OPENED,
        f"{games:,} games: one is there in {middle:.0f} ms (middle of {len(times)}, slowest {worst:.0f}): at most 300",
    )
    page.evaluate("href => { location.hash = href; }", f"#/run/{run_id}/games")
    page.locator("p.count").wait_for()
    search_ms, text = page.evaluate(SAID)
    heap["searched"] = heap_mb(page)
    check("0 of" in text, f"{games:,} games: all that was said is searched in {search_ms / 1000:.1f} s: {text!r}")
    check(rows < 200, f"{games:,} games: {rows} rows of the table are elements")
    figures = ", ".join(f"{name} {size:.0f}" for name, size in heap.items())
    check(max(heap.values()) < HEAP_MB, f"{games:,} games: JavaScript heap in MB: {figures}: under {HEAP_MB}")


def links(page: Any) -> Sequence[str]:
    """Return the addresses of games from all parts of the list."""
    walk = """async (wanted) => {
        const view = document.querySelector("div.scrolled"), found = new Set();
        for (let part = 0; found.size < wanted; part++) {
            view.scrollTop = ((view.scrollHeight - view.clientHeight) * part) / (wanted - 1);
            await new Promise((go) => requestAnimationFrame(() => setTimeout(go, 20)));
            found.add(document.querySelector("table.games tbody tr:nth-last-child(2) a").hash);
            if (part > 4 * wanted) break;
        }
        return [...found];
    }"""
    hrefs: Sequence[str] = page.evaluate(walk, OPENED)
    return hrefs


def run_of(place: Path) -> str:
    (run,) = (place / "results" / "runs").iterdir()
    return run.name


def with_folder(given: Path | None, act: Callable[[Path], int]) -> int:
    if given is not None:
        return act(given)
    with temporary_folder() as made_here:
        return act(made_here)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where runs and pages stand, or are to stay")
    parser.add_argument("--games", type=int, nargs=2, default=[10_000, 100_000], metavar=("FILE", "FOLDER"))
    args = parser.parse_args()

    def act(place: Path) -> int:
        check = SoftAssertions()
        (small, few), (large, many) = [(place / f"n{count}", count) for count in args.games]
        with chromium() as browser:
            page = made(small, few).resolve()
            looked_at(browser, check, page.as_uri(), run_of(small), few)
            page = made(large, many)
            time.sleep(1)
            with serve_folder(page.parent) as address:
                looked_at(browser, check, address, run_of(large), many)
        return check.exit_code()

    return with_folder(args.folder, act)


if __name__ == "__main__":
    sys.exit(main())
