"""How long commands take from a warm install, beside a Python that does nothing."""

from __future__ import annotations

import argparse
import sys

from common import ROOT, footer, measured, median, table, temporary_folder

QUICKSTART = str(ROOT / "specs" / "quickstart.yaml")
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "nip-run --help": ["-m", "runner", "--help"],
    "nip-run run --help": ["-m", "runner", "run", "--help"],
    "nip-run check quickstart": ["-m", "runner", "check", QUICKSTART],
    "nip-run quickstart": ["-m", "runner", QUICKSTART, "--again", "--results", "{results}"],
    "nip-run quickstart, shown": ["-m", "runner", QUICKSTART, "--results", "{results}"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with temporary_folder() as folder:
        for _ in range(args.repeat + 1):
            for name, words in COMMANDS.items():
                done = measured([sys.executable, *(word.format(results=folder / "results") for word in words)], folder)
                found[name].append((done.wall, done.cpu))
    rows = []
    for name, times in found.items():
        # The first of each warms the caches.
        wall, cpu = (median([time[i] for time in times[1:]]) * 1000 for i in (0, 1))
        base = median([time[0] for time in found["python -c pass"][1:]]) * 1000
        rows.append((name, f"{wall:.0f}", f"{cpu:.0f}", f"{wall - base:.0f}", wall / base))
    table(f"start-up, medians of {args.repeat}", ("command", "wall ms", "CPU ms", "over Python", "ratio"), rows)
    footer(__file__)


if __name__ == "__main__":
    main()
