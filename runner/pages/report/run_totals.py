"""Counts a run's results and costs, game by game. Memory depends on agents and rounds, not on the number of games."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runner.game.protocols.protocol import Decision
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.runs.finished.problems import ProblemCounter
from runner.runs.finished.rollout_details import RolloutDetails
from runner.runs.finished.stored_problems import GameProblem

if TYPE_CHECKING:
    from runner.results.metric_computation import Metrics

MAX_EXAMPLES = 3
"""Maximum number of example games of each kind."""

_SUMMED = ("calls", "repeats", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "seconds")

VERDICTS = (Decision.REJECT, Decision.ACCEPT, Decision.NONE)


@dataclass
class AgentTally:
    """Totals of one agent's calls."""

    agent: str
    calls: int = 0
    """Number of answers, including unusable ones."""
    repeats: int = 0
    """Number of answers to repeated requests."""
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    usd: float | None = 0.0
    """Cost in dollars; None if the price of a call is unknown."""
    seconds: float = 0.0
    """Sum of the latencies of all answers."""
    is_total: bool = False

    @classmethod
    def sum_of(cls, agents: Sequence[AgentTally]) -> AgentTally:
        """Return the sum of all agents' totals."""
        total = cls("all", is_total=True)
        for agent in agents:
            for name in _SUMMED:
                setattr(total, name, getattr(total, name) + getattr(agent, name))
            total.usd = None if total.usd is None or agent.usd is None else total.usd + agent.usd
        return total


def _label_and_verdict(rollout: Rollout) -> tuple[int | None, int]:
    """Return the label and the decision of a game; with listed answers, 1 and whether the verdict is right."""
    if rollout.answers is None:
        return rollout.label, int(rollout.decision)
    label = 1 if rollout.is_labelled else None
    decided = rollout.decision != Decision.NONE
    return label, int(rollout.correct is not False) if decided else int(Decision.NONE)


@dataclass
class RunTally:
    """Counts games in the order of the plan. `measures`: also compute the metrics, because no file has them."""

    plan: Plan
    measures: bool
    games: int = 0
    confusion: Counter[tuple[int | None, int]] = field(default_factory=Counter)
    """Number of games by label and verdict."""
    outcomes: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    """Number of games by outcome and label."""
    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Number of games by rounds played and verdict."""
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Ids of the rollout and the datapoint of the first games that were not right, by kind."""

    def __post_init__(self) -> None:
        self._metrics: Metrics | None = None
        if self.measures:
            from runner.results.metric_computation import Metrics  # not at the top, since it imports NumPy

            self._metrics = Metrics.from_plan(self.plan)
        self._problems = ProblemCounter(self.plan)
        self._agents = {name: AgentTally(name) for name in self.plan.spec.protocol.agent_names}

    def add(self, details: RolloutDetails) -> None:
        """Count a game."""
        rollout = details.rollout
        self.games += 1
        label, decision = _label_and_verdict(rollout)
        self.confusion[label, decision] += 1
        self.outcomes[str(rollout.outcome), label] += 1
        self.rounds[len(rollout.rounds), decision] += 1
        self._add_example(rollout, label, decision)
        self._add_calls(details)
        self._problems.add(rollout)
        if self._metrics is not None:
            self._metrics.add(rollout)

    def _add_example(self, rollout: Rollout, label: int | None, decision: int) -> None:
        if decision == Decision.NONE:
            kind = str(rollout.outcome)
        elif label is None or decision == label:
            return
        elif rollout.answers is not None:
            kind = "wrong answer"
        else:
            kind = "accepted, should be rejected" if decision else "rejected, should be accepted"
        kind_examples = self.examples.setdefault(kind, [])
        if len(kind_examples) < MAX_EXAMPLES:
            kind_examples.append((rollout.job.rollout_id, rollout.job.datapoint.id))

    def _add_calls(self, details: RolloutDetails) -> None:
        for call in details.rollout.calls:
            if not call.is_answer:
                continue
            tally = self._agents[call.agent.partition(".")[0]]
            tally.calls += 1
            tally.repeats += call.attempt > 0
            tally.prompt_tokens += call.prompt_tokens
            tally.completion_tokens += call.completion_tokens
            tally.cached_tokens += call.cached_tokens
            tally.seconds += (call.latency_ms or 0.0) / 1000
            if call.paid:
                price = details.prices[call.agent]
                tally.usd = None if tally.usd is None or price is None else tally.usd + price.cost_of(call.usage)
        for failure in details.failures:
            self._agents[failure.sample.agent.partition(".")[0]].failed += 1

    @property
    def lists_answers(self) -> bool:
        """Whether verdicts choose from listed answers. They are then counted as right (1), wrong (0) or none."""
        return self.plan.spec.protocol.lists_answers

    @property
    def agents(self) -> Sequence[AgentTally]:
        """The totals of each agent, in the protocol's order."""
        return list(self._agents.values())

    def metrics(self) -> Mapping[str, Any] | None:
        """Return the metrics of the games as in `metrics.json`; None without games or without `measures`."""
        return None if self._metrics is None or not self.games else self._metrics.summary()

    def problems(self) -> list[GameProblem]:
        """Return the problems in the games so far."""
        return self._problems.all_problems()
