"""A permutation test of whether the level of a facet, such as the order of options, matters for a judge's scores.

If the level does not matter, the readings of one unit under otherwise equal settings are exchangeable between levels.
So the test permutes scores within each stratum (unit and other settings). Two statistics see different effects: the
shift of the levels' means, and the change of single units, which needs repeats. The smaller p-value counts twice
(Bonferroni). A p-value is the share of permutations that reach the statistic (Phipson and Smyth 2010); after
`CLEAR_COUNT` of them, no more are drawn (Besag and Clifford 1991). `permuted_sums` draws the permutations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner.statistics.clustered_means import Codes, Floats
from runner.statistics.instrument.permuted_sums import Design, as_designs

PERMUTATIONS = 4_000
CLEAR_COUNT = 20
_FIRST_BATCH = 200
_BATCH_STRATA = 1 << 19
"""The number of strata, over all permutations of a batch, that are permuted before the p-values are checked."""
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class LevelTest:
    """The p-values of the two statistics and of the test."""

    p: float
    p_shift: float
    p_change: float | None
    """The p-value of changes of single units; None if each unit has one reading at each level."""
    strata: int
    """The number of strata with several levels."""


def permute_levels(scores: Floats, strata: Codes, levels: Codes) -> LevelTest | None:
    """Test whether scores depend on the level within strata; None if no stratum has several levels.

    The order of the readings does not matter.
    """
    used = have_several_levels(strata, levels)
    if not used.any():
        return None
    strata, levels = (np.unique(codes[used], return_inverse=True)[1] for codes in (strata, levels))
    order = np.lexsort((scores[used], strata))
    strata, levels, scores = strata[order], levels[order], scores[used][order]
    residuals = scores - (np.bincount(strata, scores) / np.bincount(strata))[strata]
    shape = int(strata.max()) + 1, int(levels.max()) + 1
    cells = strata * shape[1] + levels
    counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    sums = np.bincount(cells, residuals, counts.size).reshape(shape)
    level_sizes = counts.sum(axis=0)
    observed = (sums.sum(axis=0) ** 2 / level_sizes).sum(), (sums**2 / np.maximum(counts, 1)).sum()
    p_values = _draw(as_designs(residuals, strata, counts), level_sizes, observed, np.random.default_rng(0))
    has_repeats = bool((counts > 1).any())
    p = min(1.0, 2 * min(p_values)) if has_repeats else p_values[0]
    return LevelTest(p, p_values[0], p_values[1] if has_repeats else None, shape[0])


def have_several_levels(strata: Codes, levels: Codes) -> np.ndarray:
    """Return for each reading whether its stratum has readings of several levels."""
    codes = np.unique(strata, return_inverse=True)[1]
    cells = np.unique(np.stack((codes, levels)), axis=1)
    return np.asarray((np.bincount(cells[0]) > 1)[codes])


def _draw(
    designs: list[Design], level_sizes: Codes, observed: tuple[float, float], rng: np.random.Generator
) -> tuple[float, float]:
    """Return the p-value of each statistic."""
    limits = [value * (1 - _TOLERANCE) - _TOLERANCE**2 for value in observed]
    strata, reached, drawn = sum(design.strata for design in designs), np.zeros(2, dtype=np.int64), 0
    while drawn < PERMUTATIONS and (drawn < _FIRST_BATCH or (reached < CLEAR_COUNT).any()):
        count = max(drawn, _BATCH_STRATA // strata) if drawn else _FIRST_BATCH
        count = min(count, PERMUTATIONS - drawn)
        totals, change = np.zeros((count, len(level_sizes))), np.zeros(count)
        for design in designs:
            design.add_permuted(totals, change, rng)
        shift = (totals**2 / level_sizes).sum(axis=1)
        reached += [int(np.count_nonzero(x >= limit)) for x, limit in zip((shift, change), limits, strict=True)]
        drawn += count
    first, second = ((1 + reached) / (1 + drawn)).tolist()
    return first, second
