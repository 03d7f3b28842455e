"""Bradley-Terry ratings of players, from games between a side that argues for the right answer and its opponent.

The log odds that the right side wins are the sum of a judge's effect, the right side's rating for arguing right, minus
the wrong side's rating for arguing wrong, plus the seat effects of both players with the sign of the right side's seat.
Each coefficient has one more game, half won, against an average opponent (a log-F(1,1) prior, Greenland and Mansournia
2015). So a rating stays finite if a player wins every game, and the prior is worth less the more games are played.

The variance of a number is the jackknife over clusters (the CR3 estimator, with one Newton step for each cluster), or
the variance of independent games if that is larger, because few or equal results make the jackknife too small.

The test of intransitivity asks whether three players beat each other in a circle more than their ratings explain.
For each triple, the score of a circle is the sum over games of the surprise (result minus fitted chance) with the sign
of the circle's direction, after removing what the ratings can absorb (the effective score). The test flips the signs of
the clusters' sums at random (Hemerik, Goeman and Finos 2020), and compares the largest standardized score of all
triples, so that the number of triples does not raise the rate of false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np
import numpy.typing as npt

from runner.statistics.clustered_means import Codes, Floats, Quantity
from runner.statistics.intervals import t_quantile
from runner.statistics.pairings import Pairing

ELO = 400 / math.log(10)
"""Elo points of a difference of 1 in log odds; a player with 400 points more wins 10 of 11 games."""
PRIOR_GAMES = 1.0
"""The number of half-won games that are added for each coefficient."""

Side = Literal["overall", "right", "wrong"]
"""A rating for arguing for the right answer, for the wrong answer, or the mean of both."""
SIDES: tuple[Side, ...] = ("overall", "right", "wrong")

_MAX_STEPS = 100
_TOLERANCE = 1e-10
_RANK_TOLERANCE = 1e-8
_ROUNDING = 1e-6
"""A score whose standard deviation is smaller consists of rounding errors, which differ between machines."""


@dataclass(frozen=True, eq=False)
class RatedGames:
    """The games of a tournament as arrays with an entry for each game."""

    players: int
    judges: int
    right: Codes
    """The player who argues for the right answer."""
    wrong: Codes
    judge: Codes
    right_is_first: npt.NDArray[np.bool_]
    """Whether the player who argues for the right answer plays in the first seat."""
    right_won: npt.NDArray[np.bool_]
    clusters: Codes
    """The group of each game's datapoint, as a number."""

    def __len__(self) -> int:
        return len(self.right)

    @cached_property
    def rows(self) -> Floats:
        """The design matrix."""
        sides = self.right, self.wrong, self.judge
        return design_rows(self.players, self.judges, *sides, right_is_first=self.right_is_first)


def design_rows(
    players: int, judges: int, right: Codes, wrong: Codes, judge: Codes, *, right_is_first: npt.NDArray[np.bool_]
) -> Floats:
    """Return a row for each game; its columns are the ratings for right and wrong, the seat effects, and the judges."""
    rows, games = np.zeros((len(right), 3 * players + judges)), np.arange(len(right))
    sign = np.where(right_is_first, 0.5, -0.5)
    rows[games, right] = 1
    rows[games, players + wrong] = -1
    rows[games, 2 * players + right] += sign
    rows[games, 2 * players + wrong] += sign
    rows[games, 3 * players + judge] = 1
    return rows


