"""A game as a generator without I/O. It yields the agents that must speak, and receives their replies.

The generator uses no model, prompt or clock, so tests can play it by hand, and one event loop can play many games.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.base.value_class import value_class
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rewards import Payoff, payoff


@value_class(frozen=True, slots=True)
class Message:
    """One message in one channel."""

    channel: str
    agent: str
    text: str


@value_class(frozen=True, slots=True)
class Reply:
    """An agent's reply in a round. A decision has no `messages` (None).

    `retry_count` and `token_limit` are defined as in the original implementation: the number of unusable answers, and
    whether the accepted answer ended at the token limit. If all attempts failed, the last answer counts as a retry and
    `token_limit` is false. `calls` and `cut` have the actual number of calls and whether the last answer was cut.
    """

    raw: str
    messages: Mapping[str, str] | None
    decision: int = Decision.NONE
    retry_count: int = 0
    token_limit: bool = False
    calls: int = 1
    cut: bool = False
    votes: tuple[int, ...] = ()
    """The decision of each answer, if several answers were requested for the verdict."""


@value_class(frozen=True, slots=True)
class Round:
    """A played round: the raw texts of its speakers, the messages, the decision and the rewards; see `Reply`."""

    raw: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[Message] = ()
    decision: int = Decision.NONE
    rewards: Mapping[str, float] = field(default_factory=dict)
    retry_counts: Mapping[str, int] = field(default_factory=dict)
    token_limits: Mapping[str, bool] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, bool] = field(default_factory=dict)
    votes: tuple[int, ...] = ()
    asked: frozenset[str] | None = None
    """The agents whose models were called, if the texts of others come from another run; None if all were called."""

    def counts(self, agent: str) -> bool:
        """Return whether the agent's calls and retries were made in this run."""
        return self.asked is None or agent in self.asked


@value_class(frozen=True, slots=True)
class PendingTurn:
    """The agents that must speak now, each with its channels, and the earlier rounds."""

    round: int
    speakers: Mapping[str, tuple[str, ...]]
    rounds: Sequence[Round]


@dataclass(frozen=True, slots=True)
class FinishedGame:
    """A finished game. Its `decision` is `Decision.NONE` if the last round ended without one."""

    rounds: Sequence[Round]
    decision: int
    terminated: bool

    @property
    def decided(self) -> bool:
        return self.decision != Decision.NONE


def play(
    protocol: Protocol, *, seed: int, label: int | None, prover_stance: int, rounds: Sequence[Round] = ()
) -> Generator[PendingTurn, Mapping[str, Reply], FinishedGame]:
    """Play a game, or continue a game after `rounds`.

    The label is used only for rewards and for `force_guess: y`. No speaker sees it.
    """
    played, pay = list(rounds), Payoff()
    for round_ in range(len(played), protocol.last_speaking_round + 1):
        speakers = protocol.speakers(round_, seed)
        replies = (yield PendingTurn(round_, speakers, played)) if speakers else {}
        verifier = replies.get(protocol.verifier_name)
        pay = payoff(
            protocol,
            round_=round_,
            seed=seed,
            label=label,
            prover_stance=prover_stance,
            decision=Decision.NONE if verifier is None else verifier.decision,
            before=pay,
        )
        votes = () if verifier is None else verifier.votes
        played.append(_round(replies, pay.decision, pay.rewards, votes))
        if pay.decided:
            return FinishedGame(played, pay.decision, terminated=False)
    return FinishedGame(played, Decision.NONE, terminated=True)


def _round(replies: Mapping[str, Reply], decision: int, rewards: Mapping[str, float], votes: tuple[int, ...]) -> Round:
    raw: dict[str, str] = {}
    messages: list[Message] = []
    retry_counts: dict[str, int] = {}
    token_limits: dict[str, bool] = {}
    calls: dict[str, int] = {}
    cut: dict[str, bool] = {}
    for agent, reply in replies.items():
        raw[agent], calls[agent], cut[agent] = reply.raw, reply.calls, reply.cut
        retry_counts[agent], token_limits[agent] = reply.retry_count, reply.token_limit
        messages += [Message(channel, agent, text) for channel, text in (reply.messages or {}).items()]
    return Round(raw, messages, decision, rewards, retry_counts, token_limits, calls, cut, votes)


def episode_rewards(protocol: Protocol, rounds: Sequence[Round], *, is_labelled: bool = True) -> dict[str, float]:
    """Return the sum of each agent's rewards. Without a label, agents whose rewards need one are left out."""
    agents = [name for name in protocol.agent_names if is_labelled or all(name in played.rewards for played in rounds)]
    return {agent: sum(played.rewards.get(agent, 0.0) for played in rounds) for agent in agents}
