"""A `Spec` into the jobs of its run, with their identities, and the counts and prices known beforehand.

Nothing here calls a model or writes a file. A rollout's id is the hash of everything its game depends on, so an
edited prompt is another rollout, and a longer run has the shorter one's rollouts in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from runner.agents.agent import AgentRuntime, Position, Seat
from runner.agents.whole_agent import OpenAiWholeAgent
from runner.datasets.load import Datapoint
from runner.documents.fields import plain
from runner.hashing import derived_seed, tagged_hash
from runner.models.base import estimated_prompt_tokens
from runner.models.layers.budget import answer_limit
from runner.models.prices import price_of
from runner.models.settings import ModelSettings
from runner.protocols.protocol import Protocol
from runner.protocols.tree_shape import Shape
from runner.spec.experiment import AgentSettings
from runner.spec.load import Spec

FREE_KEYS = (
    "description",
    "sweep",
    "rollouts.per_datapoint",
    "rollouts.concurrency",
    "rollouts.most_calls",
    "dataset.limit",
    "fine_tune",
    "retry.transient",
    "budget",
    "cache",
    "agents.*.freeze",
)
"""Keys that a run may change when it goes on: they decide how much is played and how, not what a rollout is."""

FREE_MODEL_KEYS = (
    "base_url", "api_key_env", "timeout", "price", "requests_per_minute", "tokens_per_minute", "share_prompts",
    "batch", "batch_wait", "batch_poll", "lineage",
)  # fmt: skip
"""Keys of every model group that a run may change: where it is served, its key, its price, our patience."""

WORDS_TO_TOKENS = 1.4


@dataclass(frozen=True, slots=True)
class Job:
    """One game to play. `index` is its place in the run's tables, nothing more."""

    index: int
    rollout_id: str
    datapoint: Datapoint
    repeat: int
    seed: int


@dataclass(frozen=True)
class Estimate:
    """What one model group will be asked, from the shortest possible games to the longest without retries."""

    group: str
    model: str
    calls: tuple[int, int]
    prompt_tokens: tuple[int, int]
    completion_tokens: tuple[int, int]
    cost_usd: tuple[float, float] | None


