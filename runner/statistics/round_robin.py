"""The pairings of a tournament in which each player plays each other."""

from __future__ import annotations

from typing import NamedTuple


class Pairing(NamedTuple):
    """Two players and a judge, as numbers. The first player has the lower number."""

    first: int
    second: int
    judge: int


def every_pairing(players: int, judges: int) -> list[Pairing]:
    """Return every pairing in rounds, so that each player plays once before any plays twice (the circle method)."""
    circle: list[int | None] = [*range(players), *([None] if players % 2 else [])]
    pairings = []
    for _ in range(len(circle) - 1):
        for first, second in zip(circle[: len(circle) // 2], reversed(circle[len(circle) // 2 :]), strict=True):
            if first is not None and second is not None:
                pairings += [Pairing(min(first, second), max(first, second), judge) for judge in range(judges)]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return pairings
