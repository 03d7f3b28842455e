"""A random sample of units for people to label, in random order, optionally with equal numbers from several strata.

The order depends only on the seed and the units' ids. So the same command shows the same units again, and a larger
sample contains a smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from runner.base.hashing import tagged_hash


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