@dataclass(frozen=True)
class Plan:
    """Everything about a run that is known before it starts."""

    spec: Spec

    @cached_property
    def game_hash(self) -> str:
        """The hash of all that every game of the run shares: rules, prompts, models, the policy for answers."""
        experiment, protocol = self.spec.experiment, self.spec.protocol
        groups = {agent.model for agent in experiment.agents.values()}
        return tagged_hash(
            "game",
            {
                "protocol": protocol_content(protocol),
                "prompts": dict(self.spec.prompts.sources),
                "models": {
                    name: model_content(experiment.models[name], self.spec.replayed.get(name)) for name in groups
                },
                "agents": {name: _seat_content(agent) for name, agent in experiment.agents.items()},
                "decision_format": plain(experiment.decision_format),
                "retry": [plain(experiment.retry.invalid_response), plain(experiment.retry.refused)],
                **({} if self.shape is None else {"tree": self.shape.responses}),
            },
        )

    @cached_property
    def identity(self) -> str:
        """The hash that tells runs apart: two specs with one identity are the same run, longer or shorter."""
        dataset = plain(self.spec.experiment.dataset)
        selection = {name: dataset[name] for name in ("columns", "split", "filter", "balance", "shuffle")}
        return tagged_hash(
            "run",
            {
                "name": self.spec.experiment.name,
                "benchmark": self.benchmark,
                "seed": self.spec.experiment.seed,
                "game": self.game_hash,
                "dataset": [self.spec.dataset.source_sha256, selection],
            },
        )

    @property
    def free_keys(self) -> tuple[str, ...]:
        """The keys that are not in the identity; `*` is any one name."""
        return FREE_KEYS + tuple(f"models.*.{name}" for name in FREE_MODEL_KEYS)

    @property
    def sharing(self) -> frozenset[str]:
        """The model groups that ask for the answers of sibling samples in one call."""
        models, trees = self.spec.experiment.models, self.shape is not None
        return frozenset(name for name, settings in models.items() if settings.shares(trees=trees))

    @property
    def run_id(self) -> str:
        return f"{self.spec.experiment.name}-{self.identity[:10]}"

    @property
    def benchmark(self) -> str:
        return self.spec.experiment.benchmark or self.spec.experiment.name

    @cached_property
    def shape(self) -> Shape | None:
        """The shape of the trees of responses; None where single games are played."""
        responses = self.spec.experiment.rollouts.num_responses_per_timestep
        return None if responses is None else Shape(responses, self.spec.protocol.max_message_rounds)

    @property
    def size(self) -> int:
        """How many games or trees."""
        return len(self.spec.dataset.datapoints) * self.spec.experiment.rollouts.per_datapoint

    def jobs(self) -> Iterator[Job]:
        """Every game or tree, the first of all datapoints first, so that a run cut short covers them evenly."""
        seed = self.spec.experiment.seed
        apart = 1 if self.shape is None else self.shape.branches
        index = 0
        for number in range(self.spec.experiment.rollouts.per_datapoint):
            for point in self.spec.dataset.datapoints:
                # Not from the game's hash: the same datapoint meets the same chance under every model.
                chance = derived_seed("rollout", seed, point.id, number)
                yield self._job(index, point, number * apart, chance)
                index += 1

    def branch(self, job: Job, repeat: int) -> Job:
        """One branch of a tree as a job of its own; chance is the whole tree's."""
        return self._job(job.index, job.datapoint, repeat, job.seed)

    def _job(self, index: int, point: Datapoint, repeat: int, chance: int) -> Job:
        content = [self.game_hash, point.content_hash, repeat, self.spec.experiment.seed]
        return Job(index, tagged_hash("rollout", content)[:16], point, repeat, chance)

    def kin(self, job: Job, agent: str) -> list[int]:
        """The other repeats of a job's datapoint in which this agent speaks first too: they ask the same first."""
        seed, point = self.spec.experiment.seed, job.datapoint
        return [
            repeat
            for repeat in range(self.spec.experiment.rollouts.per_datapoint)
            if repeat != job.repeat
            and agent in self.spec.protocol.speakers(0, derived_seed("rollout", seed, point.id, repeat))
        ]

    def seats(self) -> dict[str, Seat]:
        """The seats of the game as the spec fills them, for who only wants to know."""
        runtime = AgentRuntime(self.spec.prompts)
        protocol = self.spec.protocol
        return {name: Seat(self.spec.experiment, runtime, name, protocol) for name in protocol.agent_names}

    def agents(self) -> dict[str, OpenAiWholeAgent]:
        """The agents that play, one a seat."""
        runtime = AgentRuntime(self.spec.prompts)
        protocol = self.spec.protocol
        return {name: OpenAiWholeAgent(self.spec.experiment, runtime, name, protocol) for name in protocol.agent_names}

    def estimates(self) -> list[Estimate]:
        """Calls, tokens and cost by model group, without retries.

        Tokens of prompts are rough: four bytes each. Answers go from the word limit to the most a model may say.
        """
        shortest, longest = _played_rounds(self.spec.protocol)
        low, high = _usage(self, shortest, most=False), _usage(self, longest, most=True)
        rows = []
        for group in sorted(low.keys() | high.keys()):
            settings = self.spec.experiment.models[group]
            a, b = low.get(group, _Counts()), high.get(group, _Counts())
            price = price_of(settings)
            cost = None if price is None else (price.cost(a.prompt, a.completion), price.cost(b.prompt, b.completion))
            rows.append(
                Estimate(
                    group, settings.name, (a.calls, b.calls), (a.prompt, b.prompt), (a.completion, b.completion), cost
                )
            )
        return rows


