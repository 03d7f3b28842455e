"""Comparison of systems with a base or with the leader, by one test that is corrected for multiple comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.base.errors import UnknownValueError, UsageError
from runner.base.text import comma_join, counted, decimal, with_interval
from runner.models.settings import NOT_PUBLISHED
from runner.results.comparison.analysis_metrics import (
    ANALYSIS_PREFIX,
    AnalysisDifference,
    AnalysisReader,
    analysis_metric,
    is_analysis_metric,
)
from runner.results.comparison.assertions import Assertion, AssertionResult, check_bound, parse_assertion
from runner.results.comparison.baselines import find_baseline
from runner.results.comparison.leader import find_leader
from runner.results.comparison.matching import MatchedPoints, match_systems
from runner.results.comparison.paired_test import (
    Flip,
    PairedTest,
    ValueChange,
    compare_sensitivity,
    drop_error,
    find_flips,
    find_value_changes,
    has_uneven_repeats,
    recovered_gap,
    run_paired_test,
    run_unpaired_test,
    system_value,
    unknown_error_reason,
)
from runner.results.comparison.shared_samples import (
    JudgeAgreement,
    agreement_of_judges,
    fixed_verdicts_remark,
    refuse_overlap,
    refuse_repeated_answers,
    shared_answers_remark,
    shared_games_notes,
    shared_verdicts,
)
from runner.results.comparison.slices import split_by_column, untested_slices_note
from runner.results.comparison.systems import System, SystemReader, load_system
from runner.results.comparison.wording import describe_equivalence, difference_in_words, format_difference, verdict
from runner.results.folder import RunFolder
from runner.results.gauge.stored import noise_notes
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import METRICS, RANKING_METRIC, Metric, Source, compared_metric
from runner.results.metric_plugins import add_named_metrics, check_same_plugins
from runner.results.saved_spec import saved_value
from runner.results.stopping_rule import accuracy_sequence
from runner.results.tasks import describe_task_difference
from runner.statistics.differences import Difference, agree_with_test
from runner.statistics.equivalence import Equivalence
from runner.statistics.gap_recovered import GapRecovered
from runner.statistics.signal_detection import SensitivityDifference
from runner.statistics.significance import ALPHA, holm


@dataclass(frozen=True)
class SystemComparison:
    """Two systems compared by one metric, over all datapoints that both have or over one slice.

    One of the systems is the base, and the other is called *other*.
    """

    base: str
    other: str
    metric: str
    slice: str | None
    """The value of the column that slices; None for all datapoints."""
    paired: bool
    """False if they share no datapoint, so that they are two independent samples."""
    base_value: float
    other_value: float
    difference: float
    """The other's value minus the base's, over the datapoints that both have."""
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
    """Datapoints where most verdicts of one system are right and most of the other's are wrong.

    There are none if the metric is one of an analysis, which has `value_changes` instead.
    """
    value_changes: tuple[ValueChange, ...] = ()
    """Datapoints whose values of an analysis differ, those with the largest differences first."""
    only_base: tuple[str, ...] = ()
    """Ids of datapoints that only the base has."""
    only_other: tuple[str, ...] = ()
    """Ids of datapoints that only the other has. Both are empty for unpaired systems, which use all datapoints."""
    remark: str | None = None
    """The reason why the two systems are not independent samples, if so."""
    notes: tuple[str, ...] = ()
    ci_low_corrected: float | None = None
    """The interval at the level of Holm's step for this comparison: it contains 0 if `p_corrected` is above 5 %."""
    ci_high_corrected: float | None = None
    equivalence: Equivalence | None = None
    """Whether the systems are equivalent within a margin; None if no margin was given or they cannot be tested."""
    agreement: JudgeAgreement | None = None
    """How often the two judges agree; None unless they judge the same debates."""
    sensitivity: SensitivityDifference | None = None
    """The difference of d', if the metric is accuracy and both labels were decided."""
    gap_recovered: GapRecovered | None = None
    """The share of the gap between the base and the ceiling that the other system closes; None without a ceiling."""
    analysis: AnalysisDifference | None = None
    """The instrument and the corrected difference, if the metric is one of an analysis."""

    @property
    def measure(self) -> Metric:
        if self.analysis is not None:
            return analysis_metric(self.metric, is_share=self.analysis.is_share)
        return compared_metric(self.metric, [self.metric.rpartition(".")[0]])

    @property
    def adjusted_interval(self) -> tuple[float | None, float | None]:
        """The interval adjusted for several comparisons, or the only interval if there is no test."""
        return (self.ci_low, self.ci_high) if self.p is None else (self.ci_low_corrected, self.ci_high_corrected)

    def describe_equivalence(self) -> str:
        """Return whether the systems are equivalent, in words."""
        if self.equivalence is None:
            return (
                "equivalence was not tested: that needs two systems with shared datapoints, and no stopping rule or "
                "shared answers"
            )
        difference = Difference(self.difference, self.stderr, self.ci_low, self.ci_high, self.detectable, self.groups)
        return describe_equivalence(self.measure, difference, self.equivalence)


