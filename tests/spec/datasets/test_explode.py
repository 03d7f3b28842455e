"""Rows with lists of right and wrong solutions, as in Buggy APPS and APPS, become datapoints."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.spec.datasets.settings import DatasetLimits, Explode
from tests.support.dataset_files import datapoint_ids, jsonl, load, read_load_error

ROWS: list[dict[str, Any]] = [
    {
        "problem_id": 100 + i,
        "question": f"Problem {i}: print the sum of the first n odd numbers.",
        "difficulty": ("introductory", "interview")[i % 2],
        "apps_split": "train" if i < 2 else "test",
        "flags": {"checked": True},
        "solutions": [{"solution": f'print("{i}*{k}")\n# é\n'} for k in range(3 if i != 3 else 0)],
        "buggy_solutions": [{"solution": f"print({i}+{k})\n", "bug": "sign"} for k in range(2)],
    }
    for i in range(4)
]
"""Rows in the format of Buggy APPS; the last problem has no right solution."""

COLUMNS = {"id": "problem_id", "split": "apps_split"}
EXPLODE_MAPPINGS = Explode(columns={"solutions": 1, "buggy_solutions": 0}, element="solution")
EXPLODE_TEXTS = Explode(columns={"solutions": 1, "buggy_solutions": 0})

ROWS_WITH_JSON_TEXTS = [
    {
        **row,
        "flags": "{}",
        "solutions": json.dumps([s["solution"] for s in row["solutions"]]) if row["solutions"] else "",
        "buggy_solutions": json.dumps([s["solution"] for s in row["buggy_solutions"]]),
    }
    for row in ROWS
]
"""Rows in the format of APPS on the Hub: lists are JSON texts, and an empty list is an empty text."""


def format_csv(rows: list[dict[str, Any]]) -> str:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def write_rows_as_parquet(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "rows.jsonl").write_text(jsonl(*rows), "utf-8")
    with duckdb.connect() as connection:
        source, target = folder / "rows.jsonl", folder / "d.parquet"
        connection.execute(f"COPY (SELECT * FROM read_json('{source}')) TO '{target}' (FORMAT parquet)")


def test_each_list_element_becomes_a_datapoint_with_the_other_columns_of_its_row(tmp_path: Path) -> None:
    points = load(tmp_path, jsonl(*ROWS), columns=COLUMNS, explode=EXPLODE_MAPPINGS).datapoints
    assert [point.id for point in points[:5]] == [
        "100-solutions-1", "100-solutions-2", "100-solutions-3", "100-buggy_solutions-1", "100-buggy_solutions-2",
    ]  # fmt: skip
    assert [point.label for point in points[:5]] == [1, 1, 1, 0, 0]
    assert {point.group for point in points} == {"100", "101", "102", "103"}
    assert points[4].columns == {
        "question": ROWS[0]["question"], "difficulty": "introductory", "split": "train", "flags": {"checked": True},
        "solution": "print(0+1)\n", "number": 2, "row": "100",
    }  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["d.jsonl", "d.csv", "d.parquet"])
def test_lists_may_be_json_texts_in_every_file_format(tmp_path: Path, name: str) -> None:
    plain = load(tmp_path, jsonl(*ROWS), "plain.jsonl", columns=COLUMNS, explode=EXPLODE_MAPPINGS)
    if name == "d.parquet":
        write_rows_as_parquet(tmp_path, ROWS_WITH_JSON_TEXTS)
    else:
        (tmp_path / name).write_text(
            format_csv(ROWS_WITH_JSON_TEXTS) if name == "d.csv" else jsonl(*ROWS_WITH_JSON_TEXTS), "utf-8", newline=""
        )
    dataset = load(tmp_path, name=name, columns=COLUMNS, explode=EXPLODE_TEXTS)
    points = [(point.id, point.label, point.group, point.columns["solution"]) for point in dataset.datapoints]
    assert points == [(point.id, point.label, point.group, point.columns["solution"]) for point in plain.datapoints]


@pytest.mark.parametrize("name", ["d.jsonl", pytest.param("d.parquet", marks=pytest.mark.full)])
def test_difficulty_number_and_label_can_be_selected(tmp_path: Path, name: str) -> None:
    write_rows_as_parquet(tmp_path, ROWS)
    (tmp_path / "d.jsonl").write_text(jsonl(*ROWS), "utf-8")
    condition = "difficulty = 'interview' AND number = 2 AND solution LIKE 'print(%' AND label = 0 AND row <> '101'"
    dataset = load(tmp_path, name=name, columns=COLUMNS, explode=EXPLODE_MAPPINGS, filter=condition)
    assert datapoint_ids(dataset) == ["103-buggy_solutions-2"]


def test_explode_limit_applies_to_each_list_of_each_row(tmp_path: Path) -> None:
    explode = Explode(columns=EXPLODE_MAPPINGS.columns, element="solution", limit=1)
    dataset = load(tmp_path, jsonl(*ROWS), columns=COLUMNS, explode=explode, split="test")
    assert datapoint_ids(dataset) == ["102-solutions-1", "102-buggy_solutions-1", "103-buggy_solutions-1"]


def test_balanced_limit_takes_whole_rows(tmp_path: Path) -> None:
    dataset = load(
        tmp_path, jsonl(*ROWS), columns=COLUMNS, explode=EXPLODE_MAPPINGS, balance="label", limit=5, shuffle=True
    )
    assert sorted((point.group, point.label) for point in dataset.datapoints) == [
        (group, label) for group in sorted({point.group for point in dataset.datapoints}) for label in (0, 0, 1, 1)
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": {"solutoins": 1}}, "columns.solutoins: the file has no column 'solutoins'; did you mean"),
        ({"columns": {"difficulty": 1}}, "'difficulty' must be a list or a text with a JSON list, in rows 1, 2, 3, 4"),
        ({"columns": {"solutions": 1}}, "has lists of mappings (solution); set dataset.explode.element"),
        ({"columns": {"solutions": 1}, "element": "solutoin"}, "without 'solutoin' (dataset.explode.element); did you"),
        ({"columns": {"solutions": 1}, "element": "solution", "into": "question"}, "already has a column 'question'"),
        ({"columns": {"solutions": 1}, "element": "solution", "number": "row"}, "two columns would be called 'row'"),
    ],
)
def test_explode_settings_that_do_not_fit_the_file_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    message_text = read_load_error(tmp_path, jsonl(*ROWS), columns=COLUMNS, explode=Explode(**settings))
    assert message_text.startswith("dataset.explode.")
    assert message in message_text


def test_list_element_that_is_not_a_text_is_refused_with_its_row(tmp_path: Path) -> None:
    rows = [{"id": 1, "s": ["x"]}, {"id": 2, "s": ["x", None]}, {"id": 3, "s": "[1]"}, {"id": 4, "s": "["}]
    message = read_load_error(tmp_path, jsonl(*rows), explode=Explode(columns={"s": 1}))
    assert message.split("\n") == [
        "dataset.explode.columns.s: column 's' must be a list or a text with a JSON list, in row 4",
        "dataset.explode.columns.s: column 's' must have elements that are texts, not NoneType, in row 2",
        "dataset.explode.columns.s: column 's' must have elements that are texts, not int, in row 3",
    ]


def test_row_limit_applies_to_exploded_rows(tmp_path: Path) -> None:
    row = jsonl({"id": 1, "s": [str(n) for n in range(50)]})
    message = read_load_error(tmp_path, row, explode=Explode(columns={"s": 1}), limits=DatasetLimits(rows=40))
    assert message.startswith("dataset.limits.rows: the file has 50 rows or more, more than dataset.limits.rows (40)")


def test_empty_and_repeated_elements_are_skipped_and_counted(tmp_path: Path) -> None:
    rows = [{"id": 1, "s": ["x", "", "x", " \n", "y"]}, {"id": 2, "s": ["x"]}]
    dataset = load(tmp_path, jsonl(*rows), explode=Explode(columns={"s": 1}))
    assert datapoint_ids(dataset) == ["1-s-1", "1-s-5", "2-s-1"]
    assert dataset.notes == (
        "dataset.explode skips 2 empty and 1 repeated elements of the lists in row 1 of the dataset's file",
    )
    limited_dataset = load(tmp_path, explode=Explode(columns={"s": 1}, limit=1))
    assert (datapoint_ids(limited_dataset), limited_dataset.notes) == (["1-s-1", "2-s-1"], ())


def test_texts_among_mappings_are_used_unchanged(tmp_path: Path) -> None:
    row = jsonl({"id": 1, "s": ["x", {"solution": "y"}]})
    dataset = load(tmp_path, row, explode=Explode(columns={"s": 1}, element="solution"))
    assert [point.columns["solution"] for point in dataset.datapoints] == ["x", "y"]
