"""Loading dataset files preserves their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.spec.datasets import reader
from tests.support.dataset_files import A, B, datapoint_ids, jsonl, load, read_load_error, write_parquet

# Formats


@pytest.mark.full
def test_jsonl_csv_tsv_and_parquet_give_the_same_datapoints(tmp_path: Path) -> None:
    expected = load(tmp_path, jsonl(A, B)).datapoints
    assert load(tmp_path, "id,label,text\na,0,first\nb,1,second\n", "d.csv").datapoints == expected
    assert load(tmp_path, "id\tlabel\ttext\na\t0\tfirst\nb\t1\tsecond\n", "d.tsv").datapoints == expected
    assert load(tmp_path, json.dumps([A, B]), "d.json").datapoints == expected
    write_parquet(tmp_path, "SELECT 'a' id, 0 \"label\", 'first' text UNION ALL SELECT 'b', 1, 'second'")
    assert load(tmp_path, name="d.parquet").datapoints == expected


@pytest.mark.parametrize(
    "content",
    [
        jsonl(A, B),
        jsonl(A, B).rstrip("\n"),
        jsonl(A, B).replace("\n", "\r\n"),
        f"\n{jsonl(A)}  \n\t\r\n{jsonl(B)}\n",
        f"\ufeff{jsonl(A, B)}",
        jsonl(A) + jsonl(B).rstrip("\n").replace('"', "'"),
        jsonl(A) * 2,
        "1\n",
        "",
        "\n",
        jsonl(A).rstrip("\n") + jsonl(B),
        jsonl(A).rstrip("\n") + "\x0b\n\x0b\n" + jsonl(B),
        '{"id": "a"\n, "label": 1}\n',
        jsonl({**A, "n": 2**60 + 1, "f": 1.5, "list": [1, {"k": None}], "b": True}),
        '{"id": "a", "label": 0, "x": 1e999}\n',
        '{"id": "a", "label": 0, "x": "\\ud800"}\n',
        '{"id": "a", "id": "b", "label": 0}\n',
        '{"id": "a", "label": NaN}\n',
        jsonl({**A, "text": "é\u2028\x85"}),
        '{"id": "a", "label": 0, "n": 123456789012345678901234567890}\n',
    ],
)
def test_direct_json_lines_reader_matches_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    def load_or_error() -> object:
        try:
            return load(tmp_path, content).datapoints
        except SpecError as error:
            return str(error)

    direct_result = load_or_error()
    monkeypatch.setattr(reader, "_read_json_lines", lambda path, meter: None)
    assert direct_result == load_or_error()


def test_id_and_label_are_not_prompt_columns(tmp_path: Path) -> None:
    dataset = load(tmp_path, jsonl(A, B))
    assert dataset.columns == ("text",)
    assert [dict(p.columns) for p in dataset.datapoints] == [{"text": "first"}, {"text": "second"}]


def test_quoted_csv_keeps_commas_and_newlines(tmp_path: Path) -> None:
    (point,) = load(tmp_path, 'id,label,text\na,0,"one, ""two""\nthree"\n', "d.csv").datapoints
    assert point.columns["text"] == 'one, "two"\nthree'


@pytest.mark.parametrize("name", ["[ab].jsonl", "a*.jsonl", "d?.jsonl", "with space.jsonl", "it's.jsonl", "é.jsonl"])
def test_file_name_is_not_used_as_a_glob_pattern(tmp_path: Path, name: str) -> None:
    for other_name in ("a.jsonl", "ab.jsonl", "dx.jsonl"):
        (tmp_path / other_name).write_text(jsonl({"id": "wrong", "label": 1}))
    assert datapoint_ids(load(tmp_path, jsonl(A), name)) == ["a"]


# Text is not converted


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01", "2024-01-01T10:00:00Z", "2024-01-01 10:00:00", "12:30:00", "1 day", "true", "no", "NULL", "nan",
        "007", "1.50", "550e8400-e29b-41d4-a716-446655440000", "é İ 😀 \u2028 \u0000 \ufeff", " spaced ", "", "a\r\nb",
        '{"a": 1}', '"quoted"', "{{ 7*7 }} ${oc.env:HOME}", "\\n",
    ],
)  # fmt: skip
def test_text_in_jsonl_is_unchanged(tmp_path: Path, text: str) -> None:
    rows = [{**A, "id": f"r{i}", "text": text} for i in range(3)]
    assert {point.columns["text"] for point in load(tmp_path, jsonl(*rows)).datapoints} == {text}


@pytest.mark.parametrize("other_value", [1, 2.5, True, ["x"], {"x": 1}])
def test_text_is_unchanged_if_another_row_has_another_type(tmp_path: Path, other_value: Any) -> None:
    first, second = load(tmp_path, jsonl({**A, "text": 'say "hi"\n'}, {**B, "text": other_value})).datapoints
    assert first.columns["text"] == 'say "hi"\n'
    assert second.columns["text"] == other_value


@pytest.mark.parametrize("value", [["2024-01-01"], {"when": "2024-01-01T10:00:00Z"}, [{"at": "12:30:00"}]])
def test_text_inside_lists_and_mappings_is_unchanged(tmp_path: Path, value: Any) -> None:
    first, second = load(tmp_path, jsonl({**A, "text": value}, {**B, "text": value})).datapoints
    assert first.columns["text"] == second.columns["text"] == value


@pytest.mark.parametrize("name", ["d.jsonl", "d.json"])
def test_integer_of_more_than_64_bits_keeps_its_digits(tmp_path: Path, name: str) -> None:
    numbers = [2**64 - 1, 2**64, -(2**63) - 1, 10**30 + 1, 1.5e30]
    rows = [{"id": 10**25 + i, "label": 0, "text": [number]} for i, number in enumerate(numbers)]
    points = load(tmp_path, json.dumps(rows) if name == "d.json" else jsonl(*rows), name).datapoints
    texts = [numbers[0], *map(str, numbers[1:4]), 1.5e30]
    assert [(point.id, point.columns["text"]) for point in points] == [
        (str(10**25 + i), [text]) for i, text in enumerate(texts)
    ]


@pytest.mark.parametrize("text", ["2024-01-01", "12:30:00", "550e8400-e29b-41d4-a716-446655440000", "yes", "T", "true"])
def test_text_in_csv_is_unchanged(tmp_path: Path, text: str) -> None:
    dataset = load(tmp_path, f"id,label,text\na,0,{text}\nb,1,{text}\n", "d.csv")
    assert [str(point.columns["text"]) for point in dataset.datapoints] == [text, text]


def test_ids_that_look_like_numbers_or_dates_keep_their_text(tmp_path: Path) -> None:
    assert datapoint_ids(load(tmp_path, "id,label\n001,0\n002,1\n", "d.csv")) == ["001", "002"]
    assert datapoint_ids(load(tmp_path, jsonl({**A, "id": "2024-01-01"}, {**B, "id": "2024-01-02"}))) == [
        "2024-01-01", "2024-01-02",
    ]  # fmt: skip
    assert datapoint_ids(load(tmp_path, jsonl({**A, "id": 1}, {**B, "id": "b"}))) == ["1", "b"]


def test_columns_that_differ_in_case_are_kept(tmp_path: Path) -> None:
    dataset = load(tmp_path, jsonl({**A, "Text": "upper"}, {**B, "Text": "UPPER"}))
    assert sorted(dataset.datapoints[0].columns.values()) == ["first", "upper"]


def test_megabytes_of_text_are_read(tmp_path: Path) -> None:
    text = "x é\n" * 700_000
    assert load(tmp_path, jsonl({**A, "text": text}, B)).datapoints[0].columns["text"] == text


@pytest.mark.full
@pytest.mark.parametrize(
    "value",
    [
        "1.5::DECIMAL(4,2)", "18446744073709551616::HUGEINT", "INTERVAL 1 DAY", "DATE '2024-01-01'", "TIME '10:00'",
        "TIMESTAMP '2024-01-01 10:00:00'", "TIMESTAMPTZ '2024-01-01 10:00:00+02'",
        "UUID '550e8400-e29b-41d4-a716-446655440000'", "['a', NULL]", "{'a': 1}",
    ],
)  # fmt: skip
def test_parquet_types_that_can_be_written_as_text_are_supported(tmp_path: Path, value: Any) -> None:
    write_parquet(tmp_path, f"SELECT 'a' id, 0 \"label\", {value} thing")
    dataset = load(tmp_path, name="d.parquet")
    assert dataset.datapoints[0].content_hash
    assert dataset.sha256


@pytest.mark.sample(1)
@pytest.mark.parametrize("value", ["'inf'::DOUBLE", "'\\x00'::BLOB", "MAP {1: 'x'}"])
def test_value_that_no_prompt_can_show_is_refused_with_its_column(tmp_path: Path, value: Any) -> None:
    write_parquet(tmp_path, f"SELECT 'a' id, 0 \"label\", {value} thing")
    with pytest.raises(SpecError, match="column 'thing'"):
        load(tmp_path, name="d.parquet")


# Identity


def test_file_and_datapoints_are_hashed_separately(tmp_path: Path) -> None:
    original, edited = load(tmp_path, jsonl(A, B)), load(tmp_path, jsonl(A, {**B, "text": "edited"}))
    assert original.source_sha256 != edited.source_sha256
    assert original.sha256 != edited.sha256
    assert original.datapoints[0].content_hash == edited.datapoints[0].content_hash
    assert original.sha256 == load(tmp_path, "\n" + jsonl(A, B)).sha256


def test_prover_stance_depends_only_on_the_solution(tmp_path: Path) -> None:
    rows = [{**A, "id": str(i), "solution": f"code {i}"} for i in range(40)]
    stances = [point.prover_stance for point in load(tmp_path, jsonl(*rows)).datapoints]
    assert set(stances) == {0, 1}
    renamed = [{**row, "id": f"other {row['id']}"} for row in rows]
    assert stances == [point.prover_stance for point in load(tmp_path, jsonl(*renamed)).datapoints]


@pytest.mark.full
@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet"])
def test_folder_names_do_not_become_columns(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "label=1" / "lr=2"
    folder.mkdir(parents=True)
    content = {"d.jsonl": jsonl(A, B), "d.json": json.dumps([A, B]), "d.csv": "id,label,text\na,0,first\nb,1,second\n"}
    if name == "d.parquet":
        write_parquet(folder, "SELECT 'a' AS id, 0 AS label, 'first' AS text UNION ALL SELECT 'b', 1, 'second'")
    data = load(folder, content.get(name), name, filter="label = 0")
    assert [(point.id, point.label, dict(point.columns)) for point in data.datapoints] == [("a", 0, {"text": "first"})]


def test_filter_cannot_use_folder_names(tmp_path: Path) -> None:
    (tmp_path / "lr=2").mkdir()
    assert "lr" in read_load_error(tmp_path / "lr=2", jsonl(A, B), filter="lr = 2")
