"""Dataset files into datapoints: what is read is what the file says, in an order that follows from the seed alone."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.datasets.load import Dataset, load_dataset
from runner.datasets.settings import DatasetSettings
from runner.errors import Place, SpecError

ROOT = Path(__file__).resolve().parents[1]
A = {"id": "a", "label": 0, "text": "first"}
B = {"id": "b", "label": 1, "text": "second"}


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def load(folder: Path, content: str | bytes | None = None, name: str = "d.jsonl", seed: int = 0, **settings) -> Dataset:
    path = folder / name
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_dataset(DatasetSettings(path=name, **settings), path, seed, Place)


def refusal(folder: Path, content: str | bytes | None = None, name: str = "d.jsonl", **settings) -> str:
    """What is wrong; the place is the key's name here."""
    with pytest.raises(SpecError) as caught:
        load(folder, content, name, **settings)
    return "\n".join(f"{p.place.file}: {p.message}" for p in caught.value.problems)


def ids(dataset: Dataset) -> list[str]:
    return [point.id for point in dataset.datapoints]


def parquet(folder: Path, select: str, name: str = "d.parquet") -> None:
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({select}) TO '{folder / name}' (FORMAT parquet)")


# Formats


def test_jsonl_csv_tsv_and_parquet_give_the_same_datapoints(tmp_path):
    wanted = load(tmp_path, jsonl(A, B)).datapoints
    assert load(tmp_path, "id,label,text\na,0,first\nb,1,second\n", "d.csv").datapoints == wanted
    assert load(tmp_path, "id\tlabel\ttext\na\t0\tfirst\nb\t1\tsecond\n", "d.tsv").datapoints == wanted
    assert load(tmp_path, json.dumps([A, B]), "d.json").datapoints == wanted
    parquet(tmp_path, "SELECT 'a' id, 0 \"label\", 'first' text UNION ALL SELECT 'b', 1, 'second'")
    assert load(tmp_path, name="d.parquet").datapoints == wanted


def test_the_id_and_the_label_are_no_columns(tmp_path):
    dataset = load(tmp_path, jsonl(A, B))
    assert dataset.columns == ("text",)
    assert [dict(p.columns) for p in dataset.datapoints] == [{"text": "first"}, {"text": "second"}]


def test_quoted_csv_keeps_commas_and_newlines(tmp_path):
    (point,) = load(tmp_path, 'id,label,text\na,0,"one, ""two""\nthree"\n', "d.csv").datapoints
    assert point.columns["text"] == 'one, "two"\nthree'


@pytest.mark.parametrize("name", ["[ab].jsonl", "a*.jsonl", "d?.jsonl", "with space.jsonl", "it's.jsonl", "é.jsonl"])
def test_a_files_name_is_its_name_and_no_pattern(tmp_path, name):
    for other in ("a.jsonl", "ab.jsonl", "dx.jsonl"):
        (tmp_path / other).write_text(jsonl({"id": "wrong", "label": 1}))
    assert ids(load(tmp_path, jsonl(A), name)) == ["a"]


# Text stays text


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01", "2024-01-01T10:00:00Z", "2024-01-01 10:00:00", "12:30:00", "1 day", "true", "no", "NULL", "nan",
        "007", "1.50", "550e8400-e29b-41d4-a716-446655440000", "é İ 😀 \u2028 \u0000 \ufeff", " spaced ", "", "a\r\nb",
        '{"a": 1}', '"quoted"', "{{ 7*7 }} ${oc.env:HOME}", "\\n",
    ],
)  # fmt: skip
def test_text_in_jsonl_stays_what_it_is(tmp_path, text):
    rows = [{**A, "id": f"r{i}", "text": text} for i in range(3)]
    assert {point.columns["text"] for point in load(tmp_path, jsonl(*rows)).datapoints} == {text}


@pytest.mark.parametrize("other", [1, 2.5, True, ["x"], {"x": 1}])
def test_text_stays_what_it_is_beside_a_row_of_another_type(tmp_path, other):
    first, second = load(tmp_path, jsonl({**A, "text": 'say "hi"\n'}, {**B, "text": other})).datapoints
    assert first.columns["text"] == 'say "hi"\n'
    assert second.columns["text"] == other


@pytest.mark.parametrize("value", [["2024-01-01"], {"when": "2024-01-01T10:00:00Z"}, [{"at": "12:30:00"}]])
def test_text_inside_lists_and_mappings_stays_what_it_is(tmp_path, value):
    first, second = load(tmp_path, jsonl({**A, "text": value}, {**B, "text": value})).datapoints
    assert first.columns["text"] == second.columns["text"] == value


