"""The points of a sweep as one table: a row a system, whose seeds are repeats of it, with intervals and rank ranges.

Everything comes from the leaderboard. Points that differ in their seed alone are one row. Rows are ranked by accuracy
among those that were asked the same task; who is not rejected against the leader is tied with it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runner.results.leaderboard.model import RankRange, Unranked, rank
from runner.results.leaderboard.ranks import RankedSystem, p_values
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.schema import HINDRANCE
from runner.results.manifest import PLAYED, Status
from runner.results.metric_table import RANKING_METRIC, Metric, check_metrics, metric_named
from runner.statistics.seeds import Pooled, Sums, pooled

if TYPE_CHECKING:
    from runner.results.estimates import Estimate

SEED = "seed"

_STOPPED = "seeds stopped once they were decided: no interval for a fixed number of games holds"


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep: its run, and what the sweep sets in it."""

    name: str
    """Of its spec."""
    run_id: str
    point: Mapping[str, Any]
    seed: int

    @property
    def system(self) -> tuple[str, str]:
        """What tells systems apart: the spec, and all that is swept but the seed."""
        return self.name, json.dumps({key: value for key, value in self.point.items() if key != SEED})


@dataclass(frozen=True)
class SweepValue:
    """A metric of one row."""

    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int = 0
    clusters: int = 0
    between: float | None = None
    """The standard deviation of the seeds' means."""
    within: float | None = None
    """What it is expected to be from sampling alone."""
    reason: str | None = None
    """Why there is no value, or no interval."""


@dataclass(frozen=True)
class SweepRow:
    """One system: what is swept, and what was measured over all its seeds that were played."""

    name: str
    point: Mapping[str, Any]
    """What the sweep sets, without the seed."""
    run_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    metrics: Mapping[str, SweepValue]
    missing: Mapping[str, str]
    """Runs that are not there or not finished, each with its status."""
    task: str | None
    cost_usd: float | None
    """Of all its runs; None where a price is unknown."""
    rank: RankRange | None
    """The first and the last rank that it may have among the rows of its task."""
    reason: str | None
    """Why it has no rank."""
    stopped: tuple[str, ...] = ()
    """Its runs that were to stop once they were decided; it is tied with all whose intervals overlap with its own."""

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("name", "point", "run_ids", "seeds", "missing", "task")},
            "metrics": {name: vars(value) for name, value in self.metrics.items()},
            **{name: getattr(self, name) for name in ("cost_usd", "rank", "reason", "stopped")},
        }


@dataclass
class _Seen:
    """What the board has of the runs of a sweep."""

    status: dict[str, str] = field(default_factory=dict)
    task: dict[str, str | None] = field(default_factory=dict)
    hindrance: dict[str, str | None] = field(default_factory=dict)
    source: dict[str, str | None] = field(default_factory=dict)
    """The run whose answers a run shares to more than half."""
    cost: dict[str, float | None] = field(default_factory=dict)
    sums: dict[tuple[str, str], dict[str, tuple[int, float]]] = field(default_factory=lambda: defaultdict(dict))
    """By run and metric."""
    grouped: set[str] = field(default_factory=set)
    """Runs of which a cluster has several datapoints."""
    values: dict[tuple[str, str], SweepValue] = field(default_factory=dict)
    numbers: Callable[[Sequence[str]], Mapping[str, Estimate]] = lambda _: {}
    """Of the verdicts of several runs together."""
    stopped: set[str] = field(default_factory=set)
    """Runs that were to stop once they were decided."""


NOT_ON_BOARD = "not on the board"
"""What stands for the status of a finished run that the board lacks, where nothing may be written."""


def sweep_rows(
    points: Sequence[SweepPoint],
    results: Results,
    metrics: Sequence[str] = (RANKING_METRIC,),
    *,
    writes: bool = True,
    numbers: Callable[[Sequence[str]], Mapping[str, Estimate]] | None = None,
) -> list[SweepRow]:
    """The rows of a sweep, in the order of its points. A metric of an agent is `AGENT.METRIC`.

    Finished runs that the board lacks, as after a kill before they came to it, are put on it; or, where this `writes`
    nothing, are missing with that as their status. `numbers` finds what runs come to together, where the caller has it.

    Raises:
        UsageError: there is no metric of such a name.
        LeaderboardError: the board is damaged, or stays locked.
    """
    seen = _seen([point.run_id for point in points], results, dict.fromkeys((RANKING_METRIC, *metrics)), writes=writes)
    if numbers is not None:
        seen.numbers = numbers
    systems: dict[tuple[str, str], dict[str, SweepPoint]] = {}
    for point in points:
        systems.setdefault(point.system, {})[point.run_id] = point
    rows = [_Row(tuple(members.values()), seen) for members in systems.values()]
    ranks = _ranks(rows, results)
    return [row.made(metrics, ranks.get(index)) for index, row in enumerate(rows)]


