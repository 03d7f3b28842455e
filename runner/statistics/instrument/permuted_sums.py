"""Sums of scores that are randomly permuted between the levels of a facet, within strata.

A cell has the scores of one level in a stratum. Only the sums of cells are needed, so most strata are not permuted
score by score. Strata with the same verdicts have few outcomes, and a multinomial distribution tells how often each
occurs. The sums of all subsets of a small stratum are computed once, and each permutation chooses subsets. All three
ways draw from the distribution of random permutations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from runner.statistics.clustered_means import Codes, Floats

_BLOCK_ELEMENTS = 1 << 15
"""The number of elements of a temporary array, which bounds the memory and fits into the processor's cache."""
_MOST_READINGS = 12
"""The maximum number of readings of a stratum whose subsets are listed."""
_MOST_OUTCOMES = 512


@dataclass(frozen=True, eq=False)
class Design:
    """The strata with equal numbers of readings at each level. `sizes` has the numbers above 0."""

    levels: Codes
    sizes: tuple[int, ...]
    residuals: Floats
    """The residuals of each stratum in increasing order, without `repeated`. Those of a stratum sum to 0."""
    repeated: list[tuple[int, Floats, Floats]]
    """Equal strata with few outcomes: their number, the sums of the cells by outcome, and the outcomes' probabilities.
    """

    @property
    def strata(self) -> int:
        return max(len(self.residuals), 1)

    def add_permuted(self, totals: Floats, change: Floats, rng: np.random.Generator) -> None:
        """Add random permutations: the sums of the levels to `totals`, and the sum of sum² / size of cells to `change`.

        Both have a row for each permutation.
        """
        for number, sums, probabilities in self.repeated:
            counts = rng.multinomial(number, probabilities, size=len(change)).astype(float)
            totals[:, self.levels] += counts @ sums
            change += counts @ (sums**2 / self.sizes).sum(axis=1)
        is_small = sum(self.sizes) <= _MOST_READINGS
        elements = max(len(change), 1 << sum(self.sizes)) if is_small else len(change) * sum(self.sizes)
        step = max(1, _BLOCK_ELEMENTS // elements)
        for start in range(0, len(self.residuals), step):
            block = self.residuals[start : start + step]
            draw = self._choose_subsets if is_small else self._permute
            for level, size, sums in zip(self.levels, self.sizes, draw(block, len(change), rng), strict=True):
                totals[:, level] += sums.sum(axis=1)
                change += np.einsum("ps,ps->p", sums, sums) / size

    def _permute(self, block: Floats, count: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield the sums of each cell by permutation and stratum."""
        rows = np.broadcast_to(block, (count, *block.shape)).reshape(-1, block.shape[1])
        starts = np.cumsum((0, *self.sizes[:-1]))
        sums = np.add.reduceat(rng.permuted(rows, axis=1), starts, axis=1)
        yield from np.moveaxis(sums.reshape(count, len(block), -1), 2, 0)

    def _choose_subsets(self, block: Floats, count: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield the sums of each cell by permutation and stratum."""
        subset_sums = np.zeros((len(block), 1))
        for residuals in block.T:
            subset_sums = np.concatenate((subset_sums, subset_sums + residuals[:, None]), axis=1)
        offsets = np.arange(len(block)) * subset_sums.shape[1]
        states = np.zeros((count, len(block)), dtype=np.int64)
        last = np.zeros((count, len(block)))
        for subsets, following in _subset_choices(self.sizes):
            choices = states * subsets.shape[1] + rng.integers(0, subsets.shape[1], states.shape, dtype=np.uint16)
            sums = subset_sums.take(subsets.take(choices) + offsets)
            states = following.take(choices)
            last -= sums
            yield sums
        yield last


def as_designs(residuals: Floats, strata: Codes, counts: Codes) -> list[Design]:
    """Return the strata by their numbers of readings at each level, which `counts` has by stratum and level.

    `strata` has the stratum of each residual. The residuals of a stratum are in increasing order, and their sum is 0.
    """
    patterns, numbers = np.unique(counts, axis=0, return_inverse=True)
    designs = []
    for number, pattern in enumerate(patterns):
        rows = residuals[numbers.ravel()[strata] == number].reshape(-1, pattern.sum())
        sizes = tuple(pattern[pattern > 0].tolist())
        kinds, positions, multiplicities = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        is_binary = ((kinds == kinds[:, :1]) | (kinds == kinds[:, -1:])).all(axis=1)
        most_outcomes = math.prod(size + 1 for size in sizes)
        has_few = is_binary & (most_outcomes <= np.minimum(multiplicities * sum(sizes), _MOST_OUTCOMES))
        repeated = [(int(multiplicities[kind]), *_outcomes(kinds[kind], sizes)) for kind in np.flatnonzero(has_few)]
        designs.append(Design(np.flatnonzero(pattern), sizes, rows[~has_few[positions.ravel()]], repeated))
    return designs


def _outcomes(residuals: Floats, sizes: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the sums of the cells for each outcome of a stratum with at most two scores, and their probabilities."""
    low, high = residuals[[0, -1]]
    high_count = int((residuals == high).sum())
    numbers, weights = zip(*_distribute(high_count, sizes), strict=True)
    sums = np.array(numbers) * (high - low) + np.array(sizes) * low
    return sums, np.array(weights) / math.comb(sum(sizes), high_count)


def _distribute(high_count: int, sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield how many of the higher scores each cell may have, and the number of ways to choose these scores."""
    if len(sizes) == 1:
        yield (high_count,), math.comb(sizes[0], high_count)
        return
    for first in range(max(0, high_count - sum(sizes[1:])), min(sizes[0], high_count) + 1):
        for later_numbers, ways in _distribute(high_count - first, sizes[1:]):
            yield (first, *later_numbers), ways * math.comb(sizes[0], first)


@cache
def _subset_choices(sizes: tuple[int, ...]) -> list[tuple[Codes, Codes]]:
    """Return the subsets of readings that each cell except the last may have, as bits, and the state that follows.

    Both are arrays by state and choice. A state is the set of readings that no earlier cell has.
    """
    result: list[tuple[Codes, Codes]] = []
    states = np.array([(1 << sum(sizes)) - 1])
    for size in sizes[:-1]:
        subsets = np.array([
            [sum(bits) for bits in combinations([1 << i for i in range(sum(sizes)) if state >> i & 1], size)]
            for state in states.tolist()
        ])  # fmt: skip
        states, following = np.unique(states[:, None] - subsets, return_inverse=True)
        result.append((subsets, following.reshape(subsets.shape)))
    return result
