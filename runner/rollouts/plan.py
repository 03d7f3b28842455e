"""The plan of a run: its jobs, their identities, and the number of games.

This module calls no model and writes no file. A rollout's id is the hash of everything that its game depends on. So a
game with an edited prompt is another rollout, and a longer run includes the rollouts of a shorter one. A block has the
games of one datapoint and one repeat: a single game, or one for each combination of stances and seats. A seat is a role
in the protocol, and a player is an entry of the spec key `agents` with its model group. If two seats are swapped, they
exchange their players.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any, Self

from runner.base.hashing import derived_seed, tagged_hash
from runner.base.value_class import value_class
from runner.documents.dataclass_schema import to_plain
from runner.game.protocols.tree_shape import TreeShape
from runner.models.interface import SampleKey
from runner.models.settings import ModelSettings
from runner.rollouts.agents.agent import Agent, AgentRuntime
from runner.rollouts.agents.function_checkers import FunctionChecker, checker_name
from runner.rollouts.agents.selectors import Selector, selector_group, selector_name
from runner.rollouts.agents.whole_agent import OpenAiWholeAgent
from runner.rollouts.identity import (
    MUTABLE_KEYS,
    MUTABLE_MODEL_KEYS,
    agent_content,
    checker_content,
    design_content,
    judging_content,
    model_content,
    protocol_content,
    selection_content,
    selects_by_group,
    verdict_content,
)
from runner.rollouts.job import Job
from runner.rollouts.recorded_debates import Debate, Debates, job_key
from runner.rollouts.shard_budget import Shares
from runner.spec.datasets.datapoint import Datapoint, group_datapoints
from runner.spec.datasets.shards import Shard
from runner.spec.experiment import Experiment
from runner.spec.loader import Spec
from runner.spec.paired_design import Seats, exchange_players, swapped_seats
from runner.spec.tournament_roles import called_groups


@value_class(frozen=True)
class Plan:
    """Everything about a run that is known before it starts."""

    spec: Spec
    debates: Debates | None = None
    """The debates of another run that this run judges. The saved spec and the run's identity do not depend on them."""

    def with_spec(self, spec: Spec) -> Self:
        """Return this plan with another spec."""
        return replace(self, spec=spec)

    @cached_property
    def game_hash(self) -> str:
        """The hash of all that the run's games have in common: rules, prompts, models and the retries of answers."""
        experiment, protocol = self.spec.experiment, self.spec.protocol
        groups = {group for agent in experiment.agents.values() for group in agent.groups}
        return tagged_hash(
            "game",
            {
                "protocol": protocol_content(protocol),
                "prompts": dict(self.spec.prompts.sources),
                "models": {
                    name: model_content(experiment.models[name], self.spec.replayed_sha256.get(name), self.spec.plugins)
                    for name in groups
                },
                "agents": {name: agent_content(agent) for name, agent in experiment.agents.items()},
                **verdict_content(experiment),
                "retry": [to_plain(experiment.retry.invalid_response), to_plain(experiment.retry.refused)],
                **({} if self.tree_shape is None else {"tree": self.tree_shape.responses}),
                **design_content(experiment.stances, self.seats),
                **judging_content(self.spec),
                **checker_content(experiment.dataset),
            },
        )

    @cached_property
    def identity(self) -> str:
        """The hash that identifies a run: specs with the same identity describe the same run, longer or shorter."""
        selection = selection_content(self.spec.experiment.dataset)
        # If another run's debates are judged, that run determines the dataset, whose copy grows with the run.
        # The units of an analysis also grow with the analyzed run, whose journal identifies them.
        analysis = self.spec.experiment.analysis
        is_derived = self.spec.rejudged is not None or analysis is not None
        source = None if is_derived else self.spec.dataset.source_sha256
        return tagged_hash(
            "run",
            {
                "name": self.spec.experiment.name,
                "benchmark": self.benchmark,
                "seed": self.spec.experiment.seed,
                "game": self.game_hash,
                "dataset": [source, selection],
                **({} if analysis is None else {"analysis": [analysis.journal, analysis.analyzer_sha256]}),
            },
        )

    @property
    def mutable_keys(self) -> tuple[str, ...]:
        """The spec keys that do not change the identity; `*` matches any one name."""
        group_keys = () if selects_by_group(self.spec.experiment.dataset) else ("dataset.group_by",)
        return MUTABLE_KEYS + group_keys + tuple(f"models.*.{name}" for name in MUTABLE_MODEL_KEYS)

    @property
    def sharing_groups(self) -> frozenset[str]:
        """The model groups that request answers to several samples with the same prompt (siblings) in one call."""
        has_several_answers = self.tree_shape is not None or bool(self.spec.protocol.selections)
        models = self.spec.experiment.models
        return frozenset(
            name for name, settings in models.items() if settings.shares_prompts(trees=has_several_answers)
        )

    @cached_property
    def games_share_calls(self) -> bool:
        """Whether one call may request answers for several games of a datapoint."""
        models = self.spec.experiment.models.values()
        return self.tree_shape is None and any(settings.shares_prompts(trees=False) for settings in models)

    @property
    def run_id(self) -> str:
        return self.spec.resumed_run_id or f"{self.spec.experiment.name}-{self.identity[:10]}"

    @property
    def games(self) -> Plan:
        """The plan itself. For a training plan, this property is the plan of its games; see `RunPlan`."""
        return self

    def list_game_plans(self) -> list[Plan]:
        return [self]

    @property
    def shard(self) -> Shard | None:
        """The part of the run to play; None for the full run. The ids and seeds of games do not depend on it."""
        return self.spec.shard

    @cached_property
    def points(self) -> Sequence[Datapoint]:
        """The datapoints to play: all, or those of the shard."""
        points = self.spec.dataset.datapoints
        return points if self.shard is None else self.shard.points(points)

    @cached_property
    def shard_experiment(self) -> Experiment:
        """The experiment with the shard's share of each limit; the spec's own experiment if there are no shards."""
        experiment, shard = self.spec.experiment, self.shard
        if shard is None:
            return experiment
        return Shares(experiment, shard, shard.sizes(self.spec.dataset.datapoints)).shard_experiment()

    @property
    def benchmark(self) -> str:
        return self.spec.experiment.benchmark or self.spec.experiment.name

    @cached_property
    def tree_shape(self) -> TreeShape | None:
        """The shape of the trees of responses; None if single games are played."""
        responses = self.spec.experiment.rollouts.num_responses_per_timestep
        return None if responses is None else TreeShape(responses, self.spec.protocol.max_message_rounds)

    @cached_property
    def seats(self) -> Seats | None:
        """The two seats that exchange their players in every second game; None if the spec does not swap seats."""
        return swapped_seats(self.spec.experiment, self.spec.protocol)

    @cached_property
    def variants(self) -> tuple[tuple[int | None, bool | None], ...]:
        """The (stance, swapped) pair of each game in a block. A value is None if the spec does not vary it."""
        stances = (None,) if self.spec.experiment.stances is None else (0, 1)
        return tuple(product(stances, self.swapped_values))

    @property
    def swapped_values(self) -> tuple[bool | None, ...]:
        """The values of `Job.swapped` in this plan."""
        return (None,) if self.seats is None else (False, True)

    @property
    def block_count(self) -> int:
        """The number of blocks: one for each datapoint and repeat."""
        return len(self.points) * self.spec.experiment.rollouts.per_datapoint

    @cached_property
    def size(self) -> int:
        """The number of games or trees."""
        if self.debates is not None:
            return sum(1 for _ in self.jobs())
        return self.block_count * len(self.variants)

    def jobs(self) -> Iterator[Job]:
        """Yield every job in the order of play, block by block. If debates are judged, omit jobs without a debate."""
        if self.debates is None:
            return self._every_job()
        debated = (job for job in self._every_job() if job_key(job) in self.debates.by_job)
        return (replace(job, index=index) for index, job in enumerate(debated))

    def _every_job(self) -> Iterator[Job]:
        seed = self.spec.experiment.seed
        branches = 1 if self.tree_shape is None else self.tree_shape.branches
        index = 0
        for point, number in self._blocks():
            # All models and all games of a block have the same seed, because it does not depend on the game's hash.
            game_seed = derived_seed("rollout", seed, point.id, number)
            for stance, swapped in self.variants:
                stances_exchanged = self.spec.protocol.stances_exchanged(stance)
                yield self._with_id(
                    Job(index, "", point, number * branches, game_seed, stance, swapped, stances_exchanged)
                )
                index += 1

    def _blocks(self) -> Iterator[tuple[Datapoint, int]]:
        """Yield each datapoint with each repeat.

        All datapoints are played once before any is repeated, so that an interrupted run covers as many as possible.

        With `until`, the groups of datapoints are played one after another, in an order derived from the seed. The
        games played so far are then a random sample, even if the dataset is sorted.
        """
        points, repeats = self.points, range(self.spec.experiment.rollouts.per_datapoint)
        if self.spec.experiment.until is None:
            yield from ((point, number) for number in repeats for point in points)
            return
        seed = self.spec.experiment.seed
        for group in sorted(
            group_datapoints(points),
            key=lambda members: (derived_seed("until", seed, members[0].group), members[0].group),
        ):
            yield from ((point, number) for number in repeats for point in group)

    def debate(self, job: Job) -> Debate:
        """Return the debate that a job judges."""
        assert self.debates is not None
        return self.debates.by_job[job_key(job)]

    def job_of_branch(self, job: Job, repeat: int) -> Job:
        """Return the job of one branch, from the job of its tree. Both have the same seed."""
        return self._with_id(replace(job, repeat=repeat))

    def _with_id(self, job: Job) -> Job:
        content = [self.game_hash, job.datapoint.content_hash, job.number, self.spec.experiment.seed]
        if self.debates is not None and (debate := self.debates.hashes.get(job_key(job))) is not None:
            content.append(debate)
        return replace(job, rollout_id=tagged_hash("rollout", content)[:16])

    def sibling_numbers(self, job: Job, agent: str) -> list[int]:
        """Return the numbers of the other jobs where this agent gets the same first prompt.

        These are other repeats with the same datapoint, stance and seats, where the agent also speaks in round 0.
        """
        group = self.spec.experiment.models[self.groups(swapped=job.swapped)[agent]]
        if self.debates is not None or not group.shares_prompts(trees=False):
            return []
        seed, point = self.spec.experiment.seed, job.datapoint
        return [
            replace(job, repeat=repeat).number
            for repeat in range(self.spec.experiment.rollouts.per_datapoint)
            if repeat != job.repeat
            and agent in self.spec.protocol.speakers(0, derived_seed("rollout", seed, point.id, repeat))
        ]

    def group_of(self, sample: SampleKey) -> str:
        """Return the model group that answers a sample. In a game with swapped seats, the groups are exchanged too."""
        return self.groups(swapped=self.seats is not None and sample.repeat % 2 == 1)[sample.agent]

    def groups(self, *, swapped: bool | None) -> Mapping[str, str]:
        """Return the model group of each seat in a game."""
        return self._groups[bool(swapped)]

    @cached_property
    def _groups(self) -> dict[bool, dict[str, str]]:
        """The model group of each seat, for games without and with swapped seats."""
        agents = self.spec.experiment.agents
        players = {False: agents, True: exchange_players(agents, self.seats)}
        groups = {key: {seat: player.model for seat, player in by_seat.items()} for key, by_seat in players.items()}
        for key, by_seat in players.items():
            experiment, protocol = replace(self.spec.experiment, agents=by_seat), self.spec.protocol
            for (speaker, _), best_of in protocol.selections.items():
                group = selector_group(experiment, protocol, speaker, best_of)
                groups[key][selector_name(speaker, best_of)] = group
            groups[key] |= {checker_name(name): by_seat[name].model for name in self._checked_speakers}
        return groups

    def game_agents(self, *, swapped: bool | None = None) -> dict[str, Agent]:
        """Return the agents by seat, and the selectors of their candidates by the names in samples."""
        agents: dict[str, Agent] = dict(self.agents(swapped=swapped))
        protocol, runtime = self.spec.protocol, AgentRuntime(self.spec.prompts)
        for (speaker, _), best_of in protocol.selections.items():
            experiment = agents[speaker].hyper_params
            agents[selector_name(speaker, best_of)] = Selector(experiment, runtime, speaker, protocol, best_of)
        for name in self._checked_speakers:
            agents[checker_name(name)] = FunctionChecker(agents[name].hyper_params, runtime, name, protocol)
        return agents

    @property
    def _checked_speakers(self) -> Sequence[str]:
        """The provers whose answers or sub-claims a Python function labels."""
        checker = self.spec.experiment.dataset.checker
        is_function = checker is not None and checker.by == "function"
        return self.spec.protocol.stating_provers if is_function else ()

    def agents(self, *, swapped: bool | None = None) -> dict[str, OpenAiWholeAgent]:
        """Return the agents by seat. They call no models unless the caller passes them a function for this."""
        experiment, protocol, runtime = self.spec.experiment, self.spec.protocol, AgentRuntime(self.spec.prompts)
        if swapped:
            experiment = replace(experiment, agents=exchange_players(experiment.agents, self.seats))
        return {name: OpenAiWholeAgent(experiment, runtime, name, protocol) for name in protocol.agent_names}

    def players(self, *, swapped: bool | None = None) -> dict[str, OpenAiWholeAgent]:
        """Return the agents by player, an entry of the spec key `agents`. Swapped seats exchange two players."""
        agents = self.agents(swapped=swapped)
        return exchange_players(agents, self.seats) if swapped else agents


