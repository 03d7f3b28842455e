"""`nip-run sql`: queries, output formats and errors."""

from __future__ import annotations

import csv
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.cli.main import main
from runner.cli.results.sql import EXAMPLES, MAX_CELL, MAX_TABLE_ROWS, _write_blocks
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.schema import COMMENTS
from runner.results.notes import Notes
from runner.results.table_columns import COLUMNS
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file
from tests.support.sql_command import read_sql_output, run_sql


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results folder of one run of four datapoints."""
    folder = tmp_path_factory.mktemp("sql")
    run_spec(spec_file(folder, size=4), folder / "results")
    return folder / "results"


@pytest.mark.full
def test_sql_without_a_query_lists_tables_with_columns_comments_and_examples(results: Path) -> None:
    output = read_sql_output(results)
    for table in ("leaderboard", "runs", "agents", "metrics", "rollouts", "datapoints", "messages", "completions"):
        assert f"\n{table}\n" in "\n" + output
    for text in COMMENTS["rollouts"].values():
        assert text in output
    assert all(example in output for example in EXAMPLES)
    listed = {table["name"]: table["columns"] for table in json.loads(read_sql_output(results, "--json"))["tables"]}
    assert [column["name"] for column in listed["messages"]] == list(COLUMNS["messages"])


@pytest.mark.full
def test_notes_table_has_the_notes_of_runs_and_rollouts(results: Path) -> None:
    run = RunFolder(only_run(results))
    notes, sql = (
        Notes(run),
        "SELECT run_id, rollout_id, tags, text, writer FROM notes ORDER BY rollout_id NULLS LAST",
    )
    assert json.loads(read_sql_output(results, sql, "--json")) == []
    ((rollout,),) = Results(results).board.query("SELECT min(rollout_id) FROM rollouts")[1]
    notes.write("a 'quoted' line\nand another", ["bug", "hint"], rollout_id=rollout, by="Ada")
    removed = notes.write("second thoughts")
    notes.remove(removed.id)
    notes.write("of the run")
    game_note = {
        "rollout_id": rollout,
        "tags": ["bug", "hint"],
        "text": "a 'quoted' line\nand another",
        "writer": "Ada",
    }
    run_note: dict[str, Any] = {"rollout_id": None, "tags": [], "text": "of the run", "writer": None}
    assert json.loads(read_sql_output(results, sql, "--json")) == [
        {"run_id": run.run_id, **note} for note in (game_note, run_note)
    ]
    joined = "SELECT count(*) AS n FROM notes JOIN rollouts USING (run_id, rollout_id)"
    assert json.loads(read_sql_output(results, joined, "--json")) == [{"n": 1}]
    notes.path.write_text("no note\n")
    assert "notes.jsonl:1" in run_sql(results, "FROM notes").stderr
    read_sql_output(results, "FROM runs")  # queries on other tables do not read the notes
    notes.path.unlink()


@pytest.mark.full
def test_every_example_query_works_on_a_run_and_on_an_empty_folder(results: Path, tmp_path: Path) -> None:
    for example in EXAMPLES:
        read_sql_output(results, example)
        read_sql_output(tmp_path, example)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("PIVOT rollouts ON repeat USING count(*) GROUP BY run_id", "4"),
        ("FROM rollouts SELECT count(*)", "4"),
        ("WITH r AS (FROM rollouts) SELECT count(*) FROM r; -- all", "4"),
        ("DESCRIBE messages", "run_id"),
        ("SUMMARIZE rollouts", "run_id"),
        ("SHOW TABLES", "agents"),
        ("EXPLAIN SELECT 1", "physical_plan"),
        ("EXPLAIN ANALYZE SELECT 1", "analyzed_plan"),
        ("SELECT count(*) FROM completions c JOIN rollouts r USING (run_id, rollout_id) WHERE r.y IS NULL", "0"),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT max(n) FROM t", "5"),
        ("SELECT d.key FROM rollouts, json_each(rewards) d GROUP BY ALL ORDER BY 1", "prover"),
        ("SELECT n FROM (SELECT row_number() OVER (ORDER BY rollout_id) n FROM rollouts) WHERE n = 3", "3"),
    ],
)
def test_every_kind_of_read_query_is_answered(results: Path, sql: str, expected: str) -> None:
    rows = list(csv.reader(io.StringIO(read_sql_output(results, sql, "--format", "csv"))))
    assert expected in rows[1]


@pytest.mark.full
def test_query_is_read_from_a_file_or_from_standard_input(results: Path, tmp_path: Path) -> None:
    sql = "-- how many\nSELECT count(*) AS n FROM rollouts"
    (tmp_path / "q.sql").write_text(sql)
    for arguments in (("--file", str(tmp_path / "q.sql")), ("-",), (sql,)):
        assert json.loads(read_sql_output(results, *arguments, "--json", stdin=sql)) == [{"n": 4}]
    process = run_sql(results, "SELECT 1", "--file", str(tmp_path / "q.sql"))
    assert (process.returncode, process.stderr) == (
        2,
        "the query is given twice; give an argument or --file, not both\n",
    )
    assert run_sql(results, "--file", tmp_path / "none.sql").returncode == 2
    (tmp_path / "q.sql").write_bytes(b"SELECT '\xff'")
    cases: tuple[tuple[tuple[str, ...], bytes | None, str], ...] = (
        (("-",), b"SELECT '\xff'", "standard input is not UTF-8 at byte 8: invalid start byte; save it as UTF-8"),
        (
            ("--file", str(tmp_path / "q.sql")),
            b"",
            f"{tmp_path}/q.sql is not UTF-8 at byte 8: invalid start byte; save it as UTF-8",
        ),
        (("-",), None, "standard input is closed; give the query as an argument or with --file"),
    )
    for options, data, message in cases:
        process = run_sql(results, *options, stdin=data)
        assert (process.returncode, process.stderr) == (2, message + "\n")


VALUES = "SELECT 1 AS a, 'x,\"|\n' AS a, NULL AS n, [1, 2] AS l, 0.5::DECIMAL(3, 1) AS d, true AS t"


@pytest.mark.full
def test_result_is_written_in_the_requested_format(results: Path, tmp_path: Path) -> None:
    assert read_sql_output(results, VALUES, "--format", "csv") == 'a,a,n,l,d,t\n1,"x,""|\n",,"[1, 2]",0.5,true\n'
    expected = [{"a": 1, "a_1": 'x,"|\n', "n": None, "l": [1, 2], "d": 0.5, "t": True}]
    assert json.loads(read_sql_output(results, VALUES, "--format", "json")) == expected
    assert (
        read_sql_output(results, VALUES, "--format", "markdown").splitlines()[2]
        == '| 1 | x,"\\|<br> |  | [1, 2] | 0.5 | true |'
    )
    assert json.loads(read_sql_output(results, "SELECT 1 WHERE false", "--json")) == []
    for name in ("a.csv", "a.json", "a.md"):
        assert read_sql_output(results, VALUES, "-o", tmp_path / name) == ""
        assert (tmp_path / name).read_text() == read_sql_output(
            results, VALUES, "--format", {"md": "markdown"}.get(name[2:], name[2:])
        )
    read_sql_output(results, VALUES, "-o", tmp_path / "b.CSV")
    assert (tmp_path / "b.CSV").read_text() == (tmp_path / "a.csv").read_text()
    (tmp_path / "b.CSV").unlink()
    read_sql_output(results, "FROM rollouts ORDER BY rollout_id", "-o", tmp_path / "a.parquet")
    read_sql_output(results, "PIVOT rollouts ON repeat USING count(*) GROUP BY y; -- all", "-o", tmp_path / "p.parquet")
    kinds = duckdb.execute(f"DESCRIBE FROM '{tmp_path / 'a.parquet'}'").fetchall()
    portable = {name: "VARCHAR" if kind == "JSON" else kind for name, kind in COLUMNS["rollouts"].items()}
    assert {name: kind for name, kind, *_ in kinds} == portable
    assert duckdb.execute(f"FROM '{tmp_path / 'p.parquet'}'").fetchall() == [(0, 2), (1, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.json", "a.md", "a.parquet", "p.parquet"]


@pytest.mark.full
def test_concurrent_results_in_one_folder_do_not_mix_or_touch_other_files(results: Path, tmp_path: Path) -> None:
    names = [f"{number}.{ending}" for number in range(2) for ending in ("csv", "parquet")]
    for name in (".answer.new", ".answer.parquet.new"):
        (tmp_path / name).write_text("mine")
    with ThreadPoolExecutor(len(names)) as pool:
        for _ in range(3):
            queries = {name: f"SELECT {name[0]} AS n FROM range(40_000)" for name in names}
            board = Results(results).board
            for future in [
                pool.submit(board.sources().write_parquet, sql, tmp_path / name)
                if name.endswith("parquet")
                else pool.submit(_write_blocks, tmp_path / name, (line for line in ["n\n", *[f"{name[0]}\n"] * 40_000]))
                for name, sql in queries.items()
            ]:
                future.result()
            for name in names:
                assert duckdb.execute(f"SELECT DISTINCT n FROM '{tmp_path / name}'").fetchall() == [(int(name[0]),)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, ".answer.new", ".answer.parquet.new"])
    assert {(tmp_path / name).read_text() for name in (".answer.new", ".answer.parquet.new")} == {"mine"}


@pytest.mark.full
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_result_replaces_only_a_regular_file(results: Path, tmp_path: Path, ending: str) -> None:
    (tmp_path / f"folder.{ending}").mkdir()
    os.mkfifo(tmp_path / f"fifo.{ending}")
    (tmp_path / f"to_fifo.{ending}").symlink_to(f"fifo.{ending}")
    for name, kind in (("folder", "a folder"), ("fifo", "a FIFO"), ("to_fifo", "a FIFO")):
        path = tmp_path / f"{name}.{ending}"
        process = run_sql(results, "SELECT 1 AS x", "-o", path)
        message = f"{path} is {kind}; give a file, or omit --out to print the result\n"
        assert (process.returncode, process.stderr) == (2, message)
    assert (tmp_path / f"fifo.{ending}").is_fifo()
    (tmp_path / f"link.{ending}").symlink_to(f"real.{ending}")
    for _ in range(2):  # first a dangling link, then a link to a file
        read_sql_output(results, "SELECT 1 AS x", "-o", tmp_path / f"link.{ending}")
        assert (tmp_path / f"link.{ending}").is_symlink()
        assert duckdb.execute(f"FROM '{tmp_path / f'real.{ending}'}'").fetchall() == [(1,)]


UNLIKE_PYTHON = """SELECT '2026-01-02 03:04:05+00'::TIMESTAMPTZ = x.t AS same, x.* FROM (
    SELECT '2026-01-02 03:04:05+00'::TIMESTAMPTZ AS t, [t] AS l, {'a b': t, 'n': 1} AS s, MAP {'k': t} AS m,
    (1, t) AS u,
    '01:02:03+02'::TIMETZ AS z, INTERVAL '1 month 2 days' AS i, '2026-01-02 03:04:05.123456789'::TIMESTAMP_NS AS ns,
    encode('\\ä') AS b, 'infinity'::DATE AS d, ';' AS j) x; -- it ends ; here"""


@pytest.mark.full
@pytest.mark.parametrize("output_format", ["table", "csv", "json", "markdown"])
def test_values_without_a_python_equivalent_are_text(results: Path, tmp_path: Path, output_format: str) -> None:
    output = read_sql_output(results, UNLIKE_PYTHON, "--format", output_format)
    assert all(text in output for text in ("1 month 2 days", "05.123456789", "xC3", "infinity"))
    if output_format != "json":
        return
    (row,) = json.loads(output)
    kinds = {name: row[name] for name in ("same", "z", "i", "ns", "b", "d", "j")}
    assert kinds == {
        "same": True, "z": "01:02:03+02", "i": "1 month 2 days", "ns": "2026-01-02 03:04:05.123456789",
        "b": "\\x5C\\xC3\\xA4", "d": "infinity", "j": ";",
    }  # fmt: skip
    timestamp = row["t"]
    assert (row["l"], row["s"], row["m"]) == ([timestamp], {"a b": timestamp, "n": 1}, {"k": timestamp})
    assert timestamp in row["u"]
    read_sql_output(results, UNLIKE_PYTHON, "-o", tmp_path / "x.parquet")
    assert duckdb.execute(f"SELECT typeof(t), b FROM '{tmp_path}/x.parquet'").fetchall() == [
        ("TIMESTAMP WITH TIME ZONE", b"\\\xc3\xa4")
    ]


@pytest.mark.full
def test_file_output_is_unescaped_and_printed_output_is_escaped(results: Path, tmp_path: Path) -> None:
    sql = "SELECT chr(27) || '[2J' AS x"
    assert "\\x1b[2J" in read_sql_output(results, sql, "--format", "csv")
    read_sql_output(results, sql, "-o", tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == "x\n\x1b[2J\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("SELECT 1", "--format", "parquet"), "add --out FILE"),
        (("SELECT 1", "--format", "csv", "--json"), "contradict each other"),
        (("SELECT 1", "--json", "-o", "{}/x.parquet"), "--json contradicts the extension of {}/x.parquet"),
        (("SELECT 1", "--format", "csv", "-o", "{}/x.JSON"), "--format csv contradicts the extension of {}/x.JSON"),
        (("SELECT 1", "-o", "x.txt"), "add --format csv"),
        (("SELECT 1", "-o", "{}/no/x.csv"), "no/x.csv: No such file"),
        (("SELECT 1", "-o", "{}/no/x.parquet"), "no/x.parquet: "),
    ],
)
def test_invalid_output_options_are_refused(
    results: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    process = run_sql(results, *(argument.format(tmp_path) for argument in arguments))
    assert process.returncode != 0
    assert message.format(tmp_path) in process.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("sql", "quoted", "location"),
    [
        ("SELECT a,\n  nope FROM (SELECT 1 AS a)", "LINE 2:   nope FROM (SELECT 1 AS a)\n          ^^^^", (2, 3)),
        ("SELECT nope FROM (SELECT 1 AS a)", "LINE 1: SELECT nope FROM (SELECT 1 AS a)\n               ^^^^", (1, 8)),
        ("SELEC 1", "LINE 1: SELEC 1\n        ^^^^^", (1, 1)),
        ("EXPLAIN SELECT nope", "LINE 1:         SELECT nope\n                       ^^^^", (1, 16)),
        ("\n" * 8 + "\nFROM nope", "LINE 10: FROM nope\n              ^^^^", (10, 6)),
        ("SELECT now(),\n x::INT FROM (VALUES ('a')) v(x)", "LINE 2:  x::INT FROM", (2, 3)),
    ],
)
def test_sql_error_quotes_the_line_of_the_user(results: Path, sql: str, quoted: str, location: tuple[int, int]) -> None:
    process = run_sql(results, sql, "--json")
    assert quoted in process.stderr
    assert "FORMAT json" not in process.stderr
    ((error,), code) = json.loads(process.stdout)["errors"], process.returncode
    assert (code, error["line"], error["column"]) == (2, *location)
    assert "LINE" not in error["message"]
    if "FROM nope" in sql:
        assert error["message"] == "Catalog Error: Table with name nope does not exist!"
        assert "Did you mean" in error["hint"]


@pytest.mark.full
def test_missing_leaderboard_and_unknown_benchmark_are_reported_with_the_next_step(
    results: Path, tmp_path: Path
) -> None:
    def run_leaderboard(folder: Path, *arguments: str) -> tuple[int, str]:
        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            code = main(["leaderboard", "--results", str(folder), *arguments])
        return code, stdout.getvalue() + stderr.getvalue()

    (name,) = json.loads(read_sql_output(results, "SELECT DISTINCT benchmark AS b FROM runs", "--json"))
    assert run_leaderboard(results, name["b"])[0] == 0
    assert run_leaderboard(results, name["b"][:-1]) == (
        2, f"no benchmark {name['b'][:-1]!r} in {results}; did you mean {name['b']!r}?\n"
    )  # fmt: skip
    assert run_leaderboard(results, "qqq") == (2, f"no benchmark 'qqq' in {results}; choose one of: {name['b']}\n")
    (tmp_path / "runs").symlink_to(results / "runs")
    rebuild_hint = (
        f"there is no board for 1 run folder. Rebuild it with: nip-run leaderboard --rebuild --results {tmp_path}\n"
    )
    assert run_leaderboard(tmp_path) == (0, f"no rows in {tmp_path}; {rebuild_hint}")
    assert run_leaderboard(tmp_path, name["b"]) == (2, f"no benchmark {name['b']!r} in {tmp_path}; {rebuild_hint}")


@pytest.mark.full
def test_table_output_stops_at_the_maximum_row_count_and_says_so(results: Path) -> None:
    lines = read_sql_output(results, f"FROM range({MAX_TABLE_ROWS + 1})").splitlines()
    assert len(lines) == MAX_TABLE_ROWS + 2
    assert lines[-1].startswith("Only the first 1,000 rows are shown.")
    assert len(read_sql_output(results, f"FROM range({MAX_TABLE_ROWS})").splitlines()) == MAX_TABLE_ROWS + 1


@pytest.mark.full
def test_table_output_truncates_long_cells(results: Path) -> None:
    sql = "SELECT repeat('x', 2_000_000) AS x, 'y' AS y"
    output = read_sql_output(results, sql)
    assert f"... ({2_000_000 - MAX_CELL:,} more characters)" in " ".join(output.split())
    assert (
        output.splitlines()[-1] == f"1 cell cut to {MAX_CELL:,} characters. Full cells: --format csv, json or markdown"
    )
    assert len(read_sql_output(results, sql, "--format", "csv")) == 2_000_000 + len("x,y\n,y\n")
