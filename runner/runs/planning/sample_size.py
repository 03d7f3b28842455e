"""Computes the numbers of datapoints and repeats that detect a difference between two systems, and their cost.

Two systems are compared by the differences of their scores on each group of related datapoints. The variance of these
differences comes from earlier runs, which are assumed to be representative. Without earlier runs, the largest possible
variance is used. The variance of two runs depends on their mean difference as in `compare`. If all groups have the same
score or difference, perhaps by chance, their variance is 0. Then one group that differs is added. The number of groups
follows from the power formula in `runner.statistics.variance_components`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from runner.base.errors import UsageError
from runner.base.storage.parquet import read_tables
from runner.base.text import decimal
from runner.results.comparison.matching import MatchedPoints, match_systems
from runner.results.comparison.systems import SystemReader
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import METRICS, RANKING_METRIC
from runner.results.saved_spec import saved_value
from runner.results.tasks import describe_task_difference
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.plan import Plan
from runner.runs.execution.baseline_run import finished_spec, load_scores
from runner.spec.datasets.datapoint import group_datapoints
from runner.statistics.differences import approximate_differences
from runner.statistics.intervals import variance_factors
from runner.statistics.variance_components import (
    UNKNOWN,
    Play,
    Scores,
    groups_needed,
    paired_differences,
    paired_split,
    paired_total,
    smallest_difference,
    with_one_more_group,
)

REPEATS = (1, 2, 3, 5, 10)
"""The numbers of repeats to plan for, in addition to the spec's own number."""
_SCORES_QUERY = """
WITH all_rollouts AS (
    FROM rollouts
    UNION ALL BY NAME SELECT NULL::BOOLEAN AS swapped, NULL::BOOLEAN AS stances_exchanged WHERE false
)
SELECT datapoint_id, stance, swapped, stances_exchanged, correct FROM all_rollouts WHERE correct IS NOT NULL
"""
"""The query for the scores of games. Tables of 0.1.0 lack the columns `swapped` and `stances_exchanged`."""


@dataclass(frozen=True)
class VarianceOfDifference:
    """The variance of the difference between two systems' scores on a group, depending on the number of repeats."""

    fixed: float
    """The part that more repeats do not reduce."""
    by_chance: float
    """The part that is divided by the number of repeats."""
    source: str
    """A description of where these values come from."""
    split: bool = True
    """Whether the two parts are known separately; if not, the whole variance counts as fixed."""
    groups: int | None = None
    """The number of groups in the runs that the variance was estimated from; None if it was not estimated."""
    uncertainty: tuple[float, float] | None = None
    """The 95 % confidence interval of the true variance divided by the estimate."""


_FactorAt = Callable[[float], float]
"""Returns a factor for the variance in the earlier runs, if the mean difference has the given size instead."""


@dataclass(frozen=True)
class Needed:
    """The datapoints, games, calls and cost of one run that detects the difference with a number of repeats."""

    repeats: int
    groups: int
    datapoints: int
    games: int
    calls: tuple[int, int]
    cost_usd: tuple[float, float] | None
    """The lowest and highest cost; None if a price is unknown."""
    fits: bool
    """Whether the dataset has enough datapoints."""
    smallest_difference: float | None
    """The smallest difference that the full dataset detects with this number of repeats; None if it detects none."""


@dataclass(frozen=True)
class SampleSize:
    """The sample sizes that detect a difference, with a power of 80 % at a level of 5 %."""

    detect: float
    variance: VarianceOfDifference
    datapoints: int
    """The number of datapoints in the dataset; if there is a run to compare with, the number that both have."""
    groups: int
    rows: tuple[Needed, ...]

    @property
    def cheapest(self) -> Needed | None:
        """The row with the fewest games that fit the dataset; None if no row fits."""
        return min((row for row in self.rows if row.fits), key=lambda row: row.games, default=None)


