"""What a run's games came to and took, counted while they stream by: memory grows with agents and rounds, not games."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.game.protocols.protocol import Decision
from runner.models.prices import Pricing
from runner.results.metrics import Metrics
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Call, Rollout
from runner.runs.execution.spending import run_costs
from runner.runs.finished.problems import GameProblem, GameProblems
from runner.runs.finished.rollout_details import RolloutDetails

EXAMPLES = 3
"""So many games of each kind are named."""

VERDICTS = (Decision.REJECT, Decision.ACCEPT, Decision.NONE)


@dataclass
class AgentTally:
    """What one seat's calls took."""

    agent: str
    calls: int = 0
    """Answers of a model, those too that could not be used."""
    repeats: int = 0
    """Answers that were asked for again."""
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    usd: float | None = 0.0
    """None once a call came whose price is not known."""
    seconds: float = 0.0
    """Of all answers together."""
    is_total: bool = False

    @classmethod
    def sum_of(cls, agents: Sequence[AgentTally]) -> AgentTally:
        """Return what all agents took together."""
        total = cls("all", is_total=True)
        for one in agents:
            for name in (
                "calls",
                "repeats",
                "failed",
                "prompt_tokens",
                "completion_tokens",
                "cached_tokens",
                "seconds",
            ):
                setattr(total, name, getattr(total, name) + getattr(one, name))
            total.usd = None if total.usd is None or one.usd is None else total.usd + one.usd
        return total


@dataclass
class RunTally:
    """Counts games, which come in the order of the plan. `measures`: their metrics too, where no file has them."""

    plan: Plan
    measures: bool
    games: int = 0
    confusion: Counter[tuple[int | None, int]] = field(default_factory=Counter)
    """By label and verdict."""
    outcomes: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    """By outcome and label."""
    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By rounds played and verdict."""
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """By what was not right, the first few games: rollout and datapoint."""

    def __post_init__(self) -> None:
        self._metrics = Metrics(self.plan.spec.protocol, self.plan.seats) if self.measures else None
        self._troubles = GameProblems(self.plan)
        self._prices = run_costs(self.plan).prices
        self._agents = {name: AgentTally(name) for name in self.plan.spec.protocol.agent_names}

    def add(self, told: RolloutDetails) -> None:
        """Count one game."""
        rollout = told.rollout
        self.games += 1
        label, decision = rollout.job.datapoint.label, int(rollout.decision)
        self.confusion[label, decision] += 1
        self.outcomes[str(rollout.outcome), label] += 1
        self.rounds[len(rollout.rounds), decision] += 1
        self._name(rollout, label, decision)
        self._add_calls(told)
        self._troubles.add(rollout)
        if self._metrics is not None:
            self._metrics.add(rollout)

    def _name(self, rollout: Rollout, label: int | None, decision: int) -> None:
        if decision == Decision.NONE:
            kind = str(rollout.outcome)
        elif label is None or decision == label:
            return
        else:
            kind = "accepted, and is to be rejected" if decision else "rejected, and is to be accepted"
        named = self.examples.setdefault(kind, [])
        if len(named) < EXAMPLES:
            named.append((rollout.job.rollout_id, rollout.job.datapoint.id))

    def _add_calls(self, told: RolloutDetails) -> None:
        groups = self.plan.groups(swapped=told.rollout.job.swapped)
        for call in told.rollout.calls:
            if not call.is_answer:
                continue
            one = self._agents[call.agent]
            one.calls += 1
            one.repeats += call.attempt > 0
            one.prompt_tokens += call.prompt_tokens
            one.completion_tokens += call.completion_tokens
            one.cached_tokens += call.cached_tokens
            one.seconds += (call.latency_ms or 0.0) / 1000
            if call.paid:
                price = self._prices.get(groups[call.agent])
                one.usd = _paid(one.usd, price, call)
        for failure in told.failures:
            self._agents[failure.sample.agent].failed += 1

    @property
    def agents(self) -> Sequence[AgentTally]:
        """What each seat took, in the protocol's order."""
        return list(self._agents.values())

    def metrics(self) -> Mapping[str, Any] | None:
        """What `metrics.json` would say of the games so far; None where they are not measured, or there is none."""
        return None if self._metrics is None or not self.games else self._metrics.summary()

    def troubles(self) -> list[GameProblem]:
        """What went wrong in the games so far."""
        return self._troubles.all_problems()


def _paid(so_far: float | None, price: Pricing | None, call: Call) -> float | None:
    return None if so_far is None or price is None else so_far + price.cost_of(call.usage)
