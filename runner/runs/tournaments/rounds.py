"""Chooses the pairings of a tournament's next round from the results so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.runs.tournaments.games import TournamentGames
from runner.runs.tournaments.plan import TournamentPlan
from runner.runs.tournaments.round_log import Round
from runner.statistics.pairings import Pairing, swiss_round
from runner.statistics.ratings import most_informative


@dataclass(frozen=True)
class RoundPlanner:
    """Chooses rounds. Equal results give equal rounds."""

    plan: TournamentPlan
    played: Mapping[int, int]
    """The number of datapoints that each pairing has played, by the pairing's number."""
    games: TournamentGames

    def next_round(self) -> Round:
        """Return the next round; empty if no pairing may play more games."""
        match self.plan.tournament.pairing:
            case "round_robin":
                return self._round_robin()
            case "swiss":
                return self._within_limit(self._swiss_pairings())
            case "adaptive":
                return self._within_limit(self._adaptive_pairings())

    def _round_robin(self) -> Round:
        """Return a round of all pairings: all their datapoints or, with a budget, the next ones."""
        last = self.plan.round_robin_datapoints
        if self.plan.spec.experiment.budget.limited:
            fewest = min(self.played.get(number, 0) for number in range(len(self.plan.pairings)))
            last = min(last, fewest + self.plan.tournament.datapoints_per_round)
        return {number: last for number in range(len(self.plan.pairings)) if self.played.get(number, 0) < last}

    def _within_limit(self, numbers: Iterator[int]) -> Round:
        """Return a round of these pairings with as many datapoints as the number of games allows."""
        per_datapoint, planned = self.plan.games_per_datapoint, {}
        left = self.plan.max_games - per_datapoint * sum(self.played.values())
        for number in numbers:
            more = min(self._datapoints_left(number), self.plan.tournament.datapoints_per_round, left // per_datapoint)
            if more <= 0:
                break
            planned[number] = self.played.get(number, 0) + more
            left -= more * per_datapoint
        return planned

    def _datapoints_left(self, number: int) -> int:
        return len(self.plan.spec.dataset.datapoints) - self.played.get(number, 0)

    def _swiss_pairings(self) -> Iterator[int]:
        """Yield the pairings of a Swiss round that have datapoints left; if there are none, all others by games."""
        numbers = {pairing: number for number, pairing in enumerate(self.plan.pairings)}
        meetings: Counter[tuple[int, int]] = Counter()
        for number, count in self.played.items():
            pairing = self.plan.pairings[number]
            meetings[pairing.first, pairing.second] += count
        model = self.games.model()
        players = range(len(self.plan.players))
        ratings = [round(model.rating(player, "overall").value or 0.0, 6) for player in players]  # equal ratings tie
        judges = range(len(self.plan.judges))
        pairs = swiss_round(ratings, meetings)
        chosen = [numbers[Pairing(*pair, judge)] for pair in pairs for judge in judges]
        chosen = [number for number in chosen if self._datapoints_left(number)]
        yield from chosen or sorted(self._open_numbers(), key=lambda number: self.played.get(number, 0))

    def _adaptive_pairings(self) -> Iterator[int]:
        """Yield the pairing whose games tell most about the ratings, if a pairing has datapoints left."""
        numbers = {self.plan.pairings[number]: number for number in self._open_numbers()}
        if numbers:
            yield numbers[most_informative(self.games.model(), list(numbers), self._expected_games)]

    def _open_numbers(self) -> list[int]:
        return [number for number in range(len(self.plan.pairings)) if self._datapoints_left(number)]

    def _expected_games(self, pairing: Pairing) -> float:
        """Return the expected number of games with a winner among a pairing's next games, from its games so far."""
        counts = self.games.counts(pairing)
        size = self.plan.tournament.datapoints_per_round * self.plan.games_per_datapoint
        return size * (counts.rated + 1) / (counts.games + 1)
