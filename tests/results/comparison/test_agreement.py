"""`compare`, the leaderboard, the table of a sweep and SQL use the same test of two systems."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from runner import compare, query
from runner.results.leaderboard.database import FILE
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.sweep_table import SweepPoint, sweep_rows
from runner.statistics.confidence_sequences import DifferenceSequence
from runner.statistics.sign_flip import sign_flip
from tests.results.comparison.planted import other_system_override, play_with_planted_verdicts, write_solo_spec

pytestmark = pytest.mark.full


def is_right_in_x(i: int, repeat: int) -> bool:
    return not 30 <= i < 48 and (i + repeat) % 11 > 0


@pytest.fixture(scope="module")
def uneven_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play `y` once, `x` three times and `x-too`, another seed of `x`, on a group of 30 and 15 groups of two."""
    folder = tmp_path_factory.mktemp("uneven")
    path = write_solo_spec(folder, size=60, dataset={"group_by": "family"})
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    rows = [row | {"family": "f" if i < 30 else f"f{i // 2}"} for i, row in enumerate(rows)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    play_with_planted_verdicts(path, folder / "results", "x", is_right_in_x, "rollouts.per_datapoint=3")
    play_with_planted_verdicts(path, folder / "results", "x-too", lambda i, _: i % 7 > 0 and i < 50, "seed=8")
    play_with_planted_verdicts(
        path, folder / "results", "y", lambda i, _: i >= 20 or i % 5 == 0, "retry.invalid_response.attempts=2"
    )
    return folder / "results"


def test_compare_sql_and_both_rankings_use_the_same_test(uneven_groups: Path) -> None:
    (pair,) = compare("x", "y", results=uneven_groups).pairs
    columns = "difference, ci_low, ci_high, p, groups, differing"
    ((difference, low, high, p, groups, differing),) = query(
        f"SELECT {columns} FROM comparisons WHERE run_a = 'x' AND run_b = 'y'", uneven_groups
    ).fetchall()
    assert (groups, differing) == (pair.groups, pair.differing) == (16, pair.differing)
    assert (difference, low, high, p) == pytest.approx((pair.difference, pair.ci_low, pair.ci_high, pair.p), abs=1e-12)
    leaderboard_ranks = query(
        "SELECT run_id, rank, rank_last FROM leaderboard WHERE run_id IN ('x', 'y')", uneven_groups
    ).fetchall()
    points = [SweepPoint(run, run, {}, 7) for run in ("x", "y")]
    sweep_ranks = {row.name: row.rank for row in sweep_rows(points, Results(uneven_groups))}
    assert pair.p is not None
    assert pair.p > 0.05  # the one large group weighs as much as all others
    assert sweep_ranks == {"x": (1, 2), "y": (1, 2)}
    assert {run: (first, last) for run, first, last in leaderboard_ranks} == {"x": (1, 3), "y": (1, 3)}
    with duckdb.connect(str(uneven_groups / FILE), read_only=True) as connection:
        ((rank_test_p,),) = connection.execute(
            "SELECT p FROM rank_tests WHERE leader = 'x' AND run_id = 'y'"
        ).fetchall()
    assert rank_test_p == pytest.approx(pair.p, abs=1e-12)


def test_order_of_pooled_runs_does_not_matter(uneven_groups: Path) -> None:
    pair, reversed_pair = (
        compare("y", names, results=uneven_groups).pairs[0] for names in (["x", "x-too"], ["x-too", "x"])
    )
    assert pair.p == reversed_pair.p
    assert (pair.difference, pair.ci_low, pair.ci_high) == (
        reversed_pair.difference,
        reversed_pair.ci_low,
        reversed_pair.ci_high,
    )


def test_run_with_a_stopping_rule_is_compared_by_a_confidence_sequence(uneven_groups: Path) -> None:
    """Tests for a fixed number of games do not hold for a run that stopped once its result was decided."""
    path = uneven_groups.parent / "spec.yaml"
    fixed = play_with_planted_verdicts(path, uneven_groups, "fixed", lambda *_: True, "seed=5", "dataset.group_by=null")
    stopped = play_with_planted_verdicts(
        path,
        uneven_groups,
        "stopped",
        lambda i, _: i % 3 > 0,
        "dataset.group_by=null",
        "until.width=0.5",
        other_system_override(1),
    )
    (pair,) = compare(fixed, stopped, results=uneven_groups).pairs
    datapoints = pair.datapoints
    assert datapoints < 60
    sequence = DifferenceSequence()
    for wrong in [True] * pair.differing + [False] * (datapoints - pair.differing):  # type: ignore[operator]
        sequence.add(-float(wrong))
    assert (pair.ci_low, pair.ci_high) == pytest.approx(sequence.interval())
    assert (pair.exact, pair.mid_p_mcnemar, pair.detectable) == (False, None, None)
    assert pair.p is not None
    assert (pair.p <= 0.05) == (sequence.evidence >= 1)
    assert sign_flip([-1.0] * (pair.differing or 0)).p < pair.p
    assert any("has a stopping rule" in note for note in pair.notes)
    sql = "SELECT p, ci_low, ci_high FROM comparisons WHERE run_a = 'fixed' AND run_b = 'stopped'"
    assert query(sql, uneven_groups).fetchall()[0] == pytest.approx((pair.p, pair.ci_low, pair.ci_high))
    (calls,) = compare(fixed, stopped, results=uneven_groups, metric="calls").pairs
    assert (calls.p, calls.ci_low) == (None, None)
    assert calls.verdict.startswith("no test: a run stopped once it was decided; stopped minus fixed is 0")
    rows = sweep_rows([SweepPoint(run, run, {}, 7) for run in ("fixed", "stopped")], Results(uneven_groups))
    is_separated = (rows[1].metrics["accuracy"].ci_high or 1) < (rows[0].metrics["accuracy"].ci_low or 0)
    assert [row.rank for row in rows] == ([(1, 1), (2, 2)] if is_separated and pair.p <= 0.05 else [(1, 2), (1, 2)])
    assert [row.stopped for row in rows] == [(), ("stopped",)]
    (pooled,) = sweep_rows(
        [SweepPoint("a", run, {}, seed) for seed, run in enumerate(("fixed", "stopped"))], Results(uneven_groups)
    )
    assert (pooled.metrics["accuracy"].ci_low, pooled.stopped) == (None, ("stopped",))
    assert "some seeds stopped early" in (pooled.metrics["accuracy"].reason or "")
