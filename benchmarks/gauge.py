"""Check that `nip-run gauge` finds planted noise, planted effects of variants, and planted drift.

    python benchmarks/gauge.py [--times N] [--seed S] [--only TEXT]

N simulated gauges in each situation (2,000 for the full measurement). A judge observes the ease of a unit, plus the
effects of the variant, of the unit under the variant, and of a single reading. Its score is the observation, or a
verdict: whether the observation is above 0. The interval of the intraclass correlation must contain the true value in
93 % of the gauges, and components must be recovered. Where nothing differs, a facet, drift or a difference of two runs
above the noise floor may be reported in 5 %. Both limits allow for two standard errors of a share of N gauges.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from common import print_table, sample_parser

from runner.statistics.instrument.crossed_components import (
    INTERACTION,
    RETEST,
    UNIT,
    VARIANT,
    CrossedComponents,
    Readings,
    crossed_components,
)
from runner.statistics.instrument.level_test import permute_levels
from runner.statistics.instrument.noise_floor import noise_floor, retest_flips
from runner.statistics.significance import ALPHA, holm
from tests.support.soft_assertions import SoftAssertions

MIN_COVERAGE, TRUTH_UNITS = 0.93, 400_000
RELATIVE_BIAS = 0.1
"""The largest bias of a component, as a share of the total variance: a tenth of it, and simulation error."""


@dataclass(frozen=True)
class Judge:
    """The standard deviations of a judge's observations, and whether its scores are verdicts."""

    unit: float
    interaction: float
    retest: float
    variants: tuple[float, ...] = (0.0,)
    """The shift of each variant."""
    decides: bool = False

    def read(self, rng: np.random.Generator, units: int, repeats: int, size: int = 1) -> np.ndarray:
        """Return scores by unit, variant and repeat. `size` units of a cluster share half of the variance of units."""
        shape, count = (units, len(self.variants)), units // size
        shared, individual = np.repeat(rng.standard_normal(count), size), rng.standard_normal(units)
        unit_ease = individual if size == 1 else math.sqrt(0.5) * shared + math.sqrt(0.5) * individual
        cells = self.unit * unit_ease[:, None] + np.array(self.variants) + self.interaction * rng.standard_normal(shape)
        observed = cells[:, :, None] + self.retest * rng.standard_normal((*shape, repeats))
        return (observed > 0).astype(float) if self.decides else observed


JUDGES = {
    "steady scores": Judge(1.0, 0.0, 0.3),
    "noisy scores": Judge(1.0, 0.0, 1.0),
    "scores, 4 variants": Judge(1.0, 0.3, 0.5, (-0.3, 0.0, 0.1, 0.2)),
    "steady verdicts": Judge(1.0, 0.0, 0.2, decides=True),
    "noisy verdicts": Judge(1.0, 0.0, 0.8, decides=True),
    "verdicts, mostly accepting": Judge(1.0, 0.0, 0.5, (1.0,), decides=True),
    "verdicts, 4 variants": Judge(1.0, 0.3, 0.4, (-0.3, 0.0, 0.1, 0.2), decides=True),
}
DESIGNS = {"40 units, 3 repeats": (40, 3, 1), "100 units, 2 repeats": (100, 2, 1), "200 units in pairs, 2": (200, 2, 2)}


