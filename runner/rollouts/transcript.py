"""A finished rollout as a person reads it: the messages as they were delivered, and how the game ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from runner.base.text import escape_controls
from runner.game.protocols.protocol import Decision, label_word, stance_word
from runner.rollouts.rollout import Outcome, Rollout


class Variant(Protocol):
    """What tells a game from the others of its block: a job, or a transcript."""

    @property
    def stance(self) -> int | None: ...
    @property
    def swapped(self) -> bool | None: ...
    @property
    def stances_exchanged(self) -> bool | None: ...


def variant_words(game: Variant) -> list[str]:
    """Which game of its block one is, in words; nothing where it stands alone."""
    argued = [] if game.stance is None else [f"stance {stance_word(game.stance)}"]
    if game.stances_exchanged is not None:
        argued = ["stances exchanged" if game.stances_exchanged else "stances as written"]
    return argued if game.swapped is None else [*argued, "seats swapped" if game.swapped else "seats as written"]


class Delivered(NamedTuple):
    """One message of a game, in the channel that it was delivered in."""

    round: int
    agent: str
    channel: str
    text: str


class ModelAnswer(NamedTuple):
    """What a model wrote in a round, whole: messages, and a verdict where it gives one."""

    round: int
    agent: str
    text: str


def confidence_words(stated: float | None, logprob: float | None, note: str | None) -> str:
    """How sure the verifier was, in a line; nothing where that was not asked for."""
    known = ((stated, "stated"), (logprob, "by log-probabilities"))
    said = [f"{value:.3g} {how}" for value, how in known if value is not None]
    return "; ".join([*([f"P(accept): {', '.join(said)}"] if said else []), *([note] if note else [])])


@dataclass(frozen=True, repr=False)
class RolloutTranscript:
    """One rollout: its messages, its verdict, what it paid. Printed, it is a text to read."""

    run_id: str
    rollout_id: str
    datapoint_id: str
    repeat: int
    label: int | None
    """0 (reject is right) or 1 (accept is right); None where the dataset's owner keeps it."""
    columns: Mapping[str, Any]
    """Of the datapoint."""
    messages: tuple[Delivered, ...]
    """In the order of the game, without empty ones."""
    answers: tuple[ModelAnswer, ...]
    """In the order of the game."""
    decision: int | None
    """0 (reject) or 1 (accept); None where the verifier decided nothing."""
    correct: bool | None
    """None where transport failed, so that there was no game, or where there is no label."""
    outcome: str
    """`decided`, `no_decision`, `invalid_response`, `refused`, `context_exceeded` or `transport_failed`."""
    rewards: Mapping[str, float]
    """By agent, of the whole game."""
    error: str | None = None
    """Why the game was cut off."""
    stance: int | None = None
    """What the provers were given to argue, and of opposed ones the first, where each datapoint is played both ways."""
    swapped: bool | None = None
    """Whether two seats had exchanged their players, where each datapoint is played both ways."""
    stances_exchanged: bool | None = None
    """Whether opposed provers had exchanged their stances, where each datapoint is played both ways."""
    confidence_stated: float | None = None
    """P(accept), from 0 to 1, as the verifier stated it with its verdict."""
    confidence_logprob: float | None = None
    """P(accept), from 0 to 1, from the log-probabilities of the verdict's tokens."""
    confidence_note: str | None = None
    """Why a confidence that was asked for is not known, or is only a bound."""

    @classmethod
    def of(cls, rollout: Rollout, run_id: str) -> Self:
        job, point = rollout.job, rollout.job.datapoint
        messages = (
            Delivered(index, message.agent, message.channel, message.text)
            for index, played in enumerate(rollout.rounds)
            for message in played.messages
            if message.text
        )
        answers = (
            ModelAnswer(index, agent, text)
            for index, played in enumerate(rollout.rounds)
            for agent, text in played.raw.items()
        )
        return cls(
            run_id, job.rollout_id, point.id, job.repeat, point.label, point.columns, tuple(messages), tuple(answers),
            decision=int(rollout.decision) if rollout.outcome == Outcome.DECIDED else None,
            correct=rollout.correct, outcome=rollout.outcome.value, rewards=dict(rollout.rewards), error=rollout.error,
            stance=job.stance, swapped=job.swapped, stances_exchanged=job.stances_exchanged,
            confidence_stated=rollout.confidence_stated, confidence_logprob=rollout.confidence_logprob,
            confidence_note=rollout.confidence_note,
        )  # fmt: skip

    def __repr__(self) -> str:
        return escape_controls("\n".join(self._lines()))

    __str__ = __repr__

    def _lines(self) -> Iterator[str]:
        which = ", ".join([f"repeat {self.repeat}", *variant_words(self)])
        yield f"rollout {self.rollout_id} of run {self.run_id}: datapoint {self.datapoint_id}, {which}"
        heard = [(m.round, f"{m.agent} in {m.channel}", m.text) for m in self.messages]
        spoke = {(m.round, m.agent) for m in self.messages}
        alone = [(a.round, f"{a.agent}, to no one", a.text) for a in self.answers if (a.round, a.agent) not in spoke]
        for round_, who, text in sorted([*heard, *alone], key=lambda said: said[0]):
            yield f"\n[round {round_}] {who}:"
            yield "\n".join("  " + line for line in text.split("\n"))
        verdict = "none" if self.decision is None else stance_word(Decision(self.decision))
        yield f"\noutcome: {self.outcome}, verdict: {verdict}, label: {label_word(self.label)}"
        sure = confidence_words(self.confidence_stated, self.confidence_logprob, self.confidence_note)
        if sure:
            yield sure
        yield "rewards: " + ", ".join(f"{agent} {reward:g}" for agent, reward in self.rewards.items())
        if self.error:
            yield f"error: {self.error}"
