"""The comparison of an instrument's results with people's labels: agreement, errors, and rates corrected by them.

All readers of a unit count equally: its value is the mean of theirs, and each of them agrees with the model or not.
Without the units about which readers disagree, rates and agreement would describe clear units only. Where labels were
drawn by the answers of an instrument, each unit counts with the inverse of its probability, so that numbers describe
all units of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

import numpy as np

from runner.analysis.analyzer import Analyzer
from runner.analysis.label_sample import why_not_random
from runner.analysis.labels import CombinedLabels, Label, combine_labels
from runner.analysis.results import AnalysisTable, UnitResult
from runner.analysis.strata import Strata
from runner.statistics.agreement import agreement, answer_table, krippendorff_alpha
from runner.statistics.clustered_means import Codes, Floats, Quantity
from runner.statistics.prediction_powered import (
    FEWEST_GROUPS,
    FEWEST_LABELS,
    CorrectedRate,
    JudgeAccuracy,
    corrected_difference,
    corrected_rate,
    label_weights,
    measure_accuracy,
)

NO_ANSWER = "(no answer)"
"""The model's answer in the confusion table if it gave none, or if its calls failed."""
MEAN = "mean"
"""The name of the only rate of a scale."""


class AnswerAccuracy(NamedTuple):
    """How well the model finds one answer."""

    answer: str
    base_rate: Quantity
    """The share of readers who give this answer, as a mean over units."""
    recall: Quantity
    """The share of these units that the model finds: of yes and no, sensitivity and specificity."""


class ReaderAgreement(NamedTuple):
    """The agreement of two readers about the units that both labeled."""

    readers: tuple[str, str]
    raw: Quantity
    kappa: Quantity


@dataclass(frozen=True)
class Validation:
    """The comparison of an instrument with people's labels on one run."""

    table: AnalysisTable
    units: int
    """The number of applicable units."""
    unanswered: int
    """How many of these units have no answer of the model."""
    labels: CombinedLabels
    """The labels of units in the table."""
    unknown_units: int
    """The number of labeled units that are not in the table; they are left out."""
    undrawn_units: int
    """How many labeled units `nip-run label` did not draw at random; 0 if all units are labeled."""
    raw: Quantity
    """The share of readers who agree with the model, as a mean over labeled units."""
    kappa: Quantity
    alpha: Quantity
    """Krippendorff's alpha of the model and people."""
    answers: tuple[AnswerAccuracy, ...]
    reader_agreements: tuple[ReaderAgreement, ...]
    reader_alpha: Quantity | None
    """Krippendorff's alpha of all readers; None with a single reader."""
    confusion: Mapping[tuple[str, str], tuple[str, ...]]
    """The ids of units by the majority of readers and the model's answer, without ties of readers."""
    rates: Mapping[str, CorrectedRate]
    """The share of each answer that counts, or the mean of a scale under the name `mean`."""
    accuracies: Mapping[str, JudgeAccuracy]
    """The model's accuracy, for each of the `rates` that is corrected; see `labels_needed`."""

    @property
    def is_validated(self) -> bool:
        """Whether there are enough labels for intervals."""
        return self.raw.interval is not None

    @property
    def is_useless(self) -> bool:
        """Whether the model may agree with people by chance only: the interval of kappa contains 0, or is below it."""
        return self.kappa.interval is not None and self.kappa.interval[0] <= 0

    @property
    def disagreements(self) -> list[tuple[str, str, str]]:
        """The ids of units with different answers of people and the model, with both answers."""
        return [
            (unit_id, *answers)
            for answers, unit_ids in self.confusion.items()
            for unit_id in unit_ids
            if answers[0] != answers[1] and answers[1] != NO_ANSWER
        ]


GroupNumbers = Mapping[str, int]
"""The numbers of all groups of datapoints of the compared runs, by name."""


def number_groups(tables: Iterable[AnalysisTable]) -> GroupNumbers:
    """Number the groups of all tables."""
    names = sorted({result.group for table in tables for result in table.results})
    return {name: number for number, name in enumerate(names)}