def sample_size_of(
    plan: Plan, detect: float, results: Results, *, from_runs: Sequence[str] = (), against: str | None = None
) -> SampleSize:
    """Return the sample sizes that detect a difference of `detect`, such as 0.05 for five percentage points.

    `from_runs` names an earlier run of a similar system, or two earlier runs to compare. `against` names a finished run
    to compare with, which is not played again. A name is a run id, the start of one, or a folder.

    Raises:
        UsageError: an argument is out of range, or a run does not exist, is not finished, or has other datapoints.
        RunError: the files of a run are damaged.
    """
    if not 0 < detect < 1:
        raise UsageError(f"the difference to detect must be between 0 and 1, such as 0.05, not {detect:g}")
    if from_runs and against is not None:
        raise UsageError("give either the runs for the variance or the run to compare with, not both")
    if len(from_runs) > 2:
        raise UsageError(f"give one or two runs for the variance, not {len(from_runs)}")
    if plan.tree_shape is not None:
        raise UsageError(
            "samples of a tree are not independent games; plan without trees: rollouts.num_responses_per_timestep=null"
        )
    datapoints = list(plan.spec.dataset.datapoints)
    factor_at: _FactorAt = _constant_factor
    if against is not None:
        other_run = results.find(against)
        other_scores = load_scores(other_run, plan, f"run {against}")
        datapoints = [point for point in datapoints if other_scores.score(point) is not None]
        variance = _variance_of_run(other_run, run_is_baseline=True)
    else:
        variance, factor_at = _variance_from_runs([results.find(name) for name in from_runs])
    groups = len(group_datapoints(datapoints))
    # If the variance is not split, more rows would wrongly suggest that repeats do not help.
    repeat_counts = (*REPEATS, plan.spec.experiment.rollouts.per_datapoint) if variance.split else (1,)
    rows = tuple(
        _needed_for(plan, detect, variance, repeats, groups, factor_at=factor_at)
        for repeats in sorted(set(repeat_counts))
    )
    return SampleSize(detect, variance, len(datapoints), groups, rows)


def _needed_for(
    plan: Plan, detect: float, variance: VarianceOfDifference, repeats: int, groups: int, *, factor_at: _FactorAt
) -> Needed:
    """Return the datapoints, games, calls and cost for a number of repeats; the dataset has this many groups."""
    experiment, dataset = plan.spec.experiment, plan.spec.dataset.datapoints
    rollouts = replace(experiment.rollouts, per_datapoint=1)
    single_repeat_plan = plan.with_spec(replace(plan.spec, experiment=replace(experiment, rollouts=rollouts)))
    dataset_groups = len(group_datapoints(dataset))
    # Without an estimate, all games of a group are assumed to end alike, so a group counts as one game.
    games_per_group = 1.0 if variance.groups is None else single_repeat_plan.size / dataset_groups
    step = 1 / (repeats * games_per_group)  # the change of a group's score if one game ends differently

    def variance_at(difference: float) -> float:
        return (variance.fixed + variance.by_chance / repeats) * factor_at(difference)

    needed = groups_needed(detect, variance_at(detect), step)
    needed_datapoints = round(needed * (len(dataset) / dataset_groups))
    # Calls and costs are estimated for one repeat of the whole dataset; with more games, the scale exceeds 1.
    scale = needed_datapoints / len(dataset) * repeats
    priced = estimate_costs(single_repeat_plan)
    costs = [row.cost_usd for row in priced if row.cost_usd is not None]
    total_cost = (sum(low for low, _ in costs) * scale, sum(high for _, high in costs) * scale)
    return Needed(
        repeats,
        needed,
        needed_datapoints,
        games=round(single_repeat_plan.size * scale),
        calls=(round(sum(row.calls[0] for row in priced) * scale), round(sum(row.calls[1] for row in priced) * scale)),
        cost_usd=total_cost if len(costs) == len(priced) else None,
        fits=needed <= groups,
        smallest_difference=smallest_difference(groups, variance_at, step),
    )


def _constant_factor(_: float) -> float:
    return 1.0


def _variance_from_runs(runs: Sequence[RunFolder]) -> tuple[VarianceOfDifference, _FactorAt]:
    """Return the variance of the difference between two systems, and how it depends on the difference.

    Without runs, this is the largest possible variance. With one run, both systems are similar to that run, but
    independent. With two runs, each system is similar to one of them.
    """
    if not runs:
        source = (
            "no run is given, so this is the largest possible variance, for two independent runs (0.25 + 0.25); use "
            "--from RUN for a better estimate"
        )
        return VarianceOfDifference(UNKNOWN, 0.0, source, split=False), _constant_factor
    if len(runs) == 2:
        return _paired_variance(*runs)
    return _variance_of_run(*runs, run_is_baseline=False), _constant_factor


def _variance_of_run(run: RunFolder, *, run_is_baseline: bool) -> VarianceOfDifference:
    """Return the variance of the difference between two independent systems that are similar to a run.

    If `run_is_baseline`, one of them is the run itself, which is not played again.
    """
    scores, name = _read_scores(run), run.run_id
    split, groups = scores.split(), len(scores.groups)
    if split is None:
        source = f"twice the variance of {name}, not split by repeats, because the run has only one repeat"
        total = _nonzero_variance(_total_variance(scores, run), 0.0, groups, scores.largest_distance())
        return _build_estimate(2 * total, 0.0, source, groups, split=False)
    parts = f"{decimal(split.between)} between groups, {decimal(split.within)} within"
    between = _nonzero_variance(split.between, split.within, groups, scores.largest_distance())
    if run_is_baseline:
        source = f"the variance of {name} ({scores.repeats:g} repeats) and of a similar, independent system: {parts}"
        return _build_estimate(2 * between + split.within / scores.repeats, split.within, source, groups)
    source = f"twice the variance of {name}, for independent systems: {parts}"
    return _build_estimate(2 * between, 2 * split.within, source, groups)


