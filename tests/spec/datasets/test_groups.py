"""Datapoints of one group: played together or not at all, wherever some are chosen."""

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


def kept_of(points: list[Datapoint], seed: int = 0, **settings: Any) -> list[Datapoint]:
    return select_datapoints(points, DatasetSettings(path="", **settings), seed)


def rows_of(spec: Path) -> list[dict[str, Any]]:
    return list(json_lines(spec.with_name("data.jsonl")))


def clusters(result: FinishedRun, metric: str) -> int:
    return next(int(row["clusters"]) for row in result.metrics["metrics"] if row["metric"] == metric)


def test_groups_of_several_types_that_read_the_same_are_refused(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "label": 1, "p": value} for n, value in enumerate([0, "a", "0", 0.0])]
    said = "'p' has several spellings of one group: 0 (int) in row 1, '0' (str) in row 3, 0.0 (float) in row 4; use one"
    assert read_load_error(tmp_path, jsonl(*rows), group_by="p").startswith(f"dataset.group_by: {said}")
    assert len({point.group for point in load(tmp_path, jsonl(*rows[:2]), group_by="p").datapoints}) == 2


def points_of(sizes: list[tuple[int, int]]) -> list[Datapoint]:
    """Groups with so many wrong and right datapoints."""
    return [
        Datapoint(f"{group}-{label}-{n}", label, {}, str(group))
        for group, counts in enumerate(sizes)
        for label in (0, 1)
        for n in range(counts[label])
    ]


def test_a_datapoint_is_its_own_group_unless_a_column_says_another(tmp_path: Path) -> None:
    assert [point.group for point in load(tmp_path, jsonl(*PAIRS[:2])).datapoints] == ["a1", "a0"]
    found = load(tmp_path, group_by="p")
    assert [(point.id, point.group) for point in found.datapoints] == [("a1", "a"), ("a0", "a")]
    assert found.sha256 == load(tmp_path).sha256


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "rows whose 'p' is empty: 3; set a group, such as the id, in each"),
        ("", "rows whose 'p' is empty: 3; set a group, such as the id, in each"),
        (" ", "rows whose 'p' is empty: 3; set a group, such as the id, in each"),
        (["x"], "column 'p' must have texts or numbers; rows with other values: 3"),
    ],
)
def test_a_row_without_a_group_is_refused(tmp_path: Path, value: Any, message: str) -> None:
    content = jsonl(*PAIRS[:2], {"id": "x", "label": 1, "p": value})
    assert read_load_error(tmp_path, content, group_by="p") == f"dataset.group_by: {message}"


def test_a_group_column_that_is_not_there_gets_the_nearest(tmp_path: Path) -> None:
    said = read_load_error(tmp_path, jsonl({"id": "a", "label": 1, "problem": "x"}), group_by="problme")
    assert said == "dataset.group_by: no column 'problme'; did you mean 'problem'?"


def test_a_shuffle_keeps_a_group_together_whatever_the_order_of_the_file() -> None:
    points = [Datapoint(row["id"], row["label"], {}, row["p"]) for row in PAIRS]
    order = [point.id for point in kept_of(points, 3, shuffle=True)]
    assert [one[0] for one in order[::2]] == [other[0] for other in order[1::2]] != list("abcdefgh")
    mixed = random.Random(0).sample(points, len(points))
    assert [point.id for point in kept_of(mixed, 3, shuffle=True)] == order


def test_a_limit_takes_whole_groups_and_a_longer_one_the_same_and_more() -> None:
    points = points_of([(1, 2), (2, 2), (1, 1), (4, 0)])
    sizes = []
    before: set[str] = set()
    for limit in range(1, 15):
        kept = {point.id for point in kept_of(points, limit=limit)}
        assert before <= kept
        before = kept
        sizes.append(len(kept))
    assert sizes == [1, 2, 3, 3, 3, 3, 7, 7, 9, 9, 9, 9, 13, 13]


def test_balance_pairs_within_a_group_before_it_pairs_groups() -> None:
    points = points_of([(0, 2), (1, 1), (1, 0)])
    kept = [point.id for point in kept_of(points, balance="label")]
    assert kept == ["0-1-0", "1-0-0", "1-1-0", "2-0-0"]
    assert [point.id for point in kept_of(points, balance="label", limit=3)] == ["0-1-0", "2-0-0"]
    alone = [Datapoint(point.id, point.label, {}) for point in points]
    assert [point.id for point in kept_of(alone, balance="label")] == ["0-1-0", "0-1-1", "1-0-0", "2-0-0"]


@pytest.mark.parametrize("limit", [None, 1, 2, 7, 20])
@pytest.mark.parametrize("seed", range(4))
def test_balance_is_exact_for_groups_of_any_make(seed: int, limit: int | None) -> None:
    rng = random.Random(seed)
    points = points_of([(rng.randrange(4), rng.randrange(4)) for _ in range(9)])
    labels = [point.label for point in kept_of(points, seed, balance="label", shuffle=True, limit=limit)]
    assert labels.count(1) * 2 == len(labels) <= (limit or 100)
    if limit is None:
        assert labels.count(1) == min(sum(point.label == label for point in points) for label in (0, 1))


def test_the_identity_of_a_run_has_its_groups_only_where_they_choose(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4)
    plain, named = (Plan(load_spec(path, words)) for words in ([], ["dataset.group_by=question"]))
    assert plain.identity == named.identity
    assert "dataset.group_by" in named.mutable_keys
    plain, named = (Plan(load_spec(path, ["dataset.shuffle=true", *words])) for words in ([], ["dataset.group_by=id"]))
    assert plain.identity != named.identity
    assert "dataset.group_by" not in named.mutable_keys
    assert Plan(load_spec(path, ["dataset.labels.ok=1"])).identity != Plan(load_spec(path)).identity