def logistic(x: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)) without overflow."""
    result: Floats = 0.5 * (1 + np.tanh(x / 2))
    return result


class RatingModel:
    """The model that is fitted to the games of a tournament."""

    def __init__(self, games: RatedGames) -> None:
        self.games = games
        self.coefficients = self._fit()
        self.chances = logistic(games.rows @ self.coefficients)
        """The chance that the right side wins each game."""
        self.information = self._information(self.coefficients)
        self._group_sizes = np.bincount(games.clusters)

    @property
    def clusters(self) -> int:
        return int(np.count_nonzero(self._group_sizes))

    def _information(self, coefficients: Floats) -> Floats:
        rows = self.games.rows
        chances, prior = logistic(rows @ coefficients), logistic(coefficients)
        information: Floats = (rows.T * (chances * (1 - chances))) @ rows
        return information + np.diag(PRIOR_GAMES * prior * (1 - prior))

    def _fit(self) -> Floats:
        """Return the coefficients with the largest penalized likelihood, by Newton's method with halved steps."""
        rows, won = self.games.rows, self.games.right_won.astype(float)
        coefficients = np.zeros(rows.shape[1])

        def loss(values: Floats) -> float:
            odds = rows @ values
            return float(
                np.logaddexp(0, odds).sum() - won @ odds + PRIOR_GAMES * (np.logaddexp(0, values) - values / 2).sum()
            )

        current = loss(coefficients)
        for _ in range(_MAX_STEPS):
            score = rows.T @ (won - logistic(rows @ coefficients)) + PRIOR_GAMES * (0.5 - logistic(coefficients))
            step = np.linalg.solve(self._information(coefficients), score)
            while (moved := loss(coefficients + step)) > current + _TOLERANCE:
                step /= 2
            coefficients, current = coefficients + step, moved
            if float(np.abs(step).max()) < _TOLERANCE:
                break
        return coefficients

    @cached_property
    def _deviations(self) -> Floats:
        """The change of the coefficients without each cluster, one row for each (one Newton step)."""
        games, order = self.games, np.argsort(self.games.clusters, kind="stable")
        rows, weights = games.rows[order], (self.chances * (1 - self.chances))[order]
        scores = games.rows[order] * (games.right_won - self.chances)[order, None]
        ends = np.cumsum(self._group_sizes[self._group_sizes > 0])
        deviations = np.empty((len(ends), rows.shape[1]))
        for number, (start, end) in enumerate(zip((0, *ends[:-1]), ends, strict=True)):
            part = rows[start:end]
            without = self.information - (part.T * weights[start:end]) @ part
            deviations[number] = np.linalg.solve(without, scores[start:end].sum(axis=0))
        return deviations

    @cached_property
    def covariance(self) -> Floats:
        """The covariance of the coefficients if the games were independent."""
        inverse: Floats = np.linalg.inv(self.information)
        return inverse

    @cached_property
    def _row_space(self) -> Floats:
        """The projection to the combinations of coefficients that the games determine without the prior."""
        gram = self.games.rows.T @ self.games.rows
        values, vectors = np.linalg.eigh(gram)
        main_vectors = vectors[:, values > _RANK_TOLERANCE * max(float(values.max(initial=0.0)), 1.0)]
        projection: Floats = main_vectors @ main_vectors.T
        return projection

    def combination(self, weights: Floats) -> Quantity:
        """Return a weighted sum of coefficients, in log odds; without value if the games do not determine it."""
        n, clusters = len(self.games), self.clusters
        if not n or float(np.abs(weights - self._row_space @ weights).max()) > math.sqrt(_RANK_TOLERANCE):
            reason = "no games" if not n else "the games played so far do not determine it"
            return Quantity(None, None, None, n, clusters, reason)
        value = float(weights @ self.coefficients)
        if clusters < 2:
            return Quantity(value, None, None, n, clusters, "only one group of datapoints, so its interval is unknown")
        jackknife = (clusters - 1) / clusters * float(np.sum((self._deviations @ weights) ** 2))
        error = math.sqrt(max(jackknife, float(weights @ self.covariance @ weights)))
        half = t_quantile(clusters) * error
        return Quantity(value, error, (value - half, value + half), n, clusters)

    def rating(self, player: int, side: Side) -> Quantity:
        """Return a player's rating in Elo points above the average player of the tournament."""
        return in_elo(self.combination(self.rating_weights(player, side)))

    def difference(self, player: int, other: int, side: Side) -> Quantity:
        """Return the difference of two players' ratings in Elo points."""
        return in_elo(self.combination(self.rating_weights(player, side) - self.rating_weights(other, side)))

    def seat_advantage(self, player: int | None = None) -> Quantity:
        """Return how many Elo points more a player has in the first seat than in the second; None: on average."""
        count = self.games.players
        chosen = np.full(count, 1 / count) if player is None else np.eye(count)[player]
        return in_elo(self.combination(self._weights(seats=chosen)))

    def right_side_chance(self, judge: int | None = None) -> Quantity:
        """Return the chance that the right side wins between average players; `judge` None: with an average judge."""
        players, judges = self.games.players, self.games.judges
        chosen = np.full(judges, 1 / judges) if judge is None else np.eye(judges)[judge]
        mean = np.full(players, 1 / players)
        log_odds = self.combination(self._weights(right=mean, wrong=-mean, judges=chosen))
        if log_odds.value is None:
            return log_odds
        chance = float(logistic(np.asarray(log_odds.value)))
        error = None if log_odds.stderr is None else log_odds.stderr * chance * (1 - chance)
        low, high = logistic(np.asarray(log_odds.interval or (0, 0))).tolist()
        return replace(log_odds, value=chance, stderr=error, interval=log_odds.interval and (low, high))

    def rating_weights(self, player: int, side: Side) -> Floats:
        """Return the weights of the coefficients in a player's rating, relative to the average player."""
        count = self.games.players
        chosen, none = np.eye(count)[player] - 1 / count, np.zeros(count)
        if side == "overall":
            return self._weights(right=chosen / 2, wrong=chosen / 2)
        return self._weights(right=chosen if side == "right" else none, wrong=chosen if side == "wrong" else none)

    def _weights(
        self,
        right: Floats | None = None,
        wrong: Floats | None = None,
        seats: Floats | None = None,
        judges: Floats | None = None,
    ) -> Floats:
        zero = np.zeros(self.games.players)
        parts = [zero if part is None else part for part in (right, wrong, seats)]
        return np.concatenate([*parts, np.zeros(self.games.judges) if judges is None else judges])