def _describe_unmatched(first: RunFolder, second: RunFolder, matched: MatchedPoints) -> str:
    """Return how the tasks of two runs differ if a run has datapoints that the other does not have; otherwise ""."""
    if not (matched.only_base or matched.only_other):
        return ""
    group_columns = saved_value(first, "dataset", "group_by"), saved_value(second, "dataset", "group_by")
    return f"; {second.run_id} against {first.run_id}: {describe_task_difference(first, second, group_columns)}"


def _paired_variance(first: RunFolder, second: RunFolder) -> tuple[VarianceOfDifference, _FactorAt]:
    """Return the variance of the difference between two runs on the datapoints that both have, paired as in `compare`.

    Also return how the variance depends on the difference, as `compare` assumes for its detectable difference.
    """
    runs, reader = (first, second), SystemReader()
    matched = match_systems(reader.system(first), reader.system(second), METRICS[RANKING_METRIC], reader)
    first_scores, second_scores = (
        _read_scores(run, {pair[i].id: group for pair, group in zip(matched.pairs, matched.groups, strict=True)})
        for i, run in enumerate(runs)
    )
    total, split = paired_total(first_scores, second_scores), paired_split(first_scores, second_scores)
    both, unmatched = f"{first.run_id} and {second.run_id}", _describe_unmatched(first, second, matched)
    if total is None:
        raise UsageError(
            f"runs {both} share fewer than two groups of datapoints{unmatched}; name two runs on the same dataset"
        )
    both += f" on {len(matched.pairs)} shared datapoints{unmatched}" if unmatched else ""
    differences, sizes = paired_differences(first_scores, second_scores), Counter(matched.groups)
    # A difference is between -1 and 1, so no other group can be further from the mean of these groups.
    groups, furthest = len(differences), 1 + abs(fmean(differences))
    fewest = min(len(point.scores) for pair in matched.pairs for point in pair)
    group_sizes, step = [sizes[group] for group in first_scores.groups], groups / (len(matched.pairs) * fewest)
    approximation = approximate_differences(differences, group_sizes, 1.0, step)

    def factor_at(difference: float) -> float:
        return approximation.variance(difference) / variance_in_runs if total else 1.0

    if split is None:
        variance_in_runs = total
        source = f"the variance of the difference between {both}, not split by repeats, because one has only one repeat"
        fixed = _nonzero_variance(total, 0.0, groups, furthest)
        return _build_estimate(fixed, 0.0, source, groups, split=False), factor_at
    between, *within = split
    variance_in_runs = between + within[0] / first_scores.repeats + within[1] / second_scores.repeats
    source = (
        f"the variance of the difference between {both}: {decimal(between)} between groups, {decimal(within[0])} and "
        f"{decimal(within[1])} within"
    )
    fixed = _nonzero_variance(between, sum(within), groups, furthest)
    return _build_estimate(fixed, sum(within), source, groups), factor_at


def _nonzero_variance(between: float, within: float, groups: int, furthest: float) -> float:
    """Return the variance between groups; if both variances are 0, add one group that differs by `furthest`."""
    return between if between + within > 0 else with_one_more_group(0.0, groups, furthest)


def _build_estimate(
    fixed: float, by_chance: float, source: str, groups: int, *, split: bool = True
) -> VarianceOfDifference:
    return VarianceOfDifference(fixed, by_chance, source, split, groups, variance_factors(groups))


def _total_variance(scores: Scores, run: RunFolder) -> float:
    total = scores.total()
    if total is None:
        raise UsageError(
            f"run {run.run_id} has fewer than two groups of datapoints, so its variance is unknown; name a larger run"
        )
    return total


def _read_scores(run: RunFolder, group_of: Mapping[str, str] | None = None) -> Scores:
    """Return a run's scores by group; `group_of` has the group of each datapoint to use (None: of the run's own).

    Raises:
        UsageError: the run is not finished, or is a training run.
        RunError: files of the run are damaged.
    """
    spec = finished_spec(run, f"run {run.manifest().run_id}")
    if group_of is None:
        group_of = {point.id: point.group for point in spec.dataset.datapoints}
    scores = Scores()
    for id_, stance, swapped, exchanged, correct in read_tables(
        _SCORES_QUERY, {"rollouts": run.intact_table("rollouts")}, {}
    ):
        if id_ in group_of:
            scores.add(group_of[id_], Play(id_, stance, swapped, exchanged), float(correct))
    return scores
