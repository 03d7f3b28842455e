"""The gauge of a judge: its noise, the facets that change its verdicts, and its drift, from the readings of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from runner.base.errors import UsageError
from runner.base.hashing import tagged_hash
from runner.base.text import comma_join
from runner.results.gauge.readings import (
    ANSWER_POSITION,
    FACETS,
    LABEL_WORDS,
    NO_VERDICT,
    PROMPTS,
    TIME,
    GaugedRun,
    Reading,
)
from runner.results.sweep_points import format_point
from runner.statistics.clustered_means import Codes, Floats, Quantity, Share, mean_share
from runner.statistics.differences import paired_difference
from runner.statistics.instrument.crossed_components import (
    INTERACTION,
    ORDER,
    RETEST,
    VARIANT,
    CrossedComponents,
    Readings,
    crossed_components,
)
from runner.statistics.instrument.level_test import have_several_levels, permute_levels
from runner.statistics.instrument.noise_floor import noise_floor, retest_flips
from runner.statistics.significance import ALPHA, holm

_MOSTLY = 0.9
"""If at least this share of verdicts has a probability, probabilities are the scores."""
MEASURES = (
    "icc", "retest_icc", "identical", "flips", "noise_floor",
    *(f"{facet}.{kind}" for facet in FACETS for kind in ("flips", "p")),
)  # fmt: skip
"""The measures that a condition may name, including those of facets that the runs may not vary."""
HOW_TO_MEASURE: Mapping[str, str] = {
    "repeats": "test-retest: no request was repeated; play each datapoint several times (rollouts.per_datapoint=3) or, "
    "for debates, judge again with votes=3",
    PROMPTS: "paraphrases and the order of options in the prompt: sweep over `prompts`, with a folder of templates for "
    "each wording",
    LABEL_WORDS: "label words: sweep over `decision_format.accept` and `decision_format.reject`",
    TIME: "drift: repeat the command with --again at a later time",
}
"""How to measure what the runs of a gauge do not vary, by facet."""


@dataclass(frozen=True)
class Level:
    """A level of a facet: what is set, and how much higher scores are than at the facet's first level."""

    label: str
    """The spec keys that set the level, such as `decision_format.lenient=false`."""
    readings: int
    """The readings of units that have several levels with otherwise equal settings."""
    mean: float | None
    shift: float | None = None
    """The mean difference from the first level; None for the first level, or if no unit has both levels."""
    ci_low: float | None = None
    ci_high: float | None = None


@dataclass(frozen=True)
class Facet:
    """A setting that differs between runs, and whether it matters for the verdicts of the same unit."""

    name: str
    levels: tuple[Level, ...]
    flips: Quantity | None
    """The share of pairs of readings of a unit at two levels with different verdicts."""
    p: float | None
    """The p-value of the permutation test; None if no unit was judged at two levels with otherwise equal settings."""
    p_holm: float | None
    """The p-value adjusted for the number of facets. Drift counts alone."""

    @property
    def matters(self) -> bool:
        return self.p_holm is not None and self.p_holm <= ALPHA


@dataclass(frozen=True)
class ServerCounts:
    """The names and fingerprints of models that answered a run."""

    run_id: str
    started_at: str
    models: Mapping[str, int]
    fingerprints: Mapping[str, int]


