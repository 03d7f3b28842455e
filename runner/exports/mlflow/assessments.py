"""Converts the results of analyses and labels of people to assessments of MLflow, which belong to traces of games."""

from __future__ import annotations

from collections.abc import Iterator

from runner.analysis.labels import Label, read_labels
from runner.analysis.results import AnalysisTable, UnitResult, read_analyses
from runner.base.hashing import tagged_hash
from runner.exports.mlflow.limits import MlflowTexts
from runner.exports.mlflow.record import AssessmentRecord
from runner.exports.mlflow.run_facts import TAG
from runner.results.folder import RunFolder

UNIT = f"{TAG}unit"
"""The key of the metadata with the unit's id."""


def trace_key(run_key: str, rollout_id: str) -> str:
    """Return the key of a game's trace; `run_key` is the key of the run's record."""
    return tagged_hash("mlflow trace", [run_key, rollout_id])[:32]


def assessment_records(folder: RunFolder, run_key: str, texts: MlflowTexts) -> Iterator[AssessmentRecord]:
    """Yield an assessment for each applicable unit of each analysis, then for each label of a person.

    Raises:
        RunError: the results or labels are damaged.
    """
    for table in read_analyses(folder):
        for result in table.results:
            if result.status != "not_applicable":
                yield _from_result(table, result, run_key, texts)
    for labels in read_labels(folder.path).values():
        for label in labels:
            yield _from_label(label, run_key, texts)


def _from_result(table: AnalysisTable, result: UnitResult, run_key: str, texts: MlflowTexts) -> AssessmentRecord:
    place = (("agent", result.agent), ("channel", result.channel), ("round", result.round), ("value", result.value))
    facts = {UNIT: result.unit_id, f"{TAG}instrument": table.instrument, f"{TAG}unit_kind": table.unit}
    facts |= {TAG + name: str(value) for name, value in place if value is not None}
    error = None if result.status == "answered" else f"{result.status}: {result.reason or 'no reason recorded'}"
    return AssessmentRecord(
        trace_key(run_key, result.rollout_id), table.analyzer, result.answer,
        "CODE" if result.model == "code" else "LLM_JUDGE",
        f"{texts.text(result.model)}@{table.instrument}",
        None if result.reason is None or error else texts.text(result.reason), error and texts.text(error),
        {name: texts.text(value) for name, value in facts.items()},
    )  # fmt: skip


def _from_label(label: Label, run_key: str, texts: MlflowTexts) -> AssessmentRecord:
    facts = {UNIT: label.unit_id, f"{TAG}question": label.question_sha256[:10], f"{TAG}time": label.time}
    rollout_id = label.unit_id.partition("/")[0]
    return AssessmentRecord(
        trace_key(run_key, rollout_id),
        label.analyzer,
        label.answer,
        "HUMAN",
        texts.text(label.reader),
        None,
        None,
        facts,
    )
