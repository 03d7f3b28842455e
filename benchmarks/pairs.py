"""The cost of whole commands, compared with another version: `python benchmarks/pairs.py OTHER_PYTHON [--repeat 5]`.

OTHER_PYTHON is the interpreter of an environment in which the other version is installed. The versions alternate, each
command in a process of its own; the figures are medians of the ratios of pairs, this version over the other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common import ROOT, footer, median, table, temporary_folder
from engine import write_spec

from tests.support.servers.chat_client import run_chat_server

LONG = 60_000
"""Characters of a long answer."""
QUICKSTART = ROOT / "specs" / "quickstart.yaml"


@dataclass(frozen=True)
class Cost:
    """The CPU seconds, wall seconds and peak megabytes of one process."""

    cpu: float
    wall: float
    peak_mb: float


def cost(python: str, words: list[str], folder: Path) -> Cost:
    """Run `nip-run WORDS` with an installed version, not with the one in the current folder.

    Raises:
        RuntimeError: the command failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start = time.perf_counter()
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [python, "-P", "-m", "runner", *words], cwd=folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {err.read().decode()}")
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss / 1024)


Words = Callable[[], list[str]]


@contextmanager
def commands(folder: Path, rollouts: int) -> Iterator[dict[str, Words]]:
    """Yield each command by name; every call of a command names a new results folder."""
    serial = iter(range(10**6))

    def results() -> list[str]:
        return ["--results", str(folder / f"results-{next(serial)}"), "-q"]

    dummy = ["rollouts.concurrency=64"]
    with run_chat_server(seed=1) as server, run_chat_server(seed=1, length=LONG) as long:
        (folder / "served").mkdir()
        (folder / "long").mkdir()
        served = write_spec(folder / "served", server.base_url, rollouts, 64)
        traces = write_spec(folder / "long", long.base_url, max(rollouts // 10, 1), 64)
        large = [f"rollouts.per_datapoint={max(rollouts * 10 // 72, 1)}", *dummy]
        yield {
            "--help": lambda: ["--help"],
            "run --help": lambda: ["run", "--help"],
            "check": lambda: ["check", str(QUICKSTART)],
            "quickstart": lambda: [str(QUICKSTART), *results()],
            f"{rollouts} rollouts, answers at once": lambda: [str(served), *results()],
            f"{max(rollouts // 10, 1)} rollouts, answers of 60 KB": lambda: [str(traces), *results()],
            f"{rollouts * 10} dummy rollouts": lambda: [str(QUICKSTART), *large, *results()],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", help="the other version's interpreter")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--only", default="", help="the commands whose names have this text")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed versions have compiled files
    rows = []
    with temporary_folder() as folder, commands(folder, args.rollouts) as named_commands:
        for name, words in named_commands.items():
            if args.only not in name:
                continue
            pairs = []
            for index in range(args.repeat + 1):
                order = (sys.executable, args.other) if index % 2 else (args.other, sys.executable)
                costs = {python: cost(python, words(), folder) for python in order}
                if index:  # the first pair warms the caches
                    pairs.append((costs[sys.executable], costs[args.other]))
            ratios = [
                median([getattr(a, figure) / getattr(b, figure) for a, b in pairs])
                for figure in ("cpu", "wall", "peak_mb")
            ]
            ours = [median([getattr(a, figure) for a, _ in pairs]) for figure in ("cpu", "peak_mb")]
            rows.append((name, *ratios, f"{ours[0] * 1000:.0f}", f"{ours[1]:.0f}"))
    columns = ("command", "CPU ratio", "wall ratio", "memory ratio", "CPU ms", "peak MB")
    table(f"this version over {args.other}, medians of {args.repeat} pairs", columns, rows)
    footer(__file__)


if __name__ == "__main__":
    main()
