"""Check runs that stop early: at most 5 % may err, and they must need fewer games than a fixed plan.

    python benchmarks/stopping.py [--times N] [--seed S]

N runs are simulated in each situation, and the sequences of the project are evaluated after every game or group of
games. An interval errs if it ever excludes the true mean; a comparison errs if it ever reports a difference where there
is none. Each run draws new groups, as from all possible problems.

Then two runs on the same datapoints, played once each, differ by 15 points. They disagree on a share of the datapoints,
which varies. The fixed plan is that of `nip-run plan --detect 0.15` without an earlier run: 80 % power for two
independent runs with the largest possible variance of a share (0.25). For comparison, the output also has a plan that
knows the variance.
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
"""The games of each run. The sequences are evaluated after each of them."""
EFFECT = 0.15
CONCURRENCY = 64
REALISTIC = (0.2, 0.25)
"""The shares of disagreement of two judges who are right in 60 % and 75 % and find the same datapoints hard.

Their scores have a correlation of 0.6 and 0.5, and Var(d) is 0.18 and 0.23.
"""

Draw = Callable[[np.random.Generator], Iterator[tuple[float, float]]]
"""Draws the observations of one run: values with their weights."""


def main() -> int:
    args = sample_arguments(__doc__, 2000)
    check = SoftAssertions()
    for name, (draw, truth) in MEANS.items():
        share = wrong_intervals(draw, truth, args.times, np.random.default_rng([args.seed, *name.encode()]))
        check(share <= 0.05, f"interval, {name}: {share:.1%} of {args.times} runs left out the truth at some look")
    for name, draw in NO_DIFFERENCE.items():
        share = wrong_decisions(draw, args.times, np.random.default_rng([args.seed, *name.encode()]))
        check(share <= 0.05, f"no difference, {name}: {share:.1%} of {args.times} runs said there is one")
    fixed_plan = groups_needed(EFFECT, UNKNOWN)
    print(f"\n15 points; the fixed plan that knows nothing: {fixed_plan} games")
    for disagree in (*REALISTIC, 0.3, 0.45):
        informed_plan = groups_needed(EFFECT, disagree - EFFECT**2)
        runs, rng = max(args.times // 2, 100), np.random.default_rng([args.seed, 15])
        game_counts, started_counts, is_right = simulate_stopping(disagree, runs, rng)
        mean = float(np.mean(game_counts))
        decided_in_time = float(np.mean((game_counts <= fixed_plan) & is_right))
        line = (
            f"disagreeing on {disagree:.0%}: {mean:.0f} games on average, {started_counts.mean():.0f} with others "
            f"begun at concurrency {CONCURRENCY}: {1 - started_counts.mean() / fixed_plan:.0%} fewer than "
            f"{fixed_plan}; {decided_in_time:.0%} decided rightly within {fixed_plan}. A plan with the variance known "
            f"beforehand: {informed_plan}"
        )
        if disagree in REALISTIC:
            check(started_counts.mean() <= 0.6 * fixed_plan, line)
            check(np.mean(is_right) >= 0.975, f"disagreeing on {disagree:.0%}: {np.mean(is_right):.1%} decided rightly")
        else:
            print(f"      {line}")
    return check.exit_code()


def wrong_intervals(draw: Draw, truth: float, runs: int, rng: np.random.Generator) -> float:
    """Return the share of runs whose interval ever excludes the truth."""
    return float(np.mean([_excludes_truth(draw(rng), truth) for _ in range(runs)]))


def _excludes_truth(observations: Iterator[tuple[float, float]], truth: float) -> bool:
    sequence = ConfidenceSequence()
    for value, weight in observations:
        sequence.add(value, weight)
        if sequence.evidence(truth) >= 1:
            return True
    return False


def wrong_decisions(draw: Draw, runs: int, rng: np.random.Generator) -> float:
    """Return the share of runs that ever find a difference."""
    return float(np.mean([_play_until_decided(draw(rng))[1] != 0 for _ in range(runs)]))


def simulate_stopping(
    disagree: float, runs: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulate runs with the planted effect. Return the needed and the started games, and if it decided rightly.

    The simulation starts as many games as the engine would; those beyond the needed ones have a cost but no use.
    """
    better, worse = (disagree + EFFECT) / 2, (disagree - EFFECT) / 2
    decisions = [_play_until_decided(_draw_pairs(better, worse)(rng)) for _ in range(runs)]
    games, signs, started = map(np.array, zip(*decisions, strict=True))
    return games, started, signs > 0


def _play_until_decided(observations: Iterator[tuple[float, float]]) -> tuple[int, int, int]:
    """Return how many observations a decision took, its sign (0: undecided), and how many games were started."""
    sequence, games, started = DifferenceSequence(), 0, games_ahead(0, 0.0, CONCURRENCY, steady=False)
    for games, (difference, weight) in enumerate(observations, 1):
        sequence.add(difference, weight)
        if (progress := sequence.evidence) >= 1:
            assert sequence.mean is not None
            return games, 1 if sequence.mean > 0 else -1, started
        started = max(started, games + games_ahead(games, progress, CONCURRENCY, steady=False))
    return games, 0, games


def _draw_games(chance: float) -> Draw:
    """Draw games on datapoints that are groups of their own, played once."""
    return lambda rng: ((float(right), 1.0) for right in rng.random(GAMES) < chance)


def _draw_groups(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Draw groups of one to four datapoints, played three times. Larger groups are harder; weights are sizes."""
    sizes = rng.integers(1, 5, GAMES // 4)
    chances = rng.beta(*_GROUP_BETAS[sizes - 1].T)
    for size, chance in zip(sizes, chances, strict=True):
        yield rng.binomial(3 * size, chance) / (3 * size), size / 4


_GROUP_BETAS = np.array([(9.0, 1.0), (8.0, 2.0), (6.0, 4.0), (4.0, 6.0)])
_GROUPED_MEAN = float(np.average(_GROUP_BETAS[:, 0] / 10, weights=[1, 2, 3, 4]))
"""The mean over all datapoints, which differs from the mean over groups."""


def _draw_pairs(better: float, worse: float) -> Draw:
    """Draw the differences of two runs that played each datapoint once."""

    def draw(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        numbers = rng.random(GAMES)
        return ((float(number < better) - float(better <= number < better + worse), 1.0) for number in numbers)

    return draw


def _draw_repeats(rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Draw the differences of two runs of the same system: groups of one to four datapoints, played three times."""
    sizes = rng.integers(1, 5, GAMES // 4)
    for size, chance in zip(sizes, rng.beta(1.4, 0.6, len(sizes)), strict=True):
        yield (rng.binomial(3 * size, chance) - rng.binomial(3 * size, chance)) / (3 * size), size / 4


MEANS: dict[str, tuple[Draw, float]] = {
    **{f"accuracy {chance:.0%}": (_draw_games(chance), chance) for chance in (0.5, 0.7, 0.95)},
    "groups of unequal size": (_draw_groups, _GROUPED_MEAN),
}
NO_DIFFERENCE: dict[str, Draw] = {
    **{f"disagreeing on {2 * side:.0%}": _draw_pairs(side, side) for side in (0.05, 0.15, 0.25)},
    "three repeats in groups": _draw_repeats,
}


if __name__ == "__main__":
    sys.exit(main())
