"""Measure the start-up time of commands from a warm install as ratios to `python -c pass`; fail above a limit."""

from __future__ import annotations

import argparse
import os
import sys

from common import ROOT, measure_process, median, print_footer, print_table, temporary_folder

QUICKSTART = str(ROOT / "specs" / "quickstart.yaml")
NIP_RUN = ["-c", "import sys; from runner.cli.main import main; sys.exit(main())"]
"""The entry point, without the wrapper script, which differs between installers."""
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "a first query with DuckDB": ["-c", "import duckdb; duckdb.connect().execute('select 1').fetchall()"],
    "nip-run --help": [*NIP_RUN, "--help"],
    "nip-run run --help": [*NIP_RUN, "run", "--help"],
    "nip-run check specs/quickstart.yaml": [*NIP_RUN, "check", QUICKSTART],
    'nip-run sql "select 1"': [*NIP_RUN, "sql", "select 1"],
    "nip-run show last": [*NIP_RUN, "show", "last"],
    "nip-run leaderboard": [*NIP_RUN, "leaderboard"],
    "nip-run specs/quickstart.yaml": [*NIP_RUN, QUICKSTART, "--again", "--results", "{again}"],
    "nip-run specs/quickstart.yaml, finished": [*NIP_RUN, QUICKSTART],
}
TARGETS = {
    "nip-run --help": (2.5, 2.5),
    "nip-run check specs/quickstart.yaml": (15.0, 30.0),
    'nip-run sql "select 1"': (15.0, 15.0),
    "nip-run show last": (15.0, 17.0),
    "nip-run leaderboard": (15.0, 19.0),
}
"""The target of a command's CPU time over that of `python -c pass`, and the limit above which this script fails."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a warm install has compiled files
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with temporary_folder() as folder:
        measure_process([sys.executable, *NIP_RUN, QUICKSTART, "-q"], folder)
        for _ in range(args.repeat + 1):
            for name, arguments in COMMANDS.items():
                process = measure_process(
                    [sys.executable, *(argument.replace("{again}", str(folder / "again")) for argument in arguments)],
                    folder,
                )
                costs[name].append((process.wall, process.cpu))
    # The first time of each command is left out: it warms the caches.
    times = {name: [median([time[i] for time in pairs[1:]]) * 1000 for i in (0, 1)] for name, pairs in costs.items()}
    base_wall, base_cpu = times["python -c pass"]
    ratios = {name: cpu / base_cpu for name, (_, cpu) in times.items()}
    rows = [
        (name, f"{wall:.0f}", f"{cpu:.0f}", wall / base_wall, ratios[name], *TARGETS.get(name, ("-", "-")))
        for name, (wall, cpu) in times.items()
    ]
    columns = ("command", "wall ms", "CPU ms", "wall ratio", "CPU ratio", "target", "limit")
    print_table(f"start-up, medians of {args.repeat}", columns, rows)
    print_footer(__file__)
    exceeded = [name for name, (_, limit) in TARGETS.items() if ratios[name] > limit]
    print(f"\nabove the limit: {', '.join(exceeded) or 'none'}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