@dataclass(frozen=True)
class AssertedComparison:
    """The result of an assertion about a system, or about its difference from a base."""

    assertion: str
    system: str
    base: str | None
    value: float | None
    """The value of the metric or of the difference; None if the data do not determine it."""
    ci_low: float | None
    ci_high: float | None
    held: AssertionResult
    analysis: AnalysisDifference | None = None
    """The corrected value, which is the one that is judged, if the metric is one of an analysis."""
    reason: str | None = None
    """The reason why there is no value or no interval, if it is known."""

    def with_analysis(self, assertion: Assertion, analysis: AnalysisDifference | None) -> AssertedComparison:
        """Return the result for the corrected value, which cannot be decided without one; None: no change.

        It has no interval, either, if the plain value has none because the systems are not independent samples.
        """
        if analysis is None:
            return self
        corrected = self if analysis.corrected is None else replace(self, value=analysis.corrected)
        ends = (None, None) if self.ci_low is None else (analysis.ci_low, analysis.ci_high)
        return replace(
            corrected, ci_low=ends[0], ci_high=ends[1], held=assertion.judge(*ends), analysis=analysis
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Comparison:
    """The comparison of systems by one metric. `repr` describes it in words."""

    metric: str
    by: str | None
    systems: Mapping[str, tuple[str, ...]]
    """The runs of each system, by its name."""
    pairs: tuple[SystemComparison, ...]
    slices: tuple[SystemComparison, ...]
    asserted: tuple[AssertedComparison, ...]
    notes: tuple[str, ...]
    power_assumption: str | None = None
    """The test and the assumption behind the values of `detectable`; None without such values."""

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
            [f"{self.metric}: {self.verdict}", *(f"{row.slice}: {row.verdict}" for row in self.slices), *self.notes]
        )


@dataclass(frozen=True)
class ComparisonOptions:
    """The options of a comparison of systems."""

    metric: str = RANKING_METRIC
    by: str | None = None
    """The column whose values are the slices to compare, too."""
    baseline: str | None = None
    """A run, or a protocol whose runs with the same task and verifier are the baseline of each system."""
    asserts: Sequence[str] = ()
    """Assertions about the metrics, as in `--assert`. If one names `base`, the first system is the base."""
    margin: float | None = None
    """Each comparison also tests whether the systems are equivalent within this margin; None: no such test."""
    ceiling: str | None = None
    """A strong run. Each comparison has the share of the gap between the base and this run that the other closes."""
    tests_one_system: bool = False
    """Whether two samples of one system are tested, too, to see whether its models have changed."""
    analyses: AnalysisReader | None = None
    """Reads metrics of analyses."""


