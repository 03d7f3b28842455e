"""Run a task on a dataset file in a separate process with limits on time and memory.

The tasks are the filter of rows, and the measurement of files that might not fit into memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from runner.spec.datasets.settings import DatasetLimits

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from runner.spec.datasets.subprocess_tasks import main; main()"
)


class TaskFailed(Exception):
    """Raised if DuckDB reports an error; the message is DuckDB's."""


class TaskLimitExceeded(Exception):
    """Raised if a task took more time or memory than its limit; `key` is the spec key of the limit."""

    def __init__(self, message: str, name: str) -> None:
        self.key = f"dataset.limits.{name}"
        super().__init__(f"{message}; raise {self.key}")


def run_in_subprocess(task: str, path: Path, limits: DatasetLimits, **values: Any) -> dict[str, Any]:
    """Run a task of `runner.spec.datasets.subprocess_tasks` and return its result.

    Raises:
        TaskFailed: DuckDB reported an error.
        TaskLimitExceeded: the task took too much time or memory.
    """
    request = {"task": task, "path": str(path.absolute()), "memory": limits.memory, "seconds": limits.seconds, **values}
    description = "the filter" if task == "filter" else "measuring the file"
    try:
        # -P prevents imports from the current folder.
        process = subprocess.run(
            [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path)], input=json.dumps(request).encode(),
            capture_output=True, timeout=limits.seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TaskLimitExceeded(f"{description} took more than {limits.seconds:,} seconds", "seconds") from None
    if process.returncode != 0:
        raise _process_error(description, process, limits)
    result: dict[str, Any] = orjson.loads(process.stdout)
    if "error" in result:
        raise TaskFailed(result["error"])
    return result


def _process_error(description: str, process: subprocess.CompletedProcess[bytes], limits: DatasetLimits) -> Exception:
    """Return the error for a process that ended without a result."""
    stderr = process.stderr.decode("utf-8", "replace").strip()
    if process.returncode < 0 or "MemoryError" in stderr or "bad_alloc" in stderr:
        return TaskLimitExceeded(f"{description} took more than {limits.memory:,} bytes of memory", "memory")
    return RuntimeError(f"{description}: {stderr.splitlines()[-1] if stderr else f'exit code {process.returncode}'}")