def in_elo(log_odds: Quantity) -> Quantity:
    """Convert a number in log odds to Elo points."""
    value, error = (None if number is None else number * ELO for number in (log_odds.value, log_odds.stderr))
    interval = None if log_odds.interval is None else (log_odds.interval[0] * ELO, log_odds.interval[1] * ELO)
    return replace(log_odds, value=value, stderr=error, interval=interval)


FLIPS = 2_000
MIN_CLUSTERS = 6
"""The fewest datapoints for which the test can reject; see `runner.statistics.sign_flip`."""
MAX_TRIPLES = 2_000
"""The most triples that are tested, the first in the order of the players; 24 players have 2,024."""


@dataclass(frozen=True)
class Intransitivity:
    """The result of the test."""

    p: float | None
    """The p-value over all triples; None if the test is not possible."""
    triple: tuple[int, int, int] | None
    """The triple with the strongest circle: the first player beats the second more than their ratings explain, the
    second the third, and the third the first."""
    reason: str | None = None


def intransitivity(model: RatingModel, seed: int = 0) -> Intransitivity:
    """Test whether the ratings explain all results, against circles of three players."""
    games, clusters = model.games, model.clusters
    triples = list(combinations(range(games.players), 3))[:MAX_TRIPLES]
    if not triples:
        return Intransitivity(None, None, "needs three players")
    if clusters < MIN_CLUSTERS:
        return Intransitivity(None, None, f"needs games about {MIN_CLUSTERS} datapoints or more")
    sums, played = _cluster_scores(model, triples)
    if not played.any():
        return Intransitivity(None, None, "no three players have all played each other")
    sums, triples = sums[:, played], [triple for triple, is_played in zip(triples, played, strict=True) if is_played]
    scale = np.sqrt((sums**2).sum(axis=0))
    scale[scale < _ROUNDING] = np.inf
    # Residuals are smaller than errors. With this factor, the rate of false alarms was at most 5 % in every design.
    scores = sums.sum(axis=0) / scale * math.sqrt(1 - 2 / clusters)
    strongest = int(np.argmax(np.abs(scores)))
    signs = np.random.default_rng(seed).integers(0, 2, (FLIPS, len(sums))) * 2.0 - 1
    flipped = np.abs(signs @ (sums / scale)).max(axis=1)
    p = (1 + int(np.count_nonzero(flipped >= abs(scores[strongest]) - 1e-12))) / (1 + FLIPS)
    first, second, third = triples[strongest]
    return Intransitivity(p, (first, second, third) if scores[strongest] > 0 else (first, third, second))


def _cluster_scores(model: RatingModel, triples: Sequence[tuple[int, int, int]]) -> tuple[Floats, np.ndarray]:
    """Return the effective score of each triple in each cluster, and which triples have played all three pairings.

    A triple's score is the sum of those of its pairs. So no array has an entry for each game and each triple.
    """
    games, clusters = model.games, int(model.games.clusters.max(initial=0)) + 1
    surprise = games.right_won - model.chances
    weighted = games.rows * (model.chances * (1 - model.chances))[:, None]
    absorbed = np.zeros((clusters, games.rows.shape[1]))
    np.add.at(absorbed, games.clusters, games.rows * surprise[:, None])
    absorbed = absorbed @ np.linalg.pinv(weighted.T @ games.rows, hermitian=True)
    pairs = {pair: column for column, pair in enumerate(combinations(range(games.players), 2))}
    sums, played = np.zeros((clusters, len(pairs))), np.zeros(len(pairs), dtype=bool)
    for (first, second), column in pairs.items():
        forward = (games.right == first) & (games.wrong == second)
        chosen = np.flatnonzero(forward | ((games.right == second) & (games.wrong == first)))
        beaten = np.where(forward[chosen], 1.0, -1.0)
        scores = np.bincount(games.clusters[chosen], beaten * surprise[chosen], minlength=clusters)
        sums[:, column], played[column] = scores - absorbed @ (beaten @ weighted[chosen]), len(chosen) > 0
    sums = sums[np.bincount(games.clusters) > 0]
    columns = np.array([[pairs[a, b], pairs[b, c], pairs[a, c]] for a, b, c in triples]).T
    return sums[:, columns[0]] + sums[:, columns[1]] - sums[:, columns[2]], played[columns].all(axis=0)


def most_informative(
    model: RatingModel, pairings: Sequence[Pairing], expected_games: Callable[[Pairing], float]
) -> Pairing:
    """Return the pairing whose next games narrow the widest intervals of the overall ratings most.

    `expected_games` returns the number of games with a winner that a pairing would add. Their information at the
    current ratings tells by which share they reduce each variance. The mean of the variances' fourth powers weights
    the widest intervals most, but also counts the others, since a game often narrows several.
    """
    rated, covariance = model.games, model.covariance
    weights = np.array([model.rating_weights(player, "overall") for player in range(rated.players)])
    spread = weights @ covariance
    variances = np.einsum("ij,ij->i", spread, weights)
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
