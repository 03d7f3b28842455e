"""A random sample of units for people to label, in random order, optionally with equal numbers from several strata.

The order depends only on the seed and the units' ids. So the same command shows the same units again, and a larger
sample contains a smaller one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from runner.base.hashing import tagged_hash

SIGNIFICANCE = 0.001
"""The probability below which a difference between labeled and all units is not taken for chance."""
SINGLE_ANSWER_SIGNIFICANCE = 0.05
"""The same if the labeled units have a single answer, so that they show nothing about the other answers."""


class SampledUnit(NamedTuple):
    """A unit that people are asked about."""

    unit_id: str
    position: int
    """The position in the random order, from 0."""
    stratum: str | None
    probability: float
    """The probability of drawing the unit from its stratum, or from all units."""


def sample_units(strata: Mapping[str, str | None], seed: str, size: int | None = None) -> list[SampledUnit]:
    """Return a random sample of the keys of `strata`, in random order; None: all.

    Each stratum gets an equal number of units. A stratum with fewer units gives all, and the others give more. Every
    part of the sample from its start is itself a random sample, so readers may stop at any time.
    """
    members: dict[str | None, list[str]] = {}
    for unit_id in sorted(strata, key=lambda unit_id: tagged_hash("sampled units", [seed, unit_id])):
        members.setdefault(strata[unit_id], []).append(unit_id)
    sizes = _equal_sizes({stratum: len(units) for stratum, units in members.items()}, size)
    sample = {
        unit: sizes[stratum] / len(units) for stratum, units in members.items() for unit in units[: sizes[stratum]]
    }
    # A second random order, since the first has all units of a stratum together.
    ordered = sorted(sample, key=lambda unit_id: tagged_hash("order of units", [seed, unit_id]))
    return [SampledUnit(unit, place, strata[unit], sample[unit]) for place, unit in enumerate(ordered)]


def _equal_sizes(available: Mapping[str | None, int], size: int | None) -> dict[str | None, int]:
    """Divide `size` equally, by at most what is available. The first strata by name get the remainder."""
    if size is None:
        return dict(available)
    left, sizes = size, {}
    names = sorted(available, key=lambda name: (available[name], name or ""))
    for index, name in enumerate(names):  # the smallest first, so that the others can take over what it lacks
        sizes[name] = min(available[name], left // (len(names) - index))
        left -= sizes[name]
    return sizes


def why_not_random(labeled: Counter[str], units: Counter[str], fewest: int) -> str | None:
    """Return why labeled units are not a random sample, by the model's answers; None if they may be one.

    Both counters have the number of units by answer. The count of each answer is compared with the hypergeometric
    distribution of a random sample. `fewest` is the number of units from which a single answer is suspicious.
    """
    size, total = labeled.total(), units.total()
    has_one_answer = len(labeled) == 1 and size >= fewest
    limit = SINGLE_ANSWER_SIGNIFICANCE if has_one_answer else SIGNIFICANCE / max(len(units) - 1, 1)
    for answer in sorted(units, key=lambda answer: (-labeled[answer], answer)):
        if _chance_of_count(labeled[answer], size, units[answer], total) < limit:
            return (
                f"the labeled units are not a random sample: the model answered {answer!r} for {labeled[answer]} of "
                f"the {size} units that nip-run did not draw, and for {units[answer]} of all {total}"
            )
    return None


def _chance_of_count(count: int, size: int, members: int, total: int) -> float:
    """Return the two-sided probability of a count of `members` in a random sample of `size` of `total` units."""
    counts = range(max(0, size + members - total), min(size, members) + 1)
    chances = [
        math.exp(_log_ways(members, k) + _log_ways(total - members, size - k) - _log_ways(total, size)) for k in counts
    ]
    place = count - counts.start
    return min(1.0, 2 * min(math.fsum(chances[: place + 1]), math.fsum(chances[place:])))


def _log_ways(total: int, size: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(size + 1) - math.lgamma(total - size + 1)
