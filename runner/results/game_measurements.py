"""The values that one finished game adds to the metrics.

Any process may measure a game; the process that counts the values does so in the order of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from runner.game.protocols.protocol import Decision, Protocol
from runner.results.metric_table import METRICS, Source
from runner.rollouts.confidence import is_bound
from runner.rollouts.rollout import Outcome, Rollout

ORIGINAL_LIMITED = "limited_per_round"
"""The tally behind the original's `token_limit_proportion`; ours of that name is over messages."""

Added = tuple[str | None, str, tuple[float, ...]]
"""The agent, None for the whole game; the metric; its values, in the order of the rounds."""


class GameVerdict(NamedTuple):
    """A game as the numbers need it that are made of all verdicts and confidences together."""

    datapoint: str
    group: str
    label: int | None
    decision: int
    swapped: bool | None = None
    stances_exchanged: bool | None = None
    stance: int | None = None
    argued: tuple[int, ...] | None = None
    """What each prover argued, in the protocol's order; None where each datapoint is played one way."""
    stated: float | None = None
    logprob: float | None = None
    is_bound: bool = False


class GameMeasurement(NamedTuple):
    """What one game adds; one that failed in transport is counted as an outcome and in nothing else."""

    outcome: str
    cluster: str
    added: tuple[Added, ...]
    verdict: GameVerdict | None


def measured(protocol: Protocol, rollout: Rollout) -> GameMeasurement:
    """What a game adds to the metrics."""
    point, outcome = rollout.job.datapoint, rollout.outcome.value
    if rollout.outcome == Outcome.TRANSPORT_FAILED:
        return GameMeasurement(outcome, point.group, (), None)
    added = _of_game(protocol, rollout)
    _add_agents(added, protocol, rollout)
    return GameMeasurement(outcome, point.group, tuple(added), _verdict(protocol, rollout))


_TRUTH = ((0.0,), (1.0,))
"""A truth as the only value."""


class GameFacts:
    """One game, as metrics of the whole game are computed from it."""

    __slots__ = ("_protocol", "correct", "decision", "is_accepted", "is_decided", "label", "rollout")

    def __init__(self, protocol: Protocol, rollout: Rollout) -> None:
        self._protocol, self.rollout = protocol, rollout
        self.decision, self.label = rollout.decision, rollout.job.datapoint.label
        self.is_decided, self.is_accepted = self.decision != Decision.NONE, self.decision == Decision.ACCEPT
        self.correct: tuple[float, ...] = () if self.label is None else _TRUTH[bool(rollout.correct)]
        """Whether the verdict is right, as the only value; empty without a label."""

    @property
    def rounds(self) -> int:
        """The rounds that were played."""
        return len(self.rollout.rounds)

    @property
    def episode_length(self) -> int:
        """See `episode_length`."""
        return episode_length(self._protocol, self.rollout)

    @staticmethod
    def truth(value: bool) -> tuple[float]:
        """Return a truth as the only value."""
        return _TRUTH[value]


@dataclass(slots=True)
class AgentFacts:
    """One agent in one game, as metrics of agents are computed from it: values in the order of the rounds."""

    name: str
    rollout: Rollout
    reward: tuple[float, ...]
    """Empty if it is not known."""
    retries: Sequence[float]
    calls: Sequence[float]
    """The calls made for each message."""
    cut: Sequence[float]
    """Whether each message was cut at the token limit."""
    limited: Sequence[float]
    """The values behind the original's `token_limit_proportion`."""


def _of_game(protocol: Protocol, rollout: Rollout) -> list[Added]:
    facts = GameFacts(protocol, rollout)
    added: list[Added] = []
    for name, compute in _functions(Source.GAMES, tuple(METRICS)):
        if values := compute(facts):
            added.append((None, name, values))
    return added


@cache
def _functions(source: Source, names: tuple[str, ...]) -> list[tuple[str, Callable[..., Any]]]:
    """Return the functions of the metrics of a source, by name; `names` are those of the whole table."""
    found = (METRICS[name] for name in names)
    return [(one.name, one.compute) for one in found if one.source is source and one.compute is not None]


def _add_agents(added: list[Added], protocol: Protocol, rollout: Rollout) -> None:
    functions = _functions(Source.AGENTS, tuple(METRICS))
    for facts in _agents(protocol, rollout):
        for name, compute in functions:
            if values := compute(facts):
                added.append((facts.name, name, tuple(values)))
        if facts.limited:
            added.append((facts.name, ORIGINAL_LIMITED, tuple(facts.limited)))


def _agents(protocol: Protocol, rollout: Rollout) -> Iterator[AgentFacts]:
    unheard, padding = rollout.answers_without_round(), (0.0,) * _padding(protocol, rollout)
    is_labelled, rewards = rollout.job.datapoint.label is not None, rollout.rewards
    for agent in protocol.agent_names:
        reward = (float(rewards.get(agent, 0.0)),) if is_labelled or agent in rewards else ()
        retries: list[float] = []
        limited: list[float] = []
        calls: list[float] = []
        cut: list[float] = []
        for played in rollout.rounds:
            if played.asked is not None and agent not in played.asked:
                continue
            # The original counts silent agents too, and no token limit where attempts ran out.
            retries.append(played.retry_counts.get(agent, 0))
            limited.append(played.token_limits.get(agent, 0))
            if agent in played.raw:
                calls.append(played.calls[agent])
                cut.append(played.cut[agent])
        if agent in unheard:  # its calls were made all the same
            answers = unheard[agent]
            calls.append(len({(call.vote, call.attempt) for call in answers}))
            cut.append(answers[-1].finish_reason == "length")
        retries += padding
        limited += padding
        yield AgentFacts(agent, rollout, reward, retries, calls, cut, limited)


def _padding(protocol: Protocol, rollout: Rollout) -> int:
    """The rounds that an undecided game did not come to: the original counts them as zeros.

    Of another run's debate, which is not played on, there are none.
    """
    if rollout.outcome != Outcome.NO_DECISION or any(played.asked is not None for played in rollout.rounds):
        return 0
    return protocol.max_message_rounds - len(rollout.rounds)


def _verdict(protocol: Protocol, rollout: Rollout) -> GameVerdict:
    job, point = rollout.job, rollout.job.datapoint
    decision = int(rollout.decision) if rollout.outcome == Outcome.DECIDED else int(Decision.NONE)
    verdict = GameVerdict(
        point.id, point.group, point.label, decision,
        stated=rollout.confidence_stated, logprob=rollout.confidence_logprob,
        is_bound=is_bound(rollout.confidence_note),
    )  # fmt: skip
    if job.stance is None and job.swapped is None:
        return verdict
    given = point.prover_stance if job.stance is None else job.stance
    argued = (
        protocol.stance(agent, given) if rollout.stance is None else rollout.stance for agent in protocol.prover_names
    )
    stance = None if job.stance is None else rollout.stance
    return verdict._replace(
        swapped=job.swapped, stances_exchanged=job.stances_exchanged, stance=stance, argued=tuple(argued)
    )


def episode_length(protocol: Protocol, rollout: Rollout) -> int:
    """The original's episode length: rounds with a message in the first channel, the very last round left out."""
    first = protocol.channel_names[0]
    rounds = rollout.rounds[: protocol.max_message_rounds - 1]
    return sum(any(message.channel == first for message in played.messages) for played in rounds)