@pytest.mark.parametrize("text", ["2024-01-01", "12:30:00", "550e8400-e29b-41d4-a716-446655440000", "yes", "T", "true"])
def test_text_in_csv_stays_what_it_is(tmp_path, text):
    dataset = load(tmp_path, f"id,label,text\na,0,{text}\nb,1,{text}\n", "d.csv")
    assert [str(point.columns["text"]) for point in dataset.datapoints] == [text, text]


def test_ids_that_look_like_numbers_or_dates_keep_their_text(tmp_path):
    assert ids(load(tmp_path, "id,label\n001,0\n002,1\n", "d.csv")) == ["001", "002"]
    assert ids(load(tmp_path, jsonl({**A, "id": "2024-01-01"}, {**B, "id": "2024-01-02"}))) == [
        "2024-01-01", "2024-01-02",
    ]  # fmt: skip
    assert ids(load(tmp_path, jsonl({**A, "id": 1}, {**B, "id": "b"}))) == ["1", "b"]


def test_columns_that_differ_in_case_are_kept_or_refused(tmp_path):
    try:
        dataset = load(tmp_path, jsonl({**A, "Text": "upper"}, {**B, "Text": "UPPER"}))
    except SpecError:
        return
    assert sorted(dataset.datapoints[0].columns.values()) == ["first", "upper"]


def test_a_megabyte_of_text_is_read(tmp_path):
    text = "x é\n" * 700_000
    assert load(tmp_path, jsonl({**A, "text": text}, B)).datapoints[0].columns["text"] == text


@pytest.mark.parametrize(
    "value",
    [
        "1.5::DECIMAL(4,2)", "18446744073709551616::HUGEINT", "'inf'::DOUBLE", "INTERVAL 1 DAY", "DATE '2024-01-01'",
        "TIME '10:00'", "TIMESTAMP '2024-01-01 10:00:00'", "TIMESTAMPTZ '2024-01-01 10:00:00+02'",
        "UUID '550e8400-e29b-41d4-a716-446655440000'", "'\\x00'::BLOB", "MAP {1: 'x'}", "['a', NULL]", "{'a': 1}",
    ],
)  # fmt: skip
def test_every_type_of_parquet_is_usable_or_refused_at_once(tmp_path, value):
    parquet(tmp_path, f"SELECT 'a' id, 0 \"label\", {value} thing")
    try:
        dataset = load(tmp_path, name="d.parquet")
    except SpecError as error:
        assert "thing" in str(error)  # noqa: PT017 - either way is right
        return
    assert dataset.datapoints[0].content_hash
    assert dataset.sha256


# Columns, filter, split


def test_columns_are_renamed(tmp_path):
    content = jsonl({"task": "a", "ok": 1, "code": "x"}, {"task": "b", "ok": 0, "code": "y"})
    dataset = load(tmp_path, content, columns={"id": "task", "label": "ok", "solution": "code"})
    assert [(p.id, p.label, dict(p.columns)) for p in dataset.datapoints] == [
        ("a", 1, {"solution": "x"}), ("b", 0, {"solution": "y"}),
    ]  # fmt: skip


def test_columns_can_be_swapped(tmp_path):
    dataset = load(tmp_path, jsonl(A, B), columns={"id": "text", "text": "id"})
    assert [(p.id, p.columns["text"]) for p in dataset.datapoints] == [("first", "a"), ("second", "b")]


def test_a_renamed_column_hides_one_of_the_same_name(tmp_path):
    dataset = load(tmp_path, jsonl({**A, "other": "x"}, {**B, "other": "y"}), columns={"text": "other"})
    assert [dict(p.columns) for p in dataset.datapoints] == [{"text": "x"}, {"text": "y"}]


def test_one_column_under_two_names_is_given_twice_or_refused(tmp_path):
    try:
        dataset = load(tmp_path, jsonl(A, B), columns={"one": "text", "two": "text"})
    except SpecError:
        return
    assert set(dataset.columns) == {"one", "two"}


def test_a_column_that_is_not_there_gets_the_nearest(tmp_path):
    assert refusal(tmp_path, jsonl(A, B), columns={"solution": "txet"}) == (
        "dataset.columns.solution: the file has no column 'txet'; did you mean 'text'?"
    )


@pytest.mark.parametrize("missing", ["id", "label"])
def test_the_id_and_the_label_must_be_there(tmp_path, missing):
    rows = [{name: value for name, value in row.items() if name != missing} for row in (A, B)]
    assert f"the file has no column {missing!r}" in refusal(tmp_path, jsonl(*rows))


