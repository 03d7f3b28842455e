"""Simulated coverage of the intervals of `validate`, with everything that may bias them."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from runner.analysis.label_sample import sample_units
from runner.analysis.strata import table_strata
from runner.analysis.validation import Validation, number_groups, validate
from tests.support.labels import label, make_analysis_table, yes_no_analyzer

pytestmark = pytest.mark.full

TONE = yes_no_analyzer()
SIMULATIONS, UNITS, LABELS = 200, 400, 120
AMBIGUOUS_SHARE = 0.3
TRUE_RATE = AMBIGUOUS_SHARE * 0.5 + (1 - AMBIGUOUS_SHARE) * 0.1
"""The probability that a reader answers yes about a unit: 0.5 if it is ambiguous, otherwise 0.1 for all readers."""


def simulate(seed: int) -> Validation:
    """Return the validation of a run that was analyzed again after two readers labeled a sample by the first answers.

    Readers disagree about half of the ambiguous units. The model answers these less often, and mostly with yes.
    """
    generator = random.Random(seed)
    ambiguous = [generator.random() < AMBIGUOUS_SHARE for _ in range(UNITS)]
    clear = [generator.random() < 0.1 for _ in range(UNITS)]

    def model_answer(unit: int) -> str | None:
        if generator.random() < (0.25 if ambiguous[unit] else 0.05):
            return None
        chance = 0.7 if ambiguous[unit] else 0.9 if clear[unit] else 0.1
        return "yes" if generator.random() < chance else "no"

    def read(unit: int) -> str:
        return "yes" if (generator.random() < 0.5 if ambiguous[unit] else clear[unit]) else "no"

    old, new = (make_analysis_table(TONE, [model_answer(unit) for unit in range(UNITS)]) for _ in range(2))
    strata = table_strata(old)
    labels = [
        label(TONE, drawn.unit_id, read(int(drawn.unit_id[1:])), reader, stratum=drawn.stratum, drawn=drawn.position)
        for drawn in sample_units(strata, str(seed), LABELS)
        for reader in ("Ann", "Ben")
    ]
    return validate(TONE, new, labels, number_groups([new]), [strata])


def test_rates_are_unbiased_and_intervals_cover_them_when_readers_disagree() -> None:
    results = [simulate(seed) for seed in range(SIMULATIONS)]
    rates = [result.rates["yes"] for result in results]
    for estimates in ([rate.corrected for rate in rates], [rate.labels_alone for rate in rates]):
        intervals = [estimate.interval for estimate in estimates if estimate.interval is not None]
        covered = sum(low <= TRUE_RATE <= high for low, high in intervals)
        assert len(intervals) == SIMULATIONS
        assert 0.91 * SIMULATIONS <= covered < SIMULATIONS  # three standard errors below 95 %
        assert fmean(estimate.value or 0.0 for estimate in estimates) == pytest.approx(TRUE_RATE, abs=0.01)
    assert fmean(rate.plain.value or 0.0 for rate in rates) > TRUE_RATE + 0.05  # the model's errors matter
    assert fmean(len(result.labels.ties) for result in results) > 20
