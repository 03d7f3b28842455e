"""Selection, renaming and order of a dataset's rows; the order depends only on the seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from runner.base.errors import SpecError
from tests.support.dataset_files import A, B, datapoint_ids, jsonl, load, read_load_error
from tests.support.processes import python

# Columns, filter, split


def test_columns_are_renamed(tmp_path: Path) -> None:
    content = jsonl({"task": "a", "ok": 1, "code": "x"}, {"task": "b", "ok": 0, "code": "y"})
    dataset = load(tmp_path, content, columns={"id": "task", "label": "ok", "solution": "code"})
    assert [(p.id, p.label, dict(p.columns)) for p in dataset.datapoints] == [
        ("a", 1, {"solution": "x"}), ("b", 0, {"solution": "y"}),
    ]  # fmt: skip


def test_columns_can_be_swapped(tmp_path: Path) -> None:
    dataset = load(tmp_path, jsonl(A, B), columns={"id": "text", "text": "id"})
    assert [(p.id, p.columns["text"]) for p in dataset.datapoints] == [("first", "a"), ("second", "b")]


def test_renamed_column_replaces_one_of_the_same_name(tmp_path: Path) -> None:
    dataset = load(tmp_path, jsonl({**A, "other": "x"}, {**B, "other": "y"}), columns={"text": "other"})
    assert [dict(p.columns) for p in dataset.datapoints] == [{"text": "x"}, {"text": "y"}]


def test_column_mapped_to_two_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="one column is mapped to two names: text"):
        load(tmp_path, jsonl(A, B), columns={"one": "text", "two": "text"})


def test_missing_column_suggests_the_nearest_name(tmp_path: Path) -> None:
    assert read_load_error(tmp_path, jsonl(A, B), columns={"solution": "txet"}) == (
        "dataset.columns.solution: the file has no column 'txet'; did you mean 'text'?"
    )


@pytest.mark.parametrize("missing", ["id", "label"])
def test_id_and_label_columns_are_required(tmp_path: Path, missing: str) -> None:
    rows = [{name: value for name, value in row.items() if name != missing} for row in (A, B)]
    assert f"the file has no column {missing!r}" in read_load_error(tmp_path, jsonl(*rows))


@pytest.mark.sample(2)
@pytest.mark.parametrize("condition", ["label = 1", "is_right = 1", "IS_RIGHT = 1 AND label = 1"])
@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_filter_accepts_both_names_of_a_renamed_column(tmp_path: Path, name: str, condition: str) -> None:
    rows = [{"id": "a", "is_right": 0}, {"id": "b", "is_right": 1}]
    content = jsonl(*rows) if name == "d.jsonl" else "id,is_right\na,0\nb,1\n"
    assert datapoint_ids(load(tmp_path, content, name, columns={"label": "is_right"}, filter=condition)) == ["b"]


def test_new_column_name_takes_precedence_in_a_filter(tmp_path: Path) -> None:
    """The file's `Text` becomes `label`, and its `sure` becomes `text`, which SQL does not distinguish from `Text`."""
    content = jsonl({"id": "a", "Text": 0, "sure": 1}, {"id": "b", "Text": 1, "sure": 0})
    names = {"label": "Text", "text": "sure"}
    assert datapoint_ids(load(tmp_path, content, columns=names, filter="Text = 1")) == ["a"]


def test_error_for_a_filter_on_a_missing_column_lists_the_columns(tmp_path: Path) -> None:
    message = read_load_error(
        tmp_path, "id,is_right,text\na,0,x\n", "d.csv", columns={"label": "is_right"}, filter="txt = 'x'"
    )
    assert message.endswith("; did you mean 'text'? the columns are id, label, text, is_right")


def test_filter_is_sql_on_the_renamed_columns(tmp_path: Path) -> None:
    assert datapoint_ids(load(tmp_path, jsonl(A, B), filter="solution LIKE 'sec%'", columns={"solution": "text"})) == [
        "b"
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    "condition",
    [
        "txt = 'x'",
        "text =",
        "",
        "text",
        "true; DROP TABLE data",
        "true); DROP TABLE data; --",
        "true) UNION ALL (SELECT 'c', 1, 'z'",
        "true ORDER BY random()",
        "text = 'nothing like it'",
        # a spec may be untrusted: a filter can read only the rows
        "(SELECT count(*) FROM read_csv('/etc/passwd')) > 0",
        "text IN (SELECT content FROM read_text('/etc/passwd'))",
        "(SELECT count(*) FROM '/etc/passwd') > 0",
        "(SELECT count(*) FROM glob('/*')) > 0",
        "getenv('HOME') <> ''",
        "(SELECT count(*) FROM connection) > 0",
    ],
)
def test_invalid_filter_is_refused_at_its_key(tmp_path: Path, condition: str) -> None:
    assert read_load_error(tmp_path, jsonl(A, B), filter=condition).startswith("dataset.filter: ")


