"""Comparison of systems: each with a base or with the leader, by one test, corrected for the number of comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.base.text import comma_join, counted, decimal, with_interval
from runner.models.settings import NOT_PUBLISHED
from runner.results.comparison.assertions import Assertion, AssertionResult, check_bound, parse_assertion
from runner.results.comparison.baselines import baseline_of
from runner.results.comparison.leader import leader_of
from runner.results.comparison.matching import Matched, matched
from runner.results.comparison.paired_test import (
    Flip,
    PairedTest,
    flips_of,
    is_uneven,
    sample_of,
    tested,
    tested_unpaired,
    without_error,
)
from runner.results.comparison.shared_samples import (
    no_verdicts_of_its_own,
    refuse_overlap,
    refuse_repeated_answers,
    same_answers,
    same_games,
    shared_verdicts,
)
from runner.results.comparison.slices import sliced, untested
from runner.results.comparison.systems import DatapointScores, System, SystemReader, system_of
from runner.results.comparison.wording import difference_in_words, told, verdict
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_table import METRICS, RANKING_METRIC, Metric, compared_metric
from runner.results.stopping_rule import sequence_of
from runner.statistics.differences import Difference
from runner.statistics.sign_flip import holm


@dataclass(frozen=True)
class SystemComparison:
    """One system against another by one metric, over all datapoints that both have or over one slice."""

    base: str
    other: str
    metric: str
    slice: str | None
    """The value of the column that slices; None for all datapoints."""
    paired: bool
    """False if they share no datapoint and are two samples."""
    base_value: float
    other_value: float
    difference: float
    """The other's value less the base's, over the datapoints that both have."""
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    """The p-value of the sign-flip test, or of Welch's test if nothing is paired; None for a single group."""
    p_corrected: float | None
    """The p-value after Holm's correction for all comparisons of systems, or of slices."""
    exact: bool
    mid_p_mcnemar: float | None
    """McNemar's mid-p, if each datapoint was played once and is a group of its own."""
    detectable: float | None
    """The minimum detectable difference at 80 % power."""
    datapoints: int
    groups: int
    differing: int | None
    """Groups whose means differ; None if nothing is paired."""
    verdict: str
    flips: tuple[Flip, ...] = ()
    """Datapoints that most verdicts of one system have right, and most of the other wrong."""
    only_base: tuple[str, ...] = ()
    """Ids of datapoints that only the base has."""
    only_other: tuple[str, ...] = ()
    """Ids of datapoints that only the other has. Both are empty for unpaired systems, which use all datapoints."""
    remark: str | None = None
    """Why the two are not two samples, if so."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AssertedComparison:
    """The result of an assertion about a system."""

    assertion: str
    system: str
    base: str | None
    value: float
    ci_low: float | None
    ci_high: float | None
    held: AssertionResult


@dataclass(frozen=True, repr=False)
class Comparison:
    """Systems compared by one metric. Its `repr` is a text to read."""

    metric: str
    by: str | None
    systems: Mapping[str, tuple[str, ...]]
    """The runs of each system, by its name."""
    pairs: tuple[SystemComparison, ...]
    slices: tuple[SystemComparison, ...]
    asserted: tuple[AssertedComparison, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The verdicts in words, one line for each pair."""
        return "\n".join(pair.verdict for pair in self.pairs)

    @property
    def flips(self) -> tuple[Flip, ...]:
        """The flips of all pairs."""
        return tuple(flip for pair in self.pairs for flip in pair.flips)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        return {**asdict(self), "verdict": self.verdict}

    def __repr__(self) -> str:
        return "\n".join(
            [f"{self.metric}: {self.verdict}", *(f"{one.slice}: {one.verdict}" for one in self.slices), *self.notes]
        )


def compare_systems(
    names: Sequence[Sequence[str | Path]],
    results: Results,
    *,
    metric: str = RANKING_METRIC,
    by: str | None = None,
    baseline: str | None = None,
    asserts: Sequence[str] = (),
    seed: int = 0,
) -> Comparison:
    """Compare systems, each given by the names of the runs that are pooled.

    Two systems are compared with each other, more with the leader. With a `baseline` each is compared with that: a run,
    or a protocol whose runs of the same task and the same verifier are found. If an assertion names `base`, the first
    system is the base. A single system can be judged by assertions that do not.

    Raises:
        UsageError: the systems cannot be compared; the message says why.
        RunError: a file of a run is missing or damaged.
    """
    wanted = [parse_assertion(text) for text in asserts]
    for one in wanted:
        if one.metric in METRICS and METRICS[one.metric].is_compared:
            check_bound(one, METRICS[one.metric])
    is_alone = len(names) + (baseline is not None) < 2
    if is_alone and (not wanted or any(one.against_base for one in wanted)):
        raise UsageError(
            "two runs are compared, or more: nip-run compare RUN RUN; or one with --baseline, or with --assert and no "
            "`base` in it"
        )
    systems = [system_of(one, results) for one in names]
    for system in systems:
        refuse_repeated_answers(system.runs, system.manifests)
    refuse_overlap(systems)
    return _Work(systems, results, metric, by, seed, SystemReader(by)).comparison(baseline, wanted)


