"""Limits of a dataset's bytes, rows and columns, and of a filter's time and memory; errors name the limit's key."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from runner.spec.datasets.settings import DatasetLimits
from tests.support.dataset_files import A, B, datapoint_ids, jsonl, load, read_load_error, write_parquet
from tests.support.processes import python

CSV = "id,label,text\na,0,x\nb,1,y\n"


def with_limits(**values: Any) -> dict[str, Any]:
    return {"limits": DatasetLimits(**values)}


@pytest.mark.full
def test_parquet_file_that_expands_to_gigabytes_is_refused_in_little_memory(tmp_path: Path) -> None:
    write_parquet(
        tmp_path, "SELECT 'r' || range AS id, range % 2 AS label, repeat('x', 900000) AS text FROM range(9000)"
    )
    assert (tmp_path / "d.parquet").stat().st_size < 200_000
    code = (
        "import resource, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from tests.support.dataset_files import read_load_error\n"
        "print(read_load_error(Path(sys.argv[1]), None, 'd.parquet'))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, 'MB')"
    )
    done = python(code, tmp_path, Path(__file__).parents[3])
    message, peak = done.stdout.splitlines()
    assert "more than dataset.limits.bytes (268,435,456)" in message
    assert int(peak.split()[0]) < 1000


@pytest.mark.full
def test_byte_limit_counts_the_elements_of_parquet_lists(tmp_path: Path) -> None:
    query = "SELECT 'r' || range AS id, 0 AS label, [repeat('y', 900000)] AS l FROM range(9)"
    write_parquet(tmp_path, query)
    assert "dataset.limits.bytes (1,000,000)" in read_load_error(
        tmp_path, None, "d.parquet", **with_limits(bytes=1_000_000)
    )


@pytest.mark.full
@pytest.mark.parametrize("value", ["{'a': 1}", "[]::INT[]", "MAP {1: 2}", "[1]"])
def test_byte_limit_counts_nested_parquet_values_as_python_objects(tmp_path: Path, value: str) -> None:
    values = f"list_transform(range(50000), lambda x: {value})"
    write_parquet(tmp_path, f"SELECT 'r' || range AS id, 0 AS label, {values} AS l FROM range(2)")
    assert "dataset.limits.bytes (20,000,000)" in read_load_error(
        tmp_path, None, "d.parquet", **with_limits(bytes=20_000_000)
    )


@pytest.mark.full
def test_commas_in_nested_texts_are_not_counted_as_values(tmp_path: Path) -> None:
    text = r"""repeat('x, "y", [{\" ', 3000)"""
    write_parquet(tmp_path, f"SELECT 'r' AS id, 0 AS label, [{{'role': 'user', 'content': {text}}}] AS messages")
    assert len(load(tmp_path, None, "d.parquet", **with_limits(bytes=200_000)).datapoints) == 1


def test_file_larger_than_the_byte_limit_is_refused(tmp_path: Path) -> None:
    for name, content in (("d.jsonl", jsonl(A, B)), ("d.csv", CSV)):
        message = read_load_error(tmp_path, content, name, **with_limits(bytes=20))
        assert "dataset.limits.bytes: the file has" in message
        assert "raise dataset.limits.bytes to read the file" in message


@pytest.mark.full
@pytest.mark.parametrize("name", ["d.jsonl", "d.csv", "d.parquet"])
def test_file_with_more_rows_than_the_limit_is_refused(tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path, "SELECT * FROM (VALUES ('a', 0, 'x'), ('b', 1, 'y')) t(id, label, text)")
    content = {"d.jsonl": jsonl(A, B), "d.csv": CSV, "d.parquet": None}[name]
    assert "more than dataset.limits.rows (1)" in read_load_error(tmp_path, content, name, **with_limits(rows=1))
    assert len(load(tmp_path, content, name, **with_limits(rows=2)).datapoints) == 2


@pytest.mark.parametrize("name", ["d.jsonl", "d.csv", "d.parquet"])
def test_file_with_more_columns_than_the_limit_is_refused(tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path, "SELECT * FROM (VALUES ('a', 0, 'x'), ('b', 1, 'y')) t(id, label, text)")
    content = {"d.jsonl": jsonl(A, B), "d.csv": CSV, "d.parquet": None}[name]
    assert "more than dataset.limits.columns (2)" in read_load_error(tmp_path, content, name, **with_limits(columns=2))


def test_rows_with_distinct_keys_count_for_all_columns(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "label": 0, f"k{n}": 1} for n in range(900)]
    assert "128 rows of 130 columns take" in read_load_error(tmp_path, jsonl(*rows), **with_limits(bytes=1 << 20))


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_gzip_content_is_refused(tmp_path: Path, name: str) -> None:
    content = gzip.compress((CSV if name == "d.csv" else jsonl(A, B)).encode())
    assert read_load_error(tmp_path, content, name)


# The filter


@pytest.mark.full
@pytest.mark.parametrize(
    "condition",
    [
        "(SELECT sum(a.range % 7 + b.range) FROM range(1000000000) a, range(1000) b) > 0",
        "length(regexp_replace(repeat('ab', 200000000), '(a|b)*c', '', 'g')) > 0",
    ],
)
def test_filter_that_exceeds_the_time_limit_is_stopped(tmp_path: Path, condition: str) -> None:
    message = read_load_error(tmp_path, jsonl(A, B), filter=condition, **with_limits(seconds=1.5))
    assert "dataset.filter: the filter took more than 1.5 seconds; raise dataset.limits.seconds" in message


@pytest.mark.full
@pytest.mark.parametrize(
    "condition",
    [
        "length(lpad('x', 2000000000, 'y')) > 0",
        "length(repeat('xxxxxxxx', 400000000)) > 0",
        "len(list_transform(range(300000000), lambda x: x::VARCHAR || 'abcdefghijklmnop')) > 0",
    ],
)
def test_filter_that_exceeds_the_memory_limit_is_stopped(tmp_path: Path, condition: str) -> None:
    message = read_load_error(tmp_path, jsonl(A, B), filter=condition, **with_limits(memory=1 << 29))
    assert (
        "dataset.filter: the filter took more than 536,870,912 bytes of memory; raise dataset.limits.memory" in message
    )


@pytest.mark.full
def test_filter_cannot_read_files(tmp_path: Path) -> None:
    for condition in (f"(SELECT count(*) FROM read_csv('{tmp_path}/d.csv')) > 0", "(SELECT 1 FROM 'x.parquet') > 0"):
        assert "dataset.filter" in read_load_error(tmp_path, CSV, "d.csv", filter=condition)


@pytest.mark.full
@pytest.mark.parametrize("number", ["1", "[1]", "1.5::DECIMAL(3, 1)", "'x'::BLOB", "{'a': 1}", "2 ** 63"])
def test_filter_cannot_close_the_querys_brackets(tmp_path: Path, number: str) -> None:
    for rest in ("", " WHERE false"):
        condition = f"true) AS keep FROM data{rest}) t1(a, b), (SELECT {number} AS number, (true"
        assert "must be one SQL condition" in read_load_error(tmp_path, jsonl(A, B), filter=condition)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "condition", ["label = 1 -- the second", "(label = 1)", "label IN (SELECT 1)", "NOT (label=0)"]
)
def test_filter_may_contain_brackets_and_comments(tmp_path: Path, condition: str) -> None:
    assert datapoint_ids(load(tmp_path, jsonl(A, B), filter=condition)) == ["b"]


@pytest.mark.full
def test_filter_process_does_not_import_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "duckdb", "orjson"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    assert datapoint_ids(load(tmp_path, jsonl(A, B), filter="label = 1")) == ["b"]


# Ragged files


@pytest.mark.parametrize(
    ("content", "line", "expected"),
    [
        ("id,label,text\na,0,x\nb,1\n", 3, "the row has 2 fields, but the header has 3"),
        ("id,label,text\na,0,x\nb,1,y,z\nc,0,w\n", 3, "the row has 4 fields, but the header has 3"),
        ('id;label;text\na;0;"two\nlines"\nb;1\n', 4, "the row has 2 fields, but the header has 3"),
        ("id,label,text\n\na,0\n", 3, "the row has 2 fields, but the header has 3"),
        ("id,label,problem\na,1,x\nb,0,y,q\n", 3, "the row has 4 fields, but the header has 3"),
        ("r,0,x\ns,1,y\nid,label,text,a,b\na,0,x,1,2\nb,1,y,3,4\n", 3, "the row has 5 fields, but the header has 3"),
    ],
)
def test_error_for_a_ragged_csv_names_the_line(tmp_path: Path, content: str, line: int, expected: str) -> None:
    message = read_load_error(tmp_path, content, "d.csv")
    assert f"line {line}: {expected}" in message


def test_row_above_the_header_is_refused(tmp_path: Path) -> None:
    message = read_load_error(tmp_path, "Ours\nid;label;text\na;0;x\nb;1;y\n", "d.csv")
    assert "line 1: the header, with 3 fields, must be the first row" in message


@pytest.mark.parametrize("above", ["# ours\n", "# a, b\n", "\n\n", "\ufeff"])
def test_comments_and_blank_lines_may_precede_the_header(tmp_path: Path, above: str) -> None:
    assert datapoint_ids(load(tmp_path, f"{above}id,label,text\na,0,x\nb,1,y\n", "d.csv")) == ["a", "b"]


@pytest.mark.parametrize(
    ("rows", "ids", "note"),
    [
        ("#1,1,one\n#2,0,two\n3,1,three\n4,0,four\n", ["3", "4"], "2 rows not used"),
        ("a,0,x\n# old\nb,1,y\n", ["a", "b"], "1 row not used"),
        ('"#1",0,x\nb,1,"y\n# z, not a comment"\n', ["#1", "b"], ""),
    ],
)
def test_rows_that_count_as_comments_are_noted(tmp_path: Path, rows: str, ids: list[str], note: str) -> None:
    dataset = load(tmp_path, f"id,label,text\n{rows}", "d.csv")
    assert datapoint_ids(dataset) == ids
    assert [line.startswith(f"d.csv: {note}, since # starts a comment") for line in dataset.notes] == [True] * bool(
        note
    )


@pytest.mark.parametrize("header", ["id,label,text,text", "# ours\nid;label;text;text", '"id","label",text,"text"'])
def test_columns_with_the_same_name_are_noted(tmp_path: Path, header: str) -> None:
    rows = "a,0,x,1\nb,1,y,2\n".replace(",", ";" if ";" in header else ",")
    dataset = load(tmp_path, f"{header}\n{rows}", "d.csv")
    assert dataset.columns == ("text", "text_1")
    (note,) = dataset.notes
    assert note.startswith(
        "d.csv has several columns 'text': the first keeps its name, and the others are named text_1"
    )


def test_error_for_a_ragged_tsv_names_the_line(tmp_path: Path) -> None:
    assert "line 2: the row has 2 fields" in read_load_error(tmp_path, "id\tlabel\ta, b\nx\t0\n", "d.tsv")
