"""The public functions about several runs: SQL queries, the table of a sweep, and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.analysis.comparison import AnalysisScores
from runner.api.arguments import open_results
from runner.results.comparison.comparison import Comparison, ComparisonOptions, compare_systems
from runner.results.leaderboard.named_queries import resolve_query
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import RANKING_METRIC
from runner.runs.finished.result import FinishedRun

if TYPE_CHECKING:
    import duckdb

    from runner.results.leaderboard.sweep_table import SweepRow


def query(
    sql: str, results: str | Path | None = None, **parameters: str | float | FinishedRun
) -> duckdb.DuckDBPyRelation:
    """Query all runs of a results folder with SQL; return a lazy relation (`.fetchall()`, `.df()`, `.pl()`).

    `sql` is a query, or `@NAME` for a named query; `nip-run sql @` lists the named queries. `parameters` are the values
    of `$NAME` in the query; if there are any, the whole result is read into memory at once.

    The tables are `runs`, `agents`, `metrics`, `rollouts`, `messages`, `completions` and `notes`; `leaderboard` is a
    view. A query only reads, and cannot open other files. `.df()` needs pandas, `.arrow()` pyarrow and `.pl()` polars,
    which nip-run does not install. To fetch a TIMESTAMPTZ, such as `now()`, DuckDB needs pytz; without pytz, cast the
    value: `now()::VARCHAR`. `results` is as in `run`.

        >>> from runner import load_spec, query, run
        >>> _ = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 2, "name": "example"}))
        >>> query("SELECT name, n FROM leaderboard WHERE name = 'example'").fetchall()
        [('example', 2)]
        >>> query("@confusion", run="example").aggregate("sum(games)").fetchall()
        [(2,)]

    Raises:
        UsageError: the query is invalid, or does more than read.
        LeaderboardError: the board is damaged, or the query needs the board, but it is missing although there are runs.
    """
    folder = open_results(results)
    texts = {name: value.run_id if isinstance(value, FinishedRun) else str(value) for name, value in parameters.items()}
    return folder.board.relation(*resolve_query(sql, texts, folder))


def sweep_table(runs: Sequence[FinishedRun], metrics: Sequence[str] = (RANKING_METRIC,)) -> list[SweepRow]:
    """Return the points of a sweep as a table with a row for each system; the seeds of a system are pooled.

    `metrics` names the columns; a metric of an agent is `AGENT.METRIC`, an analysis is `analysis:NAME`. Rows with the
    same task are ranked by accuracy. Rows have the same range of ranks if a sign-flip test, corrected by Holm, does not
    separate them from the leader of the range.

        >>> from runner import load_specs, run_sweep, sweep_table
        >>> specs = load_specs("specs/quickstart.yaml", ["dataset.limit=2", "sweep={seed: [0, 1]}"])
        >>> [(row.seeds, row.metrics["accuracy"].n, row.rank) for row in sweep_table(run_sweep(specs))]
        [((0, 1), 4, (1, 1))]

    Raises:
        LeaderboardError: the board is damaged.
    """
    # Imported here, because the module imports NumPy, which runs do not need at their start.
    from runner.analysis.rate_columns import sweep_with_analyses
    from runner.results.leaderboard.sweep_table import SweepPoint

    if not runs:
        return []
    points = [SweepPoint(run.manifest.name, run.run_id, run.manifest.point, run.manifest.seed) for run in runs]
    return sweep_with_analyses(points, Results.of(runs[0].folder), metrics)


def compare(
    *runs: FinishedRun | str | Path | Sequence[FinishedRun | str | Path],
    results: str | Path | None = None,
    metric: str = RANKING_METRIC,
    by: str | None = None,
    baseline: str | None = None,
    asserts: str | Sequence[str] = (),
    margin: float | None = None,
    ceiling: str | None = None,
) -> Comparison:
    """Return whether one run is better than another, and by how much. A sequence of runs is pooled as one system.

    Datapoints are matched by label and by the columns that the verifier sees; each has the same weight. Of two systems,
    the difference is the second minus the first; more than two systems are compared with the leader. `baseline` is a
    run, or a protocol, whose run with the same task and verifier is used. `asserts` are as in `--assert`. With a
    `margin`, each pair has an equivalence test. With a `ceiling`, the name of a strong run, each pair has the share of
    the gap that it closes. `results` is as in `run`.

        >>> from runner import compare, load_spec, run
        >>> first = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 4, "name": "first"}))
        >>> second = run(load_spec("specs/solo_verifier.yaml", {"dataset.limit": 4, "name": "second"}))
        >>> comparison = compare(first, second)
        >>> [pair] = comparison.pairs
        >>> pair.datapoints, pair.paired, 0 < pair.p <= 1
        (4, True, True)

    Raises:
        UsageError: the systems cannot be compared; the message says why.
        RunError: a file of a run is missing or damaged.
    """
    names = [_run_names(system) for system in runs]
    options = ComparisonOptions(
        metric, by, baseline, [asserts] if isinstance(asserts, str) else asserts, margin, ceiling,
        analyses=AnalysisScores(),
    )  # fmt: skip
    return compare_systems(names, open_results(results), options)


def _run_names(system: FinishedRun | str | Path | Sequence[FinishedRun | str | Path]) -> list[str | Path]:
    if isinstance(system, str):
        return list(system.split(","))
    if isinstance(system, Path):
        return [system]
    if isinstance(system, FinishedRun):
        return [system.path]
    return [name for run in system for name in _run_names(run)]
