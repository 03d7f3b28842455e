"""Compare the time of a sweep whose points are played together with the same points one after another.

Nine points of a few games each are played against a slow loopback server. The two ways alternate, each in its own
process; the figures are medians. `one by one` plays each point as a separate run, and `together` plays the sweep.
Imports are not counted. Both ways produce the same runs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from common import measure_child, median, print_footer, print_table, temporary_folder
from engine import write_spec

POINTS = 9
WAYS = ("one by one", "together")


def play(way: str, folder: Path, results: Path) -> dict[str, Any]:
    """Measure the seconds and CPU seconds of all points, from before the first call to the last byte on disk."""
    from runner import load_specs, run, run_sweep

    specs = load_specs(folder / "spec.yaml", [f"sweep={{seed: {list(range(POINTS))}}}"])
    wall, cpu = time.perf_counter(), time.process_time()
    finished = [run(spec, results) for spec in specs] if way == WAYS[0] else run_sweep(specs, results)
    calls = sum(result.manifest.completions or 0 for result in finished)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "calls": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=3, metavar=("WAY", "FOLDER", "RESULTS"), help=argparse.SUPPRESS)
    parser.add_argument("--games", type=int, default=20, help="of each point")
    parser.add_argument("--latency", type=float, default=0.2, help="of the server, in seconds")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    if args.child:
        way, folder, results = args.child
        print(json.dumps(play(way, Path(folder), Path(results))))
        return
    from tests.support.servers.chat_client import run_chat_server

    played: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with temporary_folder() as folder, run_chat_server(latency=args.latency) as server:
        write_spec(folder, server.base_url, args.games, args.concurrency)
        for number in range(args.times):
            for way in WAYS:
                played[way].append(measure_child(__file__, way, folder, folder / f"{way}-{number}"))
    figures = {way: [median([run[name] for run in played[way]]) for name in ("wall", "cpu", "calls")] for way in WAYS}
    wall, cpu, _ = figures[WAYS[0]]
    print_table(
        f"{POINTS} points of {args.games} games, {args.latency:g} s a call, concurrency {args.concurrency}",
        ["way", "seconds", "ratio", "CPU s", "CPU ratio", "calls"],
        [
            [way, seconds, seconds / wall, cpu_seconds, cpu_seconds / cpu, int(calls)]
            for way, (seconds, cpu_seconds, calls) in figures.items()
        ],
    )
    print_footer(__file__)


if __name__ == "__main__":
    main()