def used_models(plan: Plan) -> dict[str, ModelSettings]:
    """Return the model groups that a plan calls: of all agents, of a tournament, or only of a judge of debates."""
    experiment = plan.shard_experiment
    if experiment.rejudge is not None:
        judge = experiment.agents[plan.spec.protocol.verifier_name].model
        return {judge: experiment.models[judge]}
    if experiment.tournament is not None:
        return {group: experiment.models[group] for group in called_groups(experiment, plan.spec.protocol)}
    return {group: experiment.models[group] for agent in experiment.agents.values() for group in agent.groups}


def human_groups(plan: Plan) -> dict[str, ModelSettings]:
    """Return the model groups of a plan that people answer for."""
    return {group: settings for group, settings in used_models(plan).items() if settings.traits.asks_people}


def _renamed_attribute(old: str, new: str) -> property:
    """Return the property for an attribute's old name, which users of `runner.Plan` may use until 2.0."""

    def get(plan: Plan) -> Any:
        message = f"Plan.{old} is now Plan.{new}; the old name works until 2.0"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(plan, new)

    return property(get)


for _old, _new in (
    ("all_games", "list_game_plans"), ("blocks", "block_count"), ("branch", "job_of_branch"),
    ("limited_experiment", "shard_experiment"), ("shape", "tree_shape"), ("shares_between_games", "games_share_calls"),
    ("sharing", "sharing_groups"), ("siblings", "sibling_numbers"),
):  # fmt: skip
    setattr(Plan, _old, _renamed_attribute(_old, _new))