def compare_systems(names: Sequence[Sequence[str | Path]], results: Results, options: ComparisonOptions) -> Comparison:
    """Compare systems, each given by the names of the runs that are pooled.

    Without a baseline, two systems are compared with each other, and more than two with the leader. A single system can
    only be judged by assertions without `base`.

    Raises:
        UsageError: the systems cannot be compared; the message says why.
        RunError: a file of a run is missing or damaged.
    """
    metric, margin = options.metric, options.margin
    if margin is not None and not (math.isfinite(margin) and margin > 0):
        raise UsageError(f"the equivalence margin must be above 0, such as 0.05 for 5 points, not {margin}")
    add_named_metrics([metric, *(parse_assertion(text).metric for text in options.asserts)])
    assertions = _parse_assertions(options.asserts)
    is_alone = len(names) + (options.baseline is not None) < 2
    if is_alone and (not assertions or any(assertion.against_base for assertion in assertions)):
        raise UsageError(
            "name at least two runs: nip-run compare RUN RUN; or one run with --baseline, with --assert without `base` "
            "or, for a tournament, with --players A B"
        )
    systems = [load_system(runs, results) for runs in names]
    for system in systems:
        refuse_repeated_answers(system.runs, system.manifests)
    refuse_overlap(systems)
    for name in (metric, *(assertion.metric for assertion in assertions)):
        check_same_plugins(name, [manifest for system in systems for manifest in system.manifests])
    if margin is not None and margin >= 1 and metric in METRICS and METRICS[metric].is_share:
        raise UsageError(f"{metric} is between 0 and 1: write --margin 0.05 for 5 points, not {margin:g}")
    ceiling = None if options.ceiling is None else load_system(options.ceiling.split(","), results)
    reader = SystemReader(options.by, analyses=options.analyses)
    return _Comparer(systems, results, options, reader, ceiling).compare_all(assertions)


def _parse_assertions(texts: Sequence[str]) -> list[Assertion]:
    assertions = [parse_assertion(text) for text in texts]
    for assertion in assertions:
        if assertion.metric in METRICS and METRICS[assertion.metric].is_compared:
            check_bound(assertion, METRICS[assertion.metric])
    return assertions


def compare_by_metric(
    run_pairs: Sequence[tuple[RunFolder, RunFolder]], metrics: Sequence[str], reader: SystemReader
) -> list[list[SystemComparison] | UsageError]:
    """Compare each pair of runs by each metric that both have scores for, adjusted for the number of pairs.

    The result has for each pair a list of rows, or an error if the pair cannot be compared by the first metric.

    Raises:
        RunError: a file of a run is missing or damaged.
    """
    results: list[list[SystemComparison] | UsageError] = [[] for _ in run_pairs]
    for metric in metrics:
        tested: list[_TestedRow] = []
        rows_of_tested: list[list[SystemComparison]] = []
        for number, run_pair in enumerate(run_pairs):
            rows = results[number]
            if isinstance(rows, UsageError):
                continue
            try:
                tested.append(_compare_runs(run_pair, metric, reader))
                rows_of_tested.append(rows)
            except UsageError as error:
                # A run may lack scores for a later metric, such as a confidence that was not requested.
                results[number] = rows or error
        for rows, row in zip(rows_of_tested, _adjusted(tested), strict=True):
            rows.append(row)
    return results


def _compare_runs(run_pair: tuple[RunFolder, RunFolder], metric: str, reader: SystemReader) -> _TestedRow:
    """Compare two runs, not yet adjusted for several comparisons. Raises the same errors as `compare_systems`."""
    base, other = (reader.system(folder) for folder in run_pair)
    refuse_overlap([base, other])
    comparer = _Comparer([base, other], Results.of(run_pair[0]), ComparisonOptions(metric), reader)
    return comparer.compare(base, other, metric)


_TestedRow = tuple[SystemComparison, PairedTest]
"""A comparison that is not yet adjusted for several comparisons, with its test."""


