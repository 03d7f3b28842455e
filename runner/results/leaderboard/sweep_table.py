"""The table of a sweep: a row for each system, with its metrics, their intervals and a range of ranks.

All data comes from the leaderboard. Points that differ only in their seed are one system. Rows are ranked by accuracy
among the rows with the same task; a range of ranks is a 95 % confidence set.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from runner.base.errors import RunError
from runner.results.leaderboard.model import RankRange, rank
from runner.results.leaderboard.ranks import RankedSystem, pair_p_values
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.schema import UNRANKED_SQL
from runner.results.leaderboard.unranked import Unranked
from runner.results.manifest import PLAYED, Status
from runner.results.metric_definitions import RANKING_METRIC, Metric, check_metrics, find_metric
from runner.results.metric_plugins import add_named_metrics
from runner.results.tasks import describe_task_difference
from runner.statistics.reporting_rules import near_constant_reason
from runner.statistics.seeds import PooledMean, Sums, pool_seeds

if TYPE_CHECKING:
    from runner.results.estimates import Estimate

SEED = "seed"

_STOPPED_EARLY = "some seeds stopped early, so an interval for a fixed number of games does not hold"


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep: its run, and the values that the sweep sets."""

    name: str
    """The name of its spec."""
    run_id: str
    point: Mapping[str, Any]
    seed: int

    @property
    def system(self) -> tuple[str, str]:
        """The key of the point's system: the name of the spec, and the swept settings except the seed."""
        return self.name, json.dumps({key: value for key, value in self.point.items() if key != SEED})


@dataclass(frozen=True)
class SweepValue:
    """The value of a metric in a row."""

    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int = 0
    clusters: int = 0
    between: float | None = None
    """The standard deviation of the seeds' means."""
    within: float | None = None
    """The expected standard deviation from sampling alone."""
    reason: str | None = None
    """The reason why there is no value or no interval."""


@dataclass(frozen=True)
class SweepRow:
    """One system: the swept settings, and the metrics over all of its seeds that were played."""

    name: str
    point: Mapping[str, Any]
    """The settings of the sweep without the seed."""
    run_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    metrics: Mapping[str, SweepValue]
    missing: Mapping[str, str]
    """The runs that are missing or not finished, with their status."""
    task: str | None
    cost_usd: float | None
    """The cost of all its runs; None if a price is unknown."""
    rank: RankRange | None
    """The first and the last rank that the system may have among the rows with its task."""
    reason: str | None
    """The reason why the system is unranked."""
    stopped: tuple[str, ...] = ()
    """The runs that a stopping rule ended. If there are any, overlapping intervals count as ties."""

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("name", "point", "run_ids", "seeds", "missing", "task")},
            "metrics": {name: vars(value) for name, value in self.metrics.items()},
            **{name: getattr(self, name) for name in ("cost_usd", "rank", "reason", "stopped")},
        }


@dataclass
class _BoardRun:
    """A run of a sweep, as the board has it."""

    status: str = "not started"
    task: str | None = None
    group_by: str | None = None
    cost: float | None = 0.0
    is_stopped: bool = False
    """Whether a stopping rule ended the run."""
    unranked_reason: str | None = None
    source: str | None = None
    """Another run with more than half of the same answers."""
    is_grouped: bool = False
    """Whether a cluster has several datapoints."""
    values: dict[str, SweepValue] = field(default_factory=dict)
    """The metrics by name."""
    sums: dict[str, dict[str, tuple[int, float]]] = field(default_factory=lambda: defaultdict(dict))
    """The number of rollouts and the sum of a metric in each cluster, by metric and cluster."""


PooledNumbers = Callable[[Sequence[str]], Mapping[str, "Estimate"]]
"""A function that returns metrics over the games of several runs, given the ids of the runs."""

NOT_ON_BOARD = "not on the board"
"""The status in a row of a finished run that is not on the board, if the board must not be changed."""


