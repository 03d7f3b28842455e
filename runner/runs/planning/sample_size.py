"""How many datapoints and repeats it takes to see a difference, and what they would cost.

Two systems are compared on the same datapoints, by the differences of their group scores; the variance of those is
taken from earlier runs, or is the most that there may be. Few groups may all agree by chance: to those that were seen
one more is added, as far out as a group may be. The rest is the power formula of
`runner.statistics.variance_components`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from runner.base.errors import UsageError
from runner.base.storage.parquet import read_tables
from runner.base.text import decimal
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.estimate import estimates
from runner.rollouts.plan import Plan
from runner.runs.execution.baseline_run import finished_spec, scores_of_run
from runner.spec.datasets.datapoint import grouped
from runner.statistics.intervals import variance_factors
from runner.statistics.variance_components import (
    UNKNOWN,
    Play,
    Scores,
    Split,
    groups_needed,
    paired_differences,
    paired_split,
    paired_total,
    smallest_difference,
    with_one_more,
)

REPEATS = (1, 2, 3, 5, 10)
"""The numbers of repeats that are planned for, beside the spec's own."""
_GAMES = """
WITH known AS (
    FROM rollouts
    UNION ALL BY NAME SELECT NULL::BOOLEAN AS swapped, NULL::BOOLEAN AS stances_exchanged WHERE false
)
SELECT datapoint_id, stance, swapped, stances_exchanged, correct FROM known WHERE correct IS NOT NULL
"""
"""Runs of 0.1.0 do not say which play of a block a game is, since there were no blocks."""


@dataclass(frozen=True)
class VarianceOfDifference:
    """The variance of the difference of two systems' scores on a group, by the repeats that are still to be played."""

    fixed: float
    """What more repeats do not lower."""
    by_chance: float
    """What one repeat adds, and more repeats share."""
    source: str
    """Where it is from, in words."""
    split: bool = True
    """Whether it is known what repeats are good for; else all counts as fixed."""
    groups: int | None = None
    """In how many groups it was seen; None where nothing is known."""
    uncertainty: tuple[float, float] | None = None
    """By which factors it may be off, since these are few (95 %)."""

    def of(self, repeats: int) -> float:
        return self.fixed + self.by_chance / repeats


@dataclass(frozen=True)
class Needed:
    """What it takes with so many repeats of each datapoint: games, calls and cost of one run of the spec."""

    repeats: int
    groups: int
    datapoints: int
    games: int
    calls: tuple[int, int]
    cost_usd: tuple[float, float] | None
    """None where a price is unknown."""
    fits: bool
    """Whether the dataset has so many."""
    smallest_difference: float | None
    """What all of the dataset could show with so many repeats; None: nothing."""


@dataclass(frozen=True)
class SampleSize:
    """What it takes to see a difference, at a power of 80 % and a level of 5 %."""

    detect: float
    variance: VarianceOfDifference
    datapoints: int
    """Those that there are, and that the other run has too."""
    groups: int
    rows: tuple[Needed, ...]

    @property
    def cheapest(self) -> Needed | None:
        """Of those that the dataset is large enough for, the one with the fewest games."""
        return min((row for row in self.rows if row.fits), key=lambda row: row.games, default=None)


def sample_size_of(
    plan: Plan, detect: float, results: Results, *, from_runs: Sequence[str] = (), against: str | None = None
) -> SampleSize:
    """Plan for a difference of `detect`, such as 0.05 for five points.

    `from_runs` are an earlier run of a system like this, or two that are to be compared; `against` is a run that this
    one is compared with, and that is not played again. Names are ids of runs, the start of one, or folders.

    Raises:
        UsageError: what is asked is out of bounds, or a run is not there, not finished, or on other datapoints.
        RunError: the files of a run are damaged.
    """
    if not 0 < detect < 1:
        raise UsageError(f"a difference to detect is a share between 0 and 1, such as 0.05, and not {detect:g}")
    if from_runs and against is not None:
        raise UsageError("give the runs that the variance is from, or the one to compare with; not both")
    if len(from_runs) > 2:
        raise UsageError(f"the variance is from one run, or from two that are to be compared; {len(from_runs)} given")
    if plan.shape is not None:
        raise UsageError("a tree's samples are not independent games; leave out rollouts.num_responses_per_timestep")
    points = list(plan.spec.dataset.datapoints)
    if against is not None:
        other = results.find(against)
        theirs = scores_of_run(other, plan, f"run {against}")
        points = [point for point in points if theirs.score(point) is not None]
        variance = _against(other)
    else:
        variance = _from([results.find(name) for name in from_runs])
    groups = len(grouped(points))
    # Where it is not known what repeats are good for, a table of them would say that they are good for nothing.
    known = (*REPEATS, plan.spec.experiment.rollouts.per_datapoint) if variance.split else (1,)
    rows = tuple(_row(plan, detect, variance, repeats, groups) for repeats in sorted(set(known)))
    return SampleSize(detect, variance, len(points), groups, rows)


