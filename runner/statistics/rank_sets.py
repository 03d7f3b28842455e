"""95 % confidence sets of ranks, from tests of pairs of systems.

A system's best possible rank is one more than the number of systems that are significantly better, and its worst is the
number of systems that are not significantly worse. If all pairs are tested and the tests are corrected for all of them,
all sets contain the true ranks at once with 95 % confidence (Mogstad, Romano, Shaikh and Wilhelm 2024, "Inference for
ranks with applications to mobility across neighbourhoods and academic achievement across countries").

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
"""The most systems of which all pairs are tested; of more, each is tested against the leader only."""
PAIR_LEVEL = ALPHA / (MAX_PAIRWISE * (MAX_PAIRWISE - 1) / 2)
"""The smallest level at which a pair is tested, if all pairs are: the test has to resolve smaller p-values."""


def rank_sets(order: Iterable[Name], p_values: PairTests[Name]) -> dict[Name, tuple[int, int]]:
    """Return the first and last rank of each system's confidence set; `order` has the best system first.

    P-values are Holm-corrected for all pairs. This holds for tests against the leader too, because the leader is the
    best partly by luck: with 40 equal systems, uncorrected selection would separate one in a quarter of all tables.
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
    for name in reversed(tested):  # the sets of the systems after it are already closed
        worse[name] |= {further for other in worse[name] for further in worse[other]}
    number_better = dict.fromkeys(names, 0)
    for others in worse.values():
        for name in others:
            number_better[name] += 1
    return {name: (1 + number_better[name], count - len(worse[name])) for name in names}