@dataclass(frozen=True)
class Gauge:
    """The results of a gauge."""

    run_ids: tuple[str, ...]
    variants: tuple[str, ...]
    """The hash of the judge and its settings in each run; see `GaugedRun.variant`."""
    score: str
    """`probability` or `verdict`: the kind of score that components and shifts are about."""
    units: int
    groups: int
    readings: int
    undecided: int
    """Readings without a verdict. They have no score, but flips count them as a third verdict."""
    copied: int
    lost: int
    """Games without a verdict because their calls failed."""
    total_variance: float | None
    components: Mapping[str, Quantity]
    icc: Quantity
    retest_icc: Quantity
    identical: Quantity
    """The share of pairs of repeats whose answers are equal, byte by byte."""
    flips: Quantity
    """The share of pairs of repeats with different verdicts."""
    correctness_flips: Quantity
    """The share of pairs of repeats with one right verdict; without labels, the same as `flips`."""
    variant_noise: tuple[float, float] | None
    """The share of flips and the variance between variants that determine the noise floor between two variants."""
    facets: tuple[Facet, ...]
    servers: tuple[ServerCounts, ...]
    missing: tuple[str, ...] = field(default=())
    """The effects that the runs do not vary, each with how to measure it."""

    def noise_floor(self, datapoints: int) -> Quantity:
        """Return the noise floor of two runs of so many datapoints with one variant of the judge."""
        flips = self.correctness_flips
        if flips.value is None:
            return flips
        low, high = flips.interval or (0.0, 1.0)
        ends = noise_floor(low, datapoints), noise_floor(high, datapoints)
        return Quantity(noise_floor(flips.value, datapoints), None, ends, flips.n, flips.clusters)

    def noise_floor_of_variants(self, datapoints: int) -> float | None:
        """Return the noise floor of two runs of so many datapoints with different variants of the judge."""
        noise = self.variant_noise
        return None if noise is None else noise_floor(noise[0], datapoints, noise[1])

    def measures(self, datapoints: int) -> dict[str, Quantity]:
        """Return the measures that a condition may name, with the noise floor of so many datapoints."""
        measures = {
            "icc": self.icc, "retest_icc": self.retest_icc, "identical": self.identical, "flips": self.flips,
            "noise_floor": self.noise_floor(datapoints),
        }  # fmt: skip
        facets = {facet.name: facet for facet in self.facets}
        for name in FACETS:
            measures.update({f"{name}.{kind}": quantity for kind, quantity in _facet_measures(facets.get(name))})
        return measures

    def to_json(self, datapoints: int | None = None) -> dict[str, Any]:
        """Return the gauge as JSON data, with the noise floor of so many datapoints, by default the number of units."""
        datapoints = datapoints or self.units
        return {
            **{name: getattr(self, name) for name in (
                "run_ids", "variants", "score", "units", "groups", "readings", "undecided", "copied", "lost",
                "total_variance",
            )},
            "components": {name: quantity.to_json() for name, quantity in self.components.items()},
            **{name: getattr(self, name).to_json() for name in (
                "icc", "retest_icc", "identical", "flips", "correctness_flips",
            )},
            "noise_floor": self.noise_floor(datapoints).to_json(),
            "noise_floor_of_variants": self.noise_floor_of_variants(datapoints),
            "variant_noise": self.variant_noise,
            "facets": [
                {
                    "name": facet.name, "levels": [vars(level) for level in facet.levels], "p": facet.p,
                    "flips": None if facet.flips is None else facet.flips.to_json(), "p_holm": facet.p_holm,
                    "matters": facet.matters,
                }
                for facet in self.facets
            ],
            "servers": [vars(server) for server in self.servers],
            "missing": self.missing,
        }  # fmt: skip


def _facet_measures(facet: Facet | None) -> Iterator[tuple[str, Quantity]]:
    """Yield the measures of a facet, which have no value but a reason if the facet was not tested."""
    if facet is None or facet.p_holm is None or facet.flips is None:
        reason = "the runs do not vary it" if facet is None else "it only changes together with other settings"
        yield from dict.fromkeys(("flips", "p"), Quantity(None, None, None, 0, 0, reason)).items()
        return
    p, flips = facet.p_holm, facet.flips
    yield from (("flips", flips), ("p", Quantity(p, None, (p, p), flips.n, flips.clusters)))


def gauge_runs(runs: Sequence[GaugedRun]) -> Gauge:
    """Return the gauge of the runs. The first run is the reference.

    Raises:
        UsageError: the runs have no two readings of one unit.
    """
    data = _Data(runs)
    if not len(data.readings):
        copied = " because all answers are copies of another run's" if any(run.copied for run in runs) else ""
        raise UsageError(f"{comma_join(run.run_id for run in runs)}: no verdict can be gauged{copied}")
    if len(data.unit_keys) == len(data.readings):
        raise UsageError(
            f"{comma_join(run.run_id for run in runs)}: each unit has a single verdict, so noise and "
            f"differences between units cannot be separated.\n{HOW_TO_MEASURE['repeats']}"
        )
    facets = _adjust(list(data.facets()))
    components = data.components(data.scores, data.is_scored)
    repeats, flips, right_flips = (data.repeat_share(codes) for codes in (data.answers, data.verdicts, data.outcomes))
    unknown = Quantity(None, None, None, len(data.readings), len(data.group_names), "too few groups with repeats")
    return Gauge(
        tuple(run.run_id for run in runs), tuple(run.variant for run in runs), data.score_kind, len(data.unit_keys),
        len(data.group_names), len(data.readings), int((data.verdicts == NO_VERDICT).sum()),
        sum(run.copied for run in runs), sum(run.lost for run in runs),
        None if components is None else components.total, {} if components is None else components.components,
        unknown if components is None else components.icc, unknown if components is None else components.retest_icc,
        repeats.rescaled(-1, 1), flips, right_flips, data.variant_noise(), facets,
        tuple(ServerCounts(run.run_id, run.started_at, run.models, run.fingerprints) for run in runs),
        tuple(_missing(facets, has_repeats=flips.value is not None)),
    )  # fmt: skip