def test_a_filter_is_sql_on_our_names(tmp_path):
    assert ids(load(tmp_path, jsonl(A, B), filter="solution LIKE 'sec%'", columns={"solution": "text"})) == ["b"]


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
        # a spec may be a stranger's: nothing but the rows can be read
        "(SELECT count(*) FROM read_csv('/etc/passwd')) > 0",
        "text IN (SELECT content FROM read_text('/etc/passwd'))",
        "(SELECT count(*) FROM '/etc/passwd') > 0",
        "(SELECT count(*) FROM glob('/*')) > 0",
        "getenv('HOME') <> ''",
        "(SELECT count(*) FROM connection) > 0",
    ],
)
def test_a_bad_filter_is_refused_at_its_key(tmp_path, condition):
    assert refusal(tmp_path, jsonl(A, B), filter=condition).startswith("dataset.filter: ")


def test_a_filter_cannot_undo_the_split(tmp_path):
    content = jsonl({**A, "split": "train"}, {**B, "split": "test"})
    assert ids(load(tmp_path, content, split="test", filter="label = 0 OR label = 1")) == ["b"]
    try:
        broken_out = ids(load(tmp_path, content, split="test", filter="1 = 1) OR (1 = 1"))
    except SpecError:
        return
    assert broken_out == ["b"]


def test_a_filter_gives_the_same_rows_each_time(tmp_path):
    rows = [{"id": str(i), "label": i % 2} for i in range(200)]
    try:
        chosen = {tuple(ids(load(tmp_path, jsonl(*rows), filter="random() < 0.5"))) for _ in range(3)}
    except SpecError:
        return
    assert len(chosen) == 1


def test_a_split_keeps_its_rows(tmp_path):
    content = jsonl({**A, "split": "train"}, {**B, "split": "test"})
    assert ids(load(tmp_path, content, split="test")) == ["b"]
    assert ids(load(tmp_path, content)) == ["a", "b"]


def test_a_missing_split_says_which_there_are(tmp_path):
    content = jsonl({**A, "split": "train"}, {**B, "split": "test"})
    assert refusal(tmp_path, content, split="val") == "dataset.split: no row has this split; the file has test, train"
    assert refusal(tmp_path, jsonl(A, B), split="val").startswith("dataset.split: the file has no column 'split'")


# Order


MANY = [{"id": f"r{i:03}", "label": int(i % 4 == 0), "text": "x"} for i in range(60)]


def test_without_shuffling_the_order_is_the_files(tmp_path):
    rows = MANY[::-1]
    assert ids(load(tmp_path, jsonl(*rows))) == [row["id"] for row in rows]


