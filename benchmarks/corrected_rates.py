"""Check the coverage and width of rates that correct a model's judgments with a sample of people's labels.

    python benchmarks/corrected_rates.py [--times N] [--seed S] [--only TEXT] [--processes N]

N runs in each situation. A run has 1,000 units in groups, whose true answers and whose judge's errors are correlated.
A random sample of the units is labeled, or the same number from each answer of the judge. The interval must contain the
true rate in 93 % of the runs with 100 and 200 labels, and its median width is at most 1.05 times that of the labels
alone (`mean_share`; for labels by answer, the weighted labels). The interval that takes a biased judge's answers for
the truth must contain it in less than 60 %. The same for differences of two runs with common groups. `labels_needed`
must predict a number of labels whose intervals have the target width, up to 7 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import numpy as np
from common import coverage_limit, print_table, sample_parser

from runner.statistics.clustered_means import Interval, Quantity, Share, difference, mean_share
from runner.statistics.prediction_powered import (
    CorrectedRate,
    JudgeAccuracy,
    corrected_difference,
    corrected_rate,
    labels_needed,
    measure_accuracy,
)
from tests.support.soft_assertions import SoftAssertions

UNITS, LABELS, RATES = 1_000, (50, 100, 200), (0.1, 0.3, 0.5)
DESIGNS = {"5 per group": (5, 0.2, False), "25 per group": (25, 0.1, False), "5, by answer": (5, 0.2, True)}
"""Units of a group, the correlation within groups, and whether the labels are drawn separately for each answer."""
JUDGES = ("accurate", "lenient", "strict", "unequal", "random")
BIASED = ("lenient", "strict", "unequal")
MIN_COVERAGE, MAX_WIDTH_RATIO, MIN_LABELS, MAX_PLAIN_COVERAGE = 0.93, 1.05, 100, 0.60
WIDTH_ERROR = 0.07
BATCH = 200
Case = TypeVar("Case")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Situation:
    """A judge, the true rate, and which units are labeled."""

    judge: str
    rate: float
    labels: int
    design: str

    @property
    def name(self) -> str:
        return f"{self.judge}, rate {self.rate}, {self.labels} labels, {self.design}"


@dataclass(frozen=True)
class CoverageSummary:
    """The shares of intervals that contain the truth, and the median widths."""

    coverage: float
    labels_coverage: float
    plain_coverage: float
    width_ratio: float
    labels_width: float
    plain_width_ratio: float
    tuning: float


def group_chances(rng: np.random.Generator, chance: float, shape: tuple[int, int], correlation: float) -> np.ndarray:
    """Return the chance of each group, which varies around `chance` so that units have the correlation `alike`."""
    size = 1 / correlation - 1
    return rng.beta(chance * size, (1 - chance) * size, (*shape, 1))


def error_chances(
    rng: np.random.Generator, judge: str, rate: float, shape: tuple[int, int], correlation: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each group how often the judge rejects a positive unit and accepts a negative one."""
    if judge == "random":
        return np.full((*shape, 1), 0.5), np.full((*shape, 1), 0.5)
    missed, accepted = {
        "accurate": (0.03 / rate, 0.03 / (1 - rate)),
        "lenient": (0.02, 0.3),
        "strict": (0.6, 0.01),
        "unequal": (0.05, 0.05),
    }[judge]
    misses, accepts = (group_chances(rng, chance, shape, correlation) for chance in (missed, accepted))
    if judge == "unequal":  # lenient in half of the groups
        accepts = np.where(rng.random((*shape, 1)) < 0.5, group_chances(rng, 0.4, shape, correlation), accepts)
    return misses, accepts