class _Row:
    """The runs of one system."""

    def __init__(self, points: Sequence[SweepPoint], seen: _Seen) -> None:
        self._points, self._seen = points, seen
        self.played = [p.run_id for p in points if seen.status.get(p.run_id) in PLAYED]
        self.missing = {
            p.run_id: seen.status.get(p.run_id, "not begun") for p in points if seen.status.get(p.run_id) != Status.DONE
        }
        tasks = {seen.task.get(run_id) for run_id in self.played}
        self.task = tasks.pop() if len(tasks) == 1 else None
        self._has_tasks = bool(tasks)

    @property
    def hindrance(self) -> str | None:
        """Why it does not rank, whatever the others are."""
        if self.missing:
            run_id, status = next(iter(self.missing.items()))
            more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            return Unranked.MISSING_RUNS.format(runs=f"{run_id}{more}", status=status)
        if self._has_tasks:
            return str(Unranked.SEVERAL_TASKS)
        return next((why for run_id in self.played if (why := self._seen.hindrance.get(run_id))), None)

    def pooled(self, metric: str) -> Pooled:
        seeds: list[Sums] = [self._seen.sums[run_id, metric] for run_id in self.played]
        return pooled(seeds, proportion=_is_proportion(metric), grouped=not self._seen.grouped.isdisjoint(self.played))

    @property
    def stopped(self) -> tuple[str, ...]:
        return tuple(run_id for run_id in self.played if run_id in self._seen.stopped)

    @property
    def no_interval(self) -> str | None:
        """Why its seeds together have no interval."""
        sources = [self._seen.source.get(run_id) or run_id for run_id in self.played]
        if len(set(sources)) < len(sources):
            return "some of its seeds share their answers: no new sample"
        return _STOPPED if self.stopped else None

    @property
    def ranked(self) -> RankedSystem:
        accuracy = self._value(RANKING_METRIC)
        return RankedSystem(self.played, accuracy.ci_low, accuracy.ci_high, bool(self.stopped))

    def made(self, metrics: Sequence[str], ranks: RankRange | str | None) -> SweepRow:
        first = self._points[0]
        costs = [self._seen.cost.get(run_id, 0.0) for run_id in (p.run_id for p in self._points)]
        known = [cost for cost in costs if cost is not None]
        return SweepRow(
            first.name,
            {key: value for key, value in first.point.items() if key != SEED},
            tuple(p.run_id for p in self._points),
            tuple(p.seed for p in self._points),
            {metric: self._value(metric) for metric in metrics},
            self.missing,
            self.task,
            sum(known) if len(known) == len(costs) else None,
            ranks if isinstance(ranks, tuple) else None,
            ranks if isinstance(ranks, str) else self.hindrance,
            self.stopped,
        )

    def _value(self, metric: str) -> SweepValue:
        of_runs = [value for run_id in self.played if (value := self._seen.values.get((run_id, metric))) is not None]
        if len(self.played) < 2 or not of_runs:
            return of_runs[0] if of_runs else SweepValue(reason="not measured" if self.played else "not played yet")
        if _mean(metric) is not None and (all_of := self.pooled(metric)).value is not None:
            if self.no_interval is not None:
                return SweepValue(
                    all_of.value, None, None, all_of.n, all_of.clusters, all_of.between, all_of.within,
                    self.no_interval,
                )  # fmt: skip
            return SweepValue(
                all_of.value, all_of.ci_low, all_of.ci_high, all_of.n, all_of.clusters, all_of.between, all_of.within
            )
        means = [value.value for value in of_runs if value.value is not None]
        if not means:
            return of_runs[0]
        plain = pooled([{metric: (1, mean)} for mean in means], proportion=False)
        if (one := self._numbers.get(metric)) is not None:
            ends, reason = (one.ci_low, one.ci_high), one.reason
            if self.no_interval is not None:
                ends, reason = (None, None), self.no_interval
            return SweepValue(one.value, *ends, one.n, one.clusters, plain.between, reason=reason)
        # The mean over seeds, whose interval nobody can tell from the seeds' own.
        return SweepValue(
            plain.value, n=sum(value.n for value in of_runs), between=plain.between,
            reason="the mean of the seeds: the board has not what it takes to pool their rollouts",
        )  # fmt: skip

    @cached_property
    def _numbers(self) -> Mapping[str, Estimate]:
        return self._seen.numbers(self.played)


def _mean(name: str) -> Metric | None:
    """Return the metric if it is a mean over rollouts, whose seeds are pooled by sums."""
    metric = metric_named(name)
    return metric if metric is not None and metric.is_mean_of_rollouts else None


def _is_proportion(name: str) -> bool:
    metric = metric_named(name)
    return metric is not None and metric.is_proportion