@dataclass(frozen=True)
class _Comparer:
    """Compares systems."""

    systems: Sequence[System]
    results: Results
    options: ComparisonOptions
    reader: SystemReader
    ceiling: System | None = None

    def _common_metric(self, name: str, *systems: System) -> Metric:
        analyses, folders = self.reader.analyses, [folder for system in systems for folder in system.runs]
        if analyses is not None and is_analysis_metric(name):
            return analyses.metric(name, folders)
        common = set(systems[0].agents).intersection(*(system.agents for system in systems[1:]))
        try:
            return compared_metric(name, sorted(common), lists_answers=systems[0].lists_answers)
        except UsageError as error:
            if analyses is None or not analyses.has_analysis(name, folders):
                raise
            raise UsageError(f"no metric {name!r} to compare by; did you mean {ANALYSIS_PREFIX}{name}?") from error

    def compare_all(self, assertions: Sequence[Assertion]) -> Comparison:
        """Compare each system with its base, and judge the assertions."""
        metric, by, baseline = self.options.metric, self.options.by, self.options.baseline
        has_base = self.ceiling is not None or any(assertion.against_base for assertion in assertions)
        chooses_leader = baseline is None and not has_base and len(self.systems) > 2
        system_pairs = list(self._system_pairs(chooses_leader=chooses_leader))
        rows = [self.compare(base, other, metric) for base, other in system_pairs]
        slices = [row for base, other in system_pairs for row in self._compare_slices(base, other)] if by else []
        all_systems = dict.fromkeys([*(system for pair in system_pairs for system in pair), *self.systems])
        judged = [result for assertion in assertions for result in self._judge(assertion, system_pairs)]
        notes = [*system_notes(list(all_systems)), *_assertion_notes(judged, len(self.systems), baseline)]
        candidates = len(self.systems) if chooses_leader else 2
        if chooses_leader:
            notes.append(
                f"the same data choose the best system ({system_pairs[0][0].name}), partly by luck, so p-values and "
                f"intervals are adjusted for all pairs of the {candidates} systems; with --baseline RUN, only for the "
                "comparisons with RUN"
            )
        if by:
            notes += untested_slices_note(by, [row.groups > 1 for row, _ in slices])
        return Comparison(
            metric,
            by,
            {system.name: tuple(folder.run_id for folder in system.runs) for system in all_systems},
            tuple(_adjusted(rows, candidates=candidates)),
            tuple(_adjusted(slices, candidates=candidates)),
            tuple(judged),
            tuple(notes),
            _power_assumption([row for row, _ in (*rows, *slices)]),
        )

    def _system_pairs(self, *, chooses_leader: bool) -> Iterator[tuple[System, System]]:
        """Yield each base with a system that is compared with it: the baseline, the leader, or the first system."""
        if self.options.baseline is not None:
            for system in self.systems:
                base = find_baseline(self.options.baseline, system, self.results)
                refuse_repeated_answers(base.runs, base.manifests)
                refuse_overlap([base, system])
                yield base, system
            return
        first, *others = self.systems
        if chooses_leader:
            measure = self._common_metric(self.options.metric, *self.systems)
            points = {system: self.reader.points(system, measure) for system in self.systems}
            first = find_leader(points, measure, lambda a, b: self._match(a, b, measure)[0])
            others = [system for system in self.systems if system is not first]
        for other in others:
            yield first, other

    def _match(self, base: System, other: System, measure: Metric) -> tuple[MatchedPoints, tuple[str, ...]]:
        """Return the datapoints that two systems share, and notes on how they were matched."""
        matched_points, shared = match_systems(base, other, measure, self.reader), base.columns & other.columns
        if base.columns == other.columns:
            return matched_points, ()
        basis = f"matched by label and {comma_join(sorted(shared))}" if shared else "matched by label and id alone"
        columns = [f"{system.name}: {comma_join(sorted(system.columns)) or 'none'}" for system in (base, other)]
        return matched_points, (f"{OTHER_TASK}their templates use other columns ({'; '.join(columns)}): {basis}",)

    def compare(self, base: System, other: System, metric: str) -> _TestedRow:
        """Compare two systems, without an adjustment for several comparisons."""
        measure = self._common_metric(metric, base, other)
        matched, matching_notes = self._match(base, other, measure)
        stopping_notes = _stopping_notes(base) + _stopping_notes(other)
        is_stopped = bool(stopping_notes)
        are_two_systems = self.options.tests_one_system or not _is_one_system(base, other)
        result = run_paired_test(measure, matched, stopped=is_stopped, margin=self.options.margin)
        result = self._test_unpaired(measure, base, other, stopped=is_stopped) if result is None else result
        notes = [*(matching_notes or _task_notes(base, other)), *shared_games_notes(base, other), *stopping_notes]
        if not result.paired:
            notes.append("unpaired: they share no datapoint, so both datapoints and systems differ")
        elif has_uneven_repeats(matched) and result.p is not None and are_two_systems:
            notes.append("repeats differ: p allows for the smaller spread of the system with more repeats")
        shared = shared_verdicts(base, other)
        remark = shared_answers_remark(base, other) or fixed_verdicts_remark(base, other)
        if shared is not None and remark is None:
            if shared.is_majority:
                remark = f"{shared.note}: no new sample"
            else:
                notes.append(shared.note)
        row = _comparison_row(measure, base.name, other.name, result)
        if self.reader.analyses is not None and measure.source is Source.ANALYSES:
            difference = self.reader.analyses.difference(metric, base.runs, other.runs)
            row = replace(row, analysis=difference, value_changes=tuple(find_value_changes(matched)))
        else:
            row = replace(row, flips=tuple(find_flips(matched, base.name, other.name)))
        value = difference_in_words(measure, base.name, other.name, result.difference)
        if remark is not None:
            estimate = format_difference(row.difference, measure, drop_error(result.difference))
            verdict_text = f"no test: {remark}; {other.name} minus {base.name} is {estimate}"
            row = _without_test(replace(row, stderr=None, ci_low=None, ci_high=None), verdict_text)
        elif not are_two_systems:
            pooled = self._describe_pooled(measure, matched, stopped=is_stopped)
            row = _without_test(row, f"{ONE_SYSTEM}: {value}; pooled, {measure.name} is {pooled}")
            notes.extend(_address_notes(base, other))
        elif is_stopped and result.p is None:
            row = replace(row, verdict=f"no test: a run stopped once it was decided; {value}")
        if measure.name == RANKING_METRIC and result.paired and remark is None:
            notes.extend(noise_notes(base.runs[0], other.runs[0], row.datapoints, row.difference, self.results))
        row = replace(
            row,
            only_base=tuple(point.id for point in matched.only_base) if result.paired else (),
            only_other=tuple(point.id for point in matched.only_other) if result.paired else (),
            remark=remark,
            notes=tuple(notes),
        )
        if remark is None and are_two_systems:
            row = replace(row, equivalence=result.equivalence, agreement=agreement_of_judges(base, other))
            if not is_stopped:
                row = self._with_further_tests(row, measure, base, matched)
        return self._without_unknown_error(row, measure, result, (base, other)), result

    def _without_unknown_error(
        self, row: SystemComparison, measure: Metric, test: PairedTest, systems: tuple[System, System]
    ) -> SystemComparison:
        """Return the row without test and intervals if errors of measurement of unknown size may be the cause."""
        if row.analysis is not None:
            problem = None if row.analysis.is_validated else "the instrument is not validated"
        else:
            reasons = (
                (system, unknown_error_reason(measure, self.reader.points(system, measure))) for system in systems
            )
            problem = next((f"{system.name}: {reason}" for system, reason in reasons if reason is not None), None)
        if problem is None:
            return row
        value = difference_in_words(measure, row.base, row.other, drop_error(test.difference))
        return _without_test(
            replace(row, stderr=None, ci_low=None, ci_high=None, equivalence=None, gap_recovered=None),
            row.verdict if row.remark is not None else f"no test: {problem}; {value}",
        )

    def _test_unpaired(self, measure: Metric, base: System, other: System, *, stopped: bool) -> PairedTest:
        """Return the test of two systems that share no datapoint. If a run was stopped, it has only the difference."""
        result = run_unpaired_test(measure, self.reader.points(base, measure), self.reader.points(other, measure))
        return replace(result, p=None, difference=drop_error(result.difference)) if stopped else result

    def _with_further_tests(
        self, row: SystemComparison, measure: Metric, base: System, matched: MatchedPoints
    ) -> SystemComparison:
        """Return the row with the difference of d' and the share of the gap that was recovered."""
        sensitivity = compare_sensitivity(matched) if measure.name == RANKING_METRIC else None
        return replace(row, sensitivity=sensitivity, gap_recovered=self._recovered_gap(measure, base, matched))

    def _recovered_gap(self, measure: Metric, base: System, matched: MatchedPoints) -> GapRecovered | None:
        if self.ceiling is None or _stopping_notes(self.ceiling) or measure.order_measure is not None:
            return None
        return recovered_gap(measure, matched, self._match(base, self.ceiling, measure)[0])

    def _describe_pooled(self, measure: Metric, matched: MatchedPoints, *, stopped: bool) -> str:
        """Describe the pooled value of two samples of one system, over all datapoints that either has."""
        pooled_points = [replace(point, rollouts=[*point.rollouts, *other.rollouts]) for point, other in matched.pairs]
        sample = system_value(measure, [*pooled_points, *matched.only_base, *matched.only_other])
        if stopped:
            return f"{decimal(sample.mean)}, without an interval, since a run stopped once it was decided"
        return with_interval(sample.mean, *sample.interval)

    def _compare_slices(self, base: System, other: System) -> Iterator[_TestedRow]:
        assert self.options.by is not None
        measure = self._common_metric(self.options.metric, base, other)
        if measure.is_balanced or measure.order_measure is not None:
            raise UsageError(f"{measure.name} needs both labels; compare slices by accuracy")
        stopped = bool(_stopping_notes(base) or _stopping_notes(other))
        overall, _ = self.compare(base, other, self.options.metric)
        is_tested = overall.p is not None or (stopped and overall.remark is None and not _is_one_system(base, other))
        all_matched, _ = self._match(base, other, measure)
        for value, matched in split_by_column(all_matched, self.options.by, base, other).items():
            result = run_paired_test(measure, matched, stopped=stopped, margin=self.options.margin)
            if result is None:
                continue
            row = replace(
                _comparison_row(measure, base.name, other.name, result), slice=value, analysis=overall.analysis
            )
            if is_tested:
                row = replace(row, equivalence=result.equivalence)
            else:
                row = _without_test(row, overall.verdict.partition(":")[0])
            yield self._without_unknown_error(row, measure, result, (base, other)), result

    def _judge(
        self, assertion: Assertion, system_pairs: Sequence[tuple[System, System]]
    ) -> Iterator[AssertedComparison]:
        """Yield the result of an assertion for each system, or for its difference from its base."""
        judged: Sequence[tuple[System | None, System]]
        judged = system_pairs if assertion.against_base else [(None, system) for system in self.systems]
        for base, system in judged:
            try:
                yield self._judge_system(assertion, base, system)
            except UnknownValueError as error:
                yield AssertedComparison(
                    assertion.text, system.name, None if base is None else base.name, None, None, None,
                    AssertionResult.UNDECIDED, reason=str(error),
                )  # fmt: skip

    def _judge_system(self, assertion: Assertion, base: System | None, system: System) -> AssertedComparison:
        """Return the result of an assertion for a system, or for its difference from the base.

        Raises:
            UnknownValueError: the data do not determine the value of the metric.
        """
        if base is not None:
            row, _ = self.compare(base, system, assertion.metric)
            ends = (row.ci_low, row.ci_high)
            reason = row.verdict if ends[0] is None and row.remark is None and row.analysis is None else row.remark
            return AssertedComparison(
                assertion.text, system.name, base.name, row.difference, *ends, assertion.judge(*ends), reason=reason
            ).with_analysis(assertion, row.analysis)
        measure = self._common_metric(assertion.metric, system)
        sample = system_value(measure, self.reader.points(system, measure))
        ends = _own_interval(system, measure, sample.interval)
        reason = system.fixed_verdicts or (sample.reason if ends[0] is None else None)
        analyses = self.reader.analyses if measure.source is Source.ANALYSES else None
        rate = None if analyses is None else analyses.rate(assertion.metric, system.runs)
        return AssertedComparison(
            assertion.text, system.name, None, sample.mean, *ends, assertion.judge(*ends), reason=reason
        ).with_analysis(assertion, rate)


