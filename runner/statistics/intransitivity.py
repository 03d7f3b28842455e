"""Test of intransitivity: whether three players beat each other in a circle more than their ratings explain.

For each triple, the score of a circle is the sum over games of the surprise (result minus fitted chance) with the sign
of the circle's direction, after removing what the ratings can absorb (the effective score). The test flips the signs of
the clusters' sums at random (Hemerik, Goeman and Finos 2020), and compares the largest standardized score of all
triples, so that the number of triples does not raise the rate of false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from runner.statistics.clustered_means import Floats
from runner.statistics.ratings import RatingModel

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
    scale[scale == 0] = np.inf
    # Residuals are smaller than errors. With this factor, the rate of false alarms was at most 5 % in every design.
    scores = sums.sum(axis=0) / scale * math.sqrt(1 - 2 / clusters)
    strongest = int(np.argmax(np.abs(scores)))
    signs = np.random.default_rng(seed).integers(0, 2, (FLIPS, len(sums))) * 2.0 - 1
    flipped = np.abs(signs @ (sums / scale)).max(axis=1)
    p = (1 + int(np.count_nonzero(flipped >= abs(scores[strongest]) - 1e-12))) / (1 + FLIPS)
    first, second, third = triples[strongest]
    return Intransitivity(p, (first, second, third) if scores[strongest] > 0 else (first, third, second))


def _cluster_scores(model: RatingModel, triples: Sequence[tuple[int, int, int]]) -> tuple[Floats, np.ndarray]:
    """Return the effective score of each triple in each cluster, and which triples have played all three pairings."""
    games = model.games
    circles, played = np.zeros((len(games), len(triples))), np.zeros(len(triples), dtype=bool)
    beaten_by = {}
    for first, second in combinations(range(games.players), 2):
        forward = (games.right == first) & (games.wrong == second)
        backward = (games.right == second) & (games.wrong == first)
        beaten_by[first, second] = forward.astype(float) - backward.astype(float)
    for column, (first, second, third) in enumerate(triples):
        parts = beaten_by[first, second], beaten_by[second, third], -beaten_by[first, third]
        circles[:, column] = sum(parts)
        played[column] = all(part.any() for part in parts)
    weights = (model.chances * (1 - model.chances))[:, None]
    unpenalized = games.rows.T @ (weights * games.rows)
    absorbed = games.rows @ (np.linalg.pinv(unpenalized, hermitian=True) @ (games.rows.T @ (weights * circles)))
    scores = (circles - absorbed) * (games.right_won - model.chances)[:, None]
    sums = np.zeros((int(games.clusters.max(initial=0)) + 1, len(triples)))
    np.add.at(sums, games.clusters, scores)
    return sums[np.bincount(games.clusters) > 0], played
