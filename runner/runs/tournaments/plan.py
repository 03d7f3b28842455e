"""Plans a tournament: its pairings, and the plan of each pairing's games.

A pairing of two players and a judge has two legs. Between the legs, the players exchange their *seats*: the agents
whose models they replace. A leg is played as an ordinary benchmark run, so it can reuse cached answers. It has two
games about each datapoint. Between these games, the players exchange their *sides*: the right and the wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from runner.base.hashing import tagged_hash
from runner.game.prompts.templates import PromptSet
from runner.results.manifest import AgentRow
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.identity import selection_content
from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import PlanWithParts
from runner.spec.loader import Spec
from runner.spec.tournament_roles import GAMES_PER_REPEAT, judges_of, seats_of
from runner.spec.tournament_settings import TournamentSettings
from runner.statistics.pairings import Pairing, every_pairing

LEGS = ("a", "b")
"""The legs of a pairing. In leg `a`, its first player has the first seat; in leg `b`, the second seat."""

MUTABLE_TOURNAMENT_KEYS = ("tournament.games", "tournament.datapoints_per_round")
"""Keys of `tournament` that may change when a run resumes."""


def part_run_id(run_id: str, number: int, leg: str) -> str:
    """Return the run id of a leg; `number` is the index of its pairing, from 0."""
    return f"{run_id}-p{number}{leg}"


@dataclass(frozen=True)
class TournamentPlan(PlanWithParts):
    """The plan of a tournament, which is known before it starts."""

    first_suffix = "-p0a"
    longest_suffix = "-p99999a"

    @property
    def tournament(self) -> TournamentSettings:
        assert self.spec.experiment.tournament is not None
        return self.spec.experiment.tournament

    @cached_property
    def players(self) -> tuple[str, ...]:
        """The names of the players; a pairing names them by number."""
        return tuple(self.tournament.players)

    @cached_property
    def judges(self) -> tuple[str, ...]:
        """The model groups that judge. A panel counts as one judge, named `panel`."""
        return judges_of(self.spec.experiment, self.tournament, self.spec.protocol)

    @property
    def judges_with_groups(self) -> list[tuple[str, str]]:
        """The name and the model group of each judge, or of each member of the panel."""
        if self.spec.protocol.file.panel is None:
            return [(group, group) for group in self.judges]
        return [(name, self.spec.experiment.agents[name].model) for name in self.spec.protocol.verifier_names]

    @cached_property
    def seats(self) -> tuple[str, ...]:
        """The names of the two agents whose models the players replace."""
        return seats_of(self.tournament, self.spec.protocol)

    @cached_property
    def pairings(self) -> list[Pairing]:
        """Every pairing, in the order of a round robin."""
        return every_pairing(len(self.players), len(self.judges))

    @cached_property
    def games_per_datapoint(self) -> int:
        """The number of games of a pairing about each datapoint."""
        return GAMES_PER_REPEAT * self.spec.experiment.rollouts.per_datapoint

    @property
    def max_games(self) -> int:
        """The number of games after which the tournament ends, also if its budget allows more."""
        most = len(self.pairings) * len(self.spec.dataset.datapoints) * self.games_per_datapoint
        return self.tournament.games or most

    @cached_property
    def identity(self) -> str:
        """The hash that identifies a tournament."""
        experiment = self.spec.experiment
        return tagged_hash(
            "tournament",
            {
                "name": experiment.name,
                "benchmark": self.games.benchmark,
                "seed": experiment.seed,
                "players": list(self.players),
                "judges": list(self.judges),
                "seats": list(self.seats),
                "pairing": self.tournament.pairing,
                "per_datapoint": experiment.rollouts.per_datapoint,
                "games": [Plan(self.leg_spec(pairing, leg, 1)).game_hash for pairing in self.pairings for leg in LEGS],
                "dataset": [self.spec.dataset.source_sha256, selection_content(experiment.dataset)],
            },
        )

    @property
    def mutable_keys(self) -> tuple[str, ...]:
        """The spec keys that do not change the identity; `*` matches any name."""
        game_keys = (key for key in self.games.mutable_keys if key != "rollouts.per_datapoint")
        return (*game_keys, *MUTABLE_TOURNAMENT_KEYS)

    def leg_spec(self, pairing: Pairing, leg: str, datapoint_count: int) -> Spec:
        """Return the spec of a leg: a benchmark about the first `datapoint_count` datapoints, with both stances."""
        experiment, protocol = self.spec.experiment, self.spec.protocol
        order = pairing[:2] if leg == LEGS[0] else (pairing.second, pairing.first)
        seated = {seat: self.players[player] for seat, player in zip(self.seats, order, strict=True)}
        agents = dict(experiment.agents)
        for seat, player in seated.items():
            agents[seat] = replace(agents[seat], model=self.tournament.players[player].model)
        if protocol.file.panel is None:
            agents[protocol.verifier_name] = replace(agents[protocol.verifier_name], model=self.judges[pairing.judge])
        dataset = replace(self.spec.dataset, datapoints=self.spec.dataset.datapoints[:datapoint_count])
        return replace(
            self.spec,
            experiment=replace(
                experiment,
                kind="benchmark",
                tournament=None,
                agents=agents,
                stances="both",
                dataset=replace(experiment.dataset, limit=len(dataset.datapoints)),
            ),
            protocol=protocol.with_given_stance(),
            prompts=self._seated_prompts(seated),
            dataset=dataset,
            player_prompts={},
            resumed_run_id=None,
        )

    def _seated_prompts(self, seated: dict[str, str]) -> PromptSet:
        """Return the templates of a game, given the player in each seat."""
        prompts, sources, files = self.spec.prompts, dict(self.spec.prompts.sources), dict(self.spec.prompts.files)
        for seat, player in seated.items():
            if (templates := self.spec.player_prompts.get(player)) is not None:
                own_names = {name for name in templates.sources if name.partition(".")[0] == seat}
                sources |= {name: templates.sources[name] for name in own_names}
                files |= {name: file for name, file in templates.files.items() if name in own_names}
        return PromptSet(sources, prompts.inherited, files)

    def legs(self, pairing: Pairing, datapoint_count: int) -> list[Plan]:
        """Return the plans of both legs of a pairing about the first `datapoint_count` datapoints."""
        return [Plan(self.leg_spec(pairing, leg, datapoint_count)) for leg in LEGS]

    def list_game_plans(self) -> list[Plan]:
        """Return the plans of as many games as the tournament may play.

        If the pairings depend on results, the plans are those of the most expensive pairings.
        """
        pairings, games_left = self.pairings, self.max_games
        if self.tournament.pairing == "round_robin":
            datapoints = self.round_robin_datapoints
            return [plan for pairing in pairings for plan in self.legs(pairing, datapoints)]
        plans: list[Plan] = []
        for pairing in sorted(pairings, key=self._highest_cost, reverse=True):
            datapoints = min(games_left // self.games_per_datapoint, len(self.spec.dataset.datapoints))
            if not datapoints:
                break
            plans += self.legs(pairing, datapoints)
            games_left -= datapoints * self.games_per_datapoint
        return plans

    @property
    def round_robin_datapoints(self) -> int:
        """The number of datapoints of each pairing in a round robin."""
        per_pairing = self.max_games // (len(self.pairings) * self.games_per_datapoint)
        return min(per_pairing, len(self.spec.dataset.datapoints))

    def _highest_cost(self, pairing: Pairing) -> float:
        """Return the highest possible cost of a pairing's games about one datapoint; calls without a price cost 0."""
        estimates = [estimate for plan in self.legs(pairing, 1) for estimate in estimate_costs(plan)]
        return sum(estimate.cost_usd[1] for estimate in estimates if estimate.cost_usd is not None)

    def agent_rows(self) -> tuple[AgentRow, ...]:
        """Return a row for each player and each judge, in the format of the leaderboard's table `agents`."""
        models = self.spec.experiment.models
        agents = [(name, "prover", player.model) for name, player in self.tournament.players.items()]
        agents += [(name, "verifier", group) for name, group in self.judges_with_groups]
        return tuple(
            AgentRow(
                agent=name, role=role, model_group=group, provider=models[group].provider,
                model=models[group].name, base_model=models[group].base_model or models[group].name,
            )
            for name, role, group in agents
        )  # fmt: skip
