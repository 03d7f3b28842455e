"""The choice of the pairing whose games tell most about the ratings so far. Equal results give equal choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from runner.statistics.clustered_means import Floats
from runner.statistics.pairings import Pairing
from runner.statistics.ratings import ELO, RatingModel, design_rows, logistic


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
