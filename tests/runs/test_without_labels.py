"""Datasets without labels: metrics that need labels are empty, and settings that need labels are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.registry.verification.verify import find_run_problems
from runner.results.metric_computation import NO_LABELS
from runner.results.metric_definitions import Source, metrics_of
from runner.spec.loader import load_spec
from tests.support.runs import metric, run_spec, table
from tests.support.specs import spec_file


def write_unlabeled_spec(folder: Path, label: object = None, **changes: Any) -> Path:
    spec = spec_file(folder, **{"fine_tune": None, **changes})
    path = folder / "data.jsonl"
    rows = [{**json.loads(line), "label": label} for line in path.read_text("utf-8").splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return spec


@pytest.mark.sample(1)
@pytest.mark.parametrize("label", [None, ""])
def test_verdicts_are_recorded_and_metrics_that_need_labels_are_empty(tmp_path: Path, label: object) -> None:
    spec = spec_file(tmp_path / "labelled", fine_tune=None)
    with_labels = run_spec(spec, tmp_path / "results", run_id="labelled")
    result = run_spec(write_unlabeled_spec(tmp_path / "kept", label), tmp_path / "results", run_id="kept")
    rows, labeled_rows = (table(finished.folder.path, "rollouts") for finished in (result, with_labels))
    assert [row["decision"] for row in rows] == [row["decision"] for row in labeled_rows]
    assert {(row["y"], row["correct"]) for row in rows} == {(None, None)}
    for label_metric in (
        definition
        for definition in metrics_of(Source.GAMES, Source.DATAPOINTS)
        if definition.needs_labels and definition.applies(lists_answers=False)
    ):
        row = metric(result, label_metric.name)
        assert (row["value"], row["ci_low"], row["n"], row["reason"]) == (None, None, 0, NO_LABELS)
    assert {frozenset(json.loads(row["rewards"])) for row in rows} == {frozenset(["prover"])}
    assert metric(result, "reward", "verifier")["reason"] == NO_LABELS
    for name, agent in (("decided", None), ("decision", None), ("rounds_played", None), ("reward", "prover")):
        assert metric(result, name, agent) == metric(with_labels, name, agent)
    assert "completeness" not in {row["metric"] for row in result.metrics["metrics"]}
    assert not list(find_run_problems(result.folder))


@pytest.mark.parametrize(
    ("key", "override"),
    [
        ("protocol.force_guess", "protocol.force_guess=y"),
        ("until", "+until={width: 0.2}"),
        ("fine_tune", "fine_tune={formats: [trl]}"),
        ("rollouts.num_responses_per_timestep", "+rollouts.num_responses_per_timestep=2"),
        ("dataset.balance", "+dataset.balance=label"),
    ],
)
def test_settings_that_need_labels_are_refused_by_key(tmp_path: Path, key: str, override: str) -> None:
    spec = write_unlabeled_spec(tmp_path)
    with pytest.raises(SpecError, match="has no labels") as raised:
        load_spec(spec, [override])
    assert key in {problem.key for problem in raised.value.problems}


def test_a_dataset_with_some_labels_is_damaged(tmp_path: Path) -> None:
    spec = write_unlabeled_spec(tmp_path)
    path = tmp_path / "data.jsonl"
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(lines[0]), "label": 1}), *lines[1:]]) + "\n", "utf-8")
    with pytest.raises(SpecError, match="rows without a label"):
        load_spec(spec)