def by_metrics(base: System, other: System, metrics: Sequence[str], reading: SystemReader) -> list[SystemComparison]:
    """Compare two systems by each metric that both have scores for; they must have the first one.

    Raises:
        UsageError: they cannot be compared by the first metric; the message says why.
        RunError: a file of a run is missing or damaged.
    """
    for system in (base, other):
        refuse_repeated_answers(system.runs, system.manifests)
    refuse_overlap([base, other])
    results = Results.of(base.runs[0])
    found: list[SystemComparison] = []
    for metric in metrics:
        try:
            found += _Work([base, other], results, metric, None, 0, reading).pairs()
        except UsageError:
            if not found:
                raise
            continue  # one of them has no score by it, such as a confidence that was not asked for
    return found


@dataclass(frozen=True)
class _Work:
    """The systems that are being compared; each file is read once."""

    systems: Sequence[System]
    results: Results
    metric: str
    by: str | None
    seed: int
    reading: SystemReader

    def _points(self, system: System, measure: Metric) -> list[DatapointScores]:
        return self.reading.points(system, measure)

    def _measure(self, name: str, *systems: System) -> Metric:
        common = set(systems[0].agents).intersection(*(one.agents for one in systems[1:]))
        return compared_metric(name, sorted(common))

    def comparison(self, baseline: str | None, wanted: Sequence[Assertion]) -> Comparison:
        couples = list(self._couples(baseline, has_base=any(one.against_base for one in wanted)))
        found = [self._compared(base, other, self.metric) for base, other in couples]
        slices = [one for (base, other) in couples for one in self._sliced(base, other)] if self.by else []
        everyone = dict.fromkeys([*(system for couple in couples for system in couple), *self.systems])
        judged = [one for assertion in wanted for one in self._judgements(assertion, couples)]
        notes = [*notes_of(list(everyone)), *_of_assertions(judged, len(self.systems), baseline)]
        if self.by:
            notes += untested(self.by, [one.p is not None for one in slices])
        return Comparison(
            self.metric,
            self.by,
            {one.name: tuple(folder.run_id for folder in one.runs) for one in everyone},
            tuple(_corrected(found)),
            tuple(_corrected(slices)),
            tuple(judged),
            tuple(notes),
        )

    def pairs(self) -> list[SystemComparison]:
        """Return each comparison, corrected for the number of comparisons."""
        return list(_corrected([self._compared(base, other, self.metric) for base, other in self._couples(None)]))

    def _couples(self, baseline: str | None, *, has_base: bool = False) -> Iterator[tuple[System, System]]:
        """Yield each base with a system that is compared with it."""
        if baseline is not None:
            for system in self.systems:
                base = baseline_of(baseline, system, self.results)
                refuse_repeated_answers(base.runs, base.manifests)
                refuse_overlap([base, system])
                yield base, system
            return
        first, *others = self.systems
        if len(self.systems) > 2 and not has_base:
            measure = self._measure(self.metric, *self.systems)
            points = {system: self._points(system, measure) for system in self.systems}
            first = leader_of(points, measure, lambda one, two: self._matched(one, two, measure)[0])
            others = [one for one in self.systems if one is not first]
        for other in others:
            yield first, other

    def _matched(self, base: System, other: System, measure: Metric) -> tuple[Matched, tuple[str, ...]]:
        """Return the datapoints that two systems share, and notes on how they were matched."""
        ours, theirs = base.columns, other.columns
        both = ours & theirs
        found = matched(self._points(base, measure), self._points(other, measure), both, is_all=ours == theirs)
        if ours == theirs:
            return found, ()
        over = f"matched by label and {comma_join(sorted(both))}" if both else "matched by label and id alone"
        used = [f"{one.name}: {comma_join(sorted(one.columns)) or 'none'}" for one in (base, other)]
        return found, (f"their templates use other columns ({'; '.join(used)}): {over}",)

    def _compared(self, base: System, other: System, metric: str) -> SystemComparison:
        measure = self._measure(metric, base, other)
        found, notes = self._matched(base, other, measure)
        stopped = _stopped(base) + _stopped(other)
        result, left = tested(measure, found, self.seed, stopped=bool(stopped)), (found.only_base, found.only_other)
        notes = (*notes, *same_games(base, other), *stopped)
        if result is None:
            result = tested_unpaired(measure, self._points(base, measure), self._points(other, measure))
            notes = (*notes, "unpaired: they share no datapoint, so that datapoints and systems differ at once")
            left = (), ()
            if result is not None and stopped:
                result = replace(result, p=None, difference=without_error(result.difference))
        elif is_uneven(found) and result.p is not None and not _is_one_system(base, other):
            notes = (*notes, "repeats differ: p allows for the smaller spread of the system that was asked more often")
        assert result is not None  # a system without a score was refused
        shared = shared_verdicts(base, other)
        remark = same_answers(base, other) or no_verdicts_of_its_own(base, other)
        if shared is not None and remark is None:
            remark, notes = (f"{shared[1]}: no new sample", notes) if shared[0] else (None, (*notes, shared[1]))
        row = _row(measure, base.name, other.name, result)
        value = difference_in_words(measure, base.name, other.name, result.difference)
        if remark is not None:
            bare = f"{other.name} less {base.name} is {told(row.difference, measure, without_error(result.difference))}"
            row = _untested(replace(row, stderr=None, ci_low=None, ci_high=None), f"no test: {remark}; {bare}")
        elif _is_one_system(base, other):
            pooled = self._pooled(measure, found, stopped=bool(stopped))
            row = _untested(row, f"{ONE_SYSTEM}: {value}; pooled, {measure.name} is {pooled}")
            notes = (*notes, *_other_addresses(base, other))
        elif stopped and result.p is None:
            row = replace(row, verdict=f"no test: a run stopped once it was decided; {value}")
        return replace(
            row,
            flips=tuple(flips_of(found, base.name, other.name)),
            only_base=tuple(point.id for point in left[0]),
            only_other=tuple(point.id for point in left[1]),
            remark=remark,
            notes=notes,
        )

    def _pooled(self, measure: Metric, matched: Matched, *, stopped: bool) -> str:
        """Return the pooled value of two samples of one system, over all datapoints that either has."""
        both = [replace(mine, rollouts=[*mine.rollouts, *theirs.rollouts]) for mine, theirs in matched.pairs]
        sample = sample_of(measure, [*both, *matched.only_base, *matched.only_other])
        assert sample is not None  # a system without a score was refused
        if stopped:
            return f"{decimal(sample.mean)}, without an interval, since a run stopped once it was decided"
        return with_interval(sample.mean, *sample.interval)

    def _sliced(self, base: System, other: System) -> Iterator[SystemComparison]:
        assert self.by is not None
        measure = self._measure(self.metric, base, other)
        if measure.is_balanced:
            raise UsageError(f"{measure.name} is of both labels; slices are compared by accuracy")
        stopped = bool(_stopped(base) or _stopped(other))
        whole = self._compared(base, other, self.metric)
        for value, part in sliced(self._matched(base, other, measure)[0], self.by, base, other).items():
            if (result := tested(measure, part, self.seed, stopped=stopped)) is not None:
                row = replace(_row(measure, base.name, other.name, result), slice=value)
                is_tested = whole.p is not None or (
                    stopped and whole.remark is None and not _is_one_system(base, other)
                )
                yield row if is_tested else _untested(row, whole.verdict.partition(":")[0])

    def _judgements(
        self, assertion: Assertion, couples: Sequence[tuple[System, System]]
    ) -> Iterator[AssertedComparison]:
        """Yield the result of an assertion for each system, or for its difference from its base."""
        if assertion.against_base:
            for base, other in couples:
                row = self._compared(base, other, assertion.metric)
                ends = (row.ci_low, row.ci_high)
                yield AssertedComparison(
                    assertion.text, other.name, base.name, row.difference, *ends, assertion.judged(*ends)
                )
            return
        for system in self.systems:
            measure = self._measure(assertion.metric, system)
            own = sample_of(measure, self._points(system, measure))
            assert own is not None  # a system without a score was refused
            own_ends = _own_ends(system, measure, own.interval)
            yield AssertedComparison(
                assertion.text, system.name, None, own.mean, *own_ends, assertion.judged(*own_ends)
            )


