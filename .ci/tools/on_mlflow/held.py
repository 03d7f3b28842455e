"""What an MLflow server holds, against what the runs themselves say."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from on_mlflow.tool import Tool
from shared import SoftAssertions

from runner.exports.mlflow.games import GamesRecordBuilder
from runner.exports.mlflow.record import MlflowRun
from runner.exports.mlflow.run_facts import KEY_TAG, TAG
from runner.exports.mlflow.training import training_record
from runner.results.leaderboard.results_folder import Results


def wanted_of(results: Path, start: str) -> dict[str, MlflowRun]:
    """The records of a run and its parts, as this process makes them, by key."""
    found = Results(results)
    run = found.find(start)
    if not run.manifest().is_training_run:
        with GamesRecordBuilder(run, journal=False) as games:
            record = games.record()
            return {record.key: record}
    record = training_record(run, journal=False)
    records = {record.key: record}
    for part in found.parts_of(run.run_id):
        with GamesRecordBuilder(part, journal=False) as games:
            record = games.record(run.manifest())
            records[record.key] = record
    return records


def differences(said: dict[str, Any], wanted: dict[str, MlflowRun]) -> list[str]:
    """Where a server's runs are not what the records say, each thing once."""
    found = []
    keys = [one["tags"].get(KEY_TAG) for one in said["runs"]]
    if sorted(map(str, keys)) != sorted(wanted):
        return [f"runs {[one['name'] for one in said['runs']]} are not {sorted(run.name for run in wanted.values())}"]
    for key, one in zip(keys, said["runs"], strict=True):
        run = wanted[key]
        metrics: dict[str, list[list[float]]] = {}
        for point in run.metrics:
            metrics.setdefault(point.key, []).append([point.step, point.value])
        tags = {**run.tags, "mlflow.runName": run.name}
        files = {name: hashlib.sha256(path.read_bytes()).hexdigest() for path, name in run.artifacts}
        held = {name: value for name, value in one["tags"].items() if name not in (f"{TAG}files", f"{TAG}traces")}
        sides = {
            "params": (one["params"], dict(run.params)),
            "metrics": (one["metrics"], {key: sorted(points) for key, points in metrics.items()}),
            "tags": (held, tags),
            "files": (one["files"], files),
            "status": (one["status"], run.status),
            "times": (one["times"], [run.started_ms, run.ended_ms]),
            "datasets": (one["datasets"], sorted([d.name, d.sha256[:36], d.context] for d in run.inputs)),
            "made": (one["made"], sorted([m.name, m.step] for m in run.models)),
            "name": (one["name"], run.name),
            "parent": (one["parent"], wanted[run.parent].name if run.parent else None),
        }
        found += [f"{one['name']}: {what}: {a!s:.300} is not {b!s:.300}" for what, (a, b) in sides.items() if a != b]
    models = sorted(
        [m.name, "READY", run.name, dict(m.params), dict(m.tags)] for run in wanted.values() for m in run.models
    )
    if said["models"] != models:
        found.append(f"models: {said['models']!s:.300} are not {models!s:.300}")
    return found


def held(
    check: SoftAssertions, tool: Tool, uri: str, experiment: str, *starts: str, results: Path | None = None
) -> dict[str, Any]:
    """What an experiment has, and the claim that it is what the runs say."""
    wanted = {key: run for start in starts for key, run in wanted_of(results or tool.results, start).items()}
    said = tool.read(uri, experiment)
    wrong = differences(said, wanted)
    for line in wrong:
        print("     ", line)
    points = sum(len(one) for run in said["runs"] for one in run["metrics"].values())
    check(
        not wrong,
        f"{experiment}: its client reads back {len(said['runs'])} runs with {points:,} points, "
        f"{sum(len(run['params']) for run in said['runs'])} parameters, {len(said['models'])} models and "
        f"{sum(len(run['files']) for run in said['runs'])} files, each once and as the runs have it",
    )
    return said
