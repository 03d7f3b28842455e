"""A permutation test of whether the level of a facet, such as the order of options, matters for a judge's scores.

If the level does not matter, the readings of one unit under otherwise equal settings are exchangeable between levels.
So the test permutes scores within each stratum (unit and other settings). Two statistics see different effects: the
shift of the levels' means, and the change of single units, which needs repeats. The smaller p-value counts twice
(Bonferroni). A p-value is the share of permutations that reach the statistic (Phipson and Smyth 2010); after
`CLEAR_COUNT` of them, no more are drawn (Besag and Clifford 1991).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runner.statistics.clustered_means import Codes, Floats

PERMUTATIONS = 4_000
CLEAR_COUNT = 20
_FIRST_BATCH = 200
_BATCH_ELEMENTS = 1 << 21
_TOLERANCE = 1e-9

Statistics = Callable[[Floats], tuple[Floats, Floats]]
"""A function that returns the two statistics of each row of residuals."""


@dataclass(frozen=True)
class LevelTest:
    """The p-values of the two statistics and of the test."""

    p: float
    p_shift: float
    p_change: float | None
    """The p-value of changes of single units; None if each unit has one reading at each level."""
    strata: int
    """The number of strata with several levels."""


def permute_levels(scores: Floats, strata: Codes, levels: Codes, seed: int = 0) -> LevelTest | None:
    """Test whether scores depend on the level within strata; None if no stratum has several levels.

    The order of the readings does not matter.
    """
    used = have_several_levels(strata, levels)
    if not used.any():
        return None
    strata, levels = (np.unique(codes[used], return_inverse=True)[1] for codes in (strata, levels))
    order = np.lexsort((scores[used], levels, strata))
    strata, levels, scores = strata[order], levels[order], scores[used][order]
    sizes = np.bincount(strata)
    residuals = scores - (np.bincount(strata, scores) / sizes)[strata]
    is_start = np.ones(len(scores), dtype=bool)
    is_start[1:] = (np.diff(strata) != 0) | (np.diff(levels) != 0)
    starts = np.flatnonzero(is_start)
    cell_sizes = np.diff(np.append(starts, len(scores)))
    indicators = (levels[:, None] == np.arange(levels.max() + 1)).astype(float)

    def statistics(rows: Floats) -> tuple[Floats, Floats]:
        shift = ((rows @ indicators) ** 2 / indicators.sum(axis=0)).sum(axis=1)
        change = (np.add.reduceat(rows, starts, axis=1) ** 2 / cell_sizes).sum(axis=1)
        return shift, change

    p_values = _draw(residuals, strata, statistics, np.random.default_rng(seed))
    has_repeats = bool((cell_sizes > 1).any())
    p = min(1.0, 2 * min(p_values)) if has_repeats else p_values[0]
    return LevelTest(p, p_values[0], p_values[1] if has_repeats else None, len(sizes))


def have_several_levels(strata: Codes, levels: Codes) -> np.ndarray:
    """Return for each reading whether its stratum has readings of several levels."""
    codes = np.unique(strata, return_inverse=True)[1]
    cells = np.unique(np.stack((codes, levels)), axis=1)
    several: np.ndarray = (np.bincount(cells[0]) > 1)[codes]
    return several


def _draw(residuals: Floats, strata: Codes, statistics: Statistics, rng: np.random.Generator) -> tuple[float, float]:
    """Return the p-value of each statistic."""
    limits = [float(value[0]) * (1 - _TOLERANCE) - _TOLERANCE**2 for value in statistics(residuals[None, :])]
    size, reached, drawn = len(residuals), np.zeros(2, dtype=np.int64), 0
    while drawn < PERMUTATIONS and (drawn < _FIRST_BATCH or (reached < CLEAR_COUNT).any()):
        remaining = (_FIRST_BATCH if drawn < _FIRST_BATCH else PERMUTATIONS) - drawn
        count = max(1, min(remaining, _BATCH_ELEMENTS // size))
        order = np.argsort(rng.random((count, size)) + strata, axis=1)  # within strata, which are sorted
        permuted = statistics(residuals[order])
        reached += [int(np.count_nonzero(values >= limit)) for values, limit in zip(permuted, limits, strict=True)]
        drawn += count
    first, second = ((1 + reached) / (1 + drawn)).tolist()
    return first, second
