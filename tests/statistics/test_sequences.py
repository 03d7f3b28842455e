"""Confidence sequences are valid at every look and independent of the order of observations."""

from __future__ import annotations

import math
import random

import pytest

from runner.statistics.confidence_sequences import FOR_EFFECTS, FOR_WIDTH, ConfidenceSequence, DifferenceSequence


def make_sequence(*values: float, weight: float = 1.0) -> ConfidenceSequence:
    sequence = ConfidenceSequence()
    for value in values:
        sequence.add(value, weight)
    return sequence


def test_empty_sequence_excludes_nothing() -> None:
    assert (ConfidenceSequence().interval(), ConfidenceSequence().mean) == ((0.0, 1.0), None)
    assert DifferenceSequence().evidence < 1


def test_capital_at_the_bounds_matches_a_plain_sum_over_bets() -> None:
    """At the ends of an interval, the capital is exactly what is needed to exclude them."""
    values = [(1.0, 1.0), (0.0, 0.5), (0.75, 0.25), (1.0, 0.5)] * 6
    sequence = ConfidenceSequence()
    for value, weight in values:
        sequence.add(value, weight)
    low, high = sequence.interval()
    for bound, values_for_bound in ((low, values), (1 - high, [(1 - value, weight) for value, weight in values])):
        capital = sum(
            math.exp(share) * math.prod(1 + bet * weight * (value / bound - 1) for value, weight in values_for_bound)
            for bet, share in zip(FOR_WIDTH.fractions, FOR_WIDTH.log_shares, strict=True)
        )
        assert capital == pytest.approx(40, rel=1e-9)
    assert [sum(map(math.exp, bets.log_shares)) for bets in (FOR_WIDTH, FOR_EFFECTS)] == pytest.approx([1, 1])


def test_interval_does_not_depend_on_the_order_of_observations() -> None:
    values = [0.0, 0.5, 1.0, 1.0, 0.25] * 9
    shuffled = random.Random(1).sample(values, len(values))
    assert make_sequence(*values).interval() == make_sequence(*shuffled).interval()


def test_evidence_excludes_exactly_the_means_outside_the_interval() -> None:
    sequence = make_sequence(*[1.0, 1.0, 0.0] * 20)
    low, high = sequence.interval()
    assert low < 2 / 3 < high
    assert [sequence.evidence(mean) >= 1 for mean in (low - 1e-9, low + 1e-9, high - 1e-9, high + 1e-9)] == [
        True, False, False, True,
    ]  # fmt: skip


def test_interval_of_only_right_verdicts_ends_at_one() -> None:
    low, high = make_sequence(*[1.0] * 100).interval()
    assert high == 1
    assert 0.9 < low < 0.97


def test_weights_give_the_mean_over_datapoints() -> None:
    sequence = ConfidenceSequence()
    for _ in range(400):
        sequence.add(1.0, 0.25)
        sequence.add(0.0, 0.75)
    low, high = sequence.interval()
    assert sequence.mean == 0.25
    assert low < 0.25 < high < 0.4


def test_difference_sequence_excludes_zero_for_positive_differences() -> None:
    sequence = DifferenceSequence()
    for _ in range(10):
        sequence.add(1.0)
        sequence.add(0.0)
    low, high = sequence.interval()
    assert sequence.evidence >= 1
    assert sequence.mean == 0.5
    assert 0 < low < 0.5 < high


@pytest.mark.parametrize(("value", "weight"), [(1.1, 1.0), (-0.1, 1.0), (0.5, 0.0), (0.5, 1.5), (math.nan, 1.0)])
def test_value_or_weight_out_of_range_is_refused(value: float, weight: float) -> None:
    with pytest.raises(ValueError, match="not within"):
        ConfidenceSequence().add(value, weight)


def test_sequence_checked_after_every_game_errs_at_most_5_percent() -> None:
    """`benchmarks/stopping.py` has the full simulation."""
    rng = random.Random(3)
    errors = 0
    for _ in range(60):
        sequence, difference = ConfidenceSequence(), DifferenceSequence()
        is_excluded = False
        for _ in range(50):
            sequence.add(float(rng.random() < 0.7))
            difference.add(rng.choice((-1.0, 0.0, 0.0, 1.0)))
            is_excluded = is_excluded or sequence.evidence(0.7) >= 1 or difference.evidence >= 1
        errors += is_excluded
    assert errors <= 6  # two errors of at most 5 % each
