"""Rows that `dataset.labels` and `dataset.unique_by` skip."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import SpecError
from runner.rollouts.identity import selection_content
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.loader import load_spec
from tests.support.dataset_files import datapoint_ids, load, read_load_error
from tests.support.specs import spec_file

CLAIMS = """id,label,claim
a,yes,Water boils.
b,unsure,Ice is hot.
c,,Snow is black.
d,no,"water  BOILS. "
e,no,Iron floats.
f,no, iron floats.
"""


def test_rows_with_a_label_mapped_to_skip_are_not_used(tmp_path: Path) -> None:
    dataset = load(tmp_path, CLAIMS, "d.csv", labels={"Unsure": "skip", "": "skip"})
    assert datapoint_ids(dataset) == ["a", "d", "e", "f"]
    assert [point.label for point in dataset.datapoints] == [1, 0, 0, 0]


def test_empty_label_key_skips_null_and_empty_labels(tmp_path: Path) -> None:
    lines = '{"id": "a", "label": 1}\n{"id": "b", "label": null}\n{"id": "c", "label": ""}\n'
    assert datapoint_ids(load(tmp_path, lines, labels={"": "skip"})) == ["a"]


def test_error_for_missing_labels_names_the_key_that_skips_them(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, CLAIMS, "d.csv", labels={"unsure": "skip"})
    assert message.endswith("c (row 3); add labels, or skip these rows with dataset.labels: {'': skip}")


def test_spec_that_skips_all_rows_is_refused(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, "id,label\na,maybe\n", "d.csv", labels={"maybe": "skip"})
    assert "dataset.labels skips all rows" in message


def test_unique_by_keeps_the_first_duplicate_and_none_if_labels_differ(tmp_path: Path) -> None:
    dataset = load(tmp_path, CLAIMS, "d.csv", labels={"unsure": "skip", "": "skip"}, unique_by=("claim",))
    assert datapoint_ids(dataset) == ["e"]
    assert dataset.notes == ("skipped by dataset.unique_by, because their labels differ: a (row 1), d (row 4)",)


def test_unknown_unique_by_column_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, CLAIMS, "d.csv", labels={"unsure": "skip", "": "skip"}, unique_by=("claims",))
    assert message == "dataset.unique_by: no column 'claims'; did you mean 'claim'?"


def test_label_mapping_to_another_value_is_refused_by_the_schema(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"dataset\.labels\.maybe"):
        load_spec(spec_file(tmp_path, dataset={"labels": {"maybe": "CHANGE"}}))


def test_run_identity_includes_unique_by_only_if_it_is_set() -> None:
    plain = selection_content(DatasetSettings(path="d.csv"))
    assert "unique_by" not in plain
    assert selection_content(DatasetSettings(path="d.csv", unique_by=("claim",)))["unique_by"] == ["claim"]
