"""The model that all leaderboards share."""

from __future__ import annotations

import ast
import string
from collections.abc import Sequence

import duckdb
import pytest

from runner.results.leaderboard.model import RankedRow, rank
from runner.results.leaderboard.unranked import OTHER_TASK, Unranked
from tests.support.modules import FILES, tree, walk

MODEL = "runner.results.leaderboard.model"
RANKING = {
    "runner.results.leaderboard.ranks",
    "runner.results.leaderboard.sweep_table",
    "runner.server.competitions.board",
}


def find_importers(module: str, name: str) -> set[str]:
    return {
        importer
        for importer in FILES
        for node in walk(tree(importer))
        if isinstance(node, ast.ImportFrom) and node.module == module and name in {alias.name for alias in node.names}
    }


@pytest.mark.full
def test_every_leaderboard_ranks_by_one_function() -> None:
    assert find_importers("runner.statistics.rank_sets", "rank_sets") == {MODEL}
    assert find_importers(MODEL, "rank") == RANKING


def test_rows_rank_from_the_largest_value_and_ties_keep_their_order() -> None:
    tested: list[tuple[str, str]] = []

    def p_values(pairs: Sequence[tuple[str, str]]) -> list[float]:
        tested.extend(pairs)
        return [0.0 for _ in pairs]

    values = [("low", 0.1), ("first", 0.9), ("second", 0.9)]
    assert rank(values, p_values) == {"first": (1, 1), "second": (2, 2), "low": (3, 3)}
    assert tested == [("first", "second"), ("first", "low"), ("second", "low")]


@pytest.mark.parametrize("reason", Unranked)
def test_reason_has_the_same_text_in_sql_and_in_python(reason: Unranked) -> None:
    places = [name for _, name, _, _ in string.Formatter().parse(reason.value) if name]
    text = reason.format(**{name: f"a {name}" for name in places})
    sql = reason.sql(**{name: f"'a {name}'" for name in places})
    ((sql_text,),) = duckdb.execute(f"SELECT {sql}").fetchall()
    assert sql_text == text
    row = RankedRow(accuracy=None, ci_low=None, ci_high=None, n=None, clusters=None, reason=text)
    assert reason.matches(row.reason)
    assert reason in OTHER_TASK or not any(task_reason.matches(row.reason) for task_reason in OTHER_TASK)


@pytest.mark.gate
def test_no_other_module_writes_a_reason() -> None:
    """Check only reasons with a long beginning, because other sentences also begin with `replay of`."""
    beginnings = (reason.value.partition("{")[0] for reason in Unranked)
    long = tuple(beginning for beginning in beginnings if len(beginning) >= 20)
    assert len(long) >= 10
    modules = {
        name
        for name in FILES
        for node in walk(tree(name))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(long)
    }
    # These two modules use the sentence about judged debates for another purpose.
    assert modules - {"runner.cli.registry.status", "runner.registry.lineage.relations"} == {
        "runner.results.leaderboard.unranked"
    }
