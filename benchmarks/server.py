"""Measure the time of a server's pages with many published runs, and of the next board after one more publication.

The script puts real runs (`--real`, copies of a few) into a server's database and blobs. It times the process that
builds boards: when it reads all runs, when nothing is new, and when one run is new. For each of `--runs`, it multiplies
the rows of that board and writes a board of this size. It requests each page from a server with this board twice: for
the first time, when the server renders it, and again.

With `--browser`, Chromium opens the page of each board. The script then also measures the first drawing, the time until
all rows are shown, and the times of sorting and searching.

The page of a board of 10,000 runs must take less than 300 ms both times, the minimum of `--repeat`. The exit code is 1
if it does not.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import measure_child, print_footer, print_table, temporary_folder

MAX_SECONDS = 0.3
LARGE_BOARD = 10_000
SMALL_BENCHMARK = "another/v1"
"""The benchmark of the second list, which has one row."""
MULTIPLIED_FOLDER = "planted"
"""The name of the folder of multiplied boards."""


def run_child(folder: Path, real: int, counts: list[int]) -> None:
    from runner.base.storage.safe_files import make_folders
    from runner.server.boards.worker import BoardWorker
    from runner.server.service import Service
    from runner.server.settings import Settings
    from tests.support.server_releases import copy_bundle, insert_copies, insert_releases, run_bundle

    settings = Settings(folder=folder / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    bundles = [run_bundle(folder / f"run{seed}", seed=seed) for seed in range(4)]
    worker, seconds = BoardWorker(settings), {}

    def time_build(name: str) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        worker.build()
        seconds[name] = [time.perf_counter() - start, time.process_time() - cpu]

    insert_copies(server, bundles, real)
    time_build("first")
    time_build("nothing")
    insert_releases(server, [copy_bundle(bundles[0], owner="group0", name="one-more")])
    time_build("one")
    sizes = {count: write_multiplied_board(worker, count) for count in counts}
    with server.database.reading() as connection:
        revision = server.database.revision(connection)
    print(json.dumps({"seconds": seconds, "sizes": sizes, "revision": revision}))


def write_multiplied_board(worker: Any, count: int) -> dict[str, object]:
    """Write a board with `count` rows, which are renamed copies of the real ones, and a second list with one row."""
    from runner.registry.board.board import LoadedBoard, RegistryBoard
    from runner.server.boards.builder import BoardInput, write_folder
    from runner.server.boards.public_registry import PublicRegistry
    from runner.server.boards.verification_tiers import assign_tiers

    cache, settings = worker._cache, worker._settings
    registry = PublicRegistry(worker._database, worker._blobs, settings.address, settings.limits)
    from runner.registry.board.board import load_board

    loaded = load_board(registry, cache)
    real_tiers = assign_tiers(worker._database, registry, cache, loaded)
    entries, rows = list(loaded.releases), {row.release_sha256: row for row in loaded.board.rows}
    releases, nodes, copies, tiers = {}, {}, [], {}
    for number in range(count + 1):
        entry = entries[number % len(entries)]
        name = f"{entry.reference.name}-{number}"
        copy = replace(entry, reference=replace(entry.reference, name=name), sha256=f"{number:064x}")
        releases[copy] = replace(loaded.releases[entry], name=name)
        registry.public_releases[copy.reference] = registry.public_releases[entry.reference]
        nodes[copy.sha256] = replace(loaded.nodes[entry.sha256], key=str(copy.reference))
        row = rows[entry.sha256]
        rank_fields = {"rank": number + 1, "rank_last": count}
        task_fields = (
            {} if number < count else {"benchmark": SMALL_BENCHMARK, "task": "0" * 64, "list": SMALL_BENCHMARK}
        )
        copies.append(
            replace(row, **rank_fields, **task_fields, release=str(copy.reference), release_sha256=copy.sha256)
        )
        tiers[copy.sha256] = real_tiers[entry.sha256]
    # Outside the server's folder of boards, because a server removes boards with runs that are not published there.
    folder = settings.folder.parent / MULTIPLIED_FOLDER / f"{registry.revision}-{count:08x}"
    folder.mkdir(parents=True)
    start, cpu = time.perf_counter(), time.process_time()
    board = RegistryBoard(loaded.board.where, copies)
    write_folder(BoardInput(registry, LoadedBoard(board, releases, nodes), {}, tiers), folder)
    return {"name": folder.name, "wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}


def request_page(port: int, path: str) -> tuple[float, int]:
    """Request a page; return the seconds until the complete answer, and its bytes."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    response = connection.getresponse()
    size = len(response.read())
    connection.close()
    assert response.status == 200, (path, response.status)
    return time.perf_counter() - start, size


