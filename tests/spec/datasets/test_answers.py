"""Candidate answers of datapoints, and the right answers named by labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.spec.datasets.datapoint import Datapoint
from tests.support.dataset_files import datapoint_ids, jsonl, load, read_load_error, write_parquet

THREE = ["Paris", "Rome", "Oslo"]


def load_point(folder: Path, label: Any, answers: Any = THREE, **settings: Any) -> Datapoint:
    content = jsonl({"id": "a", "label": label, "options": answers})
    (datapoint,) = load(folder, content, **{"answers": "options", **settings}).datapoints
    return datapoint


def load_right_answers(folder: Path, label: Any, answers: Any = THREE, **settings: Any) -> tuple[int, ...] | None:
    answers_of_point = load_point(folder, label, answers, **settings).answers
    assert answers_of_point is not None
    return answers_of_point.right


@pytest.mark.parametrize("label", ["Rome", "B", "b", 2, "2", 2.0, ["B"], '["B"]', ["Rome", 2]])
def test_label_names_an_answer_by_text_letter_or_number(tmp_path: Path, label: Any) -> None:
    assert load_right_answers(tmp_path, label) == (1,)


def test_several_answers_may_be_right(tmp_path: Path) -> None:
    assert load_right_answers(tmp_path, ["C", 1]) == (0, 2)
    assert load_point(tmp_path, ["C", 1]).saved_label == [1, 3]


def test_label_may_be_a_zero_based_index(tmp_path: Path) -> None:
    assert load_right_answers(tmp_path, 0, right_answers="index") == (0,)
    assert read_load_error(tmp_path, jsonl({"id": "a", "label": 0, "o": THREE}), answers="o") == (
        "dataset.right_answers: label '0' is not the text, letter or number (from 1) of an answer; if the file counts "
        "answers from 0, set dataset.right_answers: index: a (row 1)"
    )


def test_label_that_names_two_different_answers_is_refused(tmp_path: Path) -> None:
    content = jsonl({"id": "a", "label": 2, "o": [2, 3, 1]})
    assert read_load_error(tmp_path, content, answers="o") == (
        "dataset.right_answers: label '2' is the text of answer 1 and the number of answer 2; set "
        "dataset.right_answers to text or number: a (row 1)"
    )
    assert load_right_answers(tmp_path, 2, [2, 3, 1], right_answers="text") == (0,)
    assert load_right_answers(tmp_path, 2, [2, 3, 1], right_answers="number") == (1,)
    assert load_right_answers(tmp_path, 2, [1, 2, 3]) == (1,)


def test_answers_may_be_in_separate_columns_including_the_label_column(tmp_path: Path) -> None:
    content = "id,best,other,third\na,Paris,Rome,\nb,Oslo,Bern,Riga\n"
    dataset = load(tmp_path, content, "d.csv", columns={"label": "best"}, answers=("best", "other", "third"))
    assert [p.columns for p in dataset.datapoints] == [
        {"answers": ["Paris", "Rome"]},
        {"answers": ["Oslo", "Bern", "Riga"]},
    ]
    assert [p.saved_label for p in dataset.datapoints] == [[1], [1]]
    assert dataset.columns == ("answers",)


def test_answer_list_may_be_a_json_text_or_a_parquet_list(tmp_path: Path) -> None:
    assert load_right_answers(tmp_path, "B", '["x", "y"]') == (1,)
    write_parquet(tmp_path, "SELECT 'a' id, 'C' \"label\", ['x', 'y', 'z'] o")
    assert load(tmp_path, name="d.parquet", answers="o").datapoints[0].saved_label == [3]


def test_right_answers_are_hidden_if_every_label_is_empty(tmp_path: Path) -> None:
    dataset = load(tmp_path, jsonl({"id": "a", "label": None, "o": THREE}), answers="o")
    assert not dataset.is_labelled
    assert dataset.datapoints[0].saved_label is None


def test_rows_with_a_label_to_skip_are_not_used(tmp_path: Path) -> None:
    content = jsonl({"id": "a", "label": "A", "o": THREE}, {"id": "b", "label": "", "o": THREE})
    assert datapoint_ids(load(tmp_path, content, answers="o", labels={"": "skip"})) == ["a"]
    assert "rows without a right answer" in read_load_error(tmp_path, content, answers="o")


EMPTY_ANSWER = "dataset.answers: each answer must be a text or a number, and not empty: a (row 1)"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"label": "A", "o": ["x"]}, "dataset.answers: a datapoint needs from 2 to 26 answers, not 1: a (row 1)"),
        ({"label": "A", "o": ["x", "x"]}, "dataset.answers: two answers are the same text 'x': a (row 1)"),
        ({"label": "A", "o": ["x", ""]}, EMPTY_ANSWER),
        ({"label": "A", "o": ["x", None]}, EMPTY_ANSWER),
        (
            {"label": "A", "o": "x"},
            "dataset.answers: column 'o' must be a list of answers, or a text with a JSON list: a (row 1)",
        ),
        (
            {"label": "D", "o": THREE},
            "dataset.right_answers: label 'D' is not the text, letter or number (from 1) of an answer: a (row 1)",
        ),
        (
            {"label": ["A", "B", "C"], "o": THREE},
            "dataset.right_answers: all answers are right, so there is nothing to decide: a (row 1)",
        ),
    ],
)  # fmt: skip
def test_unusable_rows_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    assert read_load_error(tmp_path, jsonl({"id": "a", **row}), answers="o") == message


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "label": "A", "o": ["x"]},
        {"id": "b", "label": "Z", "o": THREE},
        {"id": "c", "label": "A", "o": ["x"]},
    ]
    assert read_load_error(tmp_path, jsonl(*rows), answers="o").splitlines() == [
        "dataset.answers: a datapoint needs from 2 to 26 answers, not 1: a (row 1), c (row 3)",
        "dataset.right_answers: label 'Z' is not the text, letter or number (from 1) of an answer: b (row 2)",
    ]


def test_settings_for_binary_labels_are_refused(tmp_path: Path) -> None:
    content = jsonl({"id": "a", "label": "A", "o": THREE})
    message = read_load_error(tmp_path, content, answers="o", balance="label", labels={"A": 1})
    assert message.splitlines() == [
        "dataset.balance: balances labels 0 and 1, which listed answers do not have; remove it, or dataset.answers",
        "dataset.labels: with listed answers, only `skip` is possible, not A; remove it, or dataset.answers",
    ]


def test_missing_answer_column_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    content = jsonl({"id": "a", "label": "A", "options": THREE})
    assert read_load_error(tmp_path, content, answers="option") == (
        "dataset.answers: the file has no column 'option'; did you mean 'options'?"
    )


def test_second_column_called_answers_is_refused(tmp_path: Path) -> None:
    content = jsonl({"id": "a", "label": "A", "o": THREE, "answers": "?"})
    assert "the file has another column 'answers'" in read_load_error(tmp_path, content, answers="o")


def test_content_hash_includes_right_answers_and_keeps_binary_hashes(tmp_path: Path) -> None:
    assert load_point(tmp_path, "A").content_hash != load_point(tmp_path, "B").content_hash
    binary = Datapoint("a", 1, {"text": "x"})
    assert binary.content_hash == "53f53f65bd44388f3946d30b338b9338e35e03c2c5d405bc43e27c7cd1c35ac3"
