"""Compare the cost of commands with another version: `python benchmarks/pairs.py OTHER_PYTHON [--repeat 5]`.

OTHER_PYTHON is the interpreter of an environment that has the other version. The versions alternate, each command in
its own process; the figures are medians of the ratios of pairs, this version over the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common import median, print_footer, print_table, temporary_folder
from engine import write_spec

from tests.support.servers.chat_client import run_chat_server

LONG_ANSWER = 60_000
"""Number of characters of a long answer."""
SMALL_RUN_GAMES = 24
"""Number of games of a short run."""


@dataclass(frozen=True)
class Cost:
    """The CPU seconds, wall seconds and peak megabytes of one process."""

    cpu: float
    wall: float
    peak_mb: float


def measure_cost(python: str, arguments: list[str], folder: Path) -> Cost:
    """Run `nip-run ARGUMENTS` with an installed version, not with the one in the current folder.

    Raises:
        RuntimeError: the command failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start = time.perf_counter()
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [python, "-P", "-m", "runner", *arguments], cwd=folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {err.read().decode()}")
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss / 1024)


CreateArguments = Callable[[], list[str]]


@contextmanager
def create_commands(folder: Path, rollouts: int) -> Iterator[dict[str, CreateArguments]]:
    """Yield for each command a function that returns its arguments, with a new results folder at each call."""
    numbers = iter(range(10**6))

    def result_options() -> list[str]:
        return ["--results", str(folder / f"results-{next(numbers)}"), "-q"]

    with run_chat_server(seed=1) as server, run_chat_server(seed=1, length=LONG_ANSWER) as long_server:
        (folder / "served").mkdir()
        (folder / "long").mkdir()
        short_spec = write_spec(folder / "served", server.base_url, rollouts, 64)
        long_spec = write_spec(folder / "long", long_server.base_url, max(rollouts // 10, 1), 64)
        (folder / "dummy").mkdir()
        dummy_spec = write_spec(folder / "dummy", server.base_url, SMALL_RUN_GAMES, 64)
        dummy_spec.write_text(
            json.dumps({**json.loads(dummy_spec.read_text()), "models": {"m": {"provider": "dummy"}}})
        )
        many_rollouts = f"rollouts.per_datapoint={max(rollouts * 10 // SMALL_RUN_GAMES, 1)}"
        yield {
            "--help": lambda: ["--help"],
            "run --help": lambda: ["run", "--help"],
            "check": lambda: ["check", str(dummy_spec)],
            f"{SMALL_RUN_GAMES} dummy rollouts": lambda: [str(dummy_spec), *result_options()],
            f"{rollouts} rollouts, answers at once": lambda: [str(short_spec), *result_options()],
            f"{max(rollouts // 10, 1)} rollouts, answers of 60 KB": lambda: [str(long_spec), *result_options()],
            f"{rollouts * 10} dummy rollouts": lambda: [str(dummy_spec), many_rollouts, *result_options()],
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
    with temporary_folder() as folder, create_commands(folder, args.rollouts) as named_commands:
        for name, create_arguments in named_commands.items():
            if args.only not in name:
                continue
            pairs = []
            for index in range(args.repeat + 1):
                order = (sys.executable, args.other) if index % 2 else (args.other, sys.executable)
                costs = {python: measure_cost(python, create_arguments(), folder) for python in order}
                if index:  # the first pair warms the caches
                    pairs.append((costs[sys.executable], costs[args.other]))
            ratios = [
                median([getattr(a, figure) / getattr(b, figure) for a, b in pairs])
                for figure in ("cpu", "wall", "peak_mb")
            ]
            medians = [median([getattr(a, figure) for a, _ in pairs]) for figure in ("cpu", "peak_mb")]
            rows.append((name, *ratios, f"{medians[0] * 1000:.0f}", f"{medians[1]:.0f}"))
    columns = ("command", "CPU ratio", "wall ratio", "memory ratio", "CPU ms", "peak MB")
    print_table(f"this version over {args.other}, medians of {args.repeat} pairs", columns, rows)
    print_footer(__file__)


if __name__ == "__main__":
    main()
