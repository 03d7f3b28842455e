"""Differences on the leaderboard: ranges of ranks, and the views `comparisons` and `flips`."""

from __future__ import annotations

import json
from functools import wraps
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner import query
from runner.base.storage.format_versions import LEADERBOARD
from runner.results.leaderboard import sql_tests
from runner.results.leaderboard.database import FILE
from runner.results.leaderboard.ranks import rank_rows
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sql_tests import paired_test
from runner.results.leaderboard.sweep_table import SweepPoint, sweep_rows
from tests.results.comparison.planted import SIZE, other_system_override, play_with_planted_verdicts, write_solo_spec
from tests.results.comparison.test_command import run_command


@pytest.mark.full
def test_rows_without_a_significant_difference_share_a_range_of_ranks(tmp_path: Path) -> None:
    path, results = write_solo_spec(tmp_path, size=30), tmp_path / "results"
    for name, first in (("best", 0), ("near", 2), ("far", 15), ("farther", 16)):

        def accept(datapoint: int, _: int, *, first: int = first) -> bool:
            return datapoint >= first

        play_with_planted_verdicts(path, results, name, accept, f"name={name}", other_system_override(first))
    expected = [("best", 1, 2), ("near", 1, 2), ("far", 3, 4), ("farther", 3, 4)]
    sql = "SELECT run_id, rank, rank_last FROM leaderboard ORDER BY accuracy DESC"
    board = Results(results).board
    board.rebuild()
    assert query(sql, results).fetchall() == expected
    board.append(Results(results).run("near"))
    assert query(sql, results).fetchall() == expected
    ranges = {run: (first, last) for run, first, last in query(sql, results).fetchall()}
    table = run_command(results, "leaderboard").stdout
    rows = json.loads(run_command(results, "leaderboard", "--json").stdout)
    for row in rows:
        first, last = ranges[row["run_id"]]
        assert (row["rank"], row["rank_last"]) == (first, last)
        rank_text = str(first) if first == last else f"{first}-{last}"
        assert any(line.split()[:2] == [rank_text, row["run_id"]] for line in table.splitlines())
    with duckdb.connect(str(results / FILE), read_only=True) as connection:
        assert connection.execute(sql).fetchall() == query(sql, results).fetchall()


@pytest.mark.full
def test_difference_against_the_order_of_accuracies_separates_no_runs(tmp_path: Path) -> None:
    """With lost games, accuracies come from different rows: `first` has 54 of 60 right, `second` has 60 of 100."""
    path, results = write_solo_spec(tmp_path, size=100), tmp_path / "results"
    play_with_planted_verdicts(
        path, results, "first", lambda i, _: i < 54, "rollouts.max_transport_failed=0.5", other_system_override(1)
    )
    play_with_planted_verdicts(path, results, "second", lambda i, _: i < 60, other_system_override(2))
    with duckdb.connect(str(results / FILE)) as board:
        lost = "run_id = 'first' AND substr(datapoint_id, 2)::INT >= 60"
        board.execute(f"UPDATE rollouts SET correct = NULL, outcome = 'transport_failed' WHERE {lost}")
        board.execute("UPDATE metrics SET value = 0.9 WHERE run_id = 'first' AND metric = 'accuracy'")
        board.execute("DELETE FROM rank_tests")
        rank_rows(board)
    ((p, difference),) = query("SELECT p, difference FROM comparisons WHERE run_a = 'first'", results).fetchall()
    assert (p, difference) == (pytest.approx(2 / 2**6), 0.1)
    sql = "SELECT run_id, rank, rank_last FROM leaderboard ORDER BY run_id"
    assert query(sql, results).fetchall() == [("first", 1, 2), ("second", 1, 2)]
    points = [SweepPoint(name, name, {}, 7) for name in ("first", "second")]
    assert [row.rank for row in sweep_rows(points, Results(results))] == [(1, 2), (1, 2)]