def _ranks(rows: Sequence[_Row], results: Results) -> dict[int, RankRange | str]:
    """The range of ranks of each row that ranks; of one that is alone with its task among others, why it does not."""
    by_task: dict[str | None, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.hindrance is None:
            by_task[row.task].append(index)
    found: dict[int, RankRange | str] = {}
    for indices in by_task.values():
        if len(indices) == 1 and len(by_task) > 1:
            found[indices[0]] = str(Unranked.ALONE)
            continue
        found |= _ranges({index: rows[index] for index in indices}, results)
    return found


def _ranges(rows: Mapping[int, _Row], results: Results) -> dict[int, RankRange]:
    """Of the rows of one task: by the test that two runs are compared by, over all of their seeds."""
    systems = {str(index): row.ranked for index, row in rows.items()}

    def against(leader: int, others: Sequence[int]) -> list[float]:
        return list(p_values(lambda *asked: results.board.query(*asked)[1], str(leader), [*map(str, others)], systems))

    values = ((index, row.pooled(RANKING_METRIC).value or 0.0) for index, row in sorted(rows.items()))
    return rank(values, against)


_RUNS = f"""
SELECT r.run_id, r.status, r.task, r.cost_usd, r.stopped IS NOT NULL,
    CASE WHEN r.kind <> 'benchmark' THEN {Unranked.TRAINING_RUN.sql()} ELSE coalesce({HINDRANCE}, c.reason) END,
    c.source
FROM runs r
LEFT JOIN copies c ON c.run_id = r.run_id
LEFT JOIN metrics m ON m.run_id = r.run_id AND m.agent IS NULL AND m.metric = '{RANKING_METRIC}'
WHERE list_contains(?, r.run_id)
"""

_SUMS = """
WITH played AS (
    SELECT r.*, coalesce(d."group", r.datapoint_id) AS cluster
    FROM rollouts r LEFT JOIN datapoints d ON d.run_id = r.run_id AND d.datapoint_id = r.datapoint_id
    WHERE r.outcome <> 'transport_failed' AND list_contains(?, r.run_id)
)
SELECT run_id, cluster, count(DISTINCT datapoint_id){columns} FROM played GROUP BY run_id, cluster ORDER BY ALL
"""

_VALUES = """
SELECT run_id, concat_ws('.', agent, metric), value, ci_low, ci_high, n, clusters, reason
FROM metrics WHERE list_contains(?, run_id)
"""


def _seen(run_ids: Sequence[str], results: Results, metrics: Iterable[str], *, writes: bool) -> _Seen:
    seen, wanted, ids = _Seen(), list(metrics), list(run_ids)
    stands = _statuses(ids, results, writes=writes)
    if not results.board.path.is_file():
        seen.status = stands
        if NOT_ON_BOARD not in stands.values():
            check_metrics(wanted, (), ())
        return seen
    for run_id, status, task, cost, stopped, hindrance, source in results.board.query(_RUNS, [ids])[1]:
        seen.status[run_id], seen.task[run_id], seen.cost[run_id] = status, task, cost
        seen.hindrance[run_id], seen.source[run_id] = hindrance, source
        if stopped:
            seen.stopped.add(run_id)
    seen.status |= stands
    measured = set()
    for run_id, name, value, low, high, n, clusters, reason in results.board.query(_VALUES, [ids])[1]:
        measured.add(name)
        seen.values[run_id, name] = SweepValue(value, low, high, n, clusters, reason=reason)
    check_metrics(wanted, measured, {agent for agent, dot, _ in (name.rpartition(".") for name in measured) if dot})
    seen.numbers = lambda runs: _pooled_estimates(results, runs)
    means = [name for name in wanted if _mean(name) is not None]
    columns = "".join(_sums_of(metric) for name in means if (metric := _mean(name)) is not None)
    for run_id, cluster, datapoints, *numbers in results.board.query(_SUMS.format(columns=columns), [ids])[1]:
        if datapoints > 1:
            seen.grouped.add(run_id)
        for mean, count, total in zip(means, numbers[::2], numbers[1::2], strict=True):
            if count:
                seen.sums[run_id, mean][cluster] = count, total
    return seen


def _sums_of(metric: Metric) -> str:
    """Return the SQL of the count and the sum of a metric over a cluster; a missing reward is 0."""
    score = f"coalesce({metric.sql}, 0)" if metric.is_per_agent else metric.score_sql()
    return f", count({score}), sum({score})::DOUBLE"


def _pooled_estimates(results: Results, run_ids: Sequence[str]) -> Mapping[str, Estimate]:
    from runner.results.leaderboard.pooled_numbers import pooled_estimates  # loaded only where several seeds ask for it

    return pooled_estimates(results, run_ids)


def _statuses(run_ids: Sequence[str], results: Results, *, writes: bool) -> dict[str, str]:
    """How runs stand by their own manifests; see `sweep_rows` for the finished ones that the board lacks."""
    there = [folder for run_id in dict.fromkeys(run_ids) if (folder := results.run(run_id)).manifest_path.is_file()]
    stands = {folder.run_id: str(folder.manifest().status) for folder in there if folder.damage() is None}
    board: dict[str, str] = {}
    if results.board.path.is_file():
        board = dict(results.board.query("SELECT run_id, status FROM runs")[1])
    for folder in there:
        status = stands.get(folder.run_id)
        if status in PLAYED and board.get(folder.run_id) != status:
            if writes:
                results.board.append(folder)
            else:
                stands[folder.run_id] = NOT_ON_BOARD
    return stands
