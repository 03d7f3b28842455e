"""Runs a tournament: creates its folder, plays its rounds, and adds its ratings to the leaderboard's database.

A round extends the runs of some pairings by datapoints. The runs are ordinary benchmarks, so a killed tournament
resumes their games, and no answer is requested twice.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from runner.base.errors import RunError
from runner.base.text import counted
from runner.models.api_keys import KeyUse
from runner.models.layers.budget import Budget
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status, TrainingPart
from runner.results.spec_changes import has_same_spec
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Progress
from runner.runs.execution.spending import spent_on_parts
from runner.runs.finished.result import FinishedRun
from runner.runs.session.parallel_runs import run_together
from runner.runs.session.run import GamesRun, RunOptions, has_outputs, rebuild_outputs, write_run_files
from runner.runs.session.session_of_parts import SessionOfParts, saved_result
from runner.runs.tournaments.games import TournamentGames
from runner.runs.tournaments.plan import LEGS, TournamentPlan, part_run_id
from runner.runs.tournaments.round_log import Round, RoundLog, datapoints_played, read_rounds, round_log
from runner.runs.tournaments.summary import summarize
from runner.statistics.pairings import Pairing, swiss_round
from runner.statistics.ratings import most_informative

log = logging.getLogger("nip_run.tournament")

_EXAMPLE = re.compile(r"\([^()]*\)|[\d,]*\d|; .*", re.DOTALL)
"""The parts that differ between notes of one kind: numbers, examples and advice. The log of each run has all notes."""
RESERVE = 1.1
"""A round starts only if the budget allows this multiple of the expected cost of its games."""
_COUNTS = (("cost_usd",), ("prompt_tokens", "completion_tokens"), ("completions",))
"""The counts in a manifest that are the dollars, tokens and calls of a run."""


def play_tournament(plan: TournamentPlan, results: Results, run_id: str, options: RunOptions) -> FinishedRun:
    """Play or resume a tournament, and return its result with the ratings.

    Raises:
        UsageError: the run id is too long.
        BudgetExhausted, ProviderRefusal, Interrupted, RunError: see `runner.runs.session.run.run_games`.
    """
    plan.check_run_id(run_id)
    with nullcontext() if options.holds_lock else results.lock(run_id):
        folder, manifest = results.open(plan, run_id)
        _rebuild_parts(results, plan, folder, options.allowed_keys)
        if manifest.status == Status.DONE and folder.metrics.is_file() and has_same_spec(folder, manifest, plan.games):
            return saved_result(results, folder, manifest)
        write_run_files(plan.games, folder)
        session = _TournamentSession(plan, results, folder, manifest, options)
        session.complete()
    return session.result()


class _TournamentSession(SessionOfParts):
    """One process's execution of a tournament."""

    plan: TournamentPlan

    def __post_init__(self) -> None:
        super().__post_init__()
        self.manifest = replace(self.manifest, agents=self.plan.agent_rows())
        self._games = TournamentGames(self.plan)
        budget = self.options.budget
        spent_here = UsageTotals() if budget is None else spent_on_parts(self.results, self.folder.run_id)
        self._spent_before_by_others = UsageTotals() if budget is None else budget.spent - spent_here

    def play(self) -> Mapping[str, Any]:
        """Play all rounds that are not finished, and return the ratings. The errors are those of `play_tournament`."""
        with round_log(self.folder, self.plan.identity) as rounds:
            self._finish_recorded_rounds(rounds)
            while planned := self._next_round(rounds):
                rounds.add(planned)
                self._play_round(planned, len(rounds.rounds))
        return summarize(self.folder, self._games, self.results.parts_of(self.folder.run_id))

    def _finish_recorded_rounds(self, rounds: RoundLog) -> None:
        """Finish the last recorded round, and read the games of all rounds."""
        if not rounds.rounds:
            return
        self._play_round(rounds.rounds[-1], len(rounds.rounds))
        for number, leg in product(datapoints_played(rounds.rounds).keys() - rounds.rounds[-1].keys(), LEGS):
            part = self.folder.sibling(part_run_id(self.folder.run_id, number, leg))
            self._games.read(self.plan.pairings[number], leg, part)

    def _next_round(self, rounds: RoundLog) -> Round:
        """Return the next round; empty if the tournament ends because of its number of games or its budget."""
        played = datapoints_played(rounds.rounds)
        planned = RoundPlanner(self.plan, played, self._games).next_round()
        budget = self.options.budget
        more = self._count_games(planned, played)
        if budget is None or not planned or not played or budget.allows(self._expected_cost(more, budget)):
            return planned
        done, count = (sum(games.values()) for games in (self._count_games(played, {}), more))
        self._notes.append(
            f"the tournament ends after {counted(done, 'game')}, because {count} more may exceed the budget; to play "
            "on, repeat the command with a larger budget"
        )
        return {}

    def _count_games(self, planned: Round, played: Round) -> dict[int, int]:
        """Return the number of further games of each pairing."""
        per_datapoint = self.plan.games_per_datapoint
        return {number: (count - played.get(number, 0)) * per_datapoint for number, count in planned.items()}

    def _expected_cost(self, more: Mapping[int, int], budget: Budget) -> UsageTotals:
        """Return the expected cost of further games, by pairing, from the cost of this tournament's games so far."""
        parts = [part.manifest() for part in self.results.parts_of(self.folder.run_id)]
        spent = budget.spent - self._spent_before_by_others
        usd, tokens, completions = (RESERVE * _cost_share(parts, more, names) for names in _COUNTS)
        return UsageTotals(spent.usd * usd, round(spent.tokens * tokens), round(spent.completions * completions))

    def _play_round(self, planned: Round, round_number: int) -> None:
        """Play the games of a round that are not finished, and read all its games.

        Raises:
            Interrupted: the round was interrupted.
            RunError: a part lost more games than the spec allows.
        """
        log.info("round %d: %d pairings", round_number, len(planned))
        legs = [(number, leg) for number in planned for leg in LEGS]
        parts: dict[int, Progress] = {}

        def report(position: int, progress: Progress) -> None:
            assert self.options.on_progress is not None
            parts[position] = progress
            self.options.on_progress(_add_up(f"round {round_number}", list(parts.values())))

        runs = [
            GamesRun(
                plan,
                part_run_id(self.folder.run_id, number, leg),
                RunOptions(
                    budget=self.options.budget,
                    ask_people=self.options.ask_people,
                    on_progress=None if self.options.on_progress is None else partial(report, position),
                    on_rollout=self.options.on_rollout,
                ),
                TrainingPart(self.folder.run_id, number, "benchmark"),
            )
            for position, (number, leg) in enumerate(legs)
            for plan in [self._leg_plan(number, leg, planned[number])]
        ]
        with self.naming_interrupted(f"round {round_number}"):
            run_together(runs, self.results, lambda position, result: self._on_leg_end(*legs[position], result))

    def _leg_plan(self, number: int, leg: str, datapoints: int) -> Plan:
        spec = self.plan.leg_spec(self.plan.pairings[number], leg, datapoints)
        return Plan(replace(spec, recorded_fields={**spec.recorded_fields, "sources": self.manifest.sources}))

    def _on_leg_end(self, number: int, leg: str, result: FinishedRun) -> None:
        notes = {_EXAMPLE.sub("", line): line for line in result.notes}
        # The notes of an earlier round about the same games are outdated.
        self._notes = [line for line in self._notes if not line.startswith(f"{result.folder.run_id}: ")]
        old_kinds = {_EXAMPLE.sub("", line.partition(": ")[2]) for line in self._notes}
        self.accept_part(replace(result, notes=tuple(line for kind, line in notes.items() if kind not in old_kinds)))
        self._games.read(self.plan.pairings[number], leg, result.folder)