def _row(plan: Plan, detect: float, variance: VarianceOfDifference, repeats: int, groups: int) -> Needed:
    step = 1 / repeats
    needed = groups_needed(detect, variance.of(repeats), step)
    experiment = plan.spec.experiment
    rollouts = replace(experiment.rollouts, per_datapoint=1)
    once = plan.with_spec(replace(plan.spec, experiment=replace(experiment, rollouts=rollouts)))
    of_group = len(plan.spec.dataset.datapoints) / len(grouped(plan.spec.dataset.datapoints))
    points = round(needed * of_group)
    share = points / len(plan.spec.dataset.datapoints) * repeats
    priced = estimates(once)
    costs = [row.cost_usd for row in priced if row.cost_usd is not None]
    return Needed(
        repeats,
        needed,
        points,
        round(once.size * share),
        (round(sum(row.calls[0] for row in priced) * share), round(sum(row.calls[1] for row in priced) * share)),
        (sum(low for low, _ in costs) * share, sum(high for _, high in costs) * share)
        if len(costs) == len(priced)
        else None,
        needed <= groups,
        smallest_difference(groups, variance.of(repeats), step),
    )


def _from(runs: Sequence[RunFolder]) -> VarianceOfDifference:
    """Of two systems like the one run, or of the two."""
    if not runs:
        return VarianceOfDifference(
            UNKNOWN, 0.0,
            "nothing is known: two independent runs, each with the most that a share can vary (0.25 + 0.25); --from "
            "RUN says more",
            split=False,
        )  # fmt: skip
    if len(runs) == 2:
        return _paired(*runs)
    (run,) = runs
    scores = _scores(run)
    split, name, groups = scores.split(), run.run_id, len(scores.groups)
    if split is None:
        return _of_one_play(scores, run)
    said = f"twice that of {name}, as of independent systems: {_told(split)}"
    between = with_one_more(split.between, groups, scores.furthest())
    return _seen(2 * between, 2 * split.within, said, groups)


def _against(run: RunFolder) -> VarianceOfDifference:
    """Of a new system that is like a run, and independent of it; that run is not played again."""
    scores = _scores(run)
    split, name, groups = scores.split(), run.run_id, len(scores.groups)
    if split is None:
        return _of_one_play(scores, run)
    said = f"that of {name} ({scores.repeats:g} repeats) and of a like system, as if independent: {_told(split)}"
    between = with_one_more(split.between, groups, scores.furthest())
    return _seen(2 * between + split.within / scores.repeats, split.within, said, groups)


def _paired(one: RunFolder, other: RunFolder) -> VarianceOfDifference:
    ours, theirs = _scores(one), _scores(other)
    total, split = paired_total(ours, theirs), paired_split(ours, theirs)
    both = f"{one.run_id} and {other.run_id}"
    if total is None:
        raise UsageError(f"runs {both} share fewer than two groups of datapoints; name two runs on the same dataset")
    differences = paired_differences(ours, theirs)
    groups, furthest = len(differences), 1 + abs(fmean(differences))
    if split is None:
        said = f"that of the differences of {both}, which do not tell what repeats are good for: one played each once"
        return _seen(with_one_more(total, groups, furthest), 0.0, said, groups, split=False)
    between, *within = split
    said = (
        f"that of the differences of {both}: {decimal(between)} between groups, {decimal(within[0])} and "
        f"{decimal(within[1])} within"
    )
    return _seen(with_one_more(between, groups, furthest), sum(within), said, groups)


def _of_one_play(scores: Scores, run: RunFolder) -> VarianceOfDifference:
    """Of a run that played each datapoint once, and of a system like it."""
    said = f"twice that of {run.run_id}, which does not tell what repeats are good for: it played each datapoint once"
    groups = len(scores.groups)
    total = with_one_more(_total(scores, run), groups, scores.furthest())
    return _seen(2 * total, 0.0, said, groups, split=False)


def _seen(fixed: float, by_chance: float, said: str, groups: int, *, split: bool = True) -> VarianceOfDifference:
    said = f"{said}; with one more group added, as far out as there may be one"
    return VarianceOfDifference(fixed, by_chance, said, split, groups, variance_factors(groups))


def _told(split: Split) -> str:
    return f"{decimal(split.between)} between groups, {decimal(split.within)} within"


def _total(scores: Scores, run: RunFolder) -> float:
    total = scores.total()
    if total is None:
        raise UsageError(f"run {run.run_id} has fewer than two groups of datapoints, which tell no variance")
    return total


def _scores(run: RunFolder) -> Scores:
    """A run's scores by group.

    Raises:
        UsageError: it has none: it is not finished, or a training run.
        RunError: its files are damaged.
    """
    saved = finished_spec(run, f"run {run.manifest().run_id}")
    group_of = {point.id: point.group for point in saved.dataset.datapoints}
    scores = Scores()
    for id_, stance, swapped, exchanged, correct in read_tables(_GAMES, {"rollouts": run.intact_table("rollouts")}, {}):
        scores.add(group_of.get(id_, id_), Play(id_, stance, swapped, exchanged), float(correct))
    return scores