@pytest.mark.full
def test_ranks_in_sql_equal_the_printed_ranks(results: Path) -> None:
    rows = json.loads(run_command(results, "leaderboard", "--json").stdout)
    ranked = {row["run_id"]: (row["rank"], row["rank_last"]) for row in rows if row["rank"] is not None}
    assert ranked["good"] == ranked["same"]
    assert ranked["fair"][0] > ranked["good"][0]
    table = [line.split()[:2] for line in run_command(results, "leaderboard").stdout.splitlines()]
    for run, (first, last) in ranked.items():
        assert [str(first) if first == last else f"{first}-{last}", run] in table


@pytest.mark.full
def test_plain_duckdb_connection_reads_the_file_with_its_views(results: Path) -> None:
    with duckdb.connect(str(results / FILE), read_only=True) as connection:
        names = {
            name for (name,) in connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        }
        assert names == {"leaderboard", "flips", "shared_answers", "copies", "ratings"}
        flips = "SELECT * FROM flips WHERE run_a = 'good' AND run_b = 'same' ORDER BY datapoint_id"
        assert connection.execute(flips).fetchall() == query(flips, results).fetchall()
        assert len(connection.execute(flips).fetchall()) == 2


@pytest.mark.full
def test_comparison_can_be_fetched_twice_and_written_as_parquet(results: Path, tmp_path: Path) -> None:
    sql = "SELECT p, groups FROM comparisons WHERE run_a = 'fair' AND run_b = 'good'"
    relation = query(sql, results)
    assert relation.fetchall() == [(2 / 2**12, 40)]
    assert relation.fetchall() == [(2 / 2**12, 40)]
    file = tmp_path / "answer.parquet"
    assert run_command(results, "sql", sql, "-o", str(file)).returncode == 0
    with duckdb.connect(":memory:") as connection:
        assert connection.execute(f"SELECT * FROM read_parquet('{file}')").fetchall() == [(2 / 2**12, 40)]


@pytest.mark.gate
def test_pairs_excluded_by_where_are_not_tested(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group_counts: list[int] = []

    @wraps(paired_test)
    def counting_test(*arguments: Any) -> dict[str, Any]:
        group_counts.append(len(arguments[0]))
        return paired_test(*arguments)

    monkeypatch.setattr(sql_tests, "paired_test", counting_test)
    sql = "SELECT run_b FROM comparisons WHERE run_a = 'fair' AND run_b = 'good' AND p < 2"
    assert query(sql, results).fetchall() == [("good",)]
    assert group_counts == [SIZE]


@pytest.mark.full
def test_query_on_other_tables_computes_no_comparisons(results: Path) -> None:
    columns = query("SELECT column_name FROM duckdb_columns() WHERE table_name = 'comparisons'", results).fetchall()
    assert len(columns) == 15


def test_paired_test_of_one_group_has_no_error_and_no_p_value() -> None:
    result = paired_test([1.0], [2.0], [0.0], [1.0], 0.5, False)
    assert (result["difference"], result["stderr"], result["p"], result["groups"]) == (0.5, None, None, 1)


@pytest.mark.full
def test_leaderboards_of_format_2_are_upgraded(tmp_path: Path) -> None:
    path, results = write_solo_spec(tmp_path, size=8), tmp_path / "results"
    for number, name in enumerate(("a", "b")):
        play_with_planted_verdicts(
            path, results, name, lambda i, _: i % 2 == 0, f"name={name}", other_system_override(number)
        )
    with duckdb.connect(str(results / FILE)) as board:
        board.execute("DROP VIEW flips; DROP VIEW leaderboard; DROP TABLE ranks; DROP TABLE rank_tests")
        board.execute("UPDATE format SET version = 2")
    before = (results / FILE).read_bytes()
    sql = "SELECT run_id, rank, rank_last FROM leaderboard ORDER BY run_id"
    assert query(sql, results).fetchall() == [("a", 1, 2), ("b", 1, 2)]
    assert query("SELECT p FROM comparisons", results).fetchall() == [(1.0,), (1.0,)]
    assert (results / FILE).read_bytes() == before
    Results(results).board.append(Results(results).run("a"))
    with duckdb.connect(str(results / FILE), read_only=True) as connection:
        assert connection.execute(sql).fetchall() == [("a", 1, 2), ("b", 1, 2)]
        assert connection.execute("SELECT version FROM format").fetchall() == [(LEADERBOARD,)]
