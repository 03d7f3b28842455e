"""A task on a dataset file in a process of its own, which ends when it takes more time or memory than it may."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from runner.spec.datasets.settings import DatasetLimits

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from runner.spec.datasets.subprocess_tasks import main; main()"
)


class TaskFailed(Exception):
    """DuckDB's own words on why a task cannot be done."""


class TaskEnded(Exception):
    """A task took more than it may; `key` is what raises the bound."""

    def __init__(self, what: str, name: str, limit: float) -> None:
        self.key = f"dataset.limits.{name}"
        super().__init__(f"{what} took more than {self.key} ({limit:,})")


def run_apart(task: str, path: Path, limits: DatasetLimits, **values: Any) -> dict[str, Any]:
    """The answer to a task of `runner.spec.datasets.subprocess_tasks`.

    Raises:
        TaskFailed: it cannot be done.
        TaskEnded: it took more time or memory than it may.
    """
    given = {"task": task, "path": str(path.absolute()), "memory": limits.memory, "seconds": limits.seconds, **values}
    what = "the filter" if task == "filter" else "measuring the file"
    try:
        # -P: nothing is imported from the folder that the user happens to be in.
        done = subprocess.run(
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path)], input=json.dumps(given).encode(),
            capture_output=True, timeout=limits.seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TaskEnded(f"{what}, in seconds,", "seconds", limits.seconds) from None
    if done.returncode != 0:
        raise _ended(what, done, limits)
    answer: dict[str, Any] = orjson.loads(done.stdout)
    if "error" in answer:
        raise TaskFailed(answer["error"])
    return answer


def _ended(what: str, done: subprocess.CompletedProcess[bytes], limits: DatasetLimits) -> Exception:
    """Why a task's process has ended without an answer."""
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode < 0 or "MemoryError" in said or "bad_alloc" in said:
        return TaskEnded(f"{what}, in bytes of memory,", "memory", limits.memory)
    return RuntimeError(f"{what}: {said.splitlines()[-1] if said else f'exit code {done.returncode}'}")
