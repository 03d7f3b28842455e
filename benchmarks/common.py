"""What the benchmarks share: the project on the path, measured child processes, tables with ratios."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class Measured:
    """One finished child process: seconds, megabytes, and what it said on stdout."""

    wall: float
    cpu: float
    peak_mb: float
    out: str


def measured(command: Sequence[str], cwd: Path = ROOT) -> Measured:
    """Run a command to its end and measure the whole process.

    Raises:
        RuntimeError: it failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        said, complaint = out.read().decode(), err.read().decode()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode} from {shlex.join(command)}\n{complaint}")
    return Measured(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, said)


def child(script: str, *arguments: object) -> dict[str, Any]:
    """Run a benchmark's own child mode; the last line it prints is JSON. Its peak memory comes along."""
    done = measured([sys.executable, script, "--child", *map(str, arguments)])
    return {**json.loads(done.out.strip().splitlines()[-1]), "peak_mb": done.peak_mb, "process_wall": done.wall}


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nip-run-benchmark-") as name:
        yield Path(name)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A plain table; numbers are right-aligned."""
    cells = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    print(f"\n{title}")
    for first, *rest in [list(columns), ["-" * width for width in widths], *cells]:
        numbers = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        print("  ".join((first.ljust(widths[0]), *numbers)))


def footer(script: str) -> None:
    """What repeats the figures, and on what they were taken."""
    load = os.getloadavg()[0]
    print(f"\nrepeat with: {shlex.join(['python', f'benchmarks/{Path(script).name}', *sys.argv[1:]])}")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, load {load:.1f}")