@pytest.mark.full
def test_filter_cannot_override_the_split(tmp_path: Path) -> None:
    content = jsonl({**A, "split": "train"}, {**B, "split": "test"})
    assert datapoint_ids(load(tmp_path, content, split="test", filter="label = 0 OR label = 1")) == ["b"]
    message = read_load_error(tmp_path, content, split="test", filter="1 = 1) OR (1 = 1")
    assert message.startswith("dataset.filter: the filter must be one SQL condition")


@pytest.mark.full
def test_random_filter_selects_the_same_rows_each_time(tmp_path: Path) -> None:
    rows = [{"id": str(i), "label": i % 2} for i in range(200)]
    selections = {tuple(datapoint_ids(load(tmp_path, jsonl(*rows), filter="random() < 0.5"))) for _ in range(3)}
    assert len(selections) == 1


def test_split_selects_its_rows(tmp_path: Path) -> None:
    content = jsonl({**A, "split": "train"}, {**B, "split": "test"})
    assert datapoint_ids(load(tmp_path, content, split="test")) == ["b"]
    assert datapoint_ids(load(tmp_path, content)) == ["a", "b"]


def test_error_for_a_missing_split_lists_the_splits(tmp_path: Path) -> None:
    content = jsonl({**A, "split": "train"}, {**B, "split": "test"})
    assert (
        read_load_error(tmp_path, content, split="val")
        == "dataset.split: no row has this split; choose one of test, train"
    )
    assert read_load_error(tmp_path, jsonl(A, B), split="val").startswith(
        "dataset.split: the file has no column 'split'"
    )


# Order

SIXTY_ROWS = [{"id": f"r{i:03}", "label": int(i % 4 == 0), "text": "x"} for i in range(60)]


def test_unshuffled_rows_keep_the_order_of_the_file(tmp_path: Path) -> None:
    rows = SIXTY_ROWS[::-1]
    assert datapoint_ids(load(tmp_path, jsonl(*rows))) == [row["id"] for row in rows]


def test_shuffle_depends_on_the_seed_and_not_on_the_order_of_the_file(tmp_path: Path) -> None:
    shuffled = datapoint_ids(load(tmp_path, jsonl(*SIXTY_ROWS), shuffle=True, seed=3))
    reordered = random.Random(0).sample(SIXTY_ROWS, len(SIXTY_ROWS))
    assert datapoint_ids(load(tmp_path, jsonl(*reordered), shuffle=True, seed=3)) == shuffled
    assert sorted(shuffled) == [row["id"] for row in SIXTY_ROWS] != shuffled
    assert datapoint_ids(load(tmp_path, jsonl(*SIXTY_ROWS), shuffle=True, seed=4)) != shuffled


@pytest.mark.full
@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_shuffle_is_the_same_in_every_process(tmp_path: Path, hash_seed: str) -> None:
    shuffled = datapoint_ids(load(tmp_path, jsonl(*SIXTY_ROWS), shuffle=True, seed=3))
    code = (
        "import sys; from pathlib import Path; from tests.support.dataset_files import datapoint_ids, load\n"
        "print(datapoint_ids(load(Path(sys.argv[1]), shuffle=True, seed=3)))"
    )
    done = python(code, tmp_path, PYTHONHASHSEED=hash_seed)
    assert done.stdout.strip() == str(shuffled)


def test_limit_is_applied_last(tmp_path: Path) -> None:
    shuffled = datapoint_ids(load(tmp_path, jsonl(*SIXTY_ROWS), shuffle=True, seed=3))
    assert datapoint_ids(load(tmp_path, jsonl(*SIXTY_ROWS), shuffle=True, seed=3, limit=5)) == shuffled[:5]
    assert len(load(tmp_path, jsonl(*SIXTY_ROWS), limit=1000).datapoints) == 60


def test_balance_selects_equally_many_rows_of_each_label(tmp_path: Path) -> None:
    balanced = load(tmp_path, jsonl(*SIXTY_ROWS), balance="label")
    assert [point.label for point in balanced.datapoints].count(1) == 15
    assert len(balanced.datapoints) == 30
    assert datapoint_ids(balanced) == sorted(datapoint_ids(balanced))


@pytest.mark.parametrize(("limit", "size"), [(2, 2), (5, 4), (10, 10), (999, 30)])
def test_balance_holds_within_the_limit(tmp_path: Path, limit: int, size: int) -> None:
    labels = [point.label for point in load(tmp_path, jsonl(*SIXTY_ROWS), balance="label", limit=limit).datapoints]
    assert (len(labels), labels.count(1)) == (size, size // 2)


def test_balance_that_leaves_no_rows_is_an_error(tmp_path: Path) -> None:
    assert "no datapoint is left after balancing 1 rows" in read_load_error(tmp_path, jsonl(A), balance="label")
