"""Datapoints of a group are always selected together."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.results.finetune.game_lines import is_in_validation
from runner.rollouts.plan import Plan
from runner.runs.finished.result import FinishedRun
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.selection import select_datapoints
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.loader import load_spec
from runner.spec.warnings.groups import group_notes
from runner.training.plan import TrainingPlan
from tests.support.dataset_files import jsonl, load, read_load_error
from tests.support.files import json_lines
from tests.support.paths import ROOT
from tests.support.runs import run_spec
from tests.support.specs import spec_file
from tests.support.training import training_spec

PAIRS: list[dict[str, Any]] = [{"id": f"{p}{label}", "label": label, "p": p} for p in "abcdefgh" for label in (1, 0)]


def select_points(points: list[Datapoint], seed: int = 0, **settings: Any) -> list[Datapoint]:
    return select_datapoints(points, DatasetSettings(path="", **settings), seed)


def read_rows(spec: Path) -> list[dict[str, Any]]:
    return list(json_lines(spec.with_name("data.jsonl")))


def cluster_count(result: FinishedRun, metric: str) -> int:
    return next(int(row["clusters"]) for row in result.metrics["metrics"] if row["metric"] == metric)


def test_group_values_of_several_types_with_the_same_text_are_refused(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "label": 1, "p": value} for n, value in enumerate([0, "a", "0", 0.0])]
    message = (
        "'p' has several spellings of one group: 0 (int) in row 1, '0' (str) in row 3, 0.0 (float) in row 4; use one"
    )
    assert read_load_error(tmp_path, jsonl(*rows), group_by="p").startswith(f"dataset.group_by: {message}")
    assert len({point.group for point in load(tmp_path, jsonl(*rows[:2]), group_by="p").datapoints}) == 2


def make_points(sizes: list[tuple[int, int]]) -> list[Datapoint]:
    """Return groups with these numbers of wrong and right datapoints."""
    return [
        Datapoint(f"{group}-{label}-{n}", label, {}, str(group))
        for group, counts in enumerate(sizes)
        for label in (0, 1)
        for n in range(counts[label])
    ]


def test_each_datapoint_is_its_own_group_without_group_by(tmp_path: Path) -> None:
    assert [point.group for point in load(tmp_path, jsonl(*PAIRS[:2])).datapoints] == ["a1", "a0"]
    dataset = load(tmp_path, group_by="p")
    assert [(point.id, point.group) for point in dataset.datapoints] == [("a1", "a"), ("a0", "a")]
    assert dataset.sha256 == load(tmp_path).sha256


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "rows whose 'p' is empty: 3; set a group, such as the id, in each"),
        ("", "rows whose 'p' is empty: 3; set a group, such as the id, in each"),
        (" ", "rows whose 'p' is empty: 3; set a group, such as the id, in each"),
        (["x"], "column 'p' must have texts or numbers; rows with other values: 3"),
    ],
)
def test_row_without_a_group_is_refused(tmp_path: Path, value: Any, message: str) -> None:
    content = jsonl(*PAIRS[:2], {"id": "x", "label": 1, "p": value})
    assert read_load_error(tmp_path, content, group_by="p") == f"dataset.group_by: {message}"


def test_missing_group_column_suggests_the_nearest_name(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, jsonl({"id": "a", "label": 1, "problem": "x"}), group_by="problme")
    assert message == "dataset.group_by: no column 'problme'; did you mean 'problem'?"


def test_shuffle_keeps_groups_together_and_ignores_the_order_of_the_file() -> None:
    points = [Datapoint(row["id"], row["label"], {}, row["p"]) for row in PAIRS]
    order = [point.id for point in select_points(points, 3, shuffle=True)]
    assert [first_id[0] for first_id in order[::2]] == [second_id[0] for second_id in order[1::2]] != list("abcdefgh")
    reordered = random.Random(0).sample(points, len(points))
    assert [point.id for point in select_points(reordered, 3, shuffle=True)] == order


def test_limit_takes_whole_groups_and_a_larger_limit_adds_to_them() -> None:
    points = make_points([(1, 2), (2, 2), (1, 1), (4, 0)])
    sizes = []
    previous: set[str] = set()
    for limit in range(1, 15):
        selected = {point.id for point in select_points(points, limit=limit)}
        assert previous <= selected
        previous = selected
        sizes.append(len(selected))
    assert sizes == [1, 2, 3, 3, 3, 3, 7, 7, 9, 9, 9, 9, 13, 13]


def test_balance_pairs_labels_within_groups_first() -> None:
    points = make_points([(0, 2), (1, 1), (1, 0)])
    selected = [point.id for point in select_points(points, balance="label")]
    assert selected == ["0-1-0", "1-0-0", "1-1-0", "2-0-0"]
    assert [point.id for point in select_points(points, balance="label", limit=3)] == ["0-1-0", "2-0-0"]
    ungrouped = [Datapoint(point.id, point.label, {}) for point in points]
    assert [point.id for point in select_points(ungrouped, balance="label")] == ["0-1-0", "0-1-1", "1-0-0", "2-0-0"]


@pytest.mark.parametrize("limit", [None, 1, 2, 7, 20])
@pytest.mark.parametrize("seed", range(4))
def test_balance_is_exact_for_groups_of_any_composition(seed: int, limit: int | None) -> None:
    rng = random.Random(seed)
    points = make_points([(rng.randrange(4), rng.randrange(4)) for _ in range(9)])
    labels = [point.label for point in select_points(points, seed, balance="label", shuffle=True, limit=limit)]
    assert labels.count(1) * 2 == len(labels) <= (limit or 100)
    if limit is None:
        assert labels.count(1) == min(sum(point.label == label for point in points) for label in (0, 1))


def test_run_identity_includes_groups_only_if_they_affect_the_selection(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4)
    plain, grouped = (Plan(load_spec(path, overrides)) for overrides in ([], ["dataset.group_by=question"]))
    assert plain.identity == grouped.identity
    assert "dataset.group_by" in grouped.mutable_keys
    plain, grouped = (
        Plan(load_spec(path, ["dataset.shuffle=true", *overrides])) for overrides in ([], ["dataset.group_by=id"])
    )
    assert plain.identity != grouped.identity
    assert "dataset.group_by" not in grouped.mutable_keys
    assert Plan(load_spec(path, ["dataset.labels.ok=1"])).identity != Plan(load_spec(path)).identity


# Notes of `check`


def notes_for(folder: Path, rows: list[dict[str, Any]], *overrides: str) -> list[str]:
    path = spec_file(folder)
    (folder / "data.jsonl").write_text(jsonl(*rows), "utf-8")
    return group_notes(load_spec(path, overrides))


SHARED = [
    {"id": f"{p}{label}", "label": label, "problem": p, "question": f"Write {p}.", "solution": f"{p}{label}"}
    for p in "ab"
    for label in (0, 1)
]


def test_note_on_shared_questions_suggests_the_group_column(tmp_path: Path) -> None:
    (note,) = notes_for(tmp_path, SHARED)
    assert note.startswith("4 of 4 datapoints share their 'question' with another, as a0 and a1 do: ")
    assert "set dataset.group_by: problem (or, if they are independent, dataset.group_by: id)" in note
    rows_without_problem = [{name: value for name, value in row.items() if name != "problem"} for row in SHARED]
    assert "set dataset.group_by: question (or" in notes_for(tmp_path, rows_without_problem)[0]


def test_no_note_if_groups_are_set_or_questions_differ(tmp_path: Path) -> None:
    assert notes_for(tmp_path, SHARED, "dataset.group_by=problem") == []
    assert notes_for(tmp_path, SHARED, "dataset.group_by=id") == []
    assert notes_for(tmp_path, [{**row, "question": row["id"], "solution": "same"} for row in SHARED]) == []


def make_rows(texts: list[str], labels: list[int], **columns: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"r{n}", "label": label, "question": f"Is r{n} so?", "solution": text, "claim": text, **columns}
        for n, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]


def test_shared_question_is_noted_even_if_other_columns_differ(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    shutil.copytree(ROOT / "prompts" / "code_validation" / "nip", prompts)
    with (prompts / "prover.jinja").open("a", encoding="utf-8") as file:
        file.write("{{ claim }}{{ hint }}{{ topic }}")
    rows = make_rows(["Fish fly.", "Fish fly.", "Cows moo."], [0, 1, 1], topic="x")
    claims = [{**row, "solution": row["id"], "hint": row["id"]} for row in rows]
    (note,) = notes_for(tmp_path, claims, f"prompts={prompts}")
    assert note.startswith("2 of 3 datapoints share their 'claim' with another, as r0 and r1 do: ")
    assert "set dataset.group_by: claim (or" in note
    assert notes_for(tmp_path, [{**row, "claim": row["id"]} for row in claims], f"prompts={prompts}") == []


def test_note_on_rows_that_look_identical_counts_conflicting_labels(tmp_path: Path) -> None:
    rows = [{**row, "question": row["solution"]} for row in make_rows(["1", "1", "2"], [0, 1, 1])]
    (note,) = notes_for(tmp_path, rows)
    assert note.startswith(
        "2 of 3 datapoints are the same as another in all that templates show, question, solution (2 of them with "
        "both labels), as r0 and r1 are: "
    )
    assert "set dataset.group_by: solution (or" in note


# Training


def test_training_iterations_keep_groups_together_and_skip_none(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"datapoints_per_iteration": 4, "iterations": 3})
    rows = [{**row, "pair": f"{row['split']}{int(row['question'].split()[-1][:-1]) // 2}"} for row in read_rows(path)]
    path.with_name("data.jsonl").write_text(jsonl(*rows), "utf-8")
    ungrouped, plan = (TrainingPlan(load_spec(path, overrides)) for overrides in ([], ["dataset.group_by=pair"]))
    played_points = [point for iteration in range(3) for point in plan.datapoints(iteration)]
    assert len({point.id for point in played_points}) == 12
    assert all(
        first.group == second.group for first, second in zip(played_points[::2], played_points[1::2], strict=True)
    )
    assert plan.identity != ungrouped.identity


def test_group_in_both_training_and_test_split_is_refused(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    rows = [{**row, "topic": "both" if row["id"].endswith("3") else row["id"]} for row in read_rows(path)]
    path.with_name("data.jsonl").write_text(jsonl(*rows), "utf-8")
    with pytest.raises(SpecError, match="these groups are also trained on: both; put each topic in one split"):
        load_spec(path, ["dataset.group_by=topic"])


# A run


@pytest.mark.full
def test_finished_run_is_clustered_by_group_without_new_games(tmp_path: Path) -> None:
    path = spec_file(tmp_path, fine_tune={"validation_share": 0.5}, rollouts={"per_datapoint": 2})
    (tmp_path / "data.jsonl").write_text(jsonl(*SHARED), "utf-8")
    ungrouped_run = run_spec(path, tmp_path / "results")
    grouped_run = run_spec(path, tmp_path / "results", "dataset.group_by=problem")
    assert grouped_run.folder.path == ungrouped_run.folder.path
    assert [cluster_count(result, "accuracy") for result in (ungrouped_run, grouped_run)] == [4, 2]
    assert cluster_count(grouped_run, "worst_datapoint_accuracy") == 4
    assert grouped_run.metrics["interval"].endswith("clustered by group")
    replayed = run_spec(grouped_run.folder.spec, tmp_path / "elsewhere", again=True)
    assert replayed.metrics["metrics"] == grouped_run.metrics["metrics"]
    for suffix, is_in in (("", False), ("validation.", True)):
        lines = json_lines(grouped_run.folder.fine_tune / f"m.sft.{suffix}jsonl.trace.jsonl")
        assert all(is_in_validation(line["datapoint_id"][0], 0.5) == is_in for line in lines)
        assert lines
