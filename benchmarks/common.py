"""Common parts of the benchmarks: they put the project on the path, measure child processes and print tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class ProcessMeasurement:
    """One finished child process: seconds, megabytes, exit code, and its output."""

    wall: float
    cpu: float
    peak_mb: float
    code: int
    out: str
    err: str


_LAUNCH_SCRIPT = """
import json, os, sys, time
begin = time.perf_counter()
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
wall = time.perf_counter() - begin
with open(sys.argv[1], "w") as file:
    json.dump([wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)], file)
"""
"""Starts the measured process from a small one, since a process inherits the peak memory of its parent."""


def measure_process(command: Sequence[str], cwd: Path = ROOT, *, check: bool = True) -> ProcessMeasurement:
    """Run a command, whose first word is the path of a program, and measure the whole process.

    Raises:
        RuntimeError: the command failed, and `check` is true.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with temporary_folder() as folder, (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH_SCRIPT, str(folder / "usage"), *command]
        subprocess.run(launch, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=True)
        wall, cpu, peak_mb, code = json.loads((folder / "usage").read_text())
        texts = [(folder / name).read_text("utf-8", "replace") for name in ("out", "err")]
    if check and code:
        raise RuntimeError(f"exit code {code} from {shlex.join(command)}\n{texts[1]}")
    return ProcessMeasurement(wall, cpu, peak_mb, code, *texts)


def measure_child(script: str, *arguments: object) -> dict[str, Any]:
    """Run a benchmark script in its child mode; return the JSON of its last line, with its peak memory and time."""
    process = measure_process([sys.executable, script, "--child", *map(str, arguments)])
    return {
        **json.loads(process.out.strip().splitlines()[-1]),
        "peak_mb": process.peak_mb,
        "process_wall": process.wall,
    }


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nip-run-benchmark-") as name:
        yield Path(name)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; all columns but the first are right-aligned."""
    cells = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    print(f"\n{title}")
    for first_cell, *other_cells in [list(columns), ["-" * width for width in widths], *cells]:
        numbers = (text.rjust(width) for text, width in zip(other_cells, widths[1:], strict=True))
        print("  ".join((first_cell.ljust(widths[0]), *numbers)))


def print_footer(script: str) -> None:
    """Print the command that repeats a measurement, and the machine that it ran on."""
    load_average = os.getloadavg()[0]
    print(f"\nrepeat with: {shlex.join(['python', f'benchmarks/{Path(script).name}', *sys.argv[1:]])}")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, load {load_average:.1f}")


def coverage_limit(limit: float, times: int) -> float:
    """Return the least coverage of 95 % intervals that passes: `limit`, or three standard errors below 95 %."""
    return min(limit, 0.95 - 3 * (0.95 * 0.05 / times) ** 0.5)


def sample_parser(description: str | None, times: int) -> argparse.ArgumentParser:
    """Return a parser of `--times` and `--seed`, the arguments of simulations."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--times", type=int, default=times, metavar="N", help=f"default: {times}")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def sample_arguments(description: str | None, times: int) -> argparse.Namespace:
    """Parse the arguments of a simulation."""
    return sample_parser(description, times).parse_args()
