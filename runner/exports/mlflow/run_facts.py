"""The parts of an MLflow record that benchmarks and training runs share: tags, parameters, datasets and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from runner.base.storage.safe_files import read_bounded
from runner.exports.mlflow.limits import MlflowTexts
from runner.exports.mlflow.record import STATUSES, Artifact, DatasetRecord, flat_params, model_key, run_key, to_ms
from runner.exports.run_source import dataset_path
from runner.results.folder import RunFolder
from runner.results.leaderboard.rows import fixed_verdicts_of
from runner.results.manifest import Manifest, Status
from runner.results.provenance.input_files import resolved_spec
from runner.results.sweep_points import format_point
from runner.results.tasks import Task
from runner.rollouts.plan import Plan

TAG = "nip_run."
"""Prefix of nip-run's own tags."""
KEY_TAG = f"{TAG}key"
"""The tag that identifies an MLflow run or model."""
MAX_SCANNED = 64 << 20
"""Maximum bytes of a text file that is searched for secrets. Larger files are not sent."""

_TEXT_FILES = (
    "spec.yaml", "manifest.json", "metrics.json", "state.json", "stages.jsonl", "run.log", "inputs/protocol.yaml",
)  # fmt: skip
"""Text files in a run's folder that are sent."""
_TABLES = ("rollouts.parquet", "messages.parquet", "completions.parquet")
"""Tables that are sent."""
_JOURNAL_FILES = ("journal.jsonl", "inputs/dataset.jsonl")
"""Text files that are sent only with `--journal`."""


def common_fields(
    folder: RunFolder, manifest: Manifest, plan: Plan, texts: MlflowTexts, parent: Manifest | None, *, journal: bool
) -> dict[str, Any]:
    """Return the fields of a record that benchmarks and training runs share."""
    is_nested = _part_of(manifest) in ("games", "test")
    if is_nested and parent is None:
        texts.add_note(
            f"{folder.run_id} is not nested below its training run {manifest.parent_run_id}, which is not in this "
            "results folder; export from the folder that has both runs"
        )
    has_ended = manifest.status != Status.RUNNING
    return {
        "key": run_key(manifest),
        "name": texts.run_name(folder.run_id),
        "status": STATUSES[manifest.status],
        "started_ms": to_ms(manifest.started_at),
        "ended_ms": to_ms(manifest.finished_at) if has_ended and manifest.finished_at else None,
        "params": flat_params(resolved_spec(plan), texts),
        "plays_with": tuple(dict.fromkeys(_trained_models(plan))),
        "artifacts": tuple(_find_artifacts(folder, texts, journal=journal)) if has_ended else (),
        "parent": run_key(parent) if is_nested and parent is not None else None,
    }


_HASHES = ("identity", "spec_sha256", "game_sha256", "protocol_sha256", "dataset_sha256", "prompts_sha256")
"""The hashes in a manifest that become tags."""


