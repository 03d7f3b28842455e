"""Confidence sequences hold at every look, in whatever order what they saw came."""

from __future__ import annotations

import math
import random

import pytest

from runner.statistics.confidence_sequences import FOR_EFFECTS, FOR_WIDTH, ConfidenceSequence, DifferenceSequence


def sequence_of(*values: float, weight: float = 1.0) -> ConfidenceSequence:
    sequence = ConfidenceSequence()
    for value in values:
        sequence.add(value, weight)
    return sequence


def test_before_the_first_observation_everything_is_left() -> None:
    assert (ConfidenceSequence().interval(), ConfidenceSequence().mean) == ((0.0, 1.0), None)
    assert DifferenceSequence().evidence < 1


def test_capital_is_that_of_bets_written_out() -> None:
    """Against a plain sum over bets, one factor for each observation; at the end of an interval it is what it takes."""
    values = [(1.0, 1.0), (0.0, 0.5), (0.75, 0.25), (1.0, 0.5)] * 6
    sequence = ConfidenceSequence()
    for value, weight in values:
        sequence.add(value, weight)
    low, high = sequence.interval()
    for theta, sided in ((low, values), (1 - high, [(1 - value, weight) for value, weight in values])):
        capital = sum(
            math.exp(share) * math.prod(1 + bet * weight * (value / theta - 1) for value, weight in sided)
            for bet, share in zip(FOR_WIDTH.fractions, FOR_WIDTH.log_shares, strict=True)
        )
        assert capital == pytest.approx(40, rel=1e-9)
    assert [sum(map(math.exp, bets.log_shares)) for bets in (FOR_WIDTH, FOR_EFFECTS)] == pytest.approx([1, 1])


def test_the_interval_does_not_depend_on_the_order() -> None:
    values = [0.0, 0.5, 1.0, 1.0, 0.25] * 9
    shuffled = random.Random(1).sample(values, len(values))
    assert sequence_of(*values).interval() == sequence_of(*shuffled).interval()


def test_excluding_is_to_be_outside_of_the_interval() -> None:
    sequence = sequence_of(*[1.0, 1.0, 0.0] * 20)
    low, high = sequence.interval()
    assert low < 2 / 3 < high
    assert [sequence.evidence(at) >= 1 for at in (low - 1e-9, low + 1e-9, high - 1e-9, high + 1e-9)] == [
        True, False, False, True,
    ]  # fmt: skip


def test_all_right_has_an_interval_up_to_one() -> None:
    low, high = sequence_of(*[1.0] * 100).interval()
    assert high == 1
    assert 0.9 < low < 0.97


def test_weights_make_the_mean_that_of_datapoints() -> None:
    sequence = ConfidenceSequence()
    for _ in range(400):
        sequence.add(1.0, 0.25)
        sequence.add(0.0, 0.75)
    low, high = sequence.interval()
    assert sequence.mean == 0.25
    assert low < 0.25 < high < 0.4


def test_a_difference_is_a_mean_from_minus_one_to_one() -> None:
    sequence = DifferenceSequence()
    for _ in range(10):
        sequence.add(1.0)
        sequence.add(0.0)
    low, high = sequence.interval()
    assert sequence.evidence >= 1
    assert sequence.mean == 0.5
    assert 0 < low < 0.5 < high


@pytest.mark.parametrize(("value", "weight"), [(1.1, 1.0), (-0.1, 1.0), (0.5, 0.0), (0.5, 1.5), (math.nan, 1.0)])
def test_what_the_guarantee_does_not_cover_is_refused(value: float, weight: float) -> None:
    with pytest.raises(ValueError, match="not within"):
        ConfidenceSequence().add(value, weight)


def test_looked_at_after_every_game_it_errs_at_most_5_percent() -> None:
    """The small form of `benchmarks/stopping.py`."""
    rng = random.Random(3)
    wrong = 0
    for _ in range(60):
        sequence, difference = ConfidenceSequence(), DifferenceSequence()
        left_out = False
        for _ in range(50):
            sequence.add(float(rng.random() < 0.7))
            difference.add(rng.choice((-1.0, 0.0, 0.0, 1.0)))
            left_out = left_out or sequence.evidence(0.7) >= 1 or difference.evidence >= 1
        wrong += left_out
    assert wrong <= 6  # two errors of at most 5 % each
