"""Find the worker processes of a run, and read its journal without times and order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.runs import journal_records


def find_workers(pid: int) -> list[int]:
    """Return the running workers that a process has started (Linux only)."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [child for child in pids if is_worker_running(child, pid)]


def is_worker_running(pid: int, parent: int | None = None) -> bool:
    """Return whether a worker runs, and is a child of `parent` if that is given. A zombie does not run."""
    try:
        stat, command_line = (Path(f"/proc/{pid}/{file}").read_bytes() for file in ("stat", "cmdline"))
    except OSError:  # the process has just ended
        return False
    state, actual_parent = stat.rpartition(b")")[2].split()[:2]
    return state != b"Z" and b"runner.runs.workers" in command_line and parent in (None, int(actual_parent))


def read_sorted_answers(run: Path) -> list[str]:
    """Return the answers in a journal without positions and latencies, sorted."""

    def to_json(record: dict[str, Any]) -> str:
        return json.dumps(
            {name: value for name, value in record.items() if name not in ("seq", "ms", "from")}, sort_keys=True
        )

    return sorted(to_json(record) for record in journal_records(run) if record["kind"] not in ("begun", "lost"))
