"""Labels that are words, and ids built from row numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.spec.loader import load_spec
from tests.support.dataset_files import datapoint_ids, jsonl, load, read_load_error, write_parquet
from tests.support.specs import spec_file


def load_labels(folder: Path, content: str | None = None, name: str = "d.jsonl", **settings: Any) -> list[int | None]:
    return [point.label for point in load(folder, content, name, **settings).datapoints]


@pytest.mark.parametrize(("right", "wrong"), [("true", "false"), ("YES", "No"), ("True", "FALSE"), ("1", "0")])
def test_unambiguous_words_are_labels_in_any_case(tmp_path: Path, right: str, wrong: str) -> None:
    assert load_labels(tmp_path, f"id,label\na,{right}\nb,{wrong}\n", "d.csv") == [1, 0]
    if right != "1":
        assert load_labels(tmp_path, jsonl({"id": 1, "label": right}, {"id": 2, "label": wrong})) == [1, 0]


def test_booleans_are_labels_in_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path, "SELECT 'a' id, true \"label\" UNION ALL SELECT 'b', false")
    assert load_labels(tmp_path, name="d.parquet") == [1, 0]


@pytest.mark.full
def test_whole_numbers_are_labels_however_they_are_written(tmp_path: Path) -> None:
    assert load_labels(tmp_path, '{"id": 1, "label": 1.0}\n{"id": 2, "label": 0.0}\n') == [1, 0]
    assert load_labels(tmp_path, "id,label\na,1.0\nb,0\n", "d.csv") == [1, 0]
    write_parquet(tmp_path, "SELECT 'a' id, 1::DOUBLE \"label\" UNION ALL SELECT 'b', 0::DOUBLE")
    assert load_labels(tmp_path, name="d.parquet") == [1, 0]
    assert "labels must be 0 or 1" in read_load_error(tmp_path, '{"id": 1, "label": 0.5}\n')


def test_word_with_both_labels_is_refused(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, "id,label\na,Yes\n", "d.csv", labels={"Yes": 1, "yes ": 0})
    assert message == "dataset.labels: 'Yes', 'yes ' differ only in case but have different labels; remove one"


def test_spec_may_assign_labels_to_words(tmp_path: Path) -> None:
    content = "id,label\na,Buggy\nb,fine\nc,yes\n"
    assert load_labels(tmp_path, content, "d.csv", labels={"buggy": 0, "fine": 1}) == [0, 1, 1]
    assert load_labels(tmp_path, content, "d.csv", labels={"buggy": 1, "fine": 0, "yes": 0}) == [1, 0, 0]


def test_spec_may_assign_labels_to_any_number(tmp_path: Path) -> None:
    content = '{"id": 1, "label": 0.5}\n{"id": 2, "label": 2.0}\n'
    assert load_labels(tmp_path, content, labels={"0.5": 0, "2": 1}) == [0, 1]
    write_parquet(tmp_path, "SELECT 'a' id, 0.5::DOUBLE \"label\" UNION ALL SELECT 'b', 2::DOUBLE")
    assert load_labels(tmp_path, name="d.parquet", labels={"0.5": 0, "2": 1}) == [0, 1]


def test_error_for_unknown_label_words_suggests_dataset_labels(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, "id,label\na,good\nb,bad\nc,bad\nd,1\n", "d.csv", labels={"god": 1})
    assert message.startswith(
        "dataset.path: labels must be 0 or 1: a (row 1) has 'good'; b (row 2) and 1 more have 'bad'; map other values"
    )


def test_yes_and_no_may_be_unquoted_in_a_spec(tmp_path: Path) -> None:
    path = spec_file(tmp_path, dataset={"labels": {}})
    path.write_text(path.read_text("utf-8").replace('"labels": {}', '"labels": {yes: 0, no: 1, 7: 1}'), "utf-8")
    assert load_spec(path).experiment.dataset.labels == {"yes": 0, "no": 1, "7": 1}


def test_yes_and_no_may_be_unquoted_in_an_override(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    for override in (
        "dataset.labels={yes: 0, no: 1}",
        f"dataset={{path: {tmp_path}/data.jsonl, labels: {{yes: 0, no: 1}}}}",
    ):
        assert load_spec(path, [override]).experiment.dataset.labels == {"yes": 0, "no": 1}


def test_ids_are_built_from_row_numbers_of_the_file(tmp_path: Path) -> None:
    content = "label,split,id\n1,a,same\n0,b,same\n0,a,same\n"
    assert datapoint_ids(load(tmp_path, content, "d.csv", ids="rows")) == ["row-1", "row-2", "row-3"]
    assert datapoint_ids(load(tmp_path, name="d.csv", ids="rows", split="a", filter="id <> 'row-1'")) == ["row-3"]


def test_error_for_a_missing_id_column_suggests_ids_from_rows(tmp_path: Path) -> None:
    assert read_load_error(tmp_path, "label\n1\n", "d.csv").endswith("or set dataset.ids=rows")
    assert "remove one of the two" in read_load_error(
        tmp_path, "label,x\n1,2\n", "d.csv", ids="rows", columns={"id": "x"}
    )
