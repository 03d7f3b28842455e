"""Lineage nodes built from facts of releases, and runs published to a registry without redaction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import orjson

from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.board.board import RegistryBoard
from runner.registry.lineage.links import build_links, collect_public_group_facts
from runner.registry.lineage.nodes import LineageNode, node_from_release, read_content_hashes
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.interface import StoredFile
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.table_columns import COLUMNS
from tests.support.files import parquet_rows

EFFORT = {"datapoints": 10, "rollouts": 10, "completions": 30, "prompt_tokens": 900, "completion_tokens": 90}


def step(run: str, model: str, from_model: str, **changes: Any) -> dict[str, Any]:
    """Return the lineage entry of a training: iteration 0 of a run, on the run's own dataset."""
    entry = {"model": model, "from_model": from_model, "run_id": run, "iteration": 0, "method": "sft"}
    return {**entry, "dataset_sha256": f"data of {run}", **changes}


def group(
    model: str, *lineage: Mapping[str, Any], made: Sequence[Mapping[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    """Return a fact as `collect_public_group_facts` does. The games of each iteration cost `EFFORT` and 1 dollar."""
    games = [
        {
            "iteration": entry["iteration"],
            "run_id": f"{entry['run_id']}-i{entry['iteration']}",
            **EFFORT,
            "cost_usd": 1.0,
        }
        for entry in made
    ]
    fact = {"group": "v", "agents": ["verifier"], "provider": "openai", "model": model, "lineage": list(lineage)}
    return {**fact, "made": list(made), "games": games, **more}


def node(
    run: str, *groups: Mapping[str, Any], owner: str = "acme", yanked: str | None = None, **changes: Any
) -> LineageNode:
    """Return a published run, read from the bytes of its manifest."""
    release = run_release(run, *groups, owner=owner, **changes)
    return node_from_release(ReleaseEntry(release.reference, Bundle.of(release, {}).sha256, yanked), release)


def run_release(run: str, *groups: Mapping[str, Any], owner: str = "acme", **changes: Any) -> Release:
    kind = "training" if any(trained_group["made"] for trained_group in groups) else "benchmark"
    facts = {
        "run_id": run,
        "kind": kind,
        "trained": [dict(trained_group) for trained_group in groups],
        "started_at": f"2025-{run}",
    }
    facts |= changes.pop("facts", {})
    fields: dict[str, Any] = {"kind": Kind.RUN, "owner": owner, "name": run, "version": "1", "facts": facts, **changes}
    return Release.from_bytes(Bundle.of(Release(**fields), {}).manifest)


def training(run: str, model: str, from_model: str, *lineage: Mapping[str, Any], **changes: Any) -> LineageNode:
    """Return a training run of one iteration that trained `model` from `from_model`."""
    entry = step(run, model, from_model, **changes.pop("made", {}))
    return node(run, group(from_model, *lineage, made=[entry], **changes.pop("group", {})), **changes)


def iteration_games(parent: LineageNode, *datapoints: str, **changes: Any) -> LineageNode:
    """Return the run with the games of a training run's first iteration."""
    facts = {"parent_run_id": parent.run_id, "kind": "training", "datapoints_sha256": list(datapoints)}
    return node(f"{parent.run_id}-i0", group("any"), facts=facts, **changes)


def benchmark(run: str, model: str, *lineage: Mapping[str, Any], **changes: Any) -> LineageNode:
    """Return a benchmark run of one model."""
    return node(run, group(model, *lineage, **changes.pop("group", {})), **changes)


def build_planted_release(folder: RunFolder, results: Results, owner: str, **changes: Any) -> Bundle:
    """Build the release of a run with its folder below `data/`, its rollouts as lines, and the facts of its files."""
    manifest = folder.manifest()
    facts: dict[str, Any] = {
        name: getattr(manifest, name)
        for name in ("run_id", "name", "kind", "benchmark", "status", "parent_run_id", "iteration", "started_at")
    }
    facts |= {
        "trained": collect_public_group_facts(folder),
        "datapoints_sha256": sorted(read_content_hashes(folder) or ()),
    }
    contents: dict[str, Content] = {
        f"data/{path.relative_to(folder.path).as_posix()}": path
        for path in (folder.manifest_path, folder.spec, *(folder.path / "inputs").rglob("*"))
        if path.is_file()
    }
    if folder.metrics.is_file():
        contents["data/metrics.json"] = folder.metrics
        rows = json.loads(folder.metrics.read_text())["metrics"]
        facts["accuracy"] = next((r for r in rows if (r["agent"], r["metric"]) == (None, "accuracy")), None)
    if folder.table("rollouts").is_file():
        contents["data/rollouts.jsonl"] = b"".join(map(_encode_line, parquet_rows(folder.table("rollouts"))))
    if folder.stage_log.is_file():
        contents["data/stages.jsonl"] = folder.stage_log
    contents |= changes.pop("contents", {})
    release = Release(
        kind=Kind.RUN,
        owner=owner,
        name=manifest.run_id.lower(),
        version=changes.pop("version", "1"),
        identity={"run": manifest.identity},
        links=build_links(folder, results, owner),
        facts={**facts, **changes.pop("facts", {})},
    )
    return Bundle.of(replace(release, **changes), contents)


def _encode_line(row: Mapping[str, Any]) -> bytes:
    kinds = COLUMNS["rollouts"]
    plain = {
        name: json.loads(value) if kinds[name] == "JSON" and isinstance(value, str) else value
        for name, value in row.items()
    }
    return orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE)


def publish(registry: Registry, *bundles: Bundle) -> None:
    registry.publish(bundles, "for a test")


def publish_runs(registry: Registry, results: Path, owner: str) -> None:
    """Publish every run of a results folder."""
    results_folder = Results(results)
    publish(registry, *(build_planted_release(folder, results_folder, owner) for folder in results_folder.runs()))


class RecordingFolder(FolderTransport):
    """A folder transport that records the paths of opened files."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.opened: list[str] = []

    def open(self, path: str) -> IO[bytes]:
        self.opened.append(path)
        return super().open(path)

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        return super().list_files(prefix)


def rows_by_release(board: RegistryBoard) -> dict[str, Mapping[str, Any]]:
    return {row.release: row.to_json() for row in board.rows}
