"""Pages of a server with many published runs: what a board's page takes there, and what one more publish takes.

Real runs (`--real`) are put into a server's database and blobs, as copies of a few; the process that makes boards reads
them, and is timed when nothing is new and when one run is: the first time everything is read, later what is new alone.
For each of `--runs` the rows, releases and sessions of that board are multiplied, as if so many had been read, and
written as a board; a server over it is asked for pages by HTTP, each once that it has not made yet and then again.

With `--browser` the page of each board is opened in Chromium: when it is first drawn, when all of its rows are
there, and how long they take to be sorted and searched.

Claimed: a board's page of 10,000 runs takes less than 300 ms, made or not, the best of `--repeat`. Its ratio to that of
the fewest runs is told. Exit code 1: a claim does not hold.
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
"""The benchmark of a board of one row."""
PLANTED = "planted"
"""Where the boards stand that a server is given."""


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
    worker, told = BoardWorker(settings), {}

    def timed(what: str) -> None:
        begun, cpu = time.perf_counter(), time.process_time()
        worker.build()
        told[what] = [time.perf_counter() - begun, time.process_time() - cpu]

    insert_copies(server, bundles, real)
    timed("first")
    timed("nothing")
    insert_releases(server, [copy_bundle(bundles[0], owner="group0", name="one-more")])
    timed("one")
    sizes = {count: multiplied(worker, count) for count in counts}
    with server.database.reading() as connection:
        revision = server.database.revision(connection)
    print(json.dumps({"told": told, "sizes": sizes, "revision": revision}))


def multiplied(worker: Any, count: int) -> dict[str, object]:
    """Write a board of so many rows: those that were read, again and again, renamed; beside it one of one row."""
    from runner.registry.board.board import LoadedBoard, RegistryBoard
    from runner.server.boards.builder import BoardInput, write_folder
    from runner.server.boards.public_registry import PublicRegistry
    from runner.server.boards.verification_tiers import assign_tiers

    kept, settings = worker._cache, worker._settings
    registry = PublicRegistry(worker._database, worker._blobs, settings.address, settings.limits)
    from runner.registry.board.board import load_board

    read = load_board(registry, kept)
    known = assign_tiers(worker._database, registry, kept, read)
    entries, rows = list(read.releases), {row.release_sha256: row for row in read.board.rows}
    releases, nodes, listed, told = {}, {}, [], {}
    for place in range(count + 1):
        entry = entries[place % len(entries)]
        name = f"{entry.reference.name}-{place}"
        other = replace(entry, reference=replace(entry.reference, name=name), sha256=f"{place:064x}")
        releases[other] = replace(read.releases[entry], name=name)
        registry.public_releases[other.reference] = registry.public_releases[entry.reference]
        nodes[other.sha256] = replace(read.nodes[entry.sha256], key=str(other.reference))
        row = rows[entry.sha256]
        ranks = {"rank": place + 1, "rank_last": count}
        task = {} if place < count else {"benchmark": OTHER, "task": "0" * 64, "list": OTHER}
        listed.append(replace(row, **ranks, **task, release=str(other.reference), release_sha256=other.sha256))
        told[other.sha256] = known[entry.sha256]
    # Elsewhere: a server removes boards beside its own that tell of what is not published there.
    folder = settings.folder.parent / PLANTED / f"{registry.revision}-{count:08x}"
    folder.mkdir(parents=True)
    begun, cpu = time.perf_counter(), time.process_time()
    board = RegistryBoard(read.board.where, listed)
    write_folder(BoardInput(registry, LoadedBoard(board, releases, nodes), {}, told), folder)
    return {"name": folder.name, "wall": time.perf_counter() - begun, "cpu": time.process_time() - cpu}


def asked(port: int, path: str) -> tuple[float, int]:
    """Seconds until an answer is there, and its bytes."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    size = len(answer.read())
    connection.close()
    assert answer.status == 200, (path, answer.status)
    return time.perf_counter() - begun, size


def cpu_of(process: int) -> float:
    """Seconds of processor time that a process has had, to hundredths."""
    told = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


def pages_of(folder: Path, name: str, count: int, repeat: int, drawn: list[list[object]] | None) -> list[object]:
    """A row of the table: the first page, one in the middle, and again, over a server that has this board; what a
    browser does with it is added to `drawn`.
    """
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
        asked(served.port, other)  # what a server does once, whatever the board
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
"""Milliseconds after the page was asked for."""
DONE = """does => new Promise((told) => {
  const begun = performance.now();
  new Function(does)();
  requestAnimationFrame(() => setTimeout(() => told(performance.now() - begun)));
})"""
"""Milliseconds until what something does is drawn."""
SORT = "document.querySelector('button[data-column=run]').click()"
SEARCH = """const box = document.querySelector("[aria-label='Search rows']");
  box.value = box.value === 'group3' ? 'group3 run-1' : 'group3'; box.dispatchEvent(new Event('input'))"""


def in_browser(address: str, count: int, repeat: int) -> list[float]:
    """Milliseconds until the page is drawn, until all rows are there, and of a sort and a search, the best of some."""
    from tests.support.browser import chromium

    found = []
    with chromium() as browser:
        for _ in range(repeat):
            page = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True).new_page()
            page.set_default_timeout(120_000)
            page.goto(address)
            text = f"{count:,} runs"
            page.wait_for_function("text => document.querySelector('.count')?.textContent === text", arg=text)
            there = page.evaluate("performance.now()")
            found.append([page.evaluate(FIRST), there, page.evaluate(DONE, SORT), page.evaluate(DONE, SEARCH)])
            page.context.close()
    return [min(times) for times in zip(*found, strict=True)]


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
        found = child(__file__, folder, args.real, *args.runs)
        drawn: list[list[object]] | None = [] if args.browser else None
        rows = [pages_of(folder, found["sizes"][str(count)]["name"], count, args.repeat, drawn) for count in args.runs]
    names = ("first", "nothing", "one")
    boards = [[what, *found["told"][what], found["told"][what][1] / args.real * 1e3] for what in names]
    table(f"making the board of {args.real} real runs", ("what is new", "wall s", "CPU s", "CPU ms a run"), boards)
    wrote = [[count, found["sizes"][str(count)]["wall"], found["sizes"][str(count)]["cpu"]] for count in args.runs]
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
