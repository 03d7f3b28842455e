"""Comparison of the runs that an MLflow server stores with nip-run's own records."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

from on_mlflow.tool import MlflowEnvironment
from shared import SoftAssertions

from runner.exports.mlflow.games import GamesRecordBuilder
from runner.exports.mlflow.record import MlflowRun
from runner.exports.mlflow.run_facts import KEY_TAG, TAG
from runner.exports.mlflow.training import training_record
from runner.results.leaderboard.results_folder import Results


def build_expected_records(results: Path, start: str) -> dict[str, MlflowRun]:
    """Build the records of a run and its parts, by key."""
    all_results = Results(results)
    run = all_results.find(start)
    if not run.manifest().is_training_run:
        with closing(GamesRecordBuilder(run, journal=False)) as games:
            record = games.record()
            return {record.key: record}
    record = training_record(run, journal=False)
    records = {record.key: record}
    for part in all_results.parts_of(run.run_id):
        with closing(GamesRecordBuilder(part, journal=False)) as games:
            record = games.record(run.manifest())
            records[record.key] = record
    return records


def find_differences(stored: dict[str, Any], expected: dict[str, MlflowRun]) -> list[str]:
    """Return a message for each difference between a server's runs and the expected records."""
    messages = []
    keys = [stored_run["tags"].get(KEY_TAG) for stored_run in stored["runs"]]
    if sorted(map(str, keys)) != sorted(expected):
        names = [stored_run["name"] for stored_run in stored["runs"]]
        return [f"runs {names} are not {sorted(run.name for run in expected.values())}"]
    for key, stored_run in zip(keys, stored["runs"], strict=True):
        run = expected[key]
        metrics: dict[str, list[list[float]]] = {}
        for point in run.metrics:
            metrics.setdefault(point.key, []).append([point.step, point.value])
        tags = {**run.tags, "mlflow.runName": run.name}
        files = {name: hashlib.sha256(path.read_bytes()).hexdigest() for path, name in run.artifacts}
        stored_tags = {
            name: value for name, value in stored_run["tags"].items() if name not in (f"{TAG}files", f"{TAG}traces")
        }
        comparisons = {
            "params": (stored_run["params"], dict(run.params)),
            "metrics": (stored_run["metrics"], {key: sorted(points) for key, points in metrics.items()}),
            "tags": (stored_tags, tags),
            "files": (stored_run["files"], files),
            "status": (stored_run["status"], run.status),
            "times": (stored_run["times"], [run.started_ms, run.ended_ms]),
            "datasets": (stored_run["datasets"], sorted([d.name, d.sha256[:36], d.context] for d in run.inputs)),
            "made": (stored_run["made"], sorted([m.name, m.step] for m in run.models)),
            "name": (stored_run["name"], run.name),
            "parent": (stored_run["parent"], expected[run.parent].name if run.parent else None),
        }
        messages += [
            f"{stored_run['name']}: {field}: {a!s:.300} is not {b!s:.300}"
            for field, (a, b) in comparisons.items()
            if a != b
        ]
    models = sorted(
        [m.name, "READY", run.name, dict(m.params), dict(m.tags)] for run in expected.values() for m in run.models
    )
    if stored["models"] != models:
        messages.append(f"models: {stored['models']!s:.300} are not {models!s:.300}")
    return messages


def check_experiment(
    check: SoftAssertions, tool: MlflowEnvironment, uri: str, experiment: str, *starts: str, results: Path | None = None
) -> dict[str, Any]:
    """Read an experiment from the server, check that it equals the runs' records, and return it."""
    expected = {
        key: run for start in starts for key, run in build_expected_records(results or tool.results, start).items()
    }
    stored = tool.read(uri, experiment)
    differing = find_differences(stored, expected)
    for line in differing:
        print("     ", line)
    point_count = sum(len(points) for run in stored["runs"] for points in run["metrics"].values())
    check(
        not differing,
        f"{experiment}: its client reads back {len(stored['runs'])} runs with {point_count:,} points, "
        f"{sum(len(run['params']) for run in stored['runs'])} parameters, {len(stored['models'])} models and "
        f"{sum(len(run['files']) for run in stored['runs'])} files, each once and as the runs have it",
    )
    return stored