def validate(
    analyzer: Analyzer,
    table: AnalysisTable,
    labels: Sequence[Label],
    groups: GroupNumbers,
    strata: Sequence[Strata] = (),
) -> Validation:
    """Compare the results of a table with the labels of its run. `strata` are those from which labels were drawn."""
    data = _Units.from_table(analyzer, table, labels, groups, strata)
    results, combined = data.results, data.labels
    ids = {result.unit_id for result in results}
    reason = data.missing_reason() or data.selection_reason
    raw, kappa = data.model_agreement()
    return Validation(
        table, len(results), sum(result.answer is None for result in results), combined,
        len({label.unit_id for label in labels} - ids), len(data.undrawn),
        _limited(raw, reason), _limited(kappa, reason), _limited(data.model_alpha(), reason),
        tuple(AnswerAccuracy(each.answer, _limited(each.base_rate, reason), _limited(each.recall, reason))
              for each in data.answers()),
        tuple(data.reader_agreements()), data.reader_alpha(), data.confusion(), *data.rates(),
    )  # fmt: skip


def corrected_mean(
    analyzer: Analyzer,
    table: AnalysisTable,
    labels: Sequence[Label],
    groups: GroupNumbers,
    strata: Sequence[Strata] = (),
) -> CorrectedRate:
    """Return the mean of the numbers of an analyzer's answers. The arguments are those of `validate`."""
    return _Units.from_table(analyzer, table, labels, groups, strata).rate(analyzer.values or {})[0]


def rate_difference(first: Validation, second: Validation, name: str) -> Quantity:
    """Return the difference of a corrected rate, the second minus the first. Both need the same `GroupNumbers`."""
    return corrected_difference(second.rates[name], first.rates[name])


def rated_answers(analyzer: Analyzer) -> list[str]:
    """Return the answers whose rates are estimated: those with the value 1, or all labels; none for a scale."""
    if analyzer.is_scale:
        return []
    return [answer for answer in analyzer.file.answers if analyzer.value_of(answer) in (None, 1.0)]


