"""What stops when it is decided errs at most 5 % of the time, and a clear effect costs fewer games than a fixed plan.

    python benchmarks/stopping.py [--times N] [--seed S]

N runs of each situation of the project's own sequences, looked at after every game, or after every group of games. An
error of an interval: it has left out the true mean at any look. An error of a comparison: at no difference it has said
that there is one, at any look. Groups are drawn anew for each run, as from all problems there might be.

Then a difference of 15 points between two runs on the same datapoints, played once each, at several shares of
datapoints on which the two disagree. The fixed plan is that of `nip-run plan --detect 0.15`, which knows of no earlier
run: 80 % power, and two runs that are independent, each with the most that a share can vary (0.25). The plan that knows
the variance beforehand, as nobody does without a first run, stands beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
from common import sample_arguments

from runner.results.stopping_rule import games_ahead
from runner.statistics.confidence_sequences import ConfidenceSequence, DifferenceSequence
from runner.statistics.variance_components import UNKNOWN, groups_needed
from tests.support.soft_assertions import SoftAssertions

GAMES = 400
"""Of each run, and looks."""
EFFECT = 0.15
CONCURRENCY = 64
REALISTIC = (0.2, 0.25)
"""How often two judges disagree who are right 60 % and 75 % of the time, and find the same datapoints hard: their
scores correlate by 0.6 and 0.5, and Var(d) is 0.18 and 0.23."""

Draw = Callable[[np.random.Generator], Iterator[tuple[float, float]]]
"""Observations of one run: values with their weights."""


def main() -> int:
    args = sample_arguments(__doc__, 2000)
    check = SoftAssertions()
    for name, (draw, truth) in MEANS.items():
        share = wrong_intervals(draw, truth, args.times, np.random.default_rng([args.seed, *name.encode()]))
        check(share <= 0.05, f"interval, {name}: {share:.1%} of {args.times} runs left out the truth at some look")
    for name, draw in NO_DIFFERENCE.items():
        share = wrong_decisions(draw, args.times, np.random.default_rng([args.seed, *name.encode()]))
        check(share <= 0.05, f"no difference, {name}: {share:.1%} of {args.times} runs said there is one")
    fixed = groups_needed(EFFECT, UNKNOWN)
    print(f"\n15 points; the fixed plan that knows nothing: {fixed} games")
    for disagree in (*REALISTIC, 0.3, 0.45):
        known = groups_needed(EFFECT, disagree - EFFECT**2)
        runs, rng = max(args.times // 2, 100), np.random.default_rng([args.seed, 15])
        needed, begun, right = stopped(disagree, runs, rng)
        mean = float(np.mean(needed))
        found = float(np.mean((needed <= fixed) & right))
        line = (
            f"disagreeing on {disagree:.0%}: {mean:.0f} games on average, {begun.mean():.0f} with those begun beyond, "
            f"at concurrency {CONCURRENCY}: {1 - begun.mean() / fixed:.0%} fewer than {fixed}; "
            f"{found:.0%} decided rightly within {fixed}. A plan with the variance known beforehand: {known}"
        )
        if disagree in REALISTIC:
            check(begun.mean() <= 0.6 * fixed, line)
            check(np.mean(right) >= 0.975, f"disagreeing on {disagree:.0%}: {np.mean(right):.1%} decided rightly")
        else:
            print(f"      {line}")
    return check.exit_code()


def wrong_intervals(draw: Draw, truth: float, runs: int, rng: np.random.Generator) -> float:
    """The share of runs whose interval leaves out the truth at any look."""
    return float(np.mean([_left_out(draw(rng), truth) for _ in range(runs)]))


def _left_out(observations: Iterator[tuple[float, float]], truth: float) -> bool:
    sequence = ConfidenceSequence()
    for value, weight in observations:
        sequence.add(value, weight)
        if sequence.evidence(truth) >= 1:
            return True
    return False


def wrong_decisions(draw: Draw, runs: int, rng: np.random.Generator) -> float:
    """The share of runs that find a difference at any look."""
    return float(np.mean([_until_decided(draw(rng))[1] != 0 for _ in range(runs)]))


def stopped(disagree: float, runs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For runs with the planted effect: the games that each took, those begun by then, and whether it decided rightly.

    As many games are begun as the engine lets begin, which are paid for though nothing depends on them.
    """
    better, worse = (disagree + EFFECT) / 2, (disagree - EFFECT) / 2
    found = [_until_decided(_pairs(better, worse)(rng)) for _ in range(runs)]
    games, signs, begun = map(np.array, zip(*found, strict=True))
    return games, begun, signs > 0


def _until_decided(observations: Iterator[tuple[float, float]]) -> tuple[int, int, int]:
    """How many observations it took, which way it went (0: it was not decided), and how many were begun."""
    sequence, games, begun = DifferenceSequence(), 0, games_ahead(0, 0.0, CONCURRENCY, steady=False)
    for games, (difference, weight) in enumerate(observations, 1):
        sequence.add(difference, weight)
        if (progress := sequence.evidence) >= 1:
            assert sequence.mean is not None
            return games, 1 if sequence.mean > 0 else -1, begun
        begun = max(begun, games + games_ahead(games, progress, CONCURRENCY, steady=False))
    return games, 0, games


def _games(chance: float) -> Draw:
    """Each datapoint a group of its own, played once."""
    return lambda rng: ((float(right), 1.0) for right in rng.random(GAMES) < chance)


def _groups(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Groups of one to four datapoints, played three times each; the larger a group, the harder. Weights are sizes."""
    sizes = rng.integers(1, 5, GAMES // 4)
    chances = rng.beta(*_HARDER[sizes - 1].T)
    for size, chance in zip(sizes, chances, strict=True):
        yield rng.binomial(3 * size, chance) / (3 * size), size / 4


_HARDER = np.array([(9.0, 1.0), (8.0, 2.0), (6.0, 4.0), (4.0, 6.0)])
_OF_GROUPS = float(np.average(_HARDER[:, 0] / 10, weights=[1, 2, 3, 4]))
"""Of all datapoints, which is not the mean over groups."""


def _pairs(better: float, worse: float) -> Draw:
    """Differences of two runs that played each datapoint once."""

    def draw(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        chance = rng.random(GAMES)
        return ((float(one < better) - float(better <= one < better + worse), 1.0) for one in chance)

    return draw


def _repeats(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Differences of two runs of the same system, three repeats of groups of one to four datapoints."""
    sizes = rng.integers(1, 5, GAMES // 4)
    for size, chance in zip(sizes, rng.beta(1.4, 0.6, len(sizes)), strict=True):
        yield (rng.binomial(3 * size, chance) - rng.binomial(3 * size, chance)) / (3 * size), size / 4


MEANS: dict[str, tuple[Draw, float]] = {
    **{f"accuracy {chance:.0%}": (_games(chance), chance) for chance in (0.5, 0.7, 0.95)},
    "groups of unequal size": (_groups, _OF_GROUPS),
}
NO_DIFFERENCE: dict[str, Draw] = {
    **{f"disagreeing on {2 * side:.0%}": _pairs(side, side) for side in (0.05, 0.15, 0.25)},
    "three repeats in groups": _repeats,
}


if __name__ == "__main__":
    sys.exit(main())
