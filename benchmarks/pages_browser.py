"""Check the time and memory of pages of large runs in headless Chromium.

With 10,000 games in one file, the list must be usable after 2 s, and a game must open within 0.3 s. With 100,000 games
in a folder behind a file server, the list must be usable after 3 s. It is usable when its first rows are shown, a
filter and a search have worked, and all rows are read. Seconds count from the navigation to the page; the result is the
minimum of three times, because machines also do other work. The JavaScript heap of the page, after a garbage
collection, must stay under HEAP_MB while the script scrolls the list from end to end, opens 50 games and searches all
messages. The page must write nothing to the console and send no request to another server. Runs are played with the
provider `dummy`.
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

from common import measure_process, temporary_folder

from tests.support.browser import WatchedPage, chromium, serve_folder
from tests.support.processes import command
from tests.support.soft_assertions import SoftAssertions

DATAPOINTS = 1_000
OPENED_GAMES = 50
HEAP_MB = 150
REPETITIONS = 3
USABLE_SECONDS = {False: 2.0, True: 3.0}
"""The limit for a page in one file (False), and for one in a folder behind a server (True)."""
TIMEOUT_MS = 60_000
"""The timeout of each wait, which is much longer than any limit."""

WAIT_UNTIL_USABLE = """async () => {
    const turn = () => new Promise((go) => setTimeout(go, 4));
    const countText = () => document.querySelector("p.count")?.textContent ?? "";
    const row = () => document.querySelector("table.games tbody tr:not([aria-hidden])");
    while (!row()) await turn();
    const first = performance.now();
    const all = countText();
    const buttons = [...document.querySelectorAll("button[aria-pressed]")];
    const wrong = buttons.find((button) => button.textContent === "Wrong");
    wrong.click();
    while (wrong.getAttribute("aria-pressed") !== "true") await turn();
    const filtered = countText();
    wrong.click();
    while (wrong.getAttribute("aria-pressed") !== "false") await turn();
    const search = document.getElementById("search");
    search.value = "p77";
    search.dispatchEvent(new Event("input"));
    while (!location.hash.includes("p77")) await turn();
    while (countText() === all) await turn();
    const searched = countText();
    search.value = "";
    search.dispatchEvent(new Event("input"));
    const used = performance.now();
    while (location.hash.includes("p77") || countText().includes("still") || countText() === searched) await turn();
    return { first, used, all: performance.now(), counted: [all, filtered, searched, countText()] };
}"""

SCROLL = """async () => {
    const view = document.querySelector("div.scrolled");
    for (let part = 0; part <= 200; part++) {
        view.scrollTop = (view.scrollHeight * part) / 200;
        await new Promise(requestAnimationFrame);
    }
    const rows = document.querySelectorAll("table.games tbody tr").length;
    view.scrollTop = 0;
    return rows;
}"""

OPEN_GAME = """async (href) => {
    const turn = () => new Promise((go) => setTimeout(go, 2));
    const start = performance.now();
    location.hash = href;
    const head = () => document.querySelector("header.game:not([data-seen])");
    while (!head()?.querySelector("h2")) await turn();
    head().dataset.seen = "";
    await new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
    return performance.now() - start;
}"""

SEARCH_MESSAGES = """async () => {
    const start = performance.now();
    const search = document.getElementById("search");
    search.value = "zebra-in-no-message";
    [...document.querySelectorAll("button")].find((button) => button.textContent === "Search messages").click();
    const countText = () => document.querySelector("p.count").textContent;
    while (!countText().includes("messages included")) {
        if (performance.now() - start > 60000) throw new Error("the search of messages does not end");
        await new Promise((go) => setTimeout(go, 10));
    }
    return [performance.now() - start, countText()];
}"""


def create_page(folder: Path, games: int, *, is_folder: bool) -> Path:
    """Play a run unless it exists, and create its page: one file, or a folder for a web server."""
    page = folder / ("site/index.html" if is_folder else "report.html")
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
    measure_process(command("run", "spec.yaml", "-q"), folder)
    output_options = ["--dir", "site"] if is_folder else ["-o", "report.html"]
    report = measure_process(command("report", "last", *output_options), folder)
    print(f"      {games:,} games: report written in {report.wall:.1f} s with {report.peak_mb:.0f} MB")
    return page


def measure_heap_mb(page: Any) -> float:
    """Return the size of the JavaScript heap after a garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return float(metrics["JSHeapUsedSize"]) / 1e6


