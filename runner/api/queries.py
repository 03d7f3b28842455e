"""The public functions that ask several runs: a question in SQL, the table of a sweep, and who is better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api.arguments import results_at
from runner.results.comparison.comparison import Comparison, compare_systems
from runner.results.leaderboard.named_queries import question
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_table import RANKING_METRIC
from runner.runs.finished.result import FinishedRun

if TYPE_CHECKING:
    import duckdb

    from runner.results.leaderboard.sweep_table import SweepRow


def query(
    sql: str, results: str | Path | None = None, **parameters: str | float | FinishedRun
) -> duckdb.DuckDBPyRelation:
    """A question in SQL to all runs of a results folder, as a lazy relation (`.fetchall()`, `.df()`, `.pl()`).

    `@NAME` asks a question that is kept in a file; `nip-run sql @` lists those that there are. `parameters` are the
    values of `$NAME` in the question; with some of them it is read once, and held in memory.

    The tables are `runs`, `agents`, `metrics`, `rollouts`, `messages`, `completions` and `notes`, and there is the view
    `leaderboard`. A question only reads, and reaches no other file. `.df()` needs pandas, `.arrow()` pyarrow and
    `.pl()` polars: nip-run installs none of them. To fetch a TIMESTAMPTZ, such as `now()`, DuckDB needs pytz; without
    it, cast it: `now()::VARCHAR`. `results` is as in `run`.

        >>> from runner import load_spec, query, run
        >>> _ = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2, "name": "asked"}))
        >>> query("SELECT name, n FROM leaderboard WHERE name = 'asked'").fetchall()
        [('asked', 2)]
        >>> query("@confusion", run="asked").aggregate("sum(games)").fetchall()
        [(2,)]

    Raises:
        UsageError: the question is wrong, or is more than a question.
        LeaderboardError: the board is damaged, or is missing where there are runs and the question is about it.
    """
    folder = results_at(results)
    given = {name: value.run_id if isinstance(value, FinishedRun) else str(value) for name, value in parameters.items()}
    return folder.board.relation(*question(sql, given, folder))


def sweep_table(runs: Sequence[FinishedRun], metrics: Sequence[str] = (RANKING_METRIC,)) -> list[SweepRow]:
    """The points of a sweep as a table: a row a system, its seeds pooled as repeats, with the ranks that it may have.

    A metric of an agent is `AGENT.METRIC`. Rows are ranked by accuracy among those of one task: a range of ranks holds
    all who are not told apart from its leader by a sign-flip test, corrected by Holm.

        >>> from runner import load_specs, run_sweep, sweep_table
        >>> specs = load_specs("specs/quickstart.yaml", ["dataset.limit=2", "sweep={seed: [0, 1]}"])
        >>> [(row.seeds, row.metrics["accuracy"].n, row.rank) for row in sweep_table(run_sweep(specs))]
        [((0, 1), 4, (1, 1))]

    Raises:
        LeaderboardError: the board is damaged.
    """
    # Here and not above: it needs NumPy, and a run does not wait for that.
    from runner.results.leaderboard.sweep_table import SweepPoint, sweep_rows

    if not runs:
        return []
    points = [SweepPoint(m.name, run.run_id, m.point, m.seed) for run in runs for m in (run.manifest,)]
    return sweep_rows(points, Results.of(runs[0].folder), metrics)


def compare(
    *runs: FinishedRun | str | Path | Sequence[FinishedRun | str | Path],
    results: str | Path | None = None,
    metric: str = RANKING_METRIC,
    by: str | None = None,
    baseline: str | None = None,
    asserts: str | Sequence[str] = (),
) -> Comparison:
    """Say whether one run is better than another, and by how much. A sequence of runs is pooled as one system.

    Datapoints are matched by label and by the columns that templates use; each weighs the same. Two systems are
    compared with each other, the second less the first, and more with the leader. `baseline` is a run, or a protocol
    whose run of the same task and verifier is found; `asserts` are as in `--assert`. `results` is as in `run`.

        >>> from runner import compare, load_spec, run
        >>> one = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 4, "name": "one"}))
        >>> two = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 4, "name": "two", "seed": 1}))
        >>> found = compare(one, two)
        >>> [pair] = found.pairs
        >>> pair.datapoints, pair.paired, 0 < pair.p <= 1
        (4, True, True)

    Raises:
        UsageError: what is asked cannot be compared; the message says why.
        RunError: a file of a run is missing or damaged.
    """
    names = [_names(one) for one in runs]
    return compare_systems(
        names, results_at(results), metric=metric, by=by, baseline=baseline,
        asserts=[asserts] if isinstance(asserts, str) else asserts,
    )  # fmt: skip


def _names(system: FinishedRun | str | Path | Sequence[FinishedRun | str | Path]) -> list[str | Path]:
    if isinstance(system, str):
        return list(system.split(","))
    if isinstance(system, Path):
        return [system]
    if isinstance(system, FinishedRun):
        return [system.path]
    return [name for one in system for name in _names(one)]
