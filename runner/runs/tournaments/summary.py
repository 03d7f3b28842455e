"""Summarizes a tournament for its `metrics.json`: ratings, effects, pairings, and the test of intransitivity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from runner.base.errors import RunError
from runner.results.folder import RunFolder, usage_of_parts
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.tournaments.games import TournamentGames
from runner.runs.tournaments.plan import LEGS, TournamentPlan, part_run_id
from runner.runs.tournaments.round_log import datapoints_played, read_rounds
from runner.statistics.clustered_means import Quantity
from runner.statistics.intervals import student_tail
from runner.statistics.ratings import SIDES, RatingModel, intransitivity


def read_tournament(folder: RunFolder, manifest: Manifest) -> dict[str, Any]:
    """Return the summary of a tournament: of a finished one from its file, of another one from its finished parts.

    Raises:
        RunError, SpecError: a file of the tournament is missing or damaged.
    """
    if manifest.status == Status.DONE and folder.metrics.is_file():
        metrics: dict[str, Any] = folder.read_metrics()
        return metrics
    games = games_of(folder)
    return summarize(folder, games, Results.of(folder).parts_of(folder.run_id))


def games_of(folder: RunFolder) -> TournamentGames:
    """Return the games of a tournament's finished parts.

    Raises:
        RunError, SpecError: a file of the tournament, or a part that has finished, is missing or damaged.
    """
    plan = TournamentPlan(saved_plan(folder).spec)
    games, rounds = TournamentGames(plan), read_rounds(folder.path, folder.identity())
    finished = datapoints_played(rounds if folder.manifest().status == Status.DONE else rounds[:-1])
    for number in datapoints_played(rounds):
        for leg in LEGS:
            part = folder.sibling(part_run_id(folder.run_id, number, leg))
            if part.metrics.is_file() and part.table("rollouts").is_file():
                games.read(plan.pairings[number], leg, part)
            elif number in finished:
                raise RunError(
                    f"run {part.run_id}, which has games of tournament {folder.run_id}, is missing or has no results. "
                    f"Restore {part.path} from a backup; if it has its journal, repeat the tournament's command instead"
                )
    return games


def summarize(folder: RunFolder, games: TournamentGames, parts: Iterable[RunFolder]) -> dict[str, object]:
    """Return the summary of a tournament in the format of its `metrics.json`."""
    plan, model = games.plan, games.model()
    circle = intransitivity(model, plan.spec.experiment.seed)
    triple = None if circle.triple is None else [plan.players[player] for player in circle.triple]
    return {
        "run_id": folder.run_id,
        "outcomes": {},
        "metrics": [],
        "games": usage_of_parts(parts),
        "ratings": list(_ratings(plan, model, games)),
        "effects": list(_effects(plan, model)),
        "pairings": list(_pairings(folder, games)),
        "intransitivity": {"p": circle.p, "triple": triple, "reason": circle.reason},
    }


def quantity_row(quantity: Quantity) -> dict[str, object]:
    """Return a number with its interval, in the form of a row of `metrics`."""
    ends = quantity.interval or (None, None)
    numbers = (None if number is None else round(number, 9) for number in (quantity.value, quantity.stderr, *ends))
    value, stderr, low, high = numbers
    return {
        "value": value, "stderr": stderr, "ci_low": low, "ci_high": high,
        "n": quantity.n, "clusters": quantity.clusters, "reason": quantity.reason,
    }  # fmt: skip


def player_differences(games: TournamentGames, first: str, second: str) -> list[dict[str, Any]]:
    """Return the differences between two players' ratings by side, with the p-value of a t-test."""
    model, rows = games.model(), []
    numbers = [games.plan.players.index(name) for name in (first, second)]
    for side in SIDES:
        difference = model.difference(numbers[0], numbers[1], side)
        p = None
        if difference.value is not None and difference.stderr:
            p = min(1.0, 2 * student_tail(abs(difference.value) / difference.stderr, difference.clusters - 1))
        rows.append({"side": side, **quantity_row(difference), "p": p})
    return rows


def _ratings(plan: TournamentPlan, model: RatingModel, games: TournamentGames) -> Iterator[dict[str, object]]:
    """Yield the ratings of each player, best overall first, with the number of the player's games."""
    order = range(len(plan.players))
    overall = [model.rating(player, "overall").value for player in order]

    def place(player: int) -> tuple[bool, float, int]:
        value = overall[player]
        return value is None, 0.0 if value is None else -round(value, 6), player

    for player in sorted(order, key=place):
        rated = sum(games.counts(pairing).rated for pairing in plan.pairings if player in pairing[:2])
        for side in SIDES:
            row = quantity_row(model.rating(player, side))
            yield {"player": plan.players[player], "side": side, **row, "n": rated}


def _effects(plan: TournamentPlan, model: RatingModel) -> Iterator[dict[str, object]]:
    """Yield the chance of the right side by judge, and the advantage of the first seat on average and by player."""
    yield {"effect": "right_side", "of": None, **quantity_row(model.right_side_chance())}
    for number, judge in enumerate(plan.judges):
        yield {"effect": "right_side", "of": judge, **quantity_row(model.right_side_chance(number))}
    yield {"effect": "first_seat", "of": None, **quantity_row(model.seat_advantage())}
    for number, player in enumerate(plan.players):
        yield {"effect": "first_seat", "of": player, **quantity_row(model.seat_advantage(number))}


def _pairings(folder: RunFolder, games: TournamentGames) -> Iterator[dict[str, object]]:
    """Yield the numbers of games of each pairing that has played, with the runs of its legs."""
    plan = games.plan
    for number, pairing in enumerate(plan.pairings):
        counts = games.counts(pairing)
        if counts.games:
            yield {
                "pairing": number,
                "first": plan.players[pairing.first],
                "second": plan.players[pairing.second],
                "judge": plan.judges[pairing.judge],
                "games": counts.games,
                "first_won": counts.first_won,
                "second_won": counts.rated - counts.first_won,
                "right_won": counts.right_won,
                "undecided": counts.undecided,
                "unlabeled": counts.unlabeled,
                "runs": [part_run_id(folder.run_id, number, leg) for leg in LEGS],
            }