def read_cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process, with a precision of 0.01 s."""
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_pages(
    folder: Path, name: str, count: int, repeat: int, browser_rows: list[list[object]] | None
) -> list[object]:
    """Measure the pages of a server that has this board, as a row of the table; add times of a browser to `drawn`."""
    from tests.support.server_process import run_server

    boards = folder / "server" / "boards"
    shutil.copytree(folder / MULTIPLIED_FOLDER / name, boards / "made" / name)
    (boards / "current").write_text(json.dumps({"name": name}))
    with run_server(folder / "server", people=False) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/")
        home = connection.getresponse().read().decode()
        links = [part for part in home.split('href="') if part.startswith("/board/")]
        (small_board,), (board, *_) = (
            [part.split('"')[0] for part in links if (SMALL_BENCHMARK in part) is is_small]
            for is_small in (True, False)
        )
        request_page(server.port, small_board)  # includes what a server does only once
        parts = range(1, min(repeat, max(count // 100, 1)) + 1)
        before = read_cpu_seconds(server.process.pid)
        first_answers = [request_page(server.port, f"{board}?part={part}") for part in parts]
        cpu = (read_cpu_seconds(server.process.pid) - before) / len(first_answers)
        repeat_seconds = min(request_page(server.port, board)[0] for _ in range(max(repeat, 5)))
        json_answer = request_page(server.port, f"{board}.json")
        search_answer = request_page(server.port, f"/search?q=group{count % 7}")
        if browser_rows is not None:
            browser_rows.append([count, *measure_in_browser(f"{server.address}{board}", count, max(repeat, 5))])
    times = [min(timing[0] for timing in first_answers), cpu, repeat_seconds, json_answer[0], search_answer[0]]
    return [count, *(timing * 1e3 for timing in times), first_answers[0][1] / 1e3]


FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
"""Milliseconds from the request of the page until it is first drawn."""
TIME_ACTION = """action => new Promise((resolve) => {
  const start = performance.now();
  new Function(action)();
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
})"""
"""Milliseconds until the effect of an action is drawn."""
SORT = "document.querySelector('button[data-column=run]').click()"
SEARCH = """const box = document.querySelector("[aria-label='Search rows']");
  box.value = box.value === 'group3' ? 'group3 run-1' : 'group3'; box.dispatchEvent(new Event('input'))"""


def measure_in_browser(address: str, count: int, repeat: int) -> list[float]:
    """Return the least milliseconds until a page is drawn, until all rows are shown, of a sort, and of a search."""
    from tests.support.browser import chromium

    page_times = []
    with chromium() as browser:
        for _ in range(repeat):
            page = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True).new_page()
            page.set_default_timeout(120_000)
            page.goto(address)
            count_text = f"{count:,} runs"
            page.wait_for_function("text => document.querySelector('.count')?.textContent === text", arg=count_text)
            rows_ms = page.evaluate("performance.now()")
            page_times.append(
                [
                    page.evaluate(FIRST_PAINT),
                    rows_ms,
                    page.evaluate(TIME_ACTION, SORT),
                    page.evaluate(TIME_ACTION, SEARCH),
                ]
            )
            page.context.close()
    return [min(times) for times in zip(*page_times, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, LARGE_BOARD])
    parser.add_argument("--real", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--browser", action="store_true", help="open the boards in Chromium, too")
    parser.add_argument("--child", nargs="+", metavar="FOLDER")
    args = parser.parse_args()
    if args.child is not None:
        run_child(Path(args.child[0]), int(args.child[1]), [int(argument) for argument in args.child[2:]])
        return 0
    with temporary_folder() as folder:
        built = measure_child(__file__, folder, args.real, *args.runs)
        browser_rows: list[list[object]] | None = [] if args.browser else None
        rows = [
            measure_pages(folder, built["sizes"][str(count)]["name"], count, args.repeat, browser_rows)
            for count in args.runs
        ]
    names = ("first", "nothing", "one")
    build_rows = [[name, *built["seconds"][name], built["seconds"][name][1] / args.real * 1e3] for name in names]
    print_table(
        f"making the board of {args.real} real runs", ("what is new", "wall s", "CPU s", "CPU ms a run"), build_rows
    )
    write_rows = [[count, built["sizes"][str(count)]["wall"], built["sizes"][str(count)]["cpu"]] for count in args.runs]
    print_table("writing a board that was read", ("runs", "wall s", "CPU s"), write_rows)
    columns = ("runs", "page made ms", "its CPU ms", "page kept ms", "JSON ms", "search ms", "page KB")
    print_table("asked by HTTP", columns, rows)
    if browser_rows:
        print_table(
            "in Chromium, milliseconds", ("runs", "first drawn", "all rows there", "sorted", "searched"), browser_rows
        )
    print(f"\na page of {args.runs[-1]} runs over one of {args.runs[0]}: {rows[-1][1] / rows[0][1]:.2f}")
    print_footer(__file__)
    slow_boards = [row[0] for row in rows if max(row[1], row[3]) > MAX_SECONDS * 1e3]
    print(f"over {MAX_SECONDS * 1e3:.0f} ms: {slow_boards}" if slow_boards else "all within their limits")
    return 1 if slow_boards else 0


if __name__ == "__main__":
    sys.exit(main())
