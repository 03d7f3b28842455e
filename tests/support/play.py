"""Small specs and the command line, for tests that play them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from runner.runs.run import RunResult, run
from runner.spec.load import load_spec
from tests.support.paths import ROOT

DERIVED = ("rollouts.parquet", "messages.parquet", "metrics.json")
"""Files of a run that follow from its answers alone; `completions.parquet` holds latencies too."""


def dataset_file(folder: Path, size: int = 12) -> Path:
    """A dataset of `size` datapoints, half of them right."""
    path = folder / "data.jsonl"
    rows = [
        {
            "id": f"p{index}",
            "label": index % 2,
            "question": f"Write f(x) that returns x + {index}.",
            "solution": f"def f(x):\n    return x + {index if index % 2 else index + 1}\n",
        }
        for index in range(size)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def spec_file(folder: Path, base_url: str | None = None, *, size: int = 12, **changes: Any) -> Path:
    """A spec in `folder`: nip on a small dataset, every seat on the server, or on `dummy` where there is none.

    `changes` are merged into it, key by key; None takes a key away.
    """
    dataset_file(folder, size)
    model: dict[str, Any] = {"provider": "dummy"}
    if base_url is not None:
        model = {"provider": "openai", "model": "tiny", "base_url": base_url, "timeout": 5.0}
    spec: dict[str, Any] = {
        "name": "tiny",
        "seed": 7,
        "benchmark": "tiny/v1",
        "dataset": {"path": "data.jsonl"},
        "protocol": {"use": "nip", "max_message_rounds": 6},
        "prompts": "prompts/code_validation/nip",
        "models": {"m": model},
        "agents": {"prover": {"model": "m"}, "verifier": {"model": "m"}},
        "retry": {"transient": {"first_wait": 0.01, "max_wait": 0.05, "attempts": 8}},
        "rollouts": {"concurrency": 8},
        "fine_tune": {"formats": ["openai", "trl"], "min_examples": 1},
    }
    path = folder / "spec.yaml"
    path.write_text(json.dumps(merged(spec, changes)), "utf-8")
    return path


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(result.get(name), Mapping):
            result[name] = merged(result[name], value)
        else:
            result[name] = value
    return result


def environment(**variables: str) -> dict[str, str]:
    """An environment with nothing of the person's own: no key, no proxy, no colour settings."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "runner", *map(str, words)]


def nip_run(*words: str | Path, cwd: Path, timeout: float = 60.0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        command(*words), cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=timeout,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def derived_files(run: Path) -> dict[str, str]:
    """The hashes of the files of a run that must not depend on how it was played."""
    paths = [run / name for name in DERIVED] + sorted(p for p in (run / "fine_tune").rglob("*") if p.is_file())
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def only_run(results: Path) -> Path:
    """The one run of a results folder."""
    (path,) = (results / "runs").iterdir()
    return path


def table(run: Path, name: str) -> list[dict[str, Any]]:
    """The rows of one of a run's Parquet files."""
    connection = duckdb.connect(":memory:")
    try:
        found = connection.execute(f"SELECT * FROM read_parquet('{run / (name + '.parquet')}')")
        columns = [item[0] for item in found.description]
        return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]
    finally:
        connection.close()


def journal_records(run: Path) -> list[dict[str, Any]]:
    """Every whole record of a run's journal, read by another reader than the program's."""
    lines = (run / "journal.jsonl").read_bytes().split(b"\n")
    return [json.loads(line[9:]) for line in lines[:-1]]


def played(spec: Path, results: Path, *overrides: str, **options: Any) -> RunResult:
    """Play a spec in this process."""
    return run(load_spec(spec, overrides), results, **options)


def metric(result: RunResult, name: str, agent: str | None = None) -> dict[str, Any]:
    """One row of a run's metrics."""
    return next(row for row in result.metrics["metrics"] if (row["agent"], row["metric"]) == (agent, name))
