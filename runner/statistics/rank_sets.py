"""95 % confidence sets of ranks, from tests of pairs of systems.

A system's best possible rank is one more than the number of systems that are significantly better. Its worst possible
rank is the number of systems that are not significantly worse, itself included. If all pairs are tested and the tests
are corrected for their number, then with 95 % confidence all sets contain the true ranks (Mogstad, Romano, Shaikh and
Wilhelm 2024, "Inference for ranks with applications to mobility across neighbourhoods and academic achievement across
countries").

Separations are closed transitively: if A is better than B and B better than C, A is better than C. So two systems that
are not separated always share a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from runner.statistics.significance import ALPHA, holm

Name = TypeVar("Name", bound=Hashable)
Pair = tuple[Name, Name]
PairTests = Callable[[Sequence[tuple[Name, Name]]], Sequence[float]]
"""Returns the two-sided p-value of each pair, whose first system is placed first; 1 if the test favors the second."""

MAX_PAIRWISE = 50
"""The maximum number of systems for which all pairs are tested. If there are more, each is tested against the first."""
PAIR_LEVEL = ALPHA / (MAX_PAIRWISE * (MAX_PAIRWISE - 1) / 2)
"""The smallest level of a test of a pair, after the correction for all pairs. Tests must have smaller p-values too."""


def rank_sets(order: Iterable[Name], p_values: PairTests[Name]) -> dict[Name, tuple[int, int]]:
    """Return the first and last rank of each system's confidence set; `order` has the best system first.

    P-values are Holm-corrected for all pairs, even if systems are only tested against the first: it is first partly by
    luck. With 40 equal systems, a smaller correction would separate one of them in a quarter of all tables.
    """
    names = list(order)
    count = len(names)
    tested = names if count <= MAX_PAIRWISE else names[:1]
    pairs = [(better, other) for place, better in enumerate(tested) for other in names[place + 1 :]]
    adjusted = holm(p_values(pairs), count * (count - 1) // 2)
    worse: dict[Name, set[Name]] = {name: set() for name in names}
    for (better, other), p in zip(pairs, adjusted, strict=True):
        if p <= ALPHA:
            worse[better].add(other)
    for name in reversed(tested):  # the sets of the systems after `name` are already closed transitively
        worse[name] |= {further for other in worse[name] for further in worse[other]}
    number_better = dict.fromkeys(names, 0)
    for others in worse.values():
        for name in others:
            number_better[name] += 1
    return {name: (1 + number_better[name], count - len(worse[name])) for name in names}
