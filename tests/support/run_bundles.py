"""Releases of real runs in the layout of a registry, without redaction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from runner.base.storage.atomic_files import read_json
from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.reference import Kind
from runner.registry.bundles.run_data import build_run_data
from runner.registry.bundles.run_facts import load_datapoints
from runner.registry.lineage.links import collect_public_group_facts
from runner.registry.transports.locations import connect
from runner.results.folder import RunFolder
from runner.results.tasks import Task
from tests.support.files import parquet_rows

DATA_FILES = ("manifest.json", "journal.jsonl", "metrics.json", "stages.jsonl")
JSON_COLUMNS = ("rewards", "votes", "verdicts")


def build_run_bundle(run: Path, *, version: str = "1", links: tuple[ReleaseLink, ...] = (), **changes: bytes) -> Bundle:
    """Return a release of `acme` from a run folder.

    `changes` maps paths to the bytes of files; `__` stands for a slash, and `_DOT_` for a dot.
    """
    spec = yaml.safe_load((run / "spec.yaml").read_text("utf-8"))
    for group in spec["models"].values():
        if group.get("base_url"):
            group["base_url"] = "???"
    parameters = {name: spec[name] for name in ("seed", "models", "agents", "rollouts", "retry", "votes")}
    contents: dict[str, Content] = {f"data/{name}": run / name for name in DATA_FILES if (run / name).is_file()}
    inputs = sorted(path for path in (run / "inputs").rglob("*") if path.is_file())
    contents |= {f"data/{path.relative_to(run).as_posix()}": path for path in inputs}
    contents |= {
        "README.md": b"# A run\n",
        "spec.yaml": b"extends: [data/spec.yaml, parameters.yaml]\n",
        "parameters.yaml": yaml.safe_dump(parameters).encode(),
        "run_data.yaml": build_run_data(RunFolder(run).manifest(), read_json(run / "metrics.json")),
        "data/spec.yaml": yaml.safe_dump(spec).encode(),
        "environment.lock": b"# python 3.11.7\nnip-run==0.2.0\n",
    }
    if (run / "rollouts.parquet").is_file():
        contents["data/rollouts.jsonl"] = b"".join(map(_to_json_line, parquet_rows(run / "rollouts.parquet")))
    contents |= {name.replace("__", "/").replace("_DOT_", "."): data for name, data in changes.items()}
    manifest = RunFolder(run).manifest()
    facts = {
        "run_id": manifest.run_id, "kind": manifest.kind, "version": manifest.version, "status": manifest.status.value,
        "rollouts": manifest.rollouts, "completions": manifest.completions, "cost_usd": manifest.cost_usd,
        "accuracy": _read_accuracy(run), "benchmark": manifest.benchmark, "protocol": manifest.protocol,
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "trained": collect_public_group_facts(RunFolder(run)),
        "task": Task.of_points(RunFolder(run), load_datapoints(RunFolder(run))).sha256,
    }  # fmt: skip
    release = Release(
        kind=Kind.RUN, owner="acme", name=run.name.lower(), version=version, description="A run of tests",
        identity={"run": manifest.identity, "game": manifest.game_sha256}, facts=facts, links=links,
    )  # fmt: skip
    return Bundle.of(release, contents)


def _to_json_line(row: dict[str, Any]) -> bytes:
    parsed = {name: json.loads(value) if name in JSON_COLUMNS and value else value for name, value in row.items()}
    return json.dumps(parsed).encode() + b"\n"


def _read_accuracy(run: Path) -> dict[str, Any] | None:
    rows = json.loads((run / "metrics.json").read_text("utf-8"))["metrics"]
    row = next((row for row in rows if (row["agent"], row["metric"]) == (None, "accuracy")), None)
    return row and {name: row[name] for name in ("value", "stderr", "ci_low", "ci_high", "n", "clusters")}


def publish_bundles(registry: Path, *bundles: Bundle) -> str:
    """Publish releases to a registry in a folder; return the reference of the last one."""
    with connect(str(registry)) as connected:
        results, _ = connected.publish(list(bundles), "test")
    return str(results[-1].reference)
