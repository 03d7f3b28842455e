"""What an MLflow run has of a run of either kind: tags, parameters, datasets and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from runner.base.storage.safe_files import read_bounded
from runner.exports.mlflow.limits import Fitted
from runner.exports.mlflow.record import STATUSES, Artifact, Data, flat_params, milliseconds, model_key, run_key
from runner.exports.run_source import dataset_path
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status
from runner.results.provenance.input_files import resolved_spec
from runner.results.sweep_points import shown_point
from runner.results.tasks import Task
from runner.rollouts.plan import Plan

TAG = "nip_run."
"""Before the names of our tags."""
KEY_TAG = f"{TAG}key"
"""The tag by which an MLflow run, or model, is found again."""
MAX_SCANNED = 64 << 20
"""Bytes of a file of text that is searched for secrets and sent."""

_FILES = ("spec.yaml", "manifest.json", "metrics.json", "state.json", "stages.jsonl", "run.log", "inputs/protocol.yaml")
_TABLES = ("rollouts.parquet", "messages.parquet", "completions.parquet")
_JOURNAL = ("journal.jsonl", "inputs/dataset.jsonl")


def common(
    folder: RunFolder, manifest: Manifest, plan: Plan, fitted: Fitted, parent: Manifest | None, *, journal: bool
) -> dict[str, Any]:
    """The fields of a record that runs of both kinds have alike."""
    run_id = manifest.parent_run_id
    if run_id is not None and parent is None:
        fitted.left_out(f"{folder.run_id} stands by itself: its training run {run_id} is not in this results folder")
    over = manifest.status != Status.RUNNING
    return {
        "key": run_key(manifest),
        "name": fitted.run_name(folder.run_id),
        "status": STATUSES[manifest.status],
        "started_ms": milliseconds(manifest.started_at),
        "ended_ms": milliseconds(manifest.finished_at) if over and manifest.finished_at else None,
        "params": flat_params(resolved_spec(plan), fitted),
        "plays_with": tuple(dict.fromkeys(_trained_models(plan))),
        "artifacts": tuple(_artifacts(folder, fitted, journal=journal)) if over else (),
        "parent": None if parent is None else run_key(parent),
    }


def tags_of(manifest: Manifest, plan: Plan, folder: RunFolder, fitted: Fitted, note: str) -> dict[str, str]:
    """What a run is found and told apart by; `note` is what its page says above all."""
    experiment = plan.spec.experiment
    lineage = {group: model.lineage for group, model in experiment.models.items() if model.lineage}
    group_by = plan.spec.dataset.group_by
    ours: dict[str, Any] = {
        "key": run_key(manifest),
        "run_id": manifest.run_id,
        "kind": manifest.kind,
        "status": manifest.status.value,
        "why_stopped": manifest.why_stopped,
        "benchmark": manifest.benchmark,
        "protocol": manifest.protocol,
        "task_sha256": _task(folder, group_by, manifest.dataset_sha256),
        "point": shown_point(manifest.point) or None,
        "identity": manifest.identity,
        "spec_sha256": manifest.spec_sha256,
        "game_sha256": manifest.game_sha256,
        "protocol_sha256": manifest.protocol_sha256,
        "dataset_sha256": manifest.dataset_sha256,
        "prompts_sha256": manifest.prompts_sha256,
        "parent_run_id": manifest.parent_run_id,
        "iteration": manifest.iteration,
        "part": None if manifest.parent_run_id is None else "games" if manifest.kind == "training" else "test",
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "lineage": {group: [vars(step) for step in steps] for group, steps in lineage.items()} or None,
        "components": manifest.components or None,
        "reproduces": manifest.reproduces,
        "got_from": manifest.got_from,
        "replay_of": None if manifest.replay_of is None else manifest.replay_of.run_id,
        "rejudge_of": None if manifest.rejudge_of is None else manifest.rejudge_of.run_id,
        "sources": manifest.sources,
        "version": manifest.version,
        "python": manifest.python,
    }
    theirs = {
        "mlflow.source.name": f"nip-run {manifest.version}",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": manifest.git_commit,
        "mlflow.note.content": note,
    }
    named = {**{TAG + name: value for name, value in ours.items()}, **theirs}
    return {name: fitted.tag(name, value) for name, value in named.items() if value is not None}


def data_of(manifest: Manifest, plan: Plan, context: str) -> Data:
    """The dataset that a run plays."""
    dataset = plan.spec.dataset
    facts = {
        "sha256": manifest.dataset_sha256,
        "source_sha256": manifest.dataset_source_sha256,
        "selection": manifest.dataset_selection,
        "source": (manifest.sources or {}).get("dataset"),
        "path": dataset_path(manifest, plan),
        "split": (manifest.dataset_selection or {}).get("split"),
    }
    columns = ("id", "label", *dataset.columns)
    return Data(manifest.benchmark, manifest.dataset_sha256, context, facts, columns, len(dataset.datapoints))


@lru_cache(maxsize=4)
def _task(folder: RunFolder, group_by: str | None, dataset_sha256: str) -> str | None:  # noqa: ARG001 - of the cache
    """Of a run that is looked at again and again, read once for as long as its dataset is this one."""
    try:
        return Task.of_run(folder, group_by).sha256
    except (OSError, ValueError):  # of a run whose rows are not there
        return None


def _trained_models(plan: Plan) -> Iterator[str]:
    """The keys of the trained models that play."""
    experiment = plan.spec.experiment
    for group in dict.fromkeys(agent.model for agent in experiment.agents.values()):
        lineage = experiment.models[group].lineage
        if lineage:
            step = lineage[-1]
            yield model_key(step.run_id, step.iteration, step.model)


def _artifacts(folder: RunFolder, fitted: Fitted, *, journal: bool) -> Iterator[Artifact]:
    """The files that are sent: of a text in which a secret stands none, of one that is too long neither."""
    for name in _TABLES:
        if (folder.path / name).is_file():
            yield Artifact(folder.path / name, f"tables/{name}")
    prompts = sorted((folder.path / "inputs" / "prompts").glob("*"))
    texts = [*(folder.path / name for name in (*_FILES, *(_JOURNAL if journal else ()))), *prompts]
    for path in texts:
        if path.is_file() and _may_go(path, fitted):
            yield Artifact(path, path.relative_to(folder.path).as_posix())


def _may_go(path: Path, fitted: Fitted) -> bool:
    if path.stat().st_size > MAX_SCANNED:
        fitted.left_out(f"{path.name} is larger than {MAX_SCANNED >> 20} MiB: not sent")
        return False
    if fitted.holds_secret(read_bounded(path, MAX_SCANNED)):
        fitted.left_out(f"{path.name} holds the value of a key or a token of this machine: not sent")
        return False
    return True


def counts_of(manifest: Manifest, names: Iterable[str]) -> Iterator[tuple[str, float]]:
    """What a manifest has counted, as far as it is known."""
    for name in names:
        value = getattr(manifest, name)
        if value is not None:
            yield name, float(value)