def check_page(browser: Any, check: SoftAssertions, address: str, run_id: str, games: int) -> None:
    """Open a run's list `TIMES` times; the last time, also scroll it, open games and search."""
    timings, problems, limit = [], [], USABLE_SECONDS[address.startswith("http")]
    for number in range(REPETITIONS):
        watched = WatchedPage(browser)
        watched.context.set_default_timeout(TIMEOUT_MS)
        page = watched.open(address, f"run/{run_id}/games")
        timings.append(page.evaluate(WAIT_UNTIL_USABLE))
        if number == REPETITIONS - 1:
            check_interactions(page, check, games, run_id)
        problems += watched.close()
    best = min(timings, key=lambda timing: timing["all"])
    all_times = ", ".join(f"{timing['all'] / 1000:.2f}" for timing in timings)
    load = f"load {os.getloadavg()[0]:.1f}"
    summary = f"first rows after {best['first'] / 1000:.2f} s, filtered and searched by {best['used'] / 1000:.2f} s"
    check(
        best["all"] <= 1000 * limit,
        f"{games:,} games: {summary}, all read by {best['all'] / 1000:.2f} s (of {all_times}; {load}): "
        f"at most {limit:g} s",
    )
    first, wrong, searched, last = best["counted"]
    check(
        len({first, wrong, searched}) == 3 and last == f"{games:,} of {games:,} games",
        f"{games:,} games: counts of all, filtered, searched, all: {first!r}, {wrong!r}, {searched!r}, {last!r}",
    )
    check(not problems, f"{games:,} games: no message on the console, no request outside the page {problems[:3] or ''}")


def check_interactions(page: Any, check: SoftAssertions, games: int, run_id: str) -> None:
    """Scroll, open games and search; measure the memory after each."""
    heap = {"read": measure_heap_mb(page)}
    rows = page.evaluate(SCROLL)
    heap["scrolled"] = measure_heap_mb(page)
    hrefs = collect_game_links(page)
    open_times = sorted(page.evaluate(OPEN_GAME, href) for href in hrefs)
    heap[f"{len(open_times)} games opened"] = measure_heap_mb(page)
    median, slowest = open_times[len(open_times) // 2], open_times[-1]
    check(
        median <= 300 and len(open_times) == OPENED_GAMES,
        f"{games:,} games: a game opens in {median:.0f} ms (median of {len(open_times)}, slowest {slowest:.0f}): "
        "at most 300",
    )
    page.evaluate("href => { location.hash = href; }", f"#/run/{run_id}/games")
    page.locator("p.count").wait_for()
    search_ms, text = page.evaluate(SEARCH_MESSAGES)
    heap["searched"] = measure_heap_mb(page)
    check("0 of" in text, f"{games:,} games: all messages are searched in {search_ms / 1000:.1f} s: {text!r}")
    check(rows < 200, f"{games:,} games: {rows} rows of the table are in the document")
    figures = ", ".join(f"{name} {size:.0f}" for name, size in heap.items())
    check(max(heap.values()) < HEAP_MB, f"{games:,} games: JavaScript heap in MB: {figures}: under {HEAP_MB}")


def collect_game_links(page: Any) -> Sequence[str]:
    """Return the addresses of games from all parts of the list."""
    script = """async (count) => {
        const view = document.querySelector("div.scrolled"), links = new Set();
        for (let part = 0; links.size < count; part++) {
            view.scrollTop = ((view.scrollHeight - view.clientHeight) * part) / (count - 1);
            await new Promise((go) => requestAnimationFrame(() => setTimeout(go, 20)));
            links.add(document.querySelector("table.games tbody tr:nth-last-child(2) a").hash);
            if (part > 4 * count) break;
        }
        return [...links];
    }"""
    hrefs: Sequence[str] = page.evaluate(script, OPENED_GAMES)
    return hrefs


def find_run_id(folder: Path) -> str:
    (run,) = (folder / "results" / "runs").iterdir()
    return run.name


def call_with_folder(folder: Path | None, act: Callable[[Path], int]) -> int:
    if folder is not None:
        return act(folder)
    with temporary_folder() as temporary:
        return act(temporary)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder of the runs and pages, which keeps them")
    parser.add_argument("--games", type=int, nargs=2, default=[10_000, 100_000], metavar=("FILE", "FOLDER"))
    args = parser.parse_args()

    def check_pages(folder: Path) -> int:
        check = SoftAssertions()
        (small, small_count), (large, large_count) = [(folder / f"n{count}", count) for count in args.games]
        with chromium() as browser:
            page = create_page(small, small_count, is_folder=False).resolve()
            check_page(browser, check, page.as_uri(), find_run_id(small), small_count)
            page = create_page(large, large_count, is_folder=True)
            time.sleep(1)
            with serve_folder(page.parent) as address:
                check_page(browser, check, address, find_run_id(large), large_count)
        return check.exit_code()

    return call_with_folder(args.folder, check_pages)


if __name__ == "__main__":
    sys.exit(main())