OTHER_TASK = "not the same task, so boards do not rank them together: "
ONE_SYSTEM = "two samples of one system (the same rules, prompts and names of models)"


def _is_one_system(base: System, other: System) -> bool:
    """Return whether the runs of both systems differ at most in seeds and datapoints."""
    return base.manifests[0].game_sha256 == other.manifests[0].game_sha256


def _task_notes(base: System, other: System) -> Iterator[str]:
    """Yield a note for each task of the two systems that is not the first one."""
    (task, first), *_ = base.tasks.items()
    for folder in [folder for id_, folder in {**other.tasks, **base.tasks}.items() if id_ != task]:
        groups = saved_value(first, "dataset", "group_by"), saved_value(folder, "dataset", "group_by")
        yield f"{OTHER_TASK}{folder.run_id} against {first.run_id}: {describe_task_difference(first, folder, groups)}"


def _address_notes(base: System, other: System) -> Iterator[str]:
    """Yield a note if a model group of the two systems has different addresses, which may serve different models."""
    other_addresses = other.addresses
    for group, address in base.addresses.items():
        if address != other_addresses.get(group) and NOT_PUBLISHED not in (address, other_addresses.get(group)):
            yield (
                f"models.{group} has two addresses ({address or 'the provider'}, "
                f"{other_addresses.get(group) or 'the provider'}): if these serve different models, give the models "
                "different names and play again"
            )