def test_a_shuffle_depends_on_the_seed_and_not_on_the_order_of_the_file(tmp_path):
    shuffled = ids(load(tmp_path, jsonl(*MANY), shuffle=True, seed=3))
    other = random.Random(0).sample(MANY, len(MANY))
    assert ids(load(tmp_path, jsonl(*other), shuffle=True, seed=3)) == shuffled
    assert sorted(shuffled) == [row["id"] for row in MANY] != shuffled
    assert ids(load(tmp_path, jsonl(*MANY), shuffle=True, seed=4)) != shuffled


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_a_shuffle_is_the_same_in_every_process(tmp_path, hash_seed):
    shuffled = ids(load(tmp_path, jsonl(*MANY), shuffle=True, seed=3))
    code = (
        "import sys; from pathlib import Path; from tests.test_datasets import *\n"
        "print(ids(load(Path(sys.argv[1]), shuffle=True, seed=3)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == str(shuffled)


def test_the_limit_comes_after_all_the_rest(tmp_path):
    shuffled = ids(load(tmp_path, jsonl(*MANY), shuffle=True, seed=3))
    assert ids(load(tmp_path, jsonl(*MANY), shuffle=True, seed=3, limit=5)) == shuffled[:5]
    assert len(load(tmp_path, jsonl(*MANY), limit=1000).datapoints) == 60


def test_balance_takes_as_many_of_each_label(tmp_path):
    balanced = load(tmp_path, jsonl(*MANY), balance="label")
    assert [point.label for point in balanced.datapoints].count(1) == 15
    assert len(balanced.datapoints) == 30
    assert ids(balanced) == sorted(ids(balanced))


@pytest.mark.parametrize(("limit", "size"), [(2, 2), (5, 4), (10, 10), (999, 30)])
def test_balance_holds_within_the_limit(tmp_path, limit, size):
    labels = [point.label for point in load(tmp_path, jsonl(*MANY), balance="label", limit=limit).datapoints]
    assert (len(labels), sum(labels)) == (size, size // 2)


def test_nothing_to_balance_is_an_error(tmp_path):
    assert "no datapoint is left after balancing 1 rows" in refusal(tmp_path, jsonl(A), balance="label")


# What is wrong with rows and files


@pytest.mark.parametrize("label", [2, -1, "yes", "1", None, 0.5, [1], 10**30])
def test_a_label_that_is_not_0_or_1_names_its_row(tmp_path, label):
    message = refusal(tmp_path, jsonl({**A, "label": label}, B))
    assert message.startswith("dataset.path: a label is 0 or 1: a has ")


def test_true_and_false_are_labels(tmp_path):
    points = load(tmp_path, jsonl({**A, "label": False}, {**B, "label": True})).datapoints
    assert [(type(point.label), point.label) for point in points] == [(int, 0), (int, 1)]


def test_yes_is_no_label_in_csv(tmp_path):
    assert "a label is 0 or 1" in refusal(tmp_path, "id,label\na,yes\nb,no\n", "d.csv")


@pytest.mark.parametrize("row_id", [None, ""])
def test_a_row_without_an_id_is_named_by_its_number(tmp_path, row_id):
    message = refusal(tmp_path, jsonl(A, {**B, "id": row_id}, {**B, "id": row_id}))
    assert message == "dataset.path: rows without an id: 2, 3"


def test_ids_that_stand_twice_are_named(tmp_path):
    rows = [{**A, "id": f"d{i}"} for i in range(8)] * 2
    assert refusal(tmp_path, jsonl(*rows)) == "dataset.path: ids that stand twice: d0, d1, d2, d3, d4 and 3 more"


def test_all_that_is_wrong_with_the_rows_comes_at_once(tmp_path):
    message = refusal(tmp_path, jsonl(A, A, {**B, "label": 3}, {**B, "id": None}))
    assert len(message.split("\n")) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [("d.jsonl", ""), ("d.jsonl", "\n\n"), ("d.csv", ""), ("d.csv", "id,label,text\n"), ("d.json", "[]")],
)
def test_an_empty_dataset_is_called_empty(tmp_path, name, content):
    assert refusal(tmp_path, content, name) == "dataset.path: the file has no rows"


def test_a_parquet_file_without_rows_is_called_empty(tmp_path):
    parquet(tmp_path, "SELECT 'a' id, 0 \"label\" WHERE false")
    assert refusal(tmp_path, name="d.parquet") == "dataset.path: the file has no rows"


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_malformed_line_of_json_is_named_by_its_number(tmp_path, line):
    lines = [json.dumps({**A, "id": str(i)}) for i in range(4)]
    lines[line - 1] = '{"id": "b", oops}'
    message = refusal(tmp_path, "\n".join(lines) + "\n")
    assert "Malformed JSON" in message or "not valid JSON" in message
    assert f"line {line}" in message or f"d.jsonl:{line}" in message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.jsonl", "3\n"),
        ("d.jsonl", '{"id": "a", "label": 0'),
        ("d.jsonl", b"\xff\xfe{\x00}\x00"),
        ("d.jsonl", jsonl({**A, "text": "é"}).encode("latin-1")),
        ("d.csv", "id,label,text\na,0,é\n".encode("latin-1")),
        ("d.parquet", "not parquet"),
        ("d.txt", "id,label\na,1\n"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name, content):
    message = refusal(tmp_path, content, name)
    assert message.startswith("dataset") or name in message


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    assert refusal(tmp_path, name="folder.jsonl")
    with pytest.raises(SpecError, match=r"no file 'gone\.jsonl' beside the spec"):
        load_dataset(DatasetSettings(path="gone.jsonl"), None, 0, Place)


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="the extra is installed")
def test_the_hub_without_its_extra_says_what_to_install():
    with pytest.raises(SpecError, match=r"needs an extra: pip install 'nip-run\[hf\]'"):
        load_dataset(DatasetSettings(path="hf://org/name"), None, 0, Place)


# Identity


def test_the_source_is_hashed_and_so_are_the_datapoints(tmp_path):
    one, two = load(tmp_path, jsonl(A, B)), load(tmp_path, jsonl(A, {**B, "text": "edited"}))
    assert one.source_sha256 != two.source_sha256
    assert one.sha256 != two.sha256
    assert one.datapoints[0].content_hash == two.datapoints[0].content_hash
    assert one.sha256 == load(tmp_path, "\n" + jsonl(A, B)).sha256


def test_a_stance_is_the_parity_of_the_solutions_hash(tmp_path):
    rows = [{**A, "id": str(i), "solution": f"code {i}"} for i in range(40)]
    stances = [point.prover_stance for point in load(tmp_path, jsonl(*rows)).datapoints]
    assert set(stances) == {0, 1}
    renamed = [{**row, "id": f"other {row['id']}"} for row in rows]
    assert stances == [point.prover_stance for point in load(tmp_path, jsonl(*renamed)).datapoints]
