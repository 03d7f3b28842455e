"""The time of a server's pages with many published runs, and of the next board after one more publication.

Real runs (`--real`, copies of a few) are put into a server's database and blobs. The process that builds boards is
timed three times: when it reads all of them, when nothing is new, and when one run is new. For each of `--runs`, the
rows of that board are multiplied and written as a board of this size. A server over this board is then asked for pages
by HTTP, each for the first time, when the server renders it, and again.

With `--browser`, Chromium opens the page of each board: when it is first drawn, when all of its rows are there, and how
long sorting and searching take.

Claimed: the page of a board of 10,000 runs takes less than 300 ms the first time and again, the best of `--repeat`.
Exit code 1: a claim does not hold.
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

from common import child, footer, table, temporary_folder

MOST = 0.3
LARGE = 10_000
OTHER = "another/v1"
"""The benchmark of a list with one row."""
PLANTED = "planted"
"""The folder of the multiplied boards."""


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

    def timed(what: str) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        worker.build()
        seconds[what] = [time.perf_counter() - start, time.process_time() - cpu]

    insert_copies(server, bundles, real)
    timed("first")
    timed("nothing")
    insert_releases(server, [copy_bundle(bundles[0], owner="group0", name="one-more")])
    timed("one")
    sizes = {count: multiplied(worker, count) for count in counts}
    with server.database.reading() as connection:
        revision = server.database.revision(connection)
    print(json.dumps({"seconds": seconds, "sizes": sizes, "revision": revision}))


def multiplied(worker: Any, count: int) -> dict[str, object]:
    """Write a board with `count` rows, which are renamed copies of the real ones, and a second list with one row."""
    from runner.registry.board.board import LoadedBoard, RegistryBoard
    from runner.server.boards.builder import BoardInput, write_folder
    from runner.server.boards.public_registry import PublicRegistry
    from runner.server.boards.verification_tiers import assign_tiers

    cache, settings = worker._cache, worker._settings
    registry = PublicRegistry(worker._database, worker._blobs, settings.address, settings.limits)
    from runner.registry.board.board import load_board

    read = load_board(registry, cache)
    real_tiers = assign_tiers(worker._database, registry, cache, read)
    entries, rows = list(read.releases), {row.release_sha256: row for row in read.board.rows}
    releases, nodes, copies, tiers = {}, {}, [], {}
    for number in range(count + 1):
        entry = entries[number % len(entries)]
        name = f"{entry.reference.name}-{number}"
        copy = replace(entry, reference=replace(entry.reference, name=name), sha256=f"{number:064x}")
        releases[copy] = replace(read.releases[entry], name=name)
        registry.public_releases[copy.reference] = registry.public_releases[entry.reference]
        nodes[copy.sha256] = replace(read.nodes[entry.sha256], key=str(copy.reference))
        row = rows[entry.sha256]
        ranks = {"rank": number + 1, "rank_last": count}
        task = {} if number < count else {"benchmark": OTHER, "task": "0" * 64, "list": OTHER}
        copies.append(replace(row, **ranks, **task, release=str(copy.reference), release_sha256=copy.sha256))
        tiers[copy.sha256] = real_tiers[entry.sha256]
    # Outside the server's folder of boards, because a server removes boards with runs that are not published there.
    folder = settings.folder.parent / PLANTED / f"{registry.revision}-{count:08x}"
    folder.mkdir(parents=True)
    start, cpu = time.perf_counter(), time.process_time()
    board = RegistryBoard(read.board.where, copies)
    write_folder(BoardInput(registry, LoadedBoard(board, releases, nodes), {}, tiers), folder)
    return {"name": folder.name, "wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}


def asked(port: int, path: str) -> tuple[float, int]:
    """Request a page; return the seconds until the whole answer is there, and its bytes."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    size = len(answer.read())
    connection.close()
    assert answer.status == 200, (path, answer.status)
    return time.perf_counter() - start, size


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a process, to hundredths."""
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pages_of(folder: Path, name: str, count: int, repeat: int, drawn: list[list[object]] | None) -> list[object]:
    """Measure the pages of a server that has this board, as a row of the table; add times of a browser to `drawn`."""
    from tests.support.server_process import run_server

    boards = folder / "server" / "boards"
    shutil.copytree(folder / PLANTED / name, boards / "made" / name)
    (boards / "current").write_text(json.dumps({"name": name}))
    with run_server(folder / "server", people=False) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        connection.request("GET", "/")
        home = connection.getresponse().read().decode()
        links = [part for part in home.split('href="') if part.startswith("/board/")]
        (other,), (board, *_) = (
            [part.split('"')[0] for part in links if (OTHER in part) is is_it] for is_it in (True, False)
        )
        asked(served.port, other)  # includes what a server does only once
        parts = range(1, min(repeat, max(count // 100, 1)) + 1)
        before = cpu_of(served.process.pid)
        fresh = [asked(served.port, f"{board}?part={part}") for part in parts]
        cpu = (cpu_of(served.process.pid) - before) / len(fresh)
        again = min(asked(served.port, board)[0] for _ in range(max(repeat, 5)))
        file = asked(served.port, f"{board}.json")
        search = asked(served.port, f"/search?q=group{count % 7}")
        if drawn is not None:
            drawn.append([count, *in_browser(f"{served.address}{board}", count, max(repeat, 5))])
    times = [min(one[0] for one in fresh), cpu, again, file[0], search[0]]
    return [count, *(one * 1e3 for one in times), fresh[0][1] / 1e3]


FIRST = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
"""Milliseconds from the request of the page until it is first drawn."""
DONE = """does => new Promise((told) => {
  const begun = performance.now();
  new Function(does)();
  requestAnimationFrame(() => setTimeout(() => told(performance.now() - begun)));
})"""
"""Milliseconds until the effect of an action is drawn."""
SORT = "document.querySelector('button[data-column=run]').click()"
SEARCH = """const box = document.querySelector("[aria-label='Search rows']");
  box.value = box.value === 'group3' ? 'group3 run-1' : 'group3'; box.dispatchEvent(new Event('input'))"""


def in_browser(address: str, count: int, repeat: int) -> list[float]:
    """Return the milliseconds until a page is drawn, until all rows are there, and of a sort and a search: the best."""
    from tests.support.browser import chromium

    times_of_pages = []
    with chromium() as browser:
        for _ in range(repeat):
            page = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True).new_page()
            page.set_default_timeout(120_000)
            page.goto(address)
            text = f"{count:,} runs"
            page.wait_for_function("text => document.querySelector('.count')?.textContent === text", arg=text)
            there = page.evaluate("performance.now()")
            times_of_pages.append([page.evaluate(FIRST), there, page.evaluate(DONE, SORT), page.evaluate(DONE, SEARCH)])
            page.context.close()
    return [min(times) for times in zip(*times_of_pages, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, LARGE])
    parser.add_argument("--real", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--browser", action="store_true", help="open the boards in Chromium, too")
    parser.add_argument("--child", nargs="+", metavar="FOLDER")
    args = parser.parse_args()
    if args.child is not None:
        run_child(Path(args.child[0]), int(args.child[1]), [int(one) for one in args.child[2:]])
        return 0
    with temporary_folder() as folder:
        built = child(__file__, folder, args.real, *args.runs)
        drawn: list[list[object]] | None = [] if args.browser else None
        rows = [pages_of(folder, built["sizes"][str(count)]["name"], count, args.repeat, drawn) for count in args.runs]
    names = ("first", "nothing", "one")
    boards = [[what, *built["seconds"][what], built["seconds"][what][1] / args.real * 1e3] for what in names]
    table(f"making the board of {args.real} real runs", ("what is new", "wall s", "CPU s", "CPU ms a run"), boards)
    wrote = [[count, built["sizes"][str(count)]["wall"], built["sizes"][str(count)]["cpu"]] for count in args.runs]
    table("writing a board that was read", ("runs", "wall s", "CPU s"), wrote)
    columns = ("runs", "page made ms", "its CPU ms", "page kept ms", "JSON ms", "search ms", "page KB")
    table("asked by HTTP", columns, rows)
    if drawn:
        table("in Chromium, milliseconds", ("runs", "first drawn", "all rows there", "sorted", "searched"), drawn)
    print(f"\na page of {args.runs[-1]} runs over one of {args.runs[0]}: {rows[-1][1] / rows[0][1]:.2f}")
    footer(__file__)
    failed = [row[0] for row in rows if max(row[1], row[3]) > MOST * 1e3]
    print(f"over {MOST * 1e3:.0f} ms: {failed}" if failed else "all within their limits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
