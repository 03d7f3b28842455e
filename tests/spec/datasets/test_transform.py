"""Steps that change the texts and columns of a dataset."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from runner.documents.dataclass_schema import from_plain, to_plain
from runner.rollouts.identity import selection_content
from runner.spec.datasets.settings import DatasetSettings, Explode, TransformStep
from runner.spec.datasets.transform import normalize_formatting, strip_c_comments, strip_python_comments
from tests.support.dataset_files import jsonl, load, read_load_error
from tests.support.runs import run_spec
from tests.support.specs import spec_file

STRIP_COMMENTS = TransformStep(step="strip_comments", columns=("text",), language="python")
ROWS = (
    {"id": "a", "label": 0, "group": 1, "title": "One", "text": "x = 1  # wrong\n"},
    {"id": "b", "label": 1, "group": 1, "title": None, "text": "x = 2\n"},
)


def load_columns(folder: Path, *steps: TransformStep, **settings: Any) -> list[dict[str, Any]]:
    return [dict(point.columns) for point in load(folder, jsonl(*ROWS), transform=steps, **settings).datapoints]


def test_strip_python_comments_keeps_strings_docstrings_and_lines() -> None:
    code = (
        '#!/usr/bin/env python\n# é: a comment\ndef f(é):\n    """A # docstring."""\n    # alone\n'
        "    y = ['#', 'ü#',  # wrong: off by one\n         é]\n\n    return f'{y}#'\n"
    )
    stripped = strip_python_comments(code)
    assert stripped == (
        "def f(é):\n    \"\"\"A # docstring.\"\"\"\n    y = ['#', 'ü#',\n         é]\n\n    return f'{y}#'\n"
    )
    assert ast.dump(ast.parse(stripped)) == ast.dump(ast.parse(code))


def test_code_without_comments_is_unchanged() -> None:
    source = Path(__file__).read_text("utf-8")
    assert ast.dump(ast.parse(strip_python_comments(source))) == ast.dump(ast.parse(source))
    assert strip_python_comments(strip_python_comments(source)) == strip_python_comments(source)


def test_strip_c_comments_keeps_quoted_text() -> None:
    code = 'int x; // one\n/* two\n lines */\nchar *s = "// no \\" /* no */";\nint a/**/b; char c = \'"\'; // end'
    assert strip_c_comments(code) == 'int x;\nchar *s = "// no \\" /* no */";\nint a b; char c = \'"\';'


def test_normalize_formatting_is_idempotent() -> None:
    text = "\r\n\tif x:  \r\n  \ty\r\n\r\n\r\n\r\nz = 'a\tb'\n\n"
    assert normalize_formatting(text) == "    if x:\n    y\n\nz = 'a\tb'"
    assert normalize_formatting(normalize_formatting(text)) == normalize_formatting(text)


def test_steps_apply_in_order(tmp_path: Path) -> None:
    steps = (
        STRIP_COMMENTS,
        TransformStep(step="truncate", columns=("text",), characters=4),
        TransformStep(step="join", columns=("title", "text"), into="text", separator=": "),
        TransformStep(step="rename", columns=("text",), into="program"),
    )
    assert load_columns(tmp_path, *steps) == [{"group": 1, "program": "One: x = "}, {"group": 1, "program": "x = "}]


def test_group_by_and_unique_by_apply_after_the_steps(tmp_path: Path) -> None:
    rename = TransformStep(step="rename", columns=("group",), into="problem")
    cut = TransformStep(step="truncate", columns=("text",), characters=3)
    dataset = load(tmp_path, jsonl(*ROWS), transform=(rename, cut), group_by="problem")
    assert {point.group for point in dataset.datapoints} == {"1"}
    message = read_load_error(tmp_path, transform=(cut,), unique_by=("text",))
    assert "the labels of all duplicates differ" in message
    assert "no column 'group'" in read_load_error(tmp_path, transform=(rename,), group_by="group")


def test_renamed_row_column_of_exploded_lists_must_be_the_group_column(tmp_path: Path) -> None:
    rows = jsonl({"id": "a", "good": ["x"], "bad": ["y"]})
    rename = TransformStep(step="rename", columns=("row",), into="problem")
    explode = Explode(columns={"good": 1, "bad": 0})
    assert "no column 'row'" in read_load_error(tmp_path, rows, transform=(rename,), explode=explode)
    dataset = load(tmp_path, transform=(rename,), explode=explode, group_by="problem")
    assert [point.group for point in dataset.datapoints] == ["a", "a"]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (TransformStep(step="strip_comments", columns=("text",)), "set language"),
        (TransformStep(step="truncate", columns=("text",)), "set characters"),
        (TransformStep(step="normalize", columns=("text",), characters=3), "remove characters"),
        (TransformStep(step="rename", columns=("text", "title"), into="new"), "name one column"),
        (TransformStep(step="rename", columns=("text",), into="title"), "there already is a column 'title'"),
        (TransformStep(step="rename", columns=("text",), into="label"), "there already is a column 'label'"),
        (TransformStep(step="truncate", columns=("label",), characters=3), "the column 'label' cannot be transformed"),
        (TransformStep(step="normalize", columns=("tex",)), "no column 'tex'; did you mean 'text'?"),
        (TransformStep(step="normalize", columns=("group",)), "column 'group' must have texts, in rows 1, 2"),
    ],
)
def test_error_for_an_invalid_step_names_the_step(tmp_path: Path, step: TransformStep, message: str) -> None:
    assert f"step 2, {step.step}: {message}" in read_load_error(
        tmp_path, jsonl(*ROWS), transform=(STRIP_COMMENTS, step)
    )


@pytest.mark.parametrize("code", ["x = 'a\n", "if x:\n    y\n  z\n", "x = (1\n", "a ? b\n"])
def test_error_for_invalid_python_code_names_the_row(tmp_path: Path, code: str) -> None:
    rows = jsonl(*ROWS, {**ROWS[0], "id": "c", "text": code})
    message = read_load_error(tmp_path, rows, transform=(STRIP_COMMENTS,))
    assert message.endswith("column 'text' is not Python 3; leave these rows out with dataset.filter, in rows 3")


def test_run_identity_includes_steps_only_if_there_are_any() -> None:
    assert "transform" not in selection_content(DatasetSettings(path="d.jsonl"))
    steps = selection_content(DatasetSettings(path="d.jsonl", transform=(STRIP_COMMENTS,)))["transform"]
    assert [step["step"] for step in steps] == ["strip_comments"]


def test_saved_steps_are_read_back() -> None:
    settings = DatasetSettings(path="d.jsonl", transform=(STRIP_COMMENTS,))
    assert from_plain(DatasetSettings, to_plain(settings)) == settings


def test_run_saves_the_transformed_rows_and_the_steps(tmp_path: Path) -> None:
    steps = "[{step: truncate, columns: [solution], characters: 20}]"
    plain = run_spec(spec_file(tmp_path), tmp_path / "results")
    run = run_spec(spec_file(tmp_path), tmp_path / "results", f"dataset.transform={steps}")
    assert run.run_id != plain.run_id
    replayed = run_spec(run.path / "spec.yaml", tmp_path / "other")
    assert replayed.metrics["metrics"] == run.metrics["metrics"]
    assert run.manifest.dataset_selection["transform"][0]["characters"] == 20
    rows = (run.path / "inputs" / "dataset.jsonl").read_text("utf-8").splitlines()
    assert {len(json.loads(row)["solution"]) for row in rows} == {20}