def _own_interval(system: System, measure: Metric, interval: tuple[float | None, float | None]) -> tuple[Any, Any]:
    """Return the interval of a system by itself, or (None, None) if its verdicts are not its answers.

    A run that stopped once it was decided has its confidence sequence.
    """
    if system.fixed_verdicts is not None:
        return None, None
    if not _stopping_notes(system):
        return interval
    sequences = [sequence for folder in system.runs if (sequence := accuracy_sequence(folder)) is not None]
    return sequences[0] if measure.name == RANKING_METRIC and len(system.runs) == len(sequences) == 1 else (None, None)


def _assertion_notes(results: Sequence[AssertedComparison], systems: int, baseline: str | None) -> Iterator[str]:
    """Yield notes on the base of assertions and on their number."""
    bases = {result.base for result in results if result.base is not None}
    if systems > 2 and baseline is None:
        yield from (f"`base` is the first system, {base}; assertions with `base` choose no leader" for base in bases)
    if len(results) > 1:
        yield f"{len(results)} assertions are each judged by a 95 % interval, without a correction for their number"


def _power_assumption(rows: Sequence[SystemComparison]) -> str | None:
    """Return the assumption behind the minimum detectable differences; None if there are none."""
    tests = {"the sign-flip" if row.paired else "Welch's" for row in rows if row.detectable is not None}
    level = " without an adjustment for several comparisons" if len(rows) > 1 else ""
    return None if not tests else (
        f"detectable: the difference that {' or '.join(sorted(tests))} test at 5 %{level} detects with 80 % power, if "
        "the differences between groups spread as in these data"
    )  # fmt: skip


