"""What the proofs share: the project on the path, claims with figures, processes to kill, a folder for each."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

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


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nip-run-proof-") as name:
        yield Path(name)


def calls_of(run: Path) -> list[tuple[Any, ...]]:
    """The samples of the calls in a run's journal, in their order."""
    if not (run / "journal.jsonl").is_file():
        return []
    return [tuple(record["sample"]) for record in journal_records(run) if record["kind"] == "call"]


def status_of(run: Path) -> str:
    return str(json.loads((run / "manifest.json").read_text())["status"])