def simulate_answers(
    rng: np.random.Generator, truth: np.ndarray, situation: Situation, correlation: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the judge's answers and the labels, NaN where there is none; runs in rows."""
    misses, accepts = error_chances(rng, situation.judge, situation.rate, truth.shape[:2], correlation)
    chance = rng.random(truth.shape)
    judgments = np.where(truth == 1, chance >= misses, chance < accepts).astype(float).reshape(len(truth), UNITS)
    order = rng.random(judgments.shape)
    if DESIGNS[situation.design][2]:  # half of the labels from each answer, as far as there are units
        ranks = np.empty_like(order)
        for answer in (0, 1):
            answer_order = np.where(judgments == answer, order, 2.0)
            ranks = np.where(judgments == answer, answer_order.argsort(axis=1).argsort(axis=1), ranks)
        order = ranks + order / 2
    is_labeled = order.argsort(axis=1).argsort(axis=1) < situation.labels
    return judgments, np.where(is_labeled, truth.reshape(len(truth), UNITS), np.nan)


def simulate(situation: Situation, times: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield labels, answers and group numbers of runs."""
    size, correlation, _ = DESIGNS[situation.design]
    groups, rng = np.repeat(np.arange(UNITS // size), size), np.random.default_rng([seed, *situation.name.encode()])
    for start in range(0, times, BATCH):
        shape = (min(BATCH, times - start), UNITS // size)
        chances = group_chances(rng, situation.rate, shape, correlation)
        truth = (rng.random((*shape, size)) < chances).astype(float)
        judgments, labels = simulate_answers(rng, truth, situation, correlation)
        for row in range(shape[0]):
            yield labels[row], judgments[row], groups


def labels_only(labels: np.ndarray, groups: np.ndarray) -> Share:
    labeled = ~np.isnan(labels)
    share = mean_share(labels[labeled], groups[labeled], int(groups.max()) + 1)
    assert share is not None
    return share


def interval_ends(quantity: Quantity) -> Interval:
    return quantity.interval or (np.nan, np.nan)


def count_coverage(situation: Situation, times: int, seed: int) -> CoverageSummary:
    by_answer, rows, tunings = DESIGNS[situation.design][2], [], []
    for labels, judgments, groups in simulate(situation, times, seed):
        result = corrected_rate(labels, judgments, groups, judgments.astype(int) if by_answer else None)
        labels_interval = interval_ends(result.labels_alone) if by_answer else labels_only(labels, groups).interval
        rows.append((interval_ends(result.corrected), labels_interval, interval_ends(result.plain)))
        tunings.append(result.tuning)
    return summarize(rows, tunings, situation.rate)


def summarize(
    rows: Sequence[tuple[Interval, Interval, Interval]], tunings: Sequence[float], truth: float
) -> CoverageSummary:
    intervals = np.array(rows)  # run, kind of interval, end
    covered = ((intervals[:, :, 0] <= truth) & (truth <= intervals[:, :, 1])).mean(axis=0)
    width, labels_width, plain_width = np.nanmedian(intervals[:, :, 1] - intervals[:, :, 0], axis=0)
    numbers = (*covered, width / labels_width, labels_width, plain_width / labels_width, np.mean(tunings))
    return CoverageSummary(*map(float, numbers))


@dataclass(frozen=True)
class Pair:
    """Two judges of runs with the same groups and partly the same true answers; their rates differ by 0.1."""

    first: str
    second: str
    rate: float
    labels: int
    is_labeled_alike: bool

    @property
    def name(self) -> str:
        sample = "same units" if self.is_labeled_alike else "separate samples"
        return f"difference, {self.first} and {self.second}, rate {self.rate}, {self.labels} labels, {sample}"


GAIN, COMMON = 0.1, 0.7
"""The difference of the rates, and the share of units whose answers in both runs depend on one number."""


def count_difference(pair: Pair, times: int, seed: int) -> CoverageSummary:
    rng, rows, tunings = np.random.default_rng([seed, *pair.name.encode()]), [], []
    size, correlation, _ = DESIGNS["5 per group"]
    groups, shape = np.repeat(np.arange(UNITS // size), size), (1, UNITS // size)
    for _ in range(times):
        chances, common = group_chances(rng, pair.rate, shape, correlation), rng.random((*shape, size))
        results: list[CorrectedRate] = []
        label_shares: list[Share] = []
        is_labeled: np.ndarray | None = None
        for judge, gain in ((pair.first, GAIN), (pair.second, 0.0)):
            ease = np.where(rng.random(common.shape) < COMMON, common, rng.random(common.shape))
            truth = (ease < chances + gain * (1 - chances) / (1 - pair.rate)).astype(float)
            judgments, labels = simulate_answers(
                rng, truth, Situation(judge, pair.rate + gain, pair.labels, "5 per group"), correlation
            )
            if pair.is_labeled_alike and is_labeled is not None:
                labels = np.where(is_labeled, truth.reshape(1, UNITS), np.nan)
            is_labeled = ~np.isnan(labels)
            results.append(corrected_rate(labels[0], judgments[0], groups))
            label_shares.append(labels_only(labels[0], groups))
        plain = results[0].plain, results[1].plain
        estimate = (plain[0].value or 0.0) - (plain[1].value or 0.0)
        margin = 1.96 * float(np.hypot(plain[0].stderr or 0.0, plain[1].stderr or 0.0))
        rows.append(
            (
                interval_ends(corrected_difference(*results)),
                interval_ends(difference(*label_shares)),
                (estimate - margin, estimate + margin),
            )
        )
        tunings.append((results[0].tuning + results[1].tuning) / 2)
    return summarize(rows, tunings, GAIN)


@dataclass(frozen=True)
class Target:
    """A width of intervals that `labels_needed` must reach, from 100 labels or from a guess."""

    judge: str
    rate: float
    width: float
    design: str
    is_guess: bool

    @property
    def name(self) -> str:
        source = "a guess" if self.is_guess else "100 labels"
        return f"labels for a width of {self.width}, {self.judge}, rate {self.rate}, {self.design}, from {source}"


def count_labels(target: Target, times: int, seed: int) -> tuple[float, float]:
    """Return the median predicted number of labels, and the median width of intervals with so many labels."""
    size, correlation, _ = DESIGNS[target.design]
    if target.is_guess:
        needed = labels_needed(
            target.width, JudgeAccuracy.from_guess(target.rate, 0.94, UNITS, UNITS // size, correlation)
        )
        numbers = [needed or UNITS]
    else:
        pilot = Situation(target.judge, target.rate, 100, target.design)
        measured = [measure_accuracy(*run) for run in simulate(pilot, times, seed)]
        numbers = [(accuracy and labels_needed(target.width, accuracy)) or UNITS for accuracy in measured]
    labels = int(np.median(numbers))
    runs = simulate(Situation(target.judge, target.rate, labels, target.design), times, seed + 1)
    widths = [high - low for low, high in (interval_ends(corrected_rate(*run).corrected) for run in runs)]
    return labels, float(np.median(widths))


def situations() -> Iterator[Situation]:
    for design, judge, rate, labels in product(DESIGNS, JUDGES, RATES, LABELS):
        yield Situation(judge, rate, labels, design)


def pairs() -> Iterator[Pair]:
    judges = (("lenient", "strict"), ("accurate", "lenient"), ("random", "random"))
    for (first, second), rate, labels, is_labeled_alike in product(judges, (0.1, 0.4), LABELS, (True, False)):
        yield Pair(first, second, rate, labels, is_labeled_alike)


def targets() -> Iterator[Target]:
    for design, judge, rate, width in (
        ("5 per group", "accurate", 0.3, 0.1),
        ("25 per group", "accurate", 0.3, 0.12),
        ("5 per group", "lenient", 0.3, 0.14),
        ("25 per group", "lenient", 0.3, 0.15),
        ("5 per group", "strict", 0.1, 0.08),
        ("5 per group", "random", 0.5, 0.16),
        ("25 per group", "random", 0.5, 0.16),
    ):
        yield Target(judge, rate, width, design, is_guess=False)
    yield Target("accurate", 0.3, 0.1, "5 per group", is_guess=True)


def claims(case: Situation | Pair, summary: CoverageSummary, times: int) -> Iterator[tuple[bool, str]]:
    """Yield whether each check of a situation holds, with its numbers."""
    min_coverage = coverage_limit(MIN_COVERAGE, times)
    if case.labels >= MIN_LABELS:
        yield summary.coverage >= min_coverage, f"{case.name}: coverage {summary.coverage:.1%}"
        yield (
            summary.width_ratio <= MAX_WIDTH_RATIO,
            f"{case.name}: {summary.width_ratio:.2f} times as wide as labels alone",
        )
    if isinstance(case, Situation) and case.judge in BIASED:
        yield (
            summary.plain_coverage < MAX_PLAIN_COVERAGE,
            f"{case.name}: uncorrected coverage {summary.plain_coverage:.1%}",
        )


def print_rows(title: str, cases: Sequence[Situation | Pair], results: Sequence[CoverageSummary]) -> None:
    columns = ["", "coverage", "labels alone", "uncorrected", "width / labels alone", "labels' width", "lambda"]
    rows = [
        [
            case.name,
            *(f"{100 * share:.1f}" for share in (result.coverage, result.labels_coverage, result.plain_coverage)),
            *(f"{number:.2f}" for number in (result.width_ratio, result.labels_width, result.tuning)),
        ]
        for case, result in zip(cases, results, strict=True)
    ]
    print_table(title, columns, rows)


def check_intervals(
    title: str, cases: Sequence[Situation | Pair], results: Sequence[CoverageSummary], times: int, check: SoftAssertions
) -> None:
    print_rows(title, cases, results)
    for case, summary in zip(cases, results, strict=True):
        for holds, text in claims(case, summary, times):
            check(holds, text)


def run_all(
    function: Callable[[Case, int, int], Result], cases: Sequence[Case], args: argparse.Namespace
) -> list[Result]:
    size = len(cases)
    with ProcessPoolExecutor(args.processes) as pool:
        return list(pool.map(function, cases, [args.times] * size, [args.seed] * size))


def main() -> int:
    parser = sample_parser(__doc__, 2000)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the situations with this text in their name")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="default: 2")
    args, check = parser.parse_args(), SoftAssertions()
    selected = [case for case in situations() if args.only in case.name]
    differences = [pair for pair in pairs() if args.only in pair.name]
    selected_targets = [target for target in targets() if args.only in target.name]
    check_intervals("One run", selected, run_all(count_coverage, selected, args), args.times, check)
    difference_results = run_all(count_difference, differences, args)
    check_intervals("Differences of two runs", differences, difference_results, args.times, check)
    for target, (labels, width) in zip(selected_targets, run_all(count_labels, selected_targets, args), strict=True):
        check(
            abs(width / target.width - 1) <= WIDTH_ERROR,
            f"{target.name}: {labels:.0f} labels, median width {width:.3f}",
        )
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