def _without_test(row: SystemComparison, verdict: str) -> SystemComparison:
    """Return a row without a test."""
    return replace(
        row, p=None, p_corrected=None, exact=False, mid_p_mcnemar=None, detectable=None, verdict=verdict,
        ci_low_corrected=None, ci_high_corrected=None,
    )  # fmt: skip


def _comparison_row(measure: Metric, base: str, other: str, test: PairedTest) -> SystemComparison:
    difference: Difference = test.difference
    return SystemComparison(
        base, other, measure.name, None, test.paired, test.base_value, test.other_value, difference.value,
        difference.stderr, difference.low, difference.high, test.p, test.p, test.exact, test.mid_p_mcnemar,
        difference.detectable, test.datapoints, difference.groups, test.differing,
        verdict(measure, base, other, difference, test.p, paired=test.paired),
        ci_low_corrected=difference.low, ci_high_corrected=difference.high,
    )  # fmt: skip


def _adjusted(rows: Sequence[_TestedRow], *, candidates: int = 2) -> Iterator[SystemComparison]:
    """Yield the rows with p-values and intervals adjusted for their number, and with the verdicts that follow.

    A row's interval has the level at which Holm's procedure compares its p-value or, after the procedure has ended, its
    last level. Two rows with the same answers are not a test, and do not count. If the data chose the base of the rows
    among more than two `candidates`, all pairs of these count, since the base is the best one partly by luck.
    """
    p_values = [row.p for row, _ in rows if row.p is not None and row.remark is None]
    family = math.ceil(len(p_values) * candidates / 2)
    adjusted_p_values = holm(p_values, family)
    rejected = sum(p <= ALPHA for p in adjusted_p_values)
    remaining = iter(adjusted_p_values)
    for row, test in rows:
        if row.p is None or row.remark is not None or family < 2:
            yield row
            continue
        p = next(remaining)
        alpha = ALPHA / (family - min(sum(other < row.p for other in p_values), rejected))
        difference = agree_with_test(test.difference_at(1 - alpha), p)
        text = verdict(row.measure, row.base, row.other, difference, p, family=family, paired=row.paired)
        low, high = difference.low, difference.high
        yield replace(row, p_corrected=p, verdict=text, ci_low_corrected=low, ci_high_corrected=high)