def to_readings(scores: np.ndarray, size: int = 1) -> Readings:
    units, variants, repeats = scores.shape
    cells = np.repeat(np.arange(units * variants), repeats)
    return Readings(scores.ravel(), cells // variants, cells % variants, cells, np.arange(units) // size)


def true_values(judge: Judge) -> dict[str, float]:
    """Return the components and the correlation of very many units; the variants are fixed."""
    scores = judge.read(np.random.default_rng(0), TRUTH_UNITS, 2)
    retest = float((scores[:, :, 0] - scores[:, :, 1]).var() / 2) if not judge.decides else float(
        (scores[:, :, 0] != scores[:, :, 1]).mean() / 2
    )  # fmt: skip
    first = scores[:, :, 0]
    same_variant = float(first.var(axis=0).mean())
    if first.shape[1] == 1:
        unit = same_variant - retest
        return {UNIT: unit, RETEST: retest, "icc": unit / same_variant}
    variant = float(first.mean(axis=0).var(ddof=1))
    covariance = np.cov(first.T)
    unit = float((covariance.sum() - np.trace(covariance)) / (first.shape[1] * (first.shape[1] - 1)))
    total = same_variant + variant
    interaction = same_variant - retest - unit
    return {UNIT: unit, VARIANT: variant, INTERACTION: interaction, RETEST: retest, "icc": unit / total}


@dataclass(frozen=True)
class RecoverySummary:
    """Results of the gauges of one judge. They are means of estimates, since medians would hide bias."""

    truth: float
    mean_icc: float
    covered: float
    without_interval: float
    components: dict[str, tuple[float, float, float]]
    """The true value, the mean estimate and the share of intervals that contain the truth."""


def measure_recovery(
    judge: Judge, design: tuple[int, int, int], times: int, rng: np.random.Generator
) -> RecoverySummary:
    units, repeats, size = design
    truth, results = true_values(judge), list[CrossedComponents]()
    for _ in range(times):
        components = crossed_components(to_readings(judge.read(rng, units, repeats, size), size))
        if components is not None:
            results.append(components)
    intervals = [result.icc.interval for result in results if result.icc.interval is not None]
    covered = np.mean([low <= truth["icc"] <= high for low, high in intervals]) if intervals else np.nan
    summaries = {}
    for name, value in truth.items():
        if name != "icc":
            estimates = [result.components[name] for result in results]
            is_covered = [
                quantity.interval is not None and quantity.interval[0] <= value <= quantity.interval[1]
                for quantity in estimates
            ]
            summaries[name] = (
                value,
                float(np.mean([quantity.value for quantity in estimates])),
                float(np.mean(is_covered)),
            )
    mean_icc = float(np.mean([result.icc.value for result in results]))
    return RecoverySummary(truth["icc"], mean_icc, float(covered), 1 - len(intervals) / times, summaries)


def check_components(times: int, seed: int, only: str, check: SoftAssertions) -> None:
    rows, limit = [], MIN_COVERAGE - 2 * math.sqrt(MIN_COVERAGE * (1 - MIN_COVERAGE) / times)
    for name, judge in JUDGES.items():
        for design_name, design in DESIGNS.items():
            title = f"{name}, {design_name}"
            if only not in title:
                continue
            result = measure_recovery(judge, design, times, np.random.default_rng([seed, *title.encode()]))
            component_text = "; ".join(
                f"{part} {mean:.3f} ({value:.3f}, {covered:.0%})"
                for part, (value, mean, covered) in result.components.items()
            )
            rows.append([title, f"{result.truth:.3f}", f"{result.mean_icc:.3f}", f"{result.covered:.1%}",
                         f"{result.without_interval:.0%}", component_text])  # fmt: skip
            if not math.isnan(result.covered):
                check(result.covered >= limit, f"{title}: the interval of the ICC covers {result.covered:.1%}")
            total = sum(value for value, _, _ in result.components.values())
            bias = max(abs(mean - value) for value, mean, _ in result.components.values()) / total
            check(
                bias <= RELATIVE_BIAS + 1 / math.sqrt(times), f"{title}: components are off by {bias:.1%} of the total"
            )
    columns = ["judge", "true ICC", "mean", "coverage", "no interval", "components: mean (true value, coverage)"]
    print_table("Intraclass correlation and components", columns, rows)


def facet_p_values(judge: Judge, rng: np.random.Generator, repeats: int, effects: Sequence[float]) -> list[float]:
    """Return Holm's p-values of facets. Each facet has the first variant and another that shifts observations."""
    units = 60
    ease = judge.unit * rng.standard_normal(units)
    shifts = np.array([0.0, *effects])
    observed = ease[:, None, None] + shifts[:, None] + judge.retest * rng.standard_normal((units, len(shifts), repeats))
    scores = (observed > 0).astype(float) if judge.decides else observed
    strata, p_values = np.repeat(np.arange(units), 2 * repeats), []
    levels = np.tile(np.repeat((0, 1), repeats), units)
    for facet in range(1, len(shifts)):
        result = permute_levels(scores[:, [0, facet]].ravel(), strata, levels)
        assert result is not None
        p_values.append(result.p)
    return holm(p_values)


def drift_p_value(judge: Judge, rng: np.random.Generator, repeats: int, shift: float, change: float) -> float:
    """Return the p-value of readings of one judge at two times, after a shift or changes of single units."""
    units = 60
    ease = judge.unit * rng.standard_normal(units)
    later = ease + shift + change * rng.standard_normal(units)
    observed = np.stack((ease, later), axis=1)[:, :, None] + judge.retest * rng.standard_normal((units, 2, repeats))
    scores = (observed > 0).astype(float) if judge.decides else observed
    strata, levels = np.repeat(np.arange(units), 2 * repeats), np.tile(np.repeat((0, 1), repeats), units)
    result = permute_levels(scores.ravel(), strata, levels)
    assert result is not None
    return result.p


def exceeds_floor(judge: Judge, rng: np.random.Generator) -> bool:
    """Return whether two runs of one judge on the same units differ by more than the noise floor of a gauge."""
    units = 100
    scores = judge.read(rng, units, 5)[:, 0]
    gauged_scores = scores[:, :3]
    requests = np.repeat(np.arange(units), 3)
    flips = retest_flips(gauged_scores.ravel().astype(int), requests, np.arange(units))
    assert flips is not None
    return bool(abs(scores[:, 3].mean() - scores[:, 4].mean()) > noise_floor(flips.value, units) + 1e-9)


def check_alarms(times: int, seed: int, only: str, check: SoftAssertions) -> None:
    scores, verdicts = Judge(1.0, 0.0, 0.5), Judge(1.0, 0.0, 0.5, decides=True)
    null: dict[str, Callable[[np.random.Generator], bool]] = {}
    planted: dict[str, Callable[[np.random.Generator], bool]] = {}
    for name, judge in (("scores", scores), ("verdicts", verdicts)):
        for repeats in (1, 3):
            kind = f"{name}, {repeats} per unit"
            null[f"facets, {kind}"] = lambda rng, j=judge, r=repeats: min(facet_p_values(j, rng, r, (0, 0, 0))) <= ALPHA
            null[f"drift, {kind}"] = lambda rng, j=judge, r=repeats: drift_p_value(j, rng, r, 0, 0) <= ALPHA
            planted[f"facet of 0.5, {kind}"] = lambda rng, j=judge, r=repeats: (
                facet_p_values(j, rng, r, (0, 0.5, 0))[1] <= ALPHA
            )
            planted[f"drift by 0.5, {kind}"] = lambda rng, j=judge, r=repeats: drift_p_value(j, rng, r, 0.5, 0) <= ALPHA
        planted[f"changes of single units, {name}, 3 per unit"] = lambda rng, j=judge: (
            drift_p_value(j, rng, 3, 0, 1.0) <= ALPHA
        )
    null["difference above the noise floor"] = lambda rng: exceeds_floor(verdicts, rng)
    limit, rows = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / times), []
    for situations, is_null in ((null, True), (planted, False)):
        for title, alarm in situations.items():
            if only not in title:
                continue
            rng = np.random.default_rng([seed, *title.encode()])
            share = float(np.mean([alarm(rng) for _ in range(times)]))
            rows.append([title, "no difference" if is_null else "planted", f"{share:.1%}"])
            if is_null:
                check(share <= limit, f"{title}: false alarms {share:.1%}")
    print_table("Alarms at a level of 5 %", ["situation", "truth", "alarms"], rows)


def main() -> int:
    parser = sample_parser(__doc__, 200)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the situations with this text in their name")
    args, check = parser.parse_args(), SoftAssertions()
    check_components(args.times, args.seed, args.only, check)
    check_alarms(args.times, args.seed, args.only, check)
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
