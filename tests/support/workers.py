"""The worker processes of a run, found from outside; and what its journal holds, without clocks and order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.runs import journal_records


def workers_of(pid: int) -> list[int]:
    """The workers that a process has started and that are still there, on Linux."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [one for one in pids if is_running(one, pid)]


def is_running(pid: int, parent: int | None = None) -> bool:
    """Whether a worker has not ended, and is a child of this process; one that waits to be reaped has ended."""
    try:
        stat, words = (Path(f"/proc/{pid}/{file}").read_bytes() for file in ("stat", "cmdline"))
    except OSError:  # it has ended meanwhile
        return False
    state, its_parent = stat.rpartition(b")")[2].split()[:2]
    return state != b"Z" and b"runner.runs.workers" in words and parent in (None, int(its_parent))


def facts_in_journal(run: Path) -> list[str]:
    """The answers of a journal, without where they stand and how long they took, in an order of their own."""

    def fact(record: dict[str, Any]) -> str:
        return json.dumps(
            {name: value for name, value in record.items() if name not in ("seq", "ms", "from")}, sort_keys=True
        )

    return sorted(fact(record) for record in journal_records(run) if record["kind"] not in ("begun", "lost"))
