"""The pairings of a tournament: all of them in the order of a round robin, and those of a Swiss round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def swiss_round(ratings: Sequence[float], meetings: Mapping[tuple[int, int], int]) -> list[tuple[int, int]]:
    """Return the pairs of a Swiss round: from the best player on, the nearest opponent among those met least often.

    With an odd number of players, one player rests: the lowest among those who have played most.
    """
    played = [sum(count for pair, count in meetings.items() if player in pair) for player in range(len(ratings))]
    waiting = sorted(range(len(ratings)), key=lambda player: (-ratings[player], player))
    if len(waiting) % 2:
        waiting.remove(max(waiting, key=lambda player: (played[player], waiting.index(player))))
    pairs = []
    while waiting:
        player = waiting.pop(0)
        pair_with = {other: (min(player, other), max(player, other)) for other in waiting}
        opponent = min(waiting, key=lambda other: meetings.get(pair_with[other], 0))
        waiting.remove(opponent)
        pairs.append(pair_with[opponent])
    return pairs
