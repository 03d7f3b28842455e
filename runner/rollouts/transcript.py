"""A finished rollout as a text to read: the messages and the outcome. `on_rollout` callbacks and `show` get it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from runner.base.text import escape_controls, in_one_line, shortened
from runner.game.protocols.ballot import ANSWERS, letter_of
from runner.game.protocols.protocol import Decision, label_player, label_word, stance_word, verdict_word
from runner.game.protocols.protocol import Protocol as GameProtocol
from runner.game.protocols.rounds import Round, find_subject
from runner.rollouts.rollout import Outcome, Rollout

MAX_STATED = 200
"""Maximum number of characters of an answer or sub-claim in a line about a round."""


class Variant(Protocol):
    """The properties of a job or transcript that distinguish the games of a block."""

    @property
    def stance_name(self) -> str | None: ...
    @property
    def swapped(self) -> bool | None: ...
    @property
    def stances_exchanged(self) -> bool | None: ...


def describe_variant(game: Variant) -> list[str]:
    """Return words that distinguish a game from the other games with its datapoint and repeat, if there are any."""
    parts = []
    if game.stances_exchanged is not None:
        parts.append("stances exchanged" if game.stances_exchanged else "stances as written")
    elif game.stance_name is not None:
        parts.append(f"stance {game.stance_name}")
    if game.swapped is not None:
        parts.append("seats swapped" if game.swapped else "seats as written")
    return parts


class DeliveredMessage(NamedTuple):
    """One message of a game, and the channel where it was sent."""

    round: int
    agent: str
    channel: str
    text: str


class ModelAnswer(NamedTuple):
    """The full text of a model's answer in a round, which contains its messages or its verdict."""

    round: int
    agent: str
    text: str


def describe_confidence(stated: float | None, logprob: float | None, note: str | None) -> str:
    """Return the verifier's confidence as one line; empty if the spec does not request a confidence."""
    named_values = ((stated, "stated"), (logprob, "by log-probabilities"))
    values = [f"{value:.3g} {method}" for value, method in named_values if value is not None]
    parts = [f"P(accept): {', '.join(values)}"] if values else []
    if note:
        parts.append(note)
    return "; ".join(parts)


@dataclass(frozen=True, repr=False)
class RolloutTranscript:
    """One rollout: its messages, verdict and rewards. `str(transcript)` is a text with all of these."""

    run_id: str
    rollout_id: str
    datapoint_id: str
    repeat: int
    label: int | None
    """0 (reject is right) or 1 (accept is right); None if the game has no label, or if it lists answers."""
    columns: Mapping[str, Any]
    """The columns of the datapoint; listed answers are a mapping of the game's letters to texts."""
    messages: tuple[DeliveredMessage, ...]
    """The messages that are not empty, in the order of the game."""
    answers: tuple[ModelAnswer, ...]
    """The models' answers in the order of the game."""
    decision: int | None
    """0 (reject) or 1 (accept); None if the verifier did not decide, or if the protocol lists answers."""
    correct: bool | None
    """Whether the decision equals the label; None if transport failed or there is no label."""
    outcome: str
    """`decided`, `no_decision`, `invalid_response`, `refused`, `context_exceeded` or `transport_failed`."""
    rewards: Mapping[str, float]
    """The sum of the game's rewards, by agent."""
    error: str | None = None
    """The error that ended the game, if any."""
    stance: int | None = None
    """The stance that provers argued (of opposed provers, the first); None if the spec key `stances` is not set, or if
    the protocol lists answers."""
    swapped: bool | None = None
    """Whether two seats had exchanged their players; None if the spec key `seats` is not set."""
    stances_exchanged: bool | None = None
    """Whether opposed provers had exchanged their stances; None if `stances` is not set or provers are not opposed."""
    confidence_stated: float | None = None
    """P(accept), from 0 to 1, as the verifier stated it with its verdict."""
    confidence_logprob: float | None = None
    """P(accept), from 0 to 1, from the log-probabilities of the verdict's tokens."""
    confidence_note: str | None = None
    """The reason why a requested confidence is unknown, or only a bound; else None."""
    stances: Mapping[str, int | str] = field(default_factory=dict)
    """The stance of each prover: 0 (argues for reject), 1 (argues for accept), or the letter of a listed answer."""
    answer: str | None = None
    """The letter of the chosen answer; None without a verdict, or if the protocol lists no answers."""
    right_answers: tuple[str, ...] | None = None
    """The letters of the right answers; None if they are not known, or if the protocol lists no answers."""
    answer_scores: Mapping[str, float] | None = None
    """The probability or score of each answer by its letter, if the verdict states it."""

    @classmethod
    def of(cls, rollout: Rollout, run_id: str, protocol: GameProtocol) -> Self:
        job, point, listed = rollout.job, rollout.job.datapoint, rollout.answers
        right = None if listed is None else listed.right_letters
        messages = (
            DeliveredMessage(index, message.agent, message.channel, message.text)
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
            run_id, job.rollout_id, point.id, job.repeat, rollout.label, shown_columns(rollout), tuple(messages),
            tuple(answers),
            decision=int(rollout.decision) if rollout.outcome == Outcome.DECIDED and listed is None else None,
            correct=rollout.correct, outcome=rollout.outcome.value, rewards=dict(rollout.rewards), error=rollout.error,
            stance=None if listed else job.stance, swapped=job.swapped, stances_exchanged=job.stances_exchanged,
            confidence_stated=rollout.confidence_stated, confidence_logprob=rollout.confidence_logprob,
            confidence_note=rollout.confidence_note, stances=shown_stances(protocol, rollout),
            answer=None if listed is None else listed.chosen_letter,
            right_answers=None if right is None else tuple(right.split(", ")),
            answer_scores=None if listed is None else listed.columns()["answer_scores"],
        )  # fmt: skip

    @property
    def stance_name(self) -> str | None:
        """`accept` or `reject`, if the spec key `stances` is set."""
        return None if self.stance is None else stance_word(self.stance)

    @property
    def verdict(self) -> str | None:
        """`accept`, `reject` or the letter of the chosen answer; None without a verdict."""
        return stance_word(Decision(self.decision)) if self.decision is not None else self.answer

    @property
    def right_verdict(self) -> str:
        """`accept`, `reject` or the letters of the right answers; `not known` without a label."""
        return label_word(self.label) if self.right_answers is None else ", ".join(self.right_answers)

    def player(self, agent: str) -> str:
        """Return an agent's name, with the stance of a prover."""
        return label_player(agent, self.stances.get(agent))

    def __repr__(self) -> str:
        return escape_controls("\n".join(self._lines()))

    __str__ = __repr__

    def _lines(self) -> Iterator[str]:
        game = ", ".join([f"repeat {self.repeat}", *describe_variant(self)])
        yield f"rollout {self.rollout_id} of run {self.run_id}: datapoint {self.datapoint_id}, {game}"
        entries = [
            (message.round, f"{self.player(message.agent)} in {message.channel}", message.text)
            for message in self.messages
        ]
        senders = {(message.round, message.agent) for message in self.messages}
        silent = [answer for answer in self.answers if (answer.round, answer.agent) not in senders]
        entries += [(answer.round, f"{self.player(answer.agent)}, to no one", answer.text) for answer in silent]
        for round_, heading, text in sorted(entries, key=lambda entry: entry[0]):
            yield f"\n[round {round_}] {heading}:"
            yield "\n".join("  " + line for line in text.split("\n"))
        yield f"\noutcome: {self.outcome}, verdict: {self.verdict or 'none'}, label: {self.right_verdict}"
        confidence = describe_confidence(self.confidence_stated, self.confidence_logprob, self.confidence_note)
        if confidence:
            yield confidence
        yield "rewards: " + ", ".join(f"{agent} {reward:g}" for agent, reward in self.rewards.items())
        if self.error:
            yield f"error: {self.error}"


