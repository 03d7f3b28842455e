"""One test of two systems, whoever asks for it: `compare`, the leaderboard, a sweep's table and SQL say the same."""

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
from tests.results.comparison.planted import other_system, planted, solo_spec

pytestmark = pytest.mark.full


def is_right_in_x(i: int, repeat: int) -> bool:
    return not 30 <= i < 48 and (i + repeat) % 11 > 0


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One group of 30 datapoints and 15 of two; `y` is asked once, `x` three times, and as `x-too` once more."""
    folder = tmp_path_factory.mktemp("uneven")
    path = solo_spec(folder, size=60, dataset={"group_by": "family"})
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    rows = [row | {"family": "f" if i < 30 else f"f{i // 2}"} for i, row in enumerate(rows)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    planted(path, folder / "results", "x", is_right_in_x, "rollouts.per_datapoint=3")
    planted(path, folder / "results", "x-too", lambda i, _: i % 7 > 0 and i < 50, "seed=8")
    planted(path, folder / "results", "y", lambda i, _: i >= 20 or i % 5 == 0, "retry.invalid_response.attempts=2")
    return folder / "results"


def test_compare_and_sql_and_both_tables_of_ranks_make_one_test(uneven: Path) -> None:
    (pair,) = compare("x", "y", results=uneven).pairs
    columns = "difference, ci_low, ci_high, p, groups, differing"
    ((difference, low, high, p, groups, differing),) = query(
        f"SELECT {columns} FROM comparisons WHERE run_a = 'x' AND run_b = 'y'", uneven
    ).fetchall()
    assert (groups, differing) == (pair.groups, pair.differing) == (16, pair.differing)
    assert (difference, low, high, p) == pytest.approx((pair.difference, pair.ci_low, pair.ci_high, pair.p), abs=1e-12)
    ranked = query("SELECT run_id, rank, rank_last FROM leaderboard WHERE run_id IN ('x', 'y')", uneven).fetchall()
    points = [SweepPoint(run, run, {}, 7) for run in ("x", "y")]
    swept = {row.name: row.rank for row in sweep_rows(points, Results(uneven))}
    assert pair.p is not None
    assert pair.p > 0.05  # the one large group weighs as much as all others
    assert swept == {"x": (1, 2), "y": (1, 2)}
    assert {run: (first, last) for run, first, last in ranked} == {"x": (1, 3), "y": (1, 3)}
    with duckdb.connect(str(uneven / FILE), read_only=True) as plain:
        ((of_ranks,),) = plain.execute("SELECT p FROM rank_tests WHERE leader = 'x' AND run_id = 'y'").fetchall()
    assert of_ranks == pytest.approx(pair.p, abs=1e-12)


def test_the_order_in_which_pooled_runs_are_named_changes_nothing(uneven: Path) -> None:
    one, other = (compare("y", names, results=uneven).pairs[0] for names in (["x", "x-too"], ["x-too", "x"]))
    assert one.p == other.p
    assert (one.difference, one.ci_low, one.ci_high) == (other.difference, other.ci_low, other.ci_high)


def test_a_run_that_stopped_is_compared_by_a_confidence_sequence(uneven: Path) -> None:
    """It stopped when it was decided, so that no test of a fixed number of games holds: neither says so of another."""
    path = uneven.parent / "spec.yaml"
    fixed = planted(path, uneven, "fixed", lambda *_: True, "seed=5", "dataset.group_by=null")
    stopped = planted(
        path, uneven, "stopped", lambda i, _: i % 3 > 0, "dataset.group_by=null", "until.width=0.5", other_system(1)
    )
    (pair,) = compare(fixed, stopped, results=uneven).pairs
    played = pair.datapoints
    assert played < 60
    sequence = DifferenceSequence()
    for wrong in [True] * pair.differing + [False] * (played - pair.differing):  # type: ignore[operator]
        sequence.add(-float(wrong))
    assert (pair.ci_low, pair.ci_high) == pytest.approx(sequence.interval())
    assert (pair.exact, pair.mid_p_mcnemar, pair.detectable) == (False, None, None)
    assert pair.p is not None
    assert (pair.p <= 0.05) == (sequence.evidence >= 1)
    assert sign_flip([-1.0] * (pair.differing or 0)).p < pair.p
    assert any("has a stopping rule" in note for note in pair.notes)
    sql = "SELECT p, ci_low, ci_high FROM comparisons WHERE run_a = 'fixed' AND run_b = 'stopped'"
    assert query(sql, uneven).fetchall()[0] == pytest.approx((pair.p, pair.ci_low, pair.ci_high))
    (calls,) = compare(fixed, stopped, results=uneven, metric="calls").pairs
    assert (calls.p, calls.ci_low) == (None, None)
    assert calls.verdict.startswith("no test: a run stopped once it was decided; stopped minus fixed is 0")
    rows = sweep_rows([SweepPoint(run, run, {}, 7) for run in ("fixed", "stopped")], Results(uneven))
    apart = (rows[1].metrics["accuracy"].ci_high or 1) < (rows[0].metrics["accuracy"].ci_low or 0)
    assert [row.rank for row in rows] == ([(1, 1), (2, 2)] if apart and pair.p <= 0.05 else [(1, 2), (1, 2)])
    assert [row.stopped for row in rows] == [(), ("stopped",)]
    (pooled,) = sweep_rows(
        [SweepPoint("a", run, {}, seed) for seed, run in enumerate(("fixed", "stopped"))], Results(uneven)
    )
    assert (pooled.metrics["accuracy"].ci_low, pooled.stopped) == (None, ("stopped",))
    assert "some seeds stopped early" in (pooled.metrics["accuracy"].reason or "")
