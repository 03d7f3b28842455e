"""Problems of a dataset's rows and files are reported together, with their positions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.base.problems import Place
from runner.spec.datasets.loader import load_dataset
from runner.spec.datasets.settings import DatasetSettings
from tests.support.dataset_files import A, B, datapoint_ids, jsonl, load, read_load_error, write_parquet


@pytest.mark.parametrize("label", [2, -1, "sure", "1", 0.5, [1], 10**30])
def test_error_for_a_label_other_than_0_or_1_names_its_row(tmp_path: Path, label: Any) -> None:
    message = read_load_error(tmp_path, jsonl({**A, "label": label}, B))
    assert message.startswith("dataset.path: labels must be 0 or 1: a (row 1) has ")
    example = "{'1': 1, '0': 0}" if label == "1" else "{right: 1, wrong: 0, unsure: skip}"
    assert message.endswith(f"map other values with dataset.labels, for example dataset.labels: {example}")


def test_rows_without_a_label_are_named(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, jsonl({**A, "label": None}, B))
    assert message.startswith("dataset.path: rows without a label: a (row 1); add labels, or skip these rows")


def test_booleans_are_labels(tmp_path: Path) -> None:
    points = load(tmp_path, jsonl({**A, "label": False}, {**B, "label": True})).datapoints
    assert [(type(point.label), point.label) for point in points] == [(int, 0), (int, 1)]


@pytest.mark.parametrize("rows", ["a,0,x\r\nb,1,y\n", "a,0,x\nb,1,y\r\n"])
def test_csv_file_with_mixed_line_ends_is_refused_with_the_reason(tmp_path: Path, rows: str) -> None:
    message = read_load_error(tmp_path, f"id,label,text\n{rows}".encode(), "d.csv")
    assert "some lines end with CRLF and others with LF; save the file with the same line ends everywhere" in message


@pytest.mark.parametrize("row_id", [None, ""])
def test_error_for_rows_without_an_id_names_their_numbers(tmp_path: Path, row_id: str | None) -> None:
    message = read_load_error(tmp_path, jsonl(A, {**B, "id": row_id}, {**B, "id": row_id}))
    assert message == "dataset.path: rows without an id: 2, 3; set dataset.ids=rows"


def test_error_for_a_renamed_required_column_names_the_key(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, jsonl(A, B), columns={"text": "id"})
    assert "dataset.columns renames the column 'id'. Map one of its columns with dataset.columns.id=COLUMN" in message


@pytest.mark.parametrize(("row_id", "problem"), [("'NaN'::DOUBLE", "NaN or infinity"), ("'a'::BLOB", "bytes")])
def test_id_that_is_not_a_text_or_a_number_is_refused(tmp_path: Path, row_id: str, problem: str) -> None:
    write_parquet(tmp_path, f"SELECT {row_id} id, 0 \"label\", 'first' text")
    assert f"column 'id' contains {problem}" in read_load_error(tmp_path, name="d.parquet")


def test_duplicate_ids_are_named(tmp_path: Path) -> None:
    rows = [{**A, "id": f"d{i}"} for i in range(8)] * 2
    duplicates = ", ".join(f"d{i} (rows {i + 1}, {i + 9})" for i in range(5))
    message = f"dataset.path: duplicate ids: {duplicates} and 3 more; ids must be unique"
    assert read_load_error(tmp_path, jsonl(*rows)) == message


def test_all_problems_of_the_rows_are_reported_together(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, jsonl(A, A, {**B, "label": 3}, {**B, "id": None}))
    assert len(message.split("\n")) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [("d.jsonl", ""), ("d.jsonl", "\n\n"), ("d.csv", ""), ("d.csv", "id,label,text\n"), ("d.json", "[]")],
)
def test_empty_dataset_is_refused(tmp_path: Path, name: str, content: str | bytes) -> None:
    assert read_load_error(tmp_path, content, name) == "dataset.path: the file has no rows"


def test_error_for_a_long_csv_row_has_the_reason_and_not_the_row(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, f'id,label,text\na,1,"{"word " * 500_000}"\n', "d.csv")
    assert "Maximum line size of 2000000 bytes exceeded" in message
    assert "word" not in message


def test_parquet_file_without_rows_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path, "SELECT 'a' id, 0 \"label\" WHERE false")
    assert read_load_error(tmp_path, name="d.parquet") == "dataset.path: the file has no rows"


@pytest.mark.parametrize("line", [1, 2, 3])
def test_error_for_malformed_json_names_the_line_number(tmp_path: Path, line: int) -> None:
    lines = [json.dumps({**A, "id": str(i)}) for i in range(4)]
    lines[line - 1] = '{"id": "b", oops}'
    message = read_load_error(tmp_path, "\n".join(lines) + "\n")
    assert "Malformed JSON" in message or "not valid JSON" in message
    assert f"line {line}" in message or f"d.jsonl:{line}" in message


@pytest.mark.sample(1)
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
def test_file_whose_content_does_not_match_its_extension_is_refused(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    message = read_load_error(tmp_path, content, name)
    assert message.startswith("dataset") or name in message


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ('a,0,"open\nb,1,x\n', "line 2 (row 1)"),
        ('a,0,"fine\n, too"\nb,1,"open\nc,0,x\n', "line 4 (row 2)"),
        ('a,0,x\nb,1,"open, and more\nc,0,y\nd,1,z\n', "line 3 (row 2)"),
        ('a,0,x\nb,1,"open\nc,0,"y"\nd,1,z\n', "line 3 (row 2)"),
    ],
)
def test_unclosed_quote_in_a_csv_file_is_refused_with_its_row(tmp_path: Path, rows: str, place: str) -> None:
    message = read_load_error(tmp_path, f"id,label,text\n{rows}", "d.csv")
    assert f"{place}: a quoted text that begins in this row is not closed" in message


@pytest.mark.parametrize("ragged", [None, 2_900, 2_100])
def test_late_unclosed_quote_is_named_unless_an_earlier_row_is_ragged(tmp_path: Path, ragged: int | None) -> None:
    rows = [
        f'r{number},{number % 2},"one, two","three, {number}"\n' for number in range(1, 3_001)
    ]  # more rows than are sampled
    rows[2_499] = rows[2_499].replace('"\n', "\n")
    if ragged is not None:
        rows[ragged - 1] = rows[ragged - 1].replace("\n", ",more\n")
    message = read_load_error(tmp_path, "id,label,text,more\n" + "".join(rows), "d.csv")
    if ragged == 2_100:
        assert "line 2101: the row has 5 fields, but the header has 4" in message
    else:
        assert "line 2501 (row 2500): a quoted text that begins in this row is not closed" in message


def test_lone_quote_in_a_tsv_file_is_refused_only_among_quoted_texts(tmp_path: Path) -> None:
    content = 'id\tlabel\ttext\na\t0\tx\nb\t1\t"open\nc\t0\ty\n'
    points = load(tmp_path, content, "d.tsv").datapoints
    assert [point.columns["text"] for point in points] == ["x", '"open', "y"]
    message = read_load_error(tmp_path, f'{content}d\t1\t"a ""word"" here"\n', "d.tsv")
    assert "line 3 (row 2): a quoted text that begins in this row is not closed" in message


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ('a,0,say "hi', 'say "hi'),
        ('a,0,"say \\"hi\\", you"', 'say "hi", you'),
        ("a,0,'\"yes, you'", '"yes, you'),
        ('a,0,"two\nlines"', "two\nlines"),
    ],
)
def test_csv_file_with_other_quoting_rules_is_read(tmp_path: Path, row: str, text: str) -> None:
    (point,) = load(tmp_path, f"id,label,text\n{row}\n", "d.csv").datapoints
    assert point.columns["text"] == text


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        (
            "d.csv",
            'id,label,text\na,0,"two\nlines"\nb,1,caf\xe9\n'.encode("latin-1"),
            (
                "line 4 (row 2), byte 8: 0xe9 is not UTF-8",
                "the text is 'b,1,caf\xe9'",
                "iconv -f WINDOWS-1252 -t UTF-8 d.csv",
            ),
        ),
        (
            "d.jsonl",
            (jsonl(A) + jsonl(B).replace("second", "\xfcber")).encode("latin-1"),
            ("line 2 (row 2), byte ", "0xfc is not UTF-8"),
        ),
        ("d.csv", "id,label\na,0\n".encode("utf-16"), ("line 1 (the header), byte 1", "iconv -f UTF-16 ")),
        ("d.jsonl", jsonl(A).encode("utf-16"), ("line 1 (row 1), byte 1", "iconv -f UTF-16 ")),
        ("d.csv", 'id,label,text\na,0,"x, y"\n'.encode("utf-16-le"), ("is UTF-16LE, not UTF-8", "iconv -f UTF-16LE ")),
        ("d.csv", "id,label,text\na,0,x\n".encode("utf-16-be"), ("is UTF-16BE, not UTF-8", "iconv -f UTF-16BE ")),
        ("d.tsv", "id\tlabel\na\t0\n".encode("utf-32-le"), ("is UTF-32LE, not UTF-8", "iconv -f UTF-32LE ")),
        ("d.jsonl", jsonl(A, B).encode("utf-16-le"), ("is UTF-16LE, not UTF-8", "iconv -f UTF-16LE ")),
        ("d.json", json.dumps([A, B]).encode("utf-16-be"), ("is UTF-16BE, not UTF-8", "iconv -f UTF-16BE ")),
    ],
)
def test_error_for_another_encoding_names_the_row_byte_and_iconv_command(
    tmp_path: Path, name: str, content: bytes, parts: tuple[str, ...]
) -> None:
    message = read_load_error(tmp_path, content, name)
    assert [part for part in parts if part not in message] == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("start", ["", "\n ", "\ufeff"])
def test_json_array_in_a_jsonl_file_is_read(tmp_path: Path, indent: int | None, start: str) -> None:
    content = start + json.dumps([A, B], indent=indent)
    assert datapoint_ids(load(tmp_path, content, "d.jsonl")) == datapoint_ids(
        load(tmp_path, content, "d.jsonl", filter="label < 2")
    )
    assert datapoint_ids(load(tmp_path, content, "d.jsonl", filter="label = 1")) == ["b"]


def test_folder_is_refused_as_a_dataset_file(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    assert read_load_error(tmp_path, name="folder.jsonl")


def test_error_for_hub_dataset_without_the_extra_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(SpecError, match=r"needs an extra: pip install 'nip-run\[hf\]'"):
        load_dataset(DatasetSettings(path="hf://org/name"), None, 0, Place)