def votes_json(rollout: Rollout) -> list[int] | list[str] | None:
    """Return the votes of a game as JSON data: decisions, or letters of listed answers (`none` without one)."""
    if rollout.votes is None:
        return None
    return list(rollout.votes) if rollout.answers is None else [verdict_word(vote) for vote in rollout.votes]


def statements_json(rollout: Rollout) -> list[dict[str, object]] | None:
    """Return what messages of a game state, by round, as JSON data; None if nothing is stated."""
    parts = [(number, played.stated) for number, played in enumerate(rollout.rounds) if played.stated is not None]
    return [{"round": number, **stated.to_json()} for number, stated in parts] or None


def describe_statements(protocol: GameProtocol, rounds: Sequence[Round], number: int) -> list[str]:
    """Return lines about what the messages of a round state: the answer to judge, labels, and the picked sub-claim."""
    stated = rounds[number].stated
    if stated is None:
        return []
    subject, lines = find_subject(protocol, rounds[: number + 1]), list[str]()
    text = f"{shortened(in_one_line(subject.text or ''), MAX_STATED)}"
    label = "" if subject.label is None else f" (label: {label_word(subject.label)})"
    if stated.statement is not None and protocol.step(number).states == "answer":
        lines.append(f"the answer that is judged: {text}{label}")
    elif stated.statement is not None and stated.statement.labels:
        labels = [f"{i} {label_word(value)}" for i, value in enumerate(stated.statement.labels, 1)]
        lines.append(f"labels of the sub-claims: {', '.join(labels)}")
    if stated.picked is not None:
        lines.append(f"the game continues with claim {stated.picked + 1}: {text}{label}")
    return lines


def shown_columns(rollout: Rollout) -> dict[str, Any]:
    """Return the columns of a game's datapoint, with listed answers by the letters of this game."""
    columns = dict(rollout.job.datapoint.columns)
    return columns if rollout.answers is None else {**columns, ANSWERS: rollout.answers.texts}


def shown_label(rollout: Rollout) -> int | str | None:
    """Return the label of a game, or the letters of the right answers in this game."""
    return rollout.label if rollout.answers is None else rollout.answers.right_letters


def shown_decision(rollout: Rollout) -> int | str | None:
    """Return the decision of a game, or the letter of the chosen answer; None without a verdict."""
    if rollout.answers is not None:
        return rollout.answers.chosen_letter
    return None if rollout.decision == Decision.NONE else int(rollout.decision)


def shown_stances(protocol: GameProtocol, rollout: Rollout) -> dict[str, int | str]:
    """Return the stance of each prover, or the letter of the answer that it argued for."""
    if rollout.answers is None:
        return dict(protocol.prover_stances(rollout.job.prover_stance))
    return {agent: letter_of(position) for agent, position in rollout.answers.argued.items()}