ONE_SYSTEM = "two samples of one system (the same rules, prompts and names of models)"


def _is_one_system(base: System, other: System) -> bool:
    """Return whether the runs of both differ only in their seeds."""
    return base.manifests[0].game_sha256 == other.manifests[0].game_sha256


def _other_addresses(base: System, other: System) -> Iterator[str]:
    """What to say if one system's models were asked at two addresses, at which they may differ."""
    theirs = other.addresses
    for group, address in base.addresses.items():
        if address != theirs.get(group) and NOT_PUBLISHED not in (address, theirs.get(group)):
            yield (
                f"models.{group} was asked at two addresses ({address or 'the provider'}, "
                f"{theirs.get(group) or 'the provider'}): if these serve different models, give the models different "
                "names and play again"
            )


def _own_ends(system: System, measure: Metric, plain: tuple[float | None, float | None]) -> tuple[Any, Any]:
    """Return the interval of a system by itself, or no ends if its verdicts are not its answers.

    A run that stopped once it was decided has its confidence sequence.
    """
    if system.fixed_verdicts is not None:
        return None, None
    if not _stopped(system):
        return plain
    accuracy = [one for folder in system.runs if (one := sequence_of(folder)) is not None]
    return accuracy[0] if measure.name == RANKING_METRIC and len(system.runs) == len(accuracy) == 1 else (None, None)