def total(estimates: Iterable[Estimate]) -> list[Estimate]:
    """The sums by model group."""
    rows: dict[str, Estimate] = {}
    for new in estimates:
        old = rows.get(new.group)
        rows[new.group] = new if old is None else _sum(old, new)
    return list(rows.values())


def _sum(one: Estimate, other: Estimate) -> Estimate:
    def pair(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]

    cost = None
    if one.cost_usd is not None and other.cost_usd is not None:
        cost = (one.cost_usd[0] + other.cost_usd[0], one.cost_usd[1] + other.cost_usd[1])
    return replace(
        one,
        calls=pair(one.calls, other.calls),
        prompt_tokens=pair(one.prompt_tokens, other.prompt_tokens),
        completion_tokens=pair(one.completion_tokens, other.completion_tokens),
        cost_usd=cost,
    )


def protocol_content(protocol: Protocol) -> dict[str, Any]:
    """A protocol's content for hashing: its rules and the parameters in force, without names for people."""
    file = plain(protocol.file)
    return {**{name: file[name] for name in ("agents", "channels", "cycle")}, "parameters": plain(protocol.parameters)}


def model_content(settings: ModelSettings, replayed: str | None) -> dict[str, Any]:
    """What of a model group a game depends on; not where it is served, nor its key, price or patience.

    Of a run that it replays, the hash of its journal (`replayed`) and not its folder, which may be moved.
    """
    names = [f.name for f in fields(settings) if f.name not in (*FREE_MODEL_KEYS, "run")]
    content = {name: plain(getattr(settings, name)) for name in names}
    return {**content, "run": replayed} if settings.provider == "replay" else content


def _seat_content(agent: AgentSettings) -> dict[str, Any]:
    """What of an agent's settings a game depends on; not whether it is trained afterwards."""
    return {name: value for name, value in plain(agent).items() if name != "freeze"}


@dataclass
class _Counts:
    calls: int = 0
    prompt: int = 0
    completion: int = 0


def _played_rounds(protocol: Protocol) -> tuple[int, int]:
    """The number of rounds of the shortest and of the longest game."""
    first = next(i for i in range(protocol.max_message_rounds) if protocol.can_ever_decide(i))
    return first + 1, protocol.max_message_rounds


def _usage(plan: Plan, rounds: int, *, most: bool) -> Mapping[str, _Counts]:
    """Tokens of all games of so many rounds, from each datapoint's rendered system message.

    An answer is as long as its word limit; with `most`, as long as its model may make it.
    """
    protocol, seats = plan.spec.protocol, plan.seats()
    points, repeats = plan.spec.dataset.datapoints, plan.spec.experiment.rollouts.per_datapoint
    system: dict[str, int] = {}
    for name, seat in seats.items():
        first = protocol.first_active_round(name)
        if first is not None:
            system[name] = sum(estimated_prompt_tokens(seat.prompt(Position(first, (), p.columns))) for p in points)
    totals: dict[str, _Counts] = {}
    said = 0
    for round_ in range(rounds):
        spoken = 0
        answers = 1 if plan.shape is None else plan.shape.responses ** (round_ + 1)
        for name, games in _speaking(plan, round_).items():
            seat = seats[name]
            words = int(seat.agent_params.max_response_words * WORDS_TO_TOKENS)
            answer = (answer_limit(seat.model_settings) or words) if most else words
            row = totals.setdefault(seat.shared_model_group, _Counts())
            row.calls += games * answers
            row.prompt += (system[name] * repeats + said * len(points) * repeats) * games * answers // plan.size
            row.completion += answer * games * answers
            spoken = max(spoken, words) if protocol.step(round_).draw == "one" else spoken + words
        said += spoken
    return totals


def _speaking(plan: Plan, round_: int) -> Mapping[str, int]:
    """How many games each agent speaks in, in a round that all of them reach."""
    protocol = plan.spec.protocol
    if protocol.step(round_).draw == "all":
        return dict.fromkeys(protocol.can_be_active(round_), plan.size)
    return Counter(name for job in plan.jobs() for name in protocol.speakers(round_, job.seed))