def run_tags(manifest: Manifest, plan: Plan, folder: RunFolder, texts: MlflowTexts, note: str) -> dict[str, str]:
    """Return the tags that describe a run; `note` is the text at the top of the run's page in MLflow."""
    experiment = plan.spec.experiment
    lineage = {group: model.lineage for group, model in experiment.models.items() if model.lineage}
    group_by = plan.spec.dataset.group_by
    own_tags: dict[str, Any] = {
        "key": run_key(manifest),
        "run_id": manifest.run_id,
        "kind": manifest.kind,
        "status": manifest.status.value,
        "why_stopped": manifest.why_stopped,
        "benchmark": manifest.benchmark,
        "protocol": manifest.protocol,
        "task_sha256": _task_sha256(folder, group_by, manifest.dataset_sha256),
        "point": format_point(manifest.point) or None,
        **{name: getattr(manifest, name) for name in _HASHES},
        "parent_run_id": manifest.parent_run_id,
        "iteration": manifest.iteration,
        "part": _part_of(manifest),
        "models": {row["agent"]: row["model"] for row in manifest.agents},
        "lineage": {group: [vars(step) for step in steps] for group, steps in lineage.items()} or None,
        "components": manifest.components or None,
        "reproduces": manifest.reproduces,
        "got_from": manifest.got_from,
        "replay_of": None if manifest.replay_of is None else manifest.replay_of.run_id,
        "rejudge_of": None if manifest.rejudge_of is None else manifest.rejudge_of.run_id,
        "fixed_verdicts": fixed_verdicts_of(folder),
        "answers_from": dict(manifest.origins.copied) or None,
        "sources": manifest.sources,
        "version": manifest.version,
        "python": manifest.python,
    }
    mlflow_tags = {
        "mlflow.source.name": f"nip-run {manifest.version}",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": manifest.git_commit,
        "mlflow.note.content": note,
    }
    all_tags = {**{TAG + name: value for name, value in own_tags.items()}, **mlflow_tags}
    return {name: texts.tag(name, value) for name, value in all_tags.items() if value is not None}


def _part_of(manifest: Manifest) -> str | None:
    """Return which part of a training run or a tournament a run is; None if it is not a part."""
    suffix = "" if manifest.parent_run_id is None else manifest.run_id.removeprefix(f"{manifest.parent_run_id}-")
    return {"i": "games", "t": "test", "p": "pairing"}.get(suffix[:1])


def dataset_record(manifest: Manifest, plan: Plan, context: str) -> DatasetRecord:
    """Return the dataset of a run's games."""
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
    return DatasetRecord(manifest.benchmark, manifest.dataset_sha256, context, facts, columns, len(dataset.datapoints))


@lru_cache(maxsize=4)
def _task_sha256(folder: RunFolder, group_by: str | None, dataset_sha256: str) -> str | None:  # noqa: ARG001 - part of the cache key
    """Return the hash of a run's task, or None if the run's rows are missing; cached for each dataset."""
    try:
        return Task.of_run(folder, group_by).sha256
    except (OSError, ValueError):
        return None


def _trained_models(plan: Plan) -> Iterator[str]:
    """Yield the keys of the trained models that play."""
    experiment = plan.spec.experiment
    for group in dict.fromkeys(group for agent in experiment.agents.values() for group in agent.groups):
        lineage = experiment.models[group].lineage
        if lineage:
            step = lineage[-1]
            yield model_key(step.run_id, step.iteration, step.model)


def _find_artifacts(folder: RunFolder, texts: MlflowTexts, *, journal: bool) -> Iterator[Artifact]:
    """Yield the files to send, without text files that are too large or contain a secret."""
    for name in _TABLES:
        if (folder.path / name).is_file():
            yield Artifact(folder.path / name, f"tables/{name}")
    prompts = sorted((folder.path / "inputs" / "prompts").glob("*"))
    names = (*_TEXT_FILES, *(_JOURNAL_FILES if journal else ()))
    for path in (*(folder.path / name for name in names), *prompts):
        if path.is_file() and _can_be_sent(path, texts):
            yield Artifact(path, path.relative_to(folder.path).as_posix())


def _can_be_sent(path: Path, texts: MlflowTexts) -> bool:
    if path.stat().st_size > MAX_SCANNED:
        limit = f"larger than {MAX_SCANNED >> 20} MiB"
        texts.add_note(f"{path.name} is not sent, because the file is {limit}; upload the file in MLflow yourself")
        return False
    if texts.has_secret(read_bounded(path, MAX_SCANNED)):
        texts.add_note(
            f"{path.name} is not sent, because the file contains an API key or token of this machine; remove the key "
            "from the file, then export again"
        )
        return False
    return True


def run_counts(manifest: Manifest, names: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each count that a manifest has."""
    for name in names:
        value = getattr(manifest, name)
        if value is not None:
            yield name, float(value)
