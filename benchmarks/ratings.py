"""Check ratings of simulated players: coverage of intervals, the test of intransitivity, and adaptive pairing.

    python benchmarks/ratings.py [--times N] [--seed S]

The strengths of the players by side and seat are known. A share of the games about a datapoint has the same luck, so
that they are not independent, while every chance stays as planted. In some tournaments, datapoints also differ in how
much they favor the right side. Ratings are averages over datapoints, so the true values are then the ratings in a very
large sample of games. Adaptive pairing and round robin play until the widest interval of the overall ratings has the
same width.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from common import sample_arguments

from runner.statistics.clustered_means import Floats, Quantity
from runner.statistics.intervals import load_scipy
from runner.statistics.pairings import Pairing, every_pairing
from runner.statistics.ratings import (
    ELO,
    SIDES,
    RatedGames,
    RatingModel,
    Side,
    design_rows,
    intransitivity,
    logistic,
    most_informative,
)
from tests.support.soft_assertions import SoftAssertions

LOWEST_COVERAGE = 0.93
HIGHEST_FALSE_ALARMS = 0.05
LOWEST_POWER = 0.80
HIGHEST_SHARE_OF_GAMES = 0.60


@dataclass(frozen=True)
class Situation:
    """The size of a round robin, and the standard deviations of players and datapoints in log odds."""

    players: int
    judges: int
    datapoints: int
    same_luck: float
    spread: float
    datapoint_spread: float = 0.0
    """How much datapoints differ in favoring the right side."""

    def __str__(self) -> str:
        return (
            f"{self.players} players, {self.judges} judges, {self.datapoints} datapoints, same luck "
            f"{self.same_luck:.0%}, spread {self.spread * ELO:.0f} and {self.datapoint_spread * ELO:.0f}"
        )


SITUATIONS = (
    Situation(3, 1, 8, 0.3, 0.5),
    Situation(4, 1, 20, 0.3, 0.7),
    Situation(4, 2, 20, 0.0, 0.7),
    Situation(4, 2, 40, 0.3, 1.5),
    Situation(6, 1, 12, 0.5, 0.7),
    Situation(5, 1, 30, 0.3, 2.0),
)

DIFFERING_DATAPOINTS = tuple(
    Situation(players, judges, datapoints, same_luck, 0.9, datapoint_spread)
    for players, judges, datapoints, same_luck in ((4, 1, 12, 0.0), (4, 2, 30, 0.3))
    for datapoint_spread in (1.0, 2.0)
)
LARGE_SAMPLE = 4_000
"""The number of datapoints of the sample whose ratings are the true averages over datapoints."""


@dataclass
class Planted:
    """Players and judges with known strengths, and the games that they have played."""

    right: Floats
    wrong: Floats
    seats: Floats
    judges: Floats
    same_luck: float
    rng: np.random.Generator
    circle: float = 0.0
    """The advantage of player 0 over 1, of 1 over 2, and of 2 over 0, in log odds."""
    datapoint_spread: float = 0.0
    luck: dict[int, float] = field(default_factory=dict)
    favors: dict[int, float] = field(default_factory=dict)
    """How much each datapoint favors the right side, in log odds."""
    games: list[tuple[int, int, int, bool, bool, int]] = field(default_factory=list)

    @classmethod
    def draw(cls, situation: Situation, rng: np.random.Generator, circle: float = 0.0) -> Planted:
        right, wrong = rng.normal(0, situation.spread, (2, situation.players))
        seats, judges = rng.normal(0.3, 0.3, situation.players), rng.normal(0.5, 0.3, situation.judges)
        planted = cls(right, wrong, seats, judges, situation.same_luck, rng, circle, situation.datapoint_spread)
        return planted.replay(situation.datapoints)

    def replay(self, datapoints: int) -> Planted:
        """Return the same players after a round robin about new datapoints."""
        planted = replace(self, luck={}, favors={}, games=[])
        for pairing in every_pairing(len(self.right), len(self.judges)):
            planted.play(pairing, range(datapoints))
        return planted

    def play(self, pairing: Pairing, datapoints: range) -> None:
        """Play the four games of a pairing about each datapoint."""
        games = [
            (right, wrong, pairing.judge, is_first, point)
            for point in datapoints
            for right, wrong in ((pairing.first, pairing.second), (pairing.second, pairing.first))
            for is_first in (True, False)
        ]
        right, wrong, judge, is_first, points = (np.array(column) for column in zip(*games, strict=True))
        rows = design_rows(len(self.right), len(self.judges), right, wrong, judge, right_is_first=is_first)
        log_odds = rows @ np.concatenate([self.right, self.wrong, self.seats, self.judges])
        for winner, loser in ((0, 1), (1, 2), (2, 0)):
            log_odds += self.circle * ((right == winner) & (wrong == loser)).astype(float)
            log_odds -= self.circle * ((right == loser) & (wrong == winner)).astype(float)
        if self.datapoint_spread:
            spread = self.datapoint_spread
            log_odds += [self.favors.setdefault(point, float(self.rng.normal(0, spread))) for point in points]
        shared = np.array([self.luck.setdefault(point, float(self.rng.random())) for point in points])
        luck = np.where(self.rng.random(len(points)) < self.same_luck, shared, self.rng.random(len(points)))
        won = luck < logistic(log_odds)
        self.games += [(*game[:4], bool(result), game[4]) for game, result in zip(games, won, strict=True)]

    def fit(self) -> RatingModel:
        right, wrong, judge, is_first, won, points = (np.array(column) for column in zip(*self.games, strict=True))
        return RatingModel(RatedGames(len(self.right), len(self.judges), right, wrong, judge, is_first, won, points))

    def true_rating(self, player: int, side: Side) -> float:
        right, wrong = self.right - self.right.mean(), self.wrong - self.wrong.mean()
        overall = (right + wrong) / 2
        return float({"overall": overall, "right": right, "wrong": wrong}[side][player]) * ELO


def main() -> int:
    args = sample_arguments(__doc__, 2000)
    load_scipy()
    check = SoftAssertions()
    for situation in SITUATIONS:
        measure_coverage(situation, args.times, args.seed, check)
    for situation in DIFFERING_DATAPOINTS:
        measure_averages(situation, args.times, args.seed, check)
    measure_power(SITUATIONS[1], max(args.times // 4, 50), args.seed, check)
    measure_pairing(max(args.times // 100, 4), args.seed, check)
    return check.exit_code()


def measure_coverage(situation: Situation, times: int, seed: int, check: SoftAssertions) -> None:
    """Measure how often intervals contain the planted value, and how often the test gives a false alarm."""
    rng, covered, alarms = np.random.default_rng(seed), defaultdict(list), 0
    for repetition in range(times):
        planted = Planted.draw(situation, rng)
        model = planted.fit()
        for player in range(situation.players):
            for side in SIDES:
                covered[side].append(contains(model.rating(player, side), planted.true_rating(player, side)))
            covered["seat"].append(contains(model.seat_advantage(player), float(planted.seats[player]) * ELO))
        difference = planted.true_rating(0, "overall") - planted.true_rating(1, "overall")
        covered["difference"].append(contains(model.difference(0, 1, "overall"), difference))
        shift = float(planted.right.mean() - planted.wrong.mean())
        for judge in range(situation.judges):
            chance = float(logistic(planted.judges[judge] + np.array(shift)))
            covered["judge"].append(contains(model.right_side_chance(judge), chance))
        p = intransitivity(model, repetition).p
        alarms += p is not None and p < 0.05
    shares = {name: float(np.mean(values)) for name, values in covered.items()}
    print(f"{situation}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()), flush=True)
    print(f"  false alarms of the test of intransitivity: {alarms / times:.1%}", flush=True)
    for name, share in shares.items():
        check(share >= LOWEST_COVERAGE, f"{situation}: interval of {name} covers {share:.1%}")
    noise = 2 * (HIGHEST_FALSE_ALARMS * (1 - HIGHEST_FALSE_ALARMS) / times) ** 0.5
    check(alarms / times <= HIGHEST_FALSE_ALARMS + noise, f"{situation}: false alarms {alarms / times:.1%}")


def measure_averages(situation: Situation, times: int, seed: int, check: SoftAssertions) -> None:
    """Measure how often intervals contain the average over datapoints, if these differ."""
    rng = np.random.default_rng(seed)
    large = Planted.draw(replace(situation, datapoints=LARGE_SAMPLE), rng)
    truth, covered = collect_quantities(large.fit()), defaultdict(list)
    for _ in range(times):
        for (kind, number), quantity in collect_quantities(large.replay(situation.datapoints).fit()).items():
            true_value = truth[kind, number].value
            assert true_value is not None
            covered[kind].append(contains(quantity, true_value))
    shares = {kind: float(np.mean(values)) for kind, values in covered.items()}
    shrinkage = [(truth["overall", i].value or 0) / large.true_rating(i, "overall") for i in range(situation.players)]
    print(f"{situation}: " + ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items()), flush=True)
    print(f"  averages over datapoints are {np.median(shrinkage):.0%} of the planted ratings", flush=True)
    for kind, share in shares.items():
        check(share >= LOWEST_COVERAGE, f"{situation}: interval of {kind} covers {share:.1%}")


def collect_quantities(model: RatingModel) -> dict[tuple[str, int], Quantity]:
    """Return the ratings, the seat effects and the chances of the right side."""
    players, judges = range(model.games.players), range(model.games.judges)
    quantities = {(str(side), player): model.rating(player, side) for side in SIDES for player in players}
    quantities |= {("seat", player): model.seat_advantage(player) for player in players}
    return quantities | {("judge", judge): model.right_side_chance(judge) for judge in judges}


def contains(quantity: Quantity, value: float) -> bool:
    return quantity.interval is not None and quantity.interval[0] <= value <= quantity.interval[1]


def measure_power(situation: Situation, times: int, seed: int, check: SoftAssertions) -> None:
    """Measure how often the test finds a planted circle: each player has 174 points more against the next."""
    rng, found_count = np.random.default_rng(seed), 0
    for repetition in range(times):
        result = intransitivity(Planted.draw(situation, rng, circle=1.0).fit(), repetition)
        found_count += result.p is not None and result.p < 0.05 and result.triple in ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    print(f"{situation}: power against a planted circle {found_count / times:.1%}", flush=True)
    check(found_count / times >= LOWEST_POWER, f"{situation}: power {found_count / times:.1%}")


def measure_pairing(times: int, seed: int, check: SoftAssertions) -> None:
    """Compare the games of adaptive pairing and of round robin until the widest intervals are the same."""
    shares = []
    for repetition in range(times):
        strengths = np.linspace(-2.5, 2.5, 8)
        games = {}
        for is_adaptive in (False, True):
            rng = np.random.default_rng([seed, repetition])
            noise = rng.normal(0, 0.3, (2, 8))
            planted = Planted(strengths + noise[0], strengths + noise[1], np.full(8, 0.2), np.array([0.5]), 0.2, rng)
            games[is_adaptive] = games_until_narrow(planted, 250, adaptive=is_adaptive)
        shares.append(games[True] / games[False])
    share = float(np.mean(shares))
    print(f"adaptive pairing: {share:.0%} of the games of a round robin, {min(shares):.0%} to {max(shares):.0%}")
    check(share <= HIGHEST_SHARE_OF_GAMES, f"adaptive pairing needs {share:.0%} of the games")


def games_until_narrow(planted: Planted, width: float, *, adaptive: bool, datapoints: int = 2) -> int:
    """Return how many games are played until no interval is wider, in Elo points."""
    pairings = every_pairing(len(planted.right), 1)
    datapoint_counts = dict.fromkeys(pairings, 0)
    for step in range(100_000):
        model = planted.fit() if planted.games else None
        if model is not None and widest_interval(model) <= width:
            return len(planted.games)
        pairing = pairings[step % len(pairings)]
        if adaptive and model is not None:
            pairing = most_informative(model, pairings, lambda _: 4 * datapoints)
        planted.play(pairing, range(datapoint_counts[pairing], datapoint_counts[pairing] + datapoints))
        datapoint_counts[pairing] += datapoints
    raise AssertionError("the intervals stay wide")


def widest_interval(model: RatingModel) -> float:
    intervals = [model.rating(player, "overall").interval for player in range(model.games.players)]
    return float(np.max([np.inf if ends is None else ends[1] - ends[0] for ends in intervals]))


if __name__ == "__main__":
    sys.exit(main())
