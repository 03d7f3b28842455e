"""The choice of a tournament's next pairing from the results so far.

Every function is deterministic: equal results give equal pairings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from runner.statistics.clustered_means import Floats
from runner.statistics.ratings import ELO, RatingModel, design_rows, logistic
from runner.statistics.round_robin import Pairing


def most_informative(
    model: RatingModel, pairings: Sequence[Pairing], expected_games: Callable[[Pairing], float]
) -> Pairing:
    """Return the pairing whose next games narrow the widest intervals of the overall ratings most.

    `expected_games` returns the number of games with a winner that a pairing would add. Their information at the
    current ratings tells by which share they reduce each variance. The mean of the variances' fourth powers weights
    the widest intervals most, but also counts the others, since a game often narrows several.
    """
    rated, covariance = model.games, model.covariance
    combinations = np.array([model.rating_weights(player, "overall") for player in range(rated.players)])
    spread = combinations @ covariance
    variances = np.einsum("ij,ij->i", spread, combinations)
    errors = [model.rating(player, "overall").stderr for player in range(rated.players)]
    measured = np.where([error is None for error in errors], variances, [((error or 0) / ELO) ** 2 for error in errors])
    losses = []
    for pairing in pairings:
        rows = _rows_of(pairing, rated.players, rated.judges)
        chances = logistic(rows @ model.coefficients)
        noise = np.diag(len(rows) / (expected_games(pairing) * chances * (1 - chances)))
        gained = spread @ rows.T
        reduction = np.einsum("ij,ij->i", gained, np.linalg.solve(noise + rows @ covariance @ rows.T, gained.T).T)
        losses.append(float(np.mean((measured * np.maximum(1 - reduction / variances, 0)) ** 4)))
    # Rounding lets the order of the pairings decide ties, which otherwise differ between machines and processes.
    return pairings[int(np.argmin(np.round(np.asarray(losses) / max(losses), 9)))]


def _rows_of(pairing: Pairing, players: int, judges: int) -> Floats:
    """Return the rows of the four kinds of games of a pairing: each player argues right, in each seat."""
    right = np.array([pairing.first, pairing.first, pairing.second, pairing.second])
    wrong = np.array([pairing.second, pairing.second, pairing.first, pairing.first])
    judge, is_first = np.full(4, pairing.judge), np.array([True, False, True, False])
    return design_rows(players, judges, right, wrong, judge, right_is_first=is_first)


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