def sweep_rows(
    points: Sequence[SweepPoint],
    results: Results,
    metrics: Sequence[str] = (RANKING_METRIC,),
    *,
    writes: bool = True,
    numbers: PooledNumbers | None = None,
) -> list[SweepRow]:
    """Return the rows of a sweep, in the order of its points. A metric of an agent is `AGENT.METRIC`.

    Finished runs that are not on the board, as after a kill, are added to it. Without `writes` they count as missing
    instead, with the status `NOT_ON_BOARD`. By default, `numbers` computes metrics from the board.

    Raises:
        UsageError: no metric has one of the names.
        LeaderboardError: the board is damaged, or remains locked.
    """
    add_named_metrics(metrics)
    names = dict.fromkeys((RANKING_METRIC, *metrics))
    runs = _load_runs([point.run_id for point in points], results, list(names), writes=writes)
    systems: dict[tuple[str, str], dict[str, SweepPoint]] = {}
    for point in points:
        systems.setdefault(point.system, {})[point.run_id] = point
    pool = numbers or partial(_pooled_estimates, results)
    rows = [_System(tuple(members.values()), runs, results, pool) for members in systems.values()]
    ranks = _rank_rows(rows, results)
    return [row.build(metrics, ranks.get(index)) for index, row in enumerate(rows)]


class _System:
    """The runs of one system, before ranking."""

    def __init__(
        self, points: Sequence[SweepPoint], runs: Mapping[str, _BoardRun], results: Results, pool: PooledNumbers
    ) -> None:
        self._points, self._results, self._pool = points, results, pool
        self._runs = {point.run_id: runs[point.run_id] for point in points}
        self._played = {run_id: run for run_id, run in self._runs.items() if run.status in PLAYED}
        self.missing = {run_id: run.status for run_id, run in self._runs.items() if run.status != Status.DONE}
        self._first_runs: dict[str | None, str] = {}
        """The first run with each task."""
        for run_id, run in self._played.items():
            self._first_runs.setdefault(run.task, run_id)
        self.task = next(iter(self._first_runs)) if len(self._first_runs) == 1 else None

    @cached_property
    def unranked_reason(self) -> str | None:
        """The reason why the system is unranked regardless of other rows."""
        if self.missing:
            run_id, status = next(iter(self.missing.items()))
            more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            return Unranked.MISSING_RUNS.format(runs=f"{run_id}{more}", status=status)
        if len(self._first_runs) > 1:
            first_run, run_id, *_ = self._first_runs.values()
            difference = self._describe_difference(run_id, first_run, self._runs[first_run])
            return Unranked.SEVERAL_TASKS.format(run=run_id, other=first_run, difference=difference)
        return next((reason for run in self._played.values() if (reason := run.unranked_reason)), None)

    def describe_alone(self, other: _System) -> str:
        """Return the reason why the system, alone with its task, is unranked; `other` has another task."""
        run_id, (other_run_id, other_run) = next(iter(self._played)), next(iter(other._played.items()))
        difference = self._describe_difference(run_id, other_run_id, other_run)
        return Unranked.ALONE.format(other=other_run_id, difference=difference)

    def _describe_difference(self, run_id: str, other_run_id: str, other_run: _BoardRun) -> str:
        """Return how the task of a run of this system differs from that of another run."""
        folders = self._results.run(other_run_id), self._results.run(run_id)
        try:
            return describe_task_difference(*folders, (other_run.group_by, self._runs[run_id].group_by))
        except (OSError, ValueError, RunError):
            return "unknown, because saved inputs cannot be read"

    def pooled(self, metric: str) -> PooledMean:
        """Return the mean of a metric over the rollouts of all seeds."""
        seeds: list[Sums] = [run.sums[metric] for run in self._played.values()]
        entry, is_grouped = find_metric(metric), any(run.is_grouped for run in self._played.values())
        return pool_seeds(seeds, proportion=entry is not None and entry.is_proportion, grouped=is_grouped)

    @property
    def stopped(self) -> tuple[str, ...]:
        return tuple(run_id for run_id, run in self._played.items() if run.is_stopped)

    @property
    def interval_problem(self) -> str | None:
        """The reason why the pooled seeds have no interval."""
        if len({run.source or run_id for run_id, run in self._played.items()}) < len(self._played):
            return "some seeds share their answers, so they are not separate samples"
        return _STOPPED_EARLY if self.stopped else None

    @property
    def ranked(self) -> RankedSystem:
        accuracy = self._value(RANKING_METRIC)
        return RankedSystem(list(self._played), accuracy.ci_low, accuracy.ci_high, bool(self.stopped))

    def build(self, metrics: Sequence[str], ranks: RankRange | str | None) -> SweepRow:
        """Return the row. `ranks` is the range of ranks, or the reason why the system is unranked among other rows."""
        first = self._points[0]
        costs = [run.cost for run in self._runs.values()]
        known_costs = [cost for cost in costs if cost is not None]
        return SweepRow(
            first.name,
            {key: value for key, value in first.point.items() if key != SEED},
            tuple(self._runs),
            tuple(point.seed for point in self._points),
            {metric: self._value(metric) for metric in metrics},
            self.missing,
            self.task,
            sum(known_costs) if len(known_costs) == len(costs) else None,
            ranks if isinstance(ranks, tuple) else None,
            ranks if isinstance(ranks, str) else self.unranked_reason,
            self.stopped,
        )

    def _value(self, metric: str) -> SweepValue:
        run_values = [value for run in self._played.values() if (value := run.values.get(metric)) is not None]
        if not run_values:
            return SweepValue(reason="not measured" if self._played else "not played yet")
        if len(self._played) < 2:
            return run_values[0]
        problem = self.interval_problem
        entry = _pooled_by_sums(metric)
        if entry is not None and (total := self.pooled(metric)).value is not None:
            problem = problem or _missing_interval_reason(entry, total)
            ends = (None, None) if problem else (total.ci_low, total.ci_high)
            return SweepValue(total.value, *ends, total.n, total.clusters, total.between, total.within, problem)
        means = [value.value for value in run_values if value.value is not None]
        if not means:
            return run_values[0]
        plain = pool_seeds([{metric: (1, mean)} for mean in means], proportion=False)
        if (estimate := self._numbers.get(metric)) is not None:
            ends = (None, None) if problem else (estimate.ci_low, estimate.ci_high)
            counts = estimate.n, estimate.clusters
            return SweepValue(estimate.value, *ends, *counts, plain.between, reason=problem or estimate.reason)
        # The mean over seeds; its interval does not follow from the seeds' intervals.
        return SweepValue(
            plain.value, n=sum(value.n for value in run_values), between=plain.between,
            reason="the mean of the seeds: the board lacks the data to pool their rollouts",
        )  # fmt: skip

    @cached_property
    def _numbers(self) -> Mapping[str, Estimate]:
        return self._pool(list(self._played))


