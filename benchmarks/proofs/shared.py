"""What the proofs share: the project on the path, claims with figures, processes to kill, a folder for each."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.postgresql import cluster  # noqa: E402
from tests.support.processes import environment  # noqa: E402
from tests.support.runs import journal_records  # noqa: E402


class Claims:
    """Says each claim with its figures, and remembers whether all held."""

    def __init__(self) -> None:
        self.failed = 0
        self._begun = time.monotonic()

    def __call__(self, holds: object, claim: str) -> None:
        self.failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'}  {claim}", flush=True)

    def end(self) -> int:
        print(f"{self.failed} claims failed; {time.monotonic() - self._begun:.0f} s")
        return 1 if self.failed else 0


def times(description: str | None, default: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--times", type=int, default=default, metavar="N", help=f"default: {default}")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


@dataclass(frozen=True)
class Measured:
    """A process that has ended: what it took, and what it said."""

    code: int
    seconds: float
    peak_mb: float
    out: str
    err: str


_LAUNCH = """
import json, os, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
with open(sys.argv[1], "w") as file:
    json.dump([os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024], file)
"""
"""A process begins with the peak of the one that started it, so a small one starts those that are measured."""


def measured(command: Sequence[str], cwd: Path) -> Measured:
    """Run a command to its end."""
    begun = time.monotonic()
    with folder() as aside, (aside / "out").open("wb") as out, (aside / "err").open("wb") as err:
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(aside / "usage"), *command]
        subprocess.run(launch, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=True)
        seconds = time.monotonic() - begun
        code, peak = json.loads((aside / "usage").read_text())
        said = ((aside / name).read_text("utf-8", "replace") for name in ("out", "err"))
        return Measured(code, seconds, peak, *said)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nip-run-proof-") as name:
        yield Path(name)


@contextmanager
def databases(said: str | None) -> Iterator[dict[str, str | None]]:
    """The databases that a proof of the server runs over, by name: None for SQLite in the server's folder.

    Where none is said, SQLite and a PostgreSQL of the proof's own.
    """
    if said is not None:
        yield {said.partition(":")[0]: said}
        return
    with cluster() as made:
        yield {"SQLite": None, "PostgreSQL": made()}


def calls_of(run: Path) -> list[tuple[Any, ...]]:
    """The samples of the calls in a run's journal, in their order."""
    if not (run / "journal.jsonl").is_file():
        return []
    return [tuple(record["sample"]) for record in journal_records(run) if record["kind"] == "call"]


def status_of(run: Path) -> str:
    return str(json.loads((run / "manifest.json").read_text())["status"])
