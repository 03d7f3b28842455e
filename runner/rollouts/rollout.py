"""The record of a finished game: its messages, decision, model calls and outcome.

The engine creates it, and tables, metrics, pages and exports are computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from runner.base.token_classes import TOKEN_CLASSES
from runner.base.value_class import value_class
from runner.game.protocols.ballot import answer_position
from runner.game.protocols.protocol import verdict_word
from runner.game.protocols.rounds import Round
from runner.game.protocols.statements import GameSubject
from runner.models.interface import Usage
from runner.models.logprobs import PAccept
from runner.rollouts.answer_record import AnswerRecord, decision_fields

if TYPE_CHECKING:
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
        """Whether the game ended by its rules, and not with an error."""
        return self in _PLAYED_OUT


_PLAYED_OUT = (Outcome.DECIDED, Outcome.NO_DECISION)


@value_class(frozen=True, slots=True)
class Call:
    """One model call of a rollout: its answer, or the error if there was none."""

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
    """The tokens of the answer's verdict with their log-probabilities, as JSON; see `runner.models.logprobs`."""
    p_accept: PAccept | None = None
    """P(accept) by log-probabilities, if the answer has a verdict and the spec requests this; not in any table."""
    paid: bool = True
    """Whether this run paid for the answer. In no table, so that a run and its replay have the same tables."""
    vote: int = 0
    """The index of the vote; 0 if there is only one."""
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0
    service_tier: str | None = None
    usage_estimated: bool = False
    """Whether a token count is estimated because the server reported none or an impossible one."""

    selected: bool | None = None
    """Whether this answer was selected from several candidates; None if there were no others."""
    score: float | None = None
    """The selector's score of this candidate, if it has one."""
    origin: str | None = None
    """The run that got this answer from a model, if the answer is a copy; in no table, like `paid`."""

    @property
    def usage(self) -> Usage:
        """The token counts and service tier of the call."""
        return Usage(
            self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.usage_estimated,
            self.cache_write_tokens, self.reasoning_tokens, self.audio_input_tokens, self.audio_output_tokens,
            self.service_tier,
        )  # fmt: skip

    @property
    def is_answer(self) -> bool:
        """Whether the model answered, even if the answer is unusable."""
        return self.latency_ms is not None


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Return the `Call` fields for a usage: the token counts that are not 0, and the service tier."""
    counts = {name: count for name in TOKEN_CLASSES if (count := getattr(usage, name))}
    return {**counts, "service_tier": usage.service_tier}


UNREADABLE: Final = "no answer stated a readable confidence"
"""The `confidence_note` of a game without a readable stated confidence."""

CONFIDENCE_FIELDS = ("confidence_stated", "confidence_logprob", "confidence_note")
"""The fields about the confidence in a verdict; see `Rollout`."""


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """A judge's verdict on the messages of a debate before a round."""

    round: int
    decision: int
    votes: tuple[int, ...] = ()
    error: str | None = None
    """The reason why there is no verdict; None if there is one."""
    confidence_stated: float | None = None
    confidence_logprob: float | None = None
    confidence_note: str | None = None
    """The three confidence fields have the same meaning as those of `Rollout`."""

    def to_json(self) -> dict[str, Any]:
        confidence = {name: getattr(self, name) for name in CONFIDENCE_FIELDS}
        optional = {"votes": list(self.votes) or None, "error": self.error, **confidence}
        present = {name: value for name, value in optional.items() if value is not None}
        is_answer = answer_position(self.decision) is not None
        if is_answer and self.votes:
            present["votes"] = [verdict_word(vote) for vote in self.votes]
        return {"round": self.round, **decision_fields(self.decision, lists_answers=is_answer), **present}


@dataclass(frozen=True, slots=True)
class PanelVerdict:
    """The verdict of one judge of a panel, or that the judge gave none (`Decision.NONE`)."""

    agent: str
    verdict: RoundVerdict

    def to_json(self) -> dict[str, Any]:
        return {"agent": self.agent, **self.verdict.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PanelVerdict:
        fields = {name: value for name, value in data.items() if name != "agent"}
        return cls(str(data["agent"]), RoundVerdict(**{**fields, "votes": tuple(data.get("votes", ()))}))


@value_class(frozen=True, slots=True)
class Rollout:
    """The record of one finished game: its messages, decision, model calls and outcome.

    `stance` is the stance that all provers argued, or None if they argued different ones.
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
    """The reason why a requested confidence is unknown, or only a bound; else None."""
    votes: Sequence[int] | None = None
    """The decision of each vote, if a majority decides; else None."""
    verdicts: Sequence[RoundVerdict] | None = None
    """The verdicts, including the last one, if the debate is judged after each round; else None."""
    panel: Sequence[PanelVerdict] | None = None
    """The verdict of each judge, in the protocol's order, if a panel decides; else None."""
    answers: AnswerRecord | None = None
    """The listed answers of the game and the verdict on them; None if the protocol lists no answers."""
    subject: GameSubject | None = None
    """The answer or sub-claim that the game judges, if its protocol has steps that state them; else None."""

    @property
    def label(self) -> int | None:
        """The label of what the game judges: a stated answer or sub-claim, or the datapoint; None if it is unknown."""
        label = None if self.subject is None else self.subject.label
        return self.job.datapoint.label if label is None else label

    @property
    def is_labelled(self) -> bool:
        """Whether it is known which verdict is right."""
        return self.label is not None or self.job.datapoint.is_labelled

    @property
    def correct(self) -> bool | None:
        """Whether the verdict is right; None if transport failed or the game has no label."""
        if self.outcome == Outcome.TRANSPORT_FAILED or not self.is_labelled:
            return None
        if self.answers is not None:
            return self.outcome == Outcome.DECIDED and bool(self.answers.is_right)
        return self.outcome == Outcome.DECIDED and self.decision == self.label

    def verdict_origin(self, *verifiers: str) -> str | None:
        """Return the run that the verdict was copied from; None if it is not a copy, or has answers of several runs.

        Only the last answers count: those of each verifier or, if none ever answered, those of the other agents.
        """
        answers = [call for call in self.calls if call.is_answer]
        by_judge = [[call for call in answers if call.agent == verifier] for verifier in verifiers]
        origins = set()
        for decisive in [calls for calls in by_judge if calls] or [answers]:
            last = max((call.round for call in decisive), default=0)
            origins |= {call.origin for call in decisive if call.round == last}
        return origins.pop() if len(origins) == 1 else None

    def answers_without_round(self) -> dict[str, list[Call]]:
        """Return the answers, by agent, in the round that an error ended. This round is not in `rounds`."""
        answers: dict[str, list[Call]] = {}
        for call in self.calls:
            if call.round == len(self.rounds) and call.is_answer:
                answers.setdefault(call.agent, []).append(call)
        return answers
