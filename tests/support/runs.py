"""Run specs in this process, and read the files of runs without the code under test."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from runner import run
from runner.runs.execution.accounting import OnProgress
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from tests.support.files import parquet_rows

DERIVED = ("rollouts.parquet", "messages.parquet", "metrics.json")
"""Files of a run that depend only on its answers; `completions.parquet` also has latencies."""


def run_spec(
    spec: Path,
    results: Path,
    *overrides: str,
    replay: ReplayOf | None = None,
    watch: OnProgress | None = None,
    **options: Any,
) -> FinishedRun:
    """Run a spec in this process."""
    source, until_round = (None, None) if replay is None else (replay.run, replay.until_round)
    return run(
        load_spec(spec, overrides), results, replay=source, until_round=until_round, on_progress=watch, **options
    )


def metric(result: FinishedRun, name: str, agent: str | None = None) -> dict[str, Any]:
    """Return one row of a run's metrics."""
    return next(row for row in result.metrics["metrics"] if (row["agent"], row["metric"]) == (agent, name))


def only_run(results: Path) -> Path:
    """Return the only run of a results folder."""
    (path,) = (results / "runs").iterdir()
    return path


def derived_files(run: Path) -> dict[str, str]:
    """Return the hashes of the files that must be the same however a run was executed."""
    paths = [run / name for name in DERIVED] + sorted(p for p in (run / "fine_tune").rglob("*") if p.is_file())
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def table(run: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of one of a run's Parquet files."""
    return parquet_rows(run / f"{name}.parquet")


def journal_records(run: Path) -> list[dict[str, Any]]:
    """Return every complete record of a run's journal, parsed without the program's reader."""
    lines = (run / "journal.jsonl").read_bytes().split(b"\n")
    return [json.loads(line[9:]) for line in lines[:-1]]


def read_calls(run: Path) -> list[tuple[Any, ...]]:
    """Return the sample keys of the calls in a run's journal, in the recorded order."""
    if not (run / "journal.jsonl").is_file():
        return []
    return [tuple(record["sample"]) for record in journal_records(run) if record["kind"] == "call"]


def read_status(run: Path) -> str:
    return str(json.loads((run / "manifest.json").read_text())["status"])
