"""A finished game as facts: what was said, decided and asked, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from runner.game.protocols.rounds import Round
from runner.models.interface import TOKEN_CLASSES, Usage
from runner.models.logprobs import PAccept
from runner.rollouts.job import Job


class Outcome(StrEnum):
    """How a game ended."""

    DECIDED = "decided"
    NO_DECISION = "no_decision"
    INVALID_RESPONSE = "invalid_response"
    REFUSED = "refused"
    CONTEXT_EXCEEDED = "context_exceeded"
    TRANSPORT_FAILED = "transport_failed"

    @property
    def played_out(self) -> bool:
        """Whether the game came to its own end, and was not cut off by a failure."""
        return self in _PLAYED_OUT


_PLAYED_OUT = (Outcome.DECIDED, Outcome.NO_DECISION)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a rollout: an answer, or why none came."""

    round: int
    agent: str
    attempt: int
    model: str
    finish_reason: str | None = None
    raw_message: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    latency_ms: float | None = None
    error: str | None = None
    reasoning: str | None = None
    verdict_logprobs: str | None = None
    """The tokens that spell the answer's verdict, as JSON; see `runner.models.logprobs`."""
    p_accept: PAccept | None = None
    """Of an answer that gives a verdict, by its log-probabilities, where they are read; in no table, as `paid`."""
    paid: bool = True
    """False for an answer that was paid for by another run; in no table, so that a replay's tables are equal."""
    vote: int = 0
    """Which vote on one verdict, where several were asked for."""
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0
    service_tier: str | None = None
    usage_estimated: bool = False
    """Whether a token count is an estimate, because the server reported none, or one that cannot be true."""

    origin: str | None = None
    """The run that it was copied from (see `Completion.origin`); in no table, so that a replay's tables are equal."""

    @property
    def usage(self) -> Usage:
        """The tokens of the call."""
        counts = {name: getattr(self, name) for name in TOKEN_CLASSES}
        return Usage(**counts, estimated=self.usage_estimated, service_tier=self.service_tier)

    @property
    def is_answer(self) -> bool:
        """Whether an answer came, even one that cannot be used."""
        return self.latency_ms is not None


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Return the fields of a call that hold its tokens and its service tier."""
    counts = {name: count for name in TOKEN_CLASSES if (count := getattr(usage, name))}
    return {**counts, "service_tier": usage.service_tier}


CONFIDENCE = ("confidence_stated", "confidence_logprob", "confidence_note")


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """What a judge said of a debate as it stood before a round."""

    round: int
    decision: int
    votes: tuple[int, ...] = ()
    error: str | None = None
    """Why there is none."""
    confidence_stated: float | None = None
    confidence_logprob: float | None = None
    confidence_note: str | None = None
    """As those of a rollout, whose confidence is that of its last verdict."""

    def to_json(self) -> dict[str, Any]:
        sure = {name: getattr(self, name) for name in CONFIDENCE}
        more = {"votes": list(self.votes) or None, "error": self.error, **sure}
        said = {name: value for name, value in more.items() if value is not None}
        return {"round": self.round, "decision": int(self.decision), **said}


@dataclass(frozen=True, slots=True)
class Rollout:
    """One finished game as facts: what was said, decided and asked, and how it ended.

    `stance` is what all provers argued, None where they did not argue the same.
    """

    job: Job
    rounds: Sequence[Round]
    decision: int
    outcome: Outcome
    stance: int | None
    rewards: Mapping[str, float]
    calls: Sequence[Call] = field(default_factory=tuple)
    error: str | None = None
    confidence_stated: float | None = None
    """P(accept), from 0 to 1, as the verifier stated it with its verdict."""
    confidence_logprob: float | None = None
    """P(accept), from 0 to 1, from the log-probabilities of the verdict's tokens."""
    confidence_note: str | None = None
    """Why a confidence that was asked for is not known, or is only a bound."""
    votes: Sequence[int] | None = None
    """The verdict of each vote, where the verdict is a majority's."""
    verdicts: Sequence[RoundVerdict] | None = None
    """Of a debate that is judged after each round: every verdict, the last one too."""

    @property
    def correct(self) -> bool | None:
        """Whether the verdict is the label; None where transport failed, so that there was no game, or without one."""
        if self.outcome == Outcome.TRANSPORT_FAILED or self.job.datapoint.label is None:
            return None
        return self.outcome == Outcome.DECIDED and self.decision == self.job.datapoint.label

    def verdict_origin(self, verifier: str) -> str | None:
        """Return where all answers of its verdict were copied from; None if the run asked for one of them itself.

        If the verifier never answered, the last answers of the game count as its verdict's.
        """
        answers = [call for call in self.calls if call.is_answer]
        decisive = [call for call in answers if call.agent == verifier] or answers
        last = max((call.round for call in decisive), default=0)
        origins = {call.origin for call in decisive if call.round == last}
        return origins.pop() if len(origins) == 1 else None

    def with_verdicts(self, verdicts: Sequence[RoundVerdict]) -> Rollout:
        """This rollout, with every verdict that its debate was given."""
        return replace(self, verdicts=tuple(verdicts))

    def answers_without_round(self) -> dict[str, list[Call]]:
        """By agent, the answers in a round that a failure cut off, which is none of `rounds`."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            if call.round == len(self.rounds) and call.is_answer:
                found.setdefault(call.agent, []).append(call)
        return found