def _stopping_notes(system: System) -> tuple[str, ...]:
    """Return notes on the runs of a system that have a stopping rule."""
    return tuple(
        f"{folder.run_id} has a stopping rule and is compared by confidence sequences; its accuracy is within "
        f"[{decimal(ends[0])}, {decimal(ends[1])}]"
        for folder in system.runs
        if (ends := accuracy_sequence(folder)) is not None
    )


def system_notes(systems: Sequence[System]) -> Iterator[str]:
    """Yield notes on what limits the conclusions from the numbers of systems."""
    for system in systems:
        if (reason := system.fixed_verdicts) is not None:
            yield f"{system.name}: {reason}"
        if lost := system.lost_rollouts:
            yield f"{system.name}: {counted(lost, 'rollout')} lost in transport and not counted"
        if saved_value(system.runs[0], "rollouts", "num_responses_per_timestep") is not None:
            yield f"{system.name} plays trees: its samples share their first rounds"
        yield from (message for folder in system.runs if (message := folder.no_prover_message()) is not None)
    games: dict[str, dict[str, set[tuple[int, str]]]] = {}  # the seeds and datasets of each system, by game
    for system in systems:
        if all(manifest.replay_of is None and manifest.rejudge_of is None for manifest in system.manifests):
            name = ",".join(folder.run_id for folder in system.runs)
            samples = {(manifest.seed, manifest.dataset_sha256) for manifest in system.manifests}
            games.setdefault(system.manifests[0].game_sha256, {})[name] = samples
    for runs in games.values():
        if len(runs) > 1 and len(set().union(*runs.values())) == 1:
            yield f"{comma_join(runs)} play the same game with the same seed and datapoints: they repeat one run"
        elif len(runs) > 1:
            yield f"{comma_join(runs)} play the same game with different seeds or datapoints"