def _pooled_by_sums(name: str) -> Metric | None:
    """Return the metric if it is a mean over rollouts, so that the sums of several seeds can be added."""
    metric = find_metric(name)
    return metric if metric is not None and metric.is_mean_of_rollouts else None


def _missing_interval_reason(metric: Metric, total: PooledMean) -> str | None:
    """Return why pooled seeds have no interval, by the rules for a single run; None if they have one."""
    reason = metric.rule.missing_reason(total.clusters)
    return reason if reason is not None or metric.is_proportion else near_constant_reason(total.differing)


def _rank_rows(rows: Sequence[_System], results: Results) -> dict[int, RankRange | str]:
    """Return the range of ranks of each rankable row, or the reason if only rows with other tasks are rankable."""
    by_task: dict[str | None, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.unranked_reason is None:
            by_task[row.task].append(index)
    ranks: dict[int, RankRange | str] = {}
    for task, indices in by_task.items():
        other_tasks = [other_indices for other_task, other_indices in by_task.items() if other_task != task]
        if len(indices) == 1 and other_tasks:
            ranks[indices[0]] = rows[indices[0]].describe_alone(rows[other_tasks[0][0]])
        else:
            ranks |= _rank_task({index: rows[index] for index in indices}, results)
    return ranks


def _rank_task(rows: Mapping[int, _System], results: Results) -> dict[int, RankRange]:
    """Return the range of ranks of each row of one task. The test is that of `compare`, over all seeds."""
    systems = {str(index): row.ranked for index, row in rows.items()}

    def p_values(pairs: Sequence[tuple[int, int]]) -> list[float]:
        names = [(str(first), str(second)) for first, second in pairs]
        return [*pair_p_values(lambda *query: results.board.query(*query)[1], names, systems).values()]

    values = ((index, row.pooled(RANKING_METRIC).value or 0.0) for index, row in sorted(rows.items()))
    return rank(values, p_values)


_RUNS_SQL = f"""
SELECT r.run_id, r.status, r.task, r.group_by, r.cost_usd, r.stopped IS NOT NULL,
    CASE WHEN r.kind <> 'benchmark' THEN {Unranked.TRAINING_RUN.sql()} ELSE coalesce({UNRANKED_SQL}, c.reason) END,
    c.source
FROM runs r
LEFT JOIN copies c ON c.run_id = r.run_id
LEFT JOIN metrics m ON m.run_id = r.run_id AND m.agent IS NULL AND m.metric = '{RANKING_METRIC}'
WHERE r.run_id IN (SELECT unnest(?::VARCHAR[]))
"""

_SUMS_SQL = """
WITH played AS (
    SELECT r.*, coalesce(d."group", r.datapoint_id) AS cluster
    FROM rollouts r LEFT JOIN datapoints d ON d.run_id = r.run_id AND d.datapoint_id = r.datapoint_id
    WHERE r.outcome <> 'transport_failed' AND r.run_id IN (SELECT unnest(?::VARCHAR[]))
)
SELECT run_id, cluster, count(DISTINCT datapoint_id){columns} FROM played GROUP BY run_id, cluster ORDER BY ALL
"""

_VALUES_SQL = """
SELECT run_id, concat_ws('.', agent, metric), value, ci_low, ci_high, n, clusters, reason
FROM metrics WHERE run_id IN (SELECT unnest(?::VARCHAR[]))
"""


def _load_runs(
    run_ids: Sequence[str], results: Results, metrics: Sequence[str], *, writes: bool
) -> dict[str, _BoardRun]:
    """Return the board's data about runs, by id. Raises the same errors as `sweep_rows`."""
    runs, ids = {run_id: _BoardRun() for run_id in run_ids}, list(run_ids)
    statuses = _statuses(ids, results, writes=writes)
    if not results.board.path.is_file():
        if NOT_ON_BOARD not in statuses.values():
            check_metrics(metrics, (), ())
    else:
        _read_board(runs, results, metrics)
    for run_id, status in statuses.items():
        runs[run_id].status = status
    return runs


def _read_board(runs: Mapping[str, _BoardRun], results: Results, metrics: Sequence[str]) -> None:
    """Set the fields of the runs that are on the board."""
    query, ids = results.board.query, list(runs)
    for run_id, status, task, group_by, cost, is_stopped, unranked_reason, source in query(_RUNS_SQL, [ids])[1]:
        run = runs[run_id]
        run.status, run.task, run.group_by, run.cost = status, task, group_by, cost
        run.is_stopped, run.unranked_reason, run.source = is_stopped, unranked_reason, source
    measured = set()
    for run_id, name, value, low, high, n, clusters, reason in query(_VALUES_SQL, [ids])[1]:
        measured.add(name)
        runs[run_id].values[name] = SweepValue(value, low, high, n, clusters, reason=reason)
    check_metrics(metrics, measured, {agent for agent, dot, _ in (name.rpartition(".") for name in measured) if dot})
    means = {name: metric for name in metrics if (metric := _pooled_by_sums(name)) is not None}
    columns = "".join(map(_sums_sql, means.values()))
    for run_id, cluster, datapoints, *numbers in query(_SUMS_SQL.format(columns=columns), [ids])[1]:
        run = runs[run_id]
        run.is_grouped = run.is_grouped or datapoints > 1
        for mean, count, total in zip(means, numbers[::2], numbers[1::2], strict=True):
            if count:
                run.sums[mean][cluster] = count, total


def _sums_sql(metric: Metric) -> str:
    """Return SQL for the count and the sum of a metric over a cluster; a missing reward counts as 0."""
    score = f"coalesce({metric.sql}, 0)" if metric.is_per_agent else metric.score_sql()
    return f", count({score}), sum({score})::DOUBLE"


def _pooled_estimates(results: Results, run_ids: Sequence[str]) -> Mapping[str, Estimate]:
    from runner.results.leaderboard.pooled_numbers import pooled_estimates  # loaded only if there are several seeds

    return pooled_estimates(results, run_ids)


def _statuses(run_ids: Sequence[str], results: Results, *, writes: bool) -> dict[str, str]:
    """Return the status of each started run. Add finished runs to the board, or set `NOT_ON_BOARD` without `writes`."""
    folders = [folder for run_id in dict.fromkeys(run_ids) if (folder := results.run(run_id)).manifest_path.is_file()]
    statuses = {folder.run_id: str(folder.manifest().status) for folder in folders if folder.damage() is None}
    board: dict[str, str] = {}
    if results.board.path.is_file():
        board = dict(results.board.query("SELECT run_id, status FROM runs")[1])
    for folder in folders:
        status = statuses.get(folder.run_id)
        if status in PLAYED and board.get(folder.run_id) != status:
            if writes:
                results.board.append(folder)
            else:
                statuses[folder.run_id] = NOT_ON_BOARD
    return statuses