def _missing(facets: Sequence[Facet], *, has_repeats: bool) -> Iterator[str]:
    tested = {facet.name for facet in facets if facet.p is not None}
    for name, text in HOW_TO_MEASURE.items():
        if name not in tested and not (name == "repeats" and has_repeats):
            yield text
    for facet in facets:
        if facet.p is None:
            yield (
                f"{facet.name}: it only changes together with other settings, so its effect cannot be separated; add a "
                "point that changes it alone"
            )


def _adjust(facets: Sequence[Facet]) -> tuple[Facet, ...]:
    """Return the facets with p-values adjusted for their number, except `time`."""
    p_values = [facet.p for facet in facets if facet.p is not None and facet.name != TIME]
    adjusted = iter(holm(p_values))
    return tuple(
        facet if facet.p is None else replace(facet, p_holm=facet.p if facet.name == TIME else next(adjusted))
        for facet in facets
    )


class _Data:
    """The readings of all runs as arrays."""

    def __init__(self, runs: Sequence[GaugedRun]) -> None:
        self.runs = runs
        self.readings: list[Reading] = [reading for run in runs for reading in run.readings]
        self.variants = np.repeat(np.arange(len(runs)), [len(run.readings) for run in runs])
        self.unit_keys, self.units = _number([repr(reading.unit) for reading in self.readings])
        groups = dict(zip(self.units.tolist(), (reading.group for reading in self.readings), strict=True))
        self.group_names, self.clusters = _number([groups[unit] for unit in range(len(self.unit_keys))])
        requests = [f"{v} {u} {r.request}" for v, u, r in zip(self.variants, self.units, self.readings, strict=True)]
        self.requests = _number(requests)[1]
        self.answers = _number([reading.answer for reading in self.readings])[1]
        self.verdicts = np.array([reading.verdict for reading in self.readings], dtype=np.int64)
        self.outcomes = np.array(
            [reading.verdict if reading.correct is None else int(reading.correct) for reading in self.readings],
            dtype=np.int64,
        )

    @cached_property
    def score_kind(self) -> str:
        with_probability = sum(reading.probability is not None for reading in self.readings)
        decided = int((self.verdicts != NO_VERDICT).sum())
        return "probability" if decided and with_probability >= _MOSTLY * decided else "verdict"

    @cached_property
    def scores(self) -> Floats:
        """The scores: probabilities, or verdicts as 0 and 1; of listed answers, whether the answer is right."""
        if self.score_kind == "probability":
            return np.array([np.nan if r.probability is None else r.probability for r in self.readings])
        if (self.verdicts > NO_VERDICT).any():
            return self.outcomes.astype(float)
        return np.where(self.verdicts == NO_VERDICT, np.nan, self.verdicts.astype(float))

    @cached_property
    def is_scored(self) -> np.ndarray[Any, Any]:
        return ~np.isnan(self.scores)

    def components(self, scores: Floats, used: np.ndarray[Any, Any]) -> CrossedComponents | None:
        units, variants, requests = (
            np.unique(codes[used], return_inverse=True)[1] for codes in (self.units, self.variants, self.requests)
        )
        if not len(units):
            return None
        clusters = np.unique(self.clusters[np.unique(self.units[used])], return_inverse=True)[1]
        return crossed_components(Readings(scores[used], units, variants, requests, clusters))

    def variant_noise(self) -> tuple[float, float] | None:
        """Return twice the variance of a right verdict within a unit, and its variance between variants."""
        if len({run.variant for run in self.runs}) < 2 or any(reading.correct is None for reading in self.readings):
            return None
        result = self.components(self.outcomes.astype(float), np.ones(len(self.readings), dtype=bool))
        if result is None:
            return None
        values = {name: quantity.value or 0.0 for name, quantity in result.components.items()}
        return 2 * sum(values.get(name, 0.0) for name in (INTERACTION, ORDER, RETEST)), values.get(VARIANT, 0.0)

    def repeat_share(self, codes: Codes) -> Quantity:
        """Return the share of pairs of repeats of one request whose codes differ."""
        owners = np.zeros(int(self.requests.max()) + 1, dtype=np.int64)
        owners[self.requests] = self.clusters[self.units]
        share = retest_flips(codes, self.requests, owners)
        if share is None:
            return Quantity(None, None, None, 0, 0, "no request was repeated")
        return share.as_quantity()

    def facets(self) -> Iterator[Facet]:
        """Yield the facets with several levels, in the order of the settings."""
        for name in self.runs[0].settings:
            levels = list(dict.fromkeys(run.settings[name] for run in self.runs))
            if len(levels) > 1:
                rest = [tagged_hash("rest", {k: v for k, v in run.settings.items() if k != name}) for run in self.runs]
                run_levels = np.array([levels.index(run.settings[name]) for run in self.runs])
                labels = _level_labels(name, [[run for run in self.runs if run.settings[name] == x] for x in levels])
                yield self._facet(name, labels, run_levels[self.variants], _number(rest)[1][self.variants])
        positions = np.array([-1 if r.position is None else r.position for r in self.readings])
        if (positions >= 0).all() and len(np.unique(positions)) > 1:
            names, levels_of_readings = np.unique(positions, return_inverse=True)
            labels = [f"right answer in position {position + 1}" for position in names]
            yield self._facet(ANSWER_POSITION, labels, levels_of_readings, self.variants)

    def _facet(self, name: str, labels: Sequence[str], levels: Codes, rest: Codes) -> Facet:
        strata = np.unique(self.units * (int(rest.max()) + 1) + rest, return_inverse=True)[1]
        scored = np.flatnonzero(self.is_scored)
        test = permute_levels(self.scores[scored], strata[scored], levels[scored])
        if test is None:
            return Facet(name, tuple(Level(label, 0, None) for label in labels), None, None, None)
        used = scored[have_several_levels(strata[scored], levels[scored])]
        shifts = [self._level(label, level, levels[used], strata[used], used) for level, label in enumerate(labels)]
        flips = self._level_flips(levels, strata)
        return Facet(name, tuple(shifts), None if flips is None else flips.as_quantity(), test.p, None)

    def _level(self, label: str, level: int, levels: Codes, strata: Codes, used: Codes) -> Level:
        """Return a level with its shift from level 0, over strata with both. `used` has numbers of readings."""
        scores, size, is_level = self.scores[used], int(strata.max()) + 1, levels == level
        result = Level(label, int(is_level.sum()), float(scores[is_level].mean()) if is_level.any() else None)
        masks = [levels == number for number in (0, level)]
        counts = [np.bincount(strata[mask], minlength=size).astype(float) for mask in masks]
        sums = [np.bincount(strata[mask], scores[mask], size) for mask in masks]
        both = (counts[0] > 0) & (counts[1] > 0)
        if level == 0 or not both.any():
            return result
        owner = np.zeros(size, dtype=np.int64)
        owner[strata] = self.clusters[self.units[used]]
        shifts = sums[1][both] / counts[1][both] - sums[0][both] / counts[0][both]
        groups, numbers = np.unique(owner[both], return_inverse=True)
        sizes = np.bincount(numbers, minlength=len(groups)).astype(float)
        difference = paired_difference((np.bincount(numbers, shifts) / sizes).tolist(), sizes.tolist(), bound=1.0)
        return replace(result, shift=difference.value, ci_low=difference.low, ci_high=difference.high)

    def _level_flips(self, levels: Codes, strata: Codes) -> Share | None:
        """Return the share of pairs of readings of one stratum at two levels with different verdicts."""
        size, level_count, code_count = int(strata.max()) + 1, int(levels.max()) + 1, int(self.verdicts.max()) + 1
        cells, by_code = strata * level_count + levels, strata * code_count + self.verdicts

        def squares(codes: Codes, per_stratum: int) -> Floats:
            """Return the sum of squared counts of codes in each stratum."""
            counts = np.bincount(codes, minlength=size * per_stratum).astype(float)
            return np.asarray((counts.reshape(size, per_stratum) ** 2).sum(axis=1))

        both_codes = cells * code_count + self.verdicts
        pairs = np.bincount(strata, minlength=size) ** 2 - squares(cells, level_count)
        equal = squares(by_code, code_count) - squares(both_codes, level_count * code_count)
        owner = np.zeros(size, dtype=np.int64)
        owner[strata] = self.clusters[self.units]
        used = pairs > 0
        return mean_share(1 - equal[used] / pairs[used], owner[used], len(self.group_names))


def _level_labels(name: str, runs_by_level: Sequence[Sequence[GaugedRun]]) -> list[str]:
    """Return a label for each level of a facet: the facet's spec keys that differ between levels, or a run's id."""
    if name == TIME:
        return [runs[0].started_at for runs in runs_by_level]
    examples = [next((run for run in runs if run.spec_values[name]), runs[0]) for runs in runs_by_level]
    values = [run.spec_values[name] for run in examples]
    keys = dict.fromkeys(key for level in values for key in level)
    differing = {key for key in keys if any(level.get(key) != values[0].get(key) for level in values)}
    return [
        format_point({key: value for key, value in level.items() if key in differing}) or run.run_id
        for level, run in zip(values, examples, strict=True)
    ]


def _number(names: Sequence[str]) -> tuple[list[str], Codes]:
    """Return the different names in order, and the number of each given name."""
    different = sorted(set(names))
    numbers = {name: number for number, name in enumerate(different)}
    return different, np.array([numbers[name] for name in names], dtype=np.int64)