class _Units:
    """The applicable units of a table with their labels, as arrays."""

    def __init__(
        self,
        analyzer: Analyzer,
        results: Sequence[UnitResult],
        labels: CombinedLabels,
        groups: GroupNumbers,
        strata: Codes | None,
    ) -> None:
        self.analyzer, self.results, self.labels = analyzer, results, labels
        self.clusters = np.array([groups[result.group] for result in results], dtype=np.int64)
        self.total, self.strata = len(groups), strata
        self.codes = {answer: number for number, answer in enumerate(analyzer.file.answers)}
        readers, units = labels.readers.values(), [result.unit_id for result in results]
        self.people = [[answers[unit] for answers in readers if unit in answers] for unit in units]
        """The answers of all readers of each unit."""
        self.undrawn: Collection[str] = ()
        """The labeled units that `nip-run label` did not draw at random; empty if all units are labeled."""

    @classmethod
    def from_table(
        cls,
        analyzer: Analyzer,
        table: AnalysisTable,
        labels: Sequence[Label],
        groups: GroupNumbers,
        strata: Sequence[Strata],
    ) -> _Units:
        """Return the units of a table. The arguments are those of `validate`."""
        results = [result for result in table.results if result.status != "not_applicable"]
        ids = {result.unit_id for result in results}
        combined = combine_labels(label for label in labels if label.unit_id in ids)
        units = cls(analyzer, results, combined, groups, _number_strata(results, strata))
        if combined.units < len(results):
            drawn = {label.unit_id for label in labels if label.drawn is not None}
            units.undrawn = {*combined.answers, *combined.ties} - drawn
        return units

    def missing_reason(self) -> str | None:
        """Return why there are no intervals; None if there are enough labels."""
        labeled = [place for place, answers in enumerate(self.people) if answers]
        count = len({int(self.clusters[place]) for place in labeled})
        if len(labeled) < FEWEST_LABELS:
            return f"{len(labeled)} labeled units: an interval needs at least {FEWEST_LABELS}"
        if count < FEWEST_GROUPS:
            return f"labels in {count} groups of datapoints: an interval needs at least {FEWEST_GROUPS}"
        return None

    @cached_property
    def selection_reason(self) -> str | None:
        """Why labeled units that were not drawn cannot be a random sample; None if they may be one."""
        answers = Counter(result.answer or NO_ANSWER for result in self.results)
        labeled = Counter(result.answer or NO_ANSWER for result in self.results if result.unit_id in self.undrawn)
        return why_not_random(labeled, answers, FEWEST_LABELS)

    def model_agreement(self) -> tuple[Quantity, Quantity]:
        """Return the share of equal answers of the model and people, and kappa."""
        return self._agreement(*self._reader_answers(), "people and the model")

    def model_alpha(self) -> Quantity:
        """Return Krippendorff's alpha of the model and people."""
        places, people, model = self._reader_answers()
        alpha = self.alpha(list(zip(people, model, strict=True)), places)
        return replace(alpha, n=len(np.unique(places)))

    def alpha(self, answers: Sequence[Sequence[str | None]], places: Codes) -> Quantity:
        """Return Krippendorff's alpha; `answers` has those of all coders for the unit at each place."""
        if not answers:
            return _nothing("no unit has two answers")
        coded = np.array(
            [[np.nan if answer is None else self._number(answer) for answer in row] for row in answers], dtype=float
        )
        return krippendorff_alpha(coded, self.clusters[places], "interval" if self.analyzer.is_scale else "nominal")

    def answers(self) -> Iterable[AnswerAccuracy]:
        """Yield the base rate and the recall of each answer that people or the model gave."""
        places, readers, models = self._reader_answers()
        if not readers:
            return
        people, model = (np.array([self.codes[answer] for answer in each], dtype=float) for each in (readers, models))
        table = answer_table(people, model, self.clusters[places], self._weights(places))
        for code, base_rate, recall in zip(table.answers, table.base_rates, table.recalls, strict=True):
            quantity = _nothing("people never gave this answer") if recall is None else recall.as_quantity()
            yield AnswerAccuracy(
                self.analyzer.file.answers[int(code)],
                replace(base_rate.as_quantity(), n=len(np.unique(places))),
                replace(quantity, n=len(np.unique(places[people == code]))),
            )

    def _reader_answers(self) -> tuple[Codes, list[str], list[str]]:
        """Return each reader's answer with the place of its unit and the model's answer, if there is one."""
        rows = [
            (place, answer, result.answer)
            for place, (answers, result) in enumerate(zip(self.people, self.results, strict=True))
            for answer in answers
            if result.answer is not None
        ]
        return np.array([row[0] for row in rows], dtype=np.int64), [row[1] for row in rows], [row[2] for row in rows]

    def reader_agreements(self) -> Iterable[ReaderAgreement]:
        """Yield the agreement of each two readers."""
        for first, second in combinations(self.labels.readers, 2):
            answers = [[self.labels.readers[reader].get(r.unit_id) for r in self.results] for reader in (first, second)]
            rows = [(n, a, b) for n, (a, b) in enumerate(zip(*answers, strict=True)) if a is not None and b is not None]
            places = np.array([row[0] for row in rows], dtype=np.int64)
            left, right = [row[1] for row in rows], [row[2] for row in rows]
            raw, kappa = self._agreement(places, left, right, f"{first} and {second}")
            reason = None if raw.n >= FEWEST_LABELS else f"fewer than {FEWEST_LABELS} units that both labeled"
            yield ReaderAgreement((first, second), _limited(raw, reason), _limited(kappa, reason))

    def reader_alpha(self) -> Quantity | None:
        """Return Krippendorff's alpha of all readers; None with a single one."""
        readers = self.labels.readers.values()
        if len(readers) < 2:
            return None
        answers = [[reader.get(result.unit_id) for reader in readers] for result in self.results]
        alpha = self.alpha(answers, np.arange(len(answers)))
        return _limited(alpha, None if alpha.n >= FEWEST_LABELS else f"fewer than {FEWEST_LABELS} units")

    def _agreement(
        self, places: Codes, first: Sequence[str], second: Sequence[str], names: str
    ) -> tuple[Quantity, Quantity]:
        """Return the share of equal answers and kappa; `places` has the place of the unit of each pair of answers."""
        first_codes, second_codes = ([self.codes[answer] for answer in each] for each in (first, second))
        result = agreement(first_codes, second_codes, self.clusters[places], self.total, self._weights(places))
        if result is None:
            return (_nothing("no unit with both answers"),) * 2
        units = len(np.unique(places))
        kappa = replace(result.kappa, n=units)
        if kappa.value is None:
            kappa = replace(kappa, reason=f"{names} gave only one answer: kappa is undefined")
        return replace(result.raw.as_quantity(), n=units), kappa

    def _weights(self, places: Codes) -> Floats:
        """Return the number of units for which each place stands; places of the same unit share its number."""
        if not len(places):
            return np.zeros(0)
        sampled = np.full(len(self.results), np.nan)
        sampled[places] = 0.0
        weights = np.zeros(len(sampled))
        weights[~np.isnan(sampled)] = label_weights(sampled, self.strata)
        shared: Floats = weights[places] / np.bincount(places)[places]
        return shared

    def confusion(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Return the ids of units by the majority of readers and the model's answer."""
        cells: dict[tuple[str, str], list[str]] = {}
        for result in self.results:
            if (people := self.labels.answers.get(result.unit_id)) is not None:
                cells.setdefault((people, result.answer or NO_ANSWER), []).append(result.unit_id)
        order = {**self.codes, NO_ANSWER: len(self.codes)}
        return {cell: tuple(cells[cell]) for cell in sorted(cells, key=lambda cell: (order[cell[0]], order[cell[1]]))}

    def rates(self) -> tuple[dict[str, CorrectedRate], dict[str, JudgeAccuracy]]:
        """Return the rate of each answer that counts, or the mean of a scale; and the accuracies for these rates.

        Labels that were selected correct nothing; see `selection_reason`.
        """
        rates: dict[str, CorrectedRate] = {}
        accuracies: dict[str, JudgeAccuracy] = {}
        names = rated_answers(self.analyzer) or [MEAN]
        for name in names if self.results else []:
            numbers = {a: self._number(a) if name == MEAN else float(a == name) for a in self.codes}
            rates[name], accuracy = self.rate(numbers)
            if accuracy is not None:
                accuracies[name] = accuracy
        return rates, accuracies

    def rate(self, numbers: Mapping[str, float]) -> tuple[CorrectedRate, JudgeAccuracy | None]:
        """Return the mean of the numbers of answers, and the model's accuracy for it."""
        low, high = ends = min(numbers.values()), max(numbers.values())
        people, model = self._numbers(numbers, ends)
        shares = (people - low) / (high - low), (model - low) / (high - low)
        rate = corrected_rate(people, model, self.clusters, self.strata, ends=ends)
        if self.selection_reason is not None:
            return _uncorrected(rate, self.selection_reason), None
        return rate, measure_accuracy(*shares, self.clusters, self.strata)

    def _numbers(self, numbers: Mapping[str, float], ends: tuple[float, float]) -> tuple[Floats, Floats]:
        """Return the numbers of people's and the model's answers for each unit.

        A unit without an answer of the model gets the model's mean. Any number would do, as the labels correct it.
        """
        answered = [numbers[result.answer] for result in self.results if result.answer is not None]
        mean = sum(answered) / len(answered) if answered else ends[0]
        model = np.array([mean if result.answer is None else numbers[result.answer] for result in self.results])
        people = np.array([fmean(map(numbers.__getitem__, each)) if each else np.nan for each in self.people])
        return people, model

    def _number(self, answer: str) -> float:
        value = self.analyzer.value_of(answer)
        return float(self.codes[answer]) if value is None else value


def _number_strata(results: Sequence[UnitResult], strata: Sequence[Strata]) -> Codes | None:
    """Number the strata of units: units with equal strata of all samples; None if no sample was stratified."""
    if not strata:
        return None
    cells = [tuple(each.get(result.unit_id, "") for each in strata) for result in results]
    numbers = {cell: number for number, cell in enumerate(sorted(set(cells)))}
    return np.array([numbers[cell] for cell in cells], dtype=np.int64)


def _limited(quantity: Quantity, reason: str | None) -> Quantity:
    """Return a quantity without its interval, if there is a reason."""
    return quantity if reason is None else replace(quantity, stderr=None, interval=None, reason=reason)


def _uncorrected(rate: CorrectedRate, reason: str) -> CorrectedRate:
    """Return a rate without its correction."""
    nothing = replace(rate.corrected, value=None, stderr=None, interval=None, reason=rate.corrected.reason or reason)
    return replace(rate, corrected=nothing, labels_alone=nothing, tuning=0.0, share=None)


def _nothing(reason: str) -> Quantity:
    return Quantity(None, None, None, 0, 0, reason)
