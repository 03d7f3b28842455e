"""A game as a generator without I/O: it yields who must speak and is sent the replies, until it is over.

It knows no model, no prompt and no clock, so it can be played in a test by hand and a thousand at a time in
one event loop.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rewards import Payoff, effective_decision, payoff


@dataclass(frozen=True, slots=True)
class Message:
    """One message in one channel."""

    channel: str
    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What an agent said in a round. `messages` is None where it decided.

    `retry_count` and `token_limit` are the original's: how many answers were bad, and whether the one that was taken
    ended at the token limit. Where attempts ran out, the last bad answer counts as a retry and `token_limit` is false;
    `calls` and `cut` are what happened, there too.
    """

    raw: str
    messages: Mapping[str, str] | None
    decision: int = Decision.NONE
    retry_count: int = 0
    token_limit: bool = False
    calls: int = 1
    cut: bool = False
    votes: tuple[int, ...] = ()
    """Of a verdict that several answers were asked for: the decision of each."""


@dataclass(frozen=True, slots=True)
class Round:
    """One played round: each speaker's raw text, the messages sent, the decision and what it paid; see `Reply`."""

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
    """The agents who were asked for it, where others' words are another run's; None: all who spoke, or were silent."""

    def counts(self, agent: str) -> bool:
        """Whether its calls and retries say anything of an agent."""
        return self.asked is None or agent in self.asked


@dataclass(frozen=True, slots=True)
class PendingTurn:
    """Who must speak now, in which channels, after which rounds."""

    round: int
    speakers: Mapping[str, tuple[str, ...]]
    rounds: Sequence[Round]


@dataclass(frozen=True, slots=True)
class FinishedGame:
    """A finished game. `decision` is NONE where the rounds ran out."""

    rounds: Sequence[Round]
    decision: int
    terminated: bool

    @property
    def decided(self) -> bool:
        return self.decision != Decision.NONE


def play(
    protocol: Protocol, *, seed: int, label: int | None, prover_stance: int, rounds: Sequence[Round] = ()
) -> Generator[PendingTurn, Mapping[str, Reply], FinishedGame]:
    """Play one game; `rounds` continues one that was begun.

    The label is used for what the rounds pay and for `force_guess: y`, never shown to a speaker.
    """
    played, pay = list(rounds), Payoff()
    for round_ in range(len(played), protocol.last_speaking_round + 1):
        speakers = protocol.speakers(round_, seed)
        replies = (yield PendingTurn(round_, speakers, played)) if speakers else {}
        verifier = replies.get(protocol.verifier_name)
        decision = effective_decision(protocol, round_, seed, verifier.decision if verifier else Decision.NONE, label)
        pay = payoff(
            protocol,
            round_=round_,
            seed=seed,
            label=label,
            prover_stance=prover_stance,
            decision=decision,
            before=pay,
        )
        votes = () if verifier is None else verifier.votes
        played.append(_round(replies, decision, pay.rewards, votes))
        if pay.decided:
            return FinishedGame(played, decision, terminated=False)
    return FinishedGame(played, Decision.NONE, terminated=True)


def _round(replies: Mapping[str, Reply], decision: int, rewards: Mapping[str, float], votes: tuple[int, ...]) -> Round:
    return Round(
        raw={agent: reply.raw for agent, reply in replies.items()},
        messages=[
            Message(channel, agent, text)
            for agent, reply in replies.items()
            for channel, text in (reply.messages or {}).items()
        ],
        decision=decision,
        rewards=rewards,
        retry_counts={agent: reply.retry_count for agent, reply in replies.items()},
        token_limits={agent: reply.token_limit for agent, reply in replies.items()},
        calls={agent: reply.calls for agent, reply in replies.items()},
        cut={agent: reply.cut for agent, reply in replies.items()},
        votes=votes,
    )


def episode_rewards(protocol: Protocol, rounds: Sequence[Round], *, is_labelled: bool = True) -> dict[str, float]:
    """The sum of each agent's rewards over the rounds; without a label, of those agents whose reward needs none."""
    told = [name for name in protocol.agent_names if is_labelled or all(name in r.rewards for r in rounds)]
    return {agent: sum(r.rewards.get(agent, 0.0) for r in rounds) for agent in told}