def _of_assertions(judged: Sequence[AssertedComparison], systems: int, baseline: str | None) -> Iterator[str]:
    """Yield notes on how assertions about several systems are judged."""
    bases = {one.base for one in judged if one.base is not None}
    if systems > 2 and baseline is None:
        yield from (f"`base` is {base}, the first; where an assertion names it no leader is chosen" for base in bases)
    if len(judged) > 1:
        yield (
            f"{len(judged)} assertions are judged, each by its own 95 % interval, without a correction for their number"
        )


def _untested(row: SystemComparison, verdict: str) -> SystemComparison:
    """Return a row without a test."""
    return replace(row, p=None, p_corrected=None, exact=False, mid_p_mcnemar=None, detectable=None, verdict=verdict)


def _row(measure: Metric, base: str, other: str, found: PairedTest) -> SystemComparison:
    difference: Difference = found.difference
    return SystemComparison(
        base, other, measure.name, None, found.paired, found.base_value, found.other_value, difference.value,
        difference.stderr, difference.low, difference.high, found.p, found.p, found.exact, found.mid_p_mcnemar,
        difference.detectable, found.datapoints, difference.groups, found.differing,
        verdict(measure, base, other, difference, found.p, corrected=False, paired=found.paired),
    )  # fmt: skip


def _corrected(rows: Sequence[SystemComparison]) -> Iterator[SystemComparison]:
    """Yield the rows with p-values after Holm's correction, and with the verdicts that follow.

    Two rows with the same answers are not a test, and do not count.
    """
    known = [row.p for row in rows if row.p is not None and row.remark is None]
    adjusted = iter(holm(known))
    for row in rows:
        if row.p is None or row.remark is not None or len(known) < 2:
            yield row
            continue
        p = next(adjusted)
        measure = compared_metric(row.metric, [row.metric.rpartition(".")[0]])
        found = Difference(row.difference, row.stderr, row.ci_low, row.ci_high, row.detectable, row.groups)
        said = verdict(measure, row.base, row.other, found, p, corrected=p != row.p, paired=row.paired)
        yield replace(row, p_corrected=p, verdict=said)


def _stopped(system: System) -> tuple[str, ...]:
    """Return notes on the runs of a system that were to stop once they were decided."""
    return tuple(
        f"{folder.run_id} was to stop once it was decided, and is compared by confidence sequences; its accuracy is "
        f"within [{decimal(ends[0])}, {decimal(ends[1])}]"
        for folder in system.runs
        if (ends := sequence_of(folder)) is not None
    )


def notes_of(systems: Sequence[System]) -> Iterator[str]:
    """Yield notes that a reader of the numbers needs."""
    for system in systems:
        if (reason := system.fixed_verdicts) is not None:
            yield f"{system.name}: {reason}"
        if lost := system.lost():
            yield f"{system.name}: {counted(lost, 'rollout')} lost in transport, which count nowhere"
        if system.is_tree():
            yield f"{system.name} plays trees: its samples share their beginnings"
    games: dict[str, dict[str, set[tuple[int, str]]]] = {}
    for system in systems:
        if all(one.replay_of is None and one.rejudge_of is None for one in system.manifests):
            name = ",".join(folder.run_id for folder in system.runs)
            played = {(one.seed, one.dataset_sha256) for one in system.manifests}
            games.setdefault(system.manifests[0].game_sha256, {})[name] = played
    for same in games.values():
        if len(same) > 1 and len(set().union(*same.values())) == 1:
            yield f"{comma_join(same)} play one game, on the same seed and datapoints: one is the other played again"
        elif len(same) > 1:
            yield f"{comma_join(same)} play one game, on other seeds or datapoints"
