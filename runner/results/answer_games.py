"""The verdicts on listed answers of all games of a run, for metrics that need those of all games at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from runner.results.estimates import Estimate, estimates_of
from runner.results.metric_definitions import ANSWER_CURVE, Source
from runner.rollouts.rollout import Rollout
from runner.statistics.answer_verdicts import ArguedAnswers
from runner.statistics.calibration import Forecasts
from runner.statistics.clustered_means import Codes
from runner.statistics.verdicts import UNSET


class ArguedAnswer(NamedTuple):
    """The answer that a prover argued for in a game, and its success."""

    is_right: int
    """1 or 0; `UNSET` if the prover chose the answer itself."""
    won: bool
    p: float
    """The probability that the verdict gives it; NaN if it gives none."""


class AnswerVerdictFacts(NamedTuple):
    """A game's verdict on listed answers."""

    is_right: bool
    p_chosen: float
    """The probability of the chosen answer; NaN if the verdict has none."""
    argued: Mapping[str, ArguedAnswer]
    """The provers' answers, without provers that chose none."""


def answer_facts(rollout: Rollout) -> AnswerVerdictFacts | None:
    """Return the facts of a game for the metrics of listed answers; None if it is not known which answers are right."""
    answers = rollout.answers
    if answers is None or answers.ballot.right is None:
        return None
    right, p, chosen = answers.ballot.right, answers.probabilities, answers.chosen
    argued = {
        agent: ArguedAnswer(
            int(position in right) if agent in answers.ballot.assigned else UNSET,
            position == chosen,
            math.nan if p is None else p[position],
        )
        for agent, position in answers.argued.items()
    }
    p_chosen = math.nan if p is None or chosen is None else p[chosen]
    return AnswerVerdictFacts(bool(answers.is_right), p_chosen, argued)


class _Game(NamedTuple):
    """A game of a run."""

    group: str
    datapoint: str
    facts: AnswerVerdictFacts
    swapped: bool
    """Whether the two players of swapped seats have exchanged them."""


class AnswerGames:
    """The games of a run that were not lost in transport. `seats` are the two seats that the run swaps, if any."""

    def __init__(self, seats: tuple[str, str] | None = None) -> None:
        self._partners = {} if seats is None else {seats[0]: seats[1], seats[1]: seats[0]}
        self._games: list[_Game] = []

    def add(self, group: str, datapoint: str, facts: AnswerVerdictFacts, *, swapped: bool) -> None:
        """Add one game; games may come in any order."""
        self._games.append(_Game(group, datapoint, facts, swapped))

    def estimates(self) -> Iterator[Estimate]:
        """Yield all metrics that apply to the games."""
        if (forecasts := self._forecasts()) is not None:
            yield from estimates_of(Source.ANSWERS, forecasts)
        for player, argued in self._argued_by_player().items():
            yield from estimates_of(Source.ANSWER_PLAYERS, argued, agent=player)

    def reliability_curves(self) -> dict[str, list[dict[str, object]]]:
        """Return the bins of the reliability curve as JSON data; empty if no verdict has probabilities."""
        forecasts = self._forecasts()
        return {} if forecasts is None else {ANSWER_CURVE: [asdict(bin_) for bin_ in forecasts.curve]}

    def _sorted(self) -> list[_Game]:
        """Return the games sorted by content, since the order of games must not change floating-point results."""
        return sorted(self._games, key=lambda game: (game.group, game.datapoint, game.swapped, repr(game.facts)))

    def _clusters(self) -> dict[str, int]:
        return {group: number for number, group in enumerate(sorted({game.group for game in self._games}))}

    def _forecasts(self) -> Forecasts | None:
        numbers = self._clusters()
        forecast_games = [
            (numbers[game.group], game.facts) for game in self._sorted() if not math.isnan(game.facts.p_chosen)
        ]
        if not forecast_games:
            return None
        p = np.array([facts.p_chosen for _, facts in forecast_games])
        return Forecasts(
            p, _codes(f.is_right for _, f in forecast_games), _codes(c for c, _ in forecast_games), len(numbers)
        )

    def _argued_by_player(self) -> dict[str, ArguedAnswers]:
        """Return the answers of each player (an entry of `agents`). In a swapped game, it has the other seat."""
        numbers, games = self._clusters(), self._sorted()
        is_grouped = len(numbers) < len({game.datapoint for game in games})
        by_player: dict[str, list[tuple[int, ArguedAnswer]]] = {}
        for game in games:
            for seat, answer in game.facts.argued.items():
                player = self._partners.get(seat, seat) if game.swapped else seat
                by_player.setdefault(player, []).append((numbers[game.group], answer))
        return {
            player: ArguedAnswers(
                _codes(a.is_right for _, a in rows), _codes(a.won for _, a in rows),
                np.array([a.p for _, a in rows]), _codes(cluster for cluster, _ in rows), len(numbers), is_grouped,
            )
            for player, rows in sorted(by_player.items())
        }  # fmt: skip


def _codes(values: Iterator[int]) -> Codes:
    return np.fromiter(values, dtype=np.int64)