def _cost_share(parts: Sequence[Manifest], more: Mapping[int, int], names: Sequence[str]) -> float:
    """Return the cost of further games, by pairing, as a share of that of the parts' games: the sum of these counts.

    A game costs as much as its pairing's games so far or, if there are none, as the mean of all games.
    """
    costs, games = defaultdict[int | None, float](float), Counter[int | None]()
    for part in parts:
        costs[part.iteration] += sum(getattr(part, name) or 0 for name in names)
        games[part.iteration] += part.rollouts or 0
    total = sum(costs.values())
    mean = total / max(games.total(), 1)
    expected = sum(count * (costs[n] / games[n] if games[n] else mean) for n, count in more.items())
    return expected / total if total else 0.0


def _add_up(stage: str, parts: Sequence[Progress]) -> Progress:
    """Return the progress of all runs of a round."""
    total = Progress(stage=stage)
    for name in ("rollouts", "jobs", "total", "right", "judged"):
        setattr(total, name, sum(getattr(part, name) for part in parts))
    total.warnings = {key: text for part in parts for key, text in part.warnings.items()}
    total.count_calls_of(parts)
    return total


def _rebuild_parts(results: Results, plan: TournamentPlan, folder: RunFolder, allowed: frozenset[KeyUse]) -> None:
    """Rebuild the metrics and tables that parts have lost, from their journals.

    Raises:
        RunError: a part that has played is missing.
    """
    rounds = read_rounds(folder.path, plan.identity)
    finished_numbers = datapoints_played(rounds if _has_finished(folder) else rounds[:-1])
    for number, leg in product(datapoints_played(rounds), LEGS):
        part = folder.sibling(part_run_id(folder.run_id, number, leg))
        if number not in finished_numbers and not _has_finished(part):
            continue  # the last round may have been stopped before it
        for path in (part.manifest_path, part.spec, part.journal):
            if not path.is_file():
                raise RunError(
                    f"{path} is missing; run {part.run_id} has games of tournament {folder.run_id}. Restore "
                    f"{part.path} from a backup, or start over with --again"
                )
        if not has_outputs(part) and _has_finished(part):
            with results.lock(part.run_id):
                rebuild_outputs(part, results, allowed)


def _has_finished(part: RunFolder) -> bool:
    return part.manifest_path.is_file() and part.manifest().status == Status.DONE


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