# Notes of `check`


def noted(folder: Path, rows: list[dict[str, Any]], *words: str) -> list[str]:
    path = spec_file(folder)
    (folder / "data.jsonl").write_text(jsonl(*rows), "utf-8")
    return group_notes(load_spec(path, words))


SHARED = [
    {"id": f"{p}{label}", "label": label, "problem": p, "question": f"Write {p}.", "solution": f"{p}{label}"}
    for p in "ab"
    for label in (0, 1)
]


def test_datapoints_that_share_their_question_are_noted_with_the_column_that_groups_them(tmp_path: Path) -> None:
    (note,) = noted(tmp_path, SHARED)
    assert note.startswith("4 of 4 datapoints share their 'question' with another, as a0 and a1 do: ")
    assert "set dataset.group_by: problem (or, if they are independent, dataset.group_by: id)" in note
    without = [{name: value for name, value in row.items() if name != "problem"} for row in SHARED]
    assert "set dataset.group_by: question (or" in noted(tmp_path, without)[0]


def test_nothing_is_noted_where_groups_are_said_or_questions_differ(tmp_path: Path) -> None:
    assert noted(tmp_path, SHARED, "dataset.group_by=problem") == []
    assert noted(tmp_path, SHARED, "dataset.group_by=id") == []
    assert noted(tmp_path, [{**row, "question": row["id"], "solution": "same"} for row in SHARED]) == []


def rows_with(texts: list[str], labels: list[int], **more: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"r{n}", "label": label, "question": f"Is r{n} so?", "solution": text, "claim": text, **more}
        for n, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]


def test_a_question_that_is_shared_is_noted_whatever_else_differs(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    shutil.copytree(ROOT / "prompts" / "code_validation" / "nip", prompts)
    with (prompts / "prover.jinja").open("a", encoding="utf-8") as file:
        file.write("{{ claim }}{{ hint }}{{ topic }}")
    rows = rows_with(["Fish fly.", "Fish fly.", "Cows moo."], [0, 1, 1], topic="x")
    claims = [{**row, "solution": row["id"], "hint": row["id"]} for row in rows]
    (note,) = noted(tmp_path, claims, f"prompts={prompts}")
    assert note.startswith("2 of 3 datapoints share their 'claim' with another, as r0 and r1 do: ")
    assert "set dataset.group_by: claim (or" in note
    assert noted(tmp_path, [{**row, "claim": row["id"]} for row in claims], f"prompts={prompts}") == []


def test_rows_that_are_the_same_in_all_that_is_shown_are_noted_with_their_labels(tmp_path: Path) -> None:
    rows = [{**row, "question": row["solution"]} for row in rows_with(["1", "1", "2"], [0, 1, 1])]
    (note,) = noted(tmp_path, rows)
    assert note.startswith(
        "2 of 3 datapoints are the same as another in all that templates show, question, solution (2 of them with "
        "both labels), as r0 and r1 are: "
    )
    assert "set dataset.group_by: solution (or" in note


# Training


def test_an_iteration_plays_groups_side_by_side_and_skips_none(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"datapoints_per_iteration": 4, "iterations": 3})
    rows = [{**row, "pair": f"{row['split']}{int(row['question'].split()[-1][:-1]) // 2}"} for row in rows_of(path)]
    path.with_name("data.jsonl").write_text(jsonl(*rows), "utf-8")
    alone, plan = (TrainingPlan(load_spec(path, words)) for words in ([], ["dataset.group_by=pair"]))
    seen = [point for iteration in range(3) for point in plan.datapoints(iteration)]
    assert len({point.id for point in seen}) == 12
    assert all(one.group == other.group for one, other in zip(seen[::2], seen[1::2], strict=True))
    assert plan.identity != alone.identity


def test_a_group_is_not_trained_and_tested_on(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    rows = [{**row, "topic": "both" if row["id"].endswith("3") else row["id"]} for row in rows_of(path)]
    path.with_name("data.jsonl").write_text(jsonl(*rows), "utf-8")
    with pytest.raises(SpecError, match="these groups are also trained on: both; put each topic in one split"):
        load_spec(path, ["dataset.group_by=topic"])


# A run


@pytest.mark.full
def test_a_finished_run_is_counted_by_groups_without_playing_again(tmp_path: Path) -> None:
    path = spec_file(tmp_path, fine_tune={"validation_share": 0.5}, rollouts={"per_datapoint": 2})
    (tmp_path / "data.jsonl").write_text(jsonl(*SHARED), "utf-8")
    before = run_spec(path, tmp_path / "results")
    after = run_spec(path, tmp_path / "results", "dataset.group_by=problem")
    assert after.folder.path == before.folder.path
    assert [clusters(result, "accuracy") for result in (before, after)] == [4, 2]
    assert clusters(after, "worst_datapoint_accuracy") == 4
    assert after.metrics["interval"].endswith("clustered by group")
    again = run_spec(after.folder.spec, tmp_path / "elsewhere", again=True)
    assert again.metrics["metrics"] == after.metrics["metrics"]
    for suffix, is_in in (("", False), ("validation.", True)):
        lines = json_lines(after.folder.fine_tune / f"m.sft.{suffix}jsonl.trace.jsonl")
        assert all(is_in_validation(line["datapoint_id"][0], 0.5) == is_in for line in lines)
        assert lines
