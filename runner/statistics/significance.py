"""The level and the power of all tests, and the correction for several tests (Holm 1979), without NumPy."""

from __future__ import annotations

from collections.abc import Sequence

ALPHA = 0.05
POWER = 0.8
"""The power of a test in the computation of sample sizes and detectable differences."""


def holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Return Holm's adjusted p-values, in the given order; `family` is the number of all tests, if there are more."""
    family = len(p_values) if family is None else family
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (family - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
