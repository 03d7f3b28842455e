"""Converts a training run to an MLflow record: the learning curve by iteration, and the trained models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runner.documents.dataclass_schema import to_plain
from runner.exports.mlflow.curve import interval_points, value_points
from runner.exports.mlflow.limits import MlflowTexts
from runner.exports.mlflow.record import (
    DatasetRecord,
    MetricPoint,
    MlflowRun,
    ModelRecord,
    convert_content_errors,
    model_key,
)
from runner.exports.mlflow.run_facts import KEY_TAG, TAG, common_fields, dataset_record, run_counts, run_tags
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.metric_rows import format_metric
from runner.results.metrics_file import MetricRow, find_metric_row
from runner.runs.finished.reconstruction import saved_plan
from runner.spec.training_settings import TrainingSettings
from runner.training.games import existing_part
from runner.training.stage_log import read_stages
from runner.training.stages import DatasetsBuilt, GamesPlayed, GroupResult, ModelSwitch, RunRecord, Stages, TestPlayed

TEST_PREFIX, GAMES_PREFIX, MODELS_PREFIX = "test.", "games.", "models."
"""Prefixes of metric names, for tests, for the games used for training, and for model groups."""


def training_record(folder: RunFolder, *, journal: bool) -> MlflowRun:
    """Return the record of a training run so far. The games and tests of the run have records of their own.

    Raises:
        RunError, JournalError, SpecError: a file of the run is missing or damaged.
    """
    with convert_content_errors(folder):
        return _build_record(folder, journal=journal)


def _build_record(folder: RunFolder, *, journal: bool) -> MlflowRun:
    manifest, texts = folder.manifest(), MlflowTexts()
    plan, stages = saved_plan(folder), read_stages(folder.path, folder.identity())
    settings = plan.spec.experiment.training
    assert settings is not None
    tests = [
        (record.iteration, find_metric_row(existing_part(folder, record).read_metrics(), RANKING_METRIC))
        for record in stages.find_all(TestPlayed)
    ]
    return MlflowRun(
        **common_fields(folder, manifest, plan, texts, None, journal=journal),
        metrics=[*_part_points(folder, stages, texts), *_group_points(stages, texts)],
        tags=run_tags(manifest, plan, folder, texts, _format_page_note(manifest, tests)),
        inputs=(dataset_record(manifest, plan, "training"), *_training_datasets(folder, stages)),
        models=tuple(_model_records(folder, manifest, settings, stages, texts)),
        notes=tuple(texts.notes),
    )


def _part_points(folder: RunFolder, stages: Stages, texts: MlflowTexts) -> Iterator[MetricPoint]:
    """Yield the metrics of each iteration's games, and the metrics of each test at the iteration of the tested models.

    The accuracy of the tests is the learning curve. Its metric has the same name as the accuracy of a benchmark.
    """
    kinds: tuple[tuple[str, type[RunRecord]], ...] = ((TEST_PREFIX, TestPlayed), (GAMES_PREFIX, GamesPlayed))
    for prefix, kind in kinds:
        for record in {played.iteration: played for played in stages.find_all(kind)}.values():
            part = existing_part(folder, record)
            for row in part.read_metrics()["metrics"]:
                is_curve = prefix == TEST_PREFIX and (row["agent"], row["metric"]) == (None, RANKING_METRIC)
                yield from value_points(row, record.iteration, texts, "" if is_curve else prefix)
                if is_curve:
                    yield from interval_points(row, record.iteration, texts)
            for name, value in run_counts(part.manifest(), ("rollouts", "completions", "cost_usd")):
                yield MetricPoint(texts.key(prefix + name), record.iteration, value)


def _group_points(stages: Stages, texts: MlflowTexts) -> Iterator[MetricPoint]:
    """Yield whether a model group was trained (1 or 0), with how many examples and tokens, for each iteration."""
    for record in stages.find_all(ModelSwitch):
        for group, outcome in record.outcomes.items():
            trained = outcome["outcome"] == GroupResult.TRAINED
            yield MetricPoint(texts.key(f"{MODELS_PREFIX}{group}.trained"), record.iteration, float(trained))
            if isinstance(outcome.get("examples"), int):
                yield MetricPoint(
                    texts.key(f"{MODELS_PREFIX}{group}.examples"), record.iteration, float(outcome["examples"])
                )
            training = stages.training_record(record.iteration, group)
            if trained and training is not None and isinstance(training.facts.get("trained_tokens"), int):
                tokens = float(training.facts["trained_tokens"])
                yield MetricPoint(texts.key(f"{MODELS_PREFIX}{group}.trained_tokens"), record.iteration, tokens)


def _training_datasets(folder: RunFolder, stages: Stages) -> Iterator[DatasetRecord]:
    """Yield the datasets that models were trained on. If a dataset was built again, yield its last version."""
    for record in stages.find_all(ModelSwitch):
        built = stages.find_last(DatasetsBuilt, record.iteration)
        for group, report in ({} if built is None else built.groups).items():
            if report.written and report.sha256 is not None:
                facts = {
                    "sha256": report.sha256,
                    "run_id": folder.run_id,
                    "iteration": record.iteration,
                    "group": group,
                    "agents": list(report.agents),
                    "format": report.format,
                }
                name = f"{folder.run_id} iteration {record.iteration} {group}"
                yield DatasetRecord(name, report.sha256, "training", facts, rows=report.examples)


def _model_records(
    folder: RunFolder, manifest: Manifest, training: TrainingSettings, stages: Stages, texts: MlflowTexts
) -> Iterator[ModelRecord]:
    """Yield the models that each iteration produced, with their lineage."""
    for record in stages.find_all(ModelSwitch):
        for group, outcome in record.outcomes.items():
            if outcome["outcome"] != GroupResult.TRAINED:
                continue
            state = record.models[group]
            step = state["lineage"][-1]
            facts: dict[str, Any] = {
                "model": state["model"],
                "base_model": state["base_model"],
                "from_model": step["from_model"],
                "group": group,
                "iteration": record.iteration,
                "method": step["method"],
                "examples": outcome.get("examples"),
                "dataset_sha256": step["dataset_sha256"],
                "job": step.get("job"),
                "weights_sha256": step.get("weights_sha256"),
                **{f"trainer.{name}": value for name, value in to_plain(training.trainers[group]).items()},
            }
            key = model_key(folder.run_id, record.iteration, state["model"])
            tags = {
                "run_id": folder.run_id,
                "kind": "trained",
                "protocol": manifest.protocol,
                "lineage": state["lineage"],
            }
            tag_values = {f"{TAG}{name}": value for name, value in tags.items()}
            yield ModelRecord(
                key,
                texts.model_name(f"{folder.run_id} {group} {record.iteration}"),
                record.iteration,
                {texts.key(name): texts.param(name, value) for name, value in facts.items() if value is not None},
                {KEY_TAG: key, **{name: texts.tag(name, value) for name, value in tag_values.items()}},
            )


def _format_page_note(manifest: Manifest, tests: Sequence[tuple[int, MetricRow | None]]) -> str:
    lines = [f"training run `{manifest.run_id}` of nip-run {manifest.version}: {manifest.status.value}"]
    lines += [
        f"- test before iteration {number}: accuracy {format_metric(row)}, n {row['n']}"
        for number, row in tests
        if row is not None
    ]
    if manifest.why_stopped is not None:
        lines.append(manifest.why_stopped)
    return "\n\n".join(lines)
