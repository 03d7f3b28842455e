"""A finished game as facts: what was said, decided and asked, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from runner.protocols.game import Round
from runner.rollouts.job import Job

DECIDED: Final = "decided"


NO_DECISION: Final = "no_decision"


INVALID_RESPONSE: Final = "invalid_response"


REFUSED: Final = "refused"


CONTEXT_EXCEEDED: Final = "context_exceeded"


TRANSPORT_FAILED: Final = "transport_failed"


OUTCOMES: Final = (DECIDED, NO_DECISION, INVALID_RESPONSE, REFUSED, CONTEXT_EXCEEDED, TRANSPORT_FAILED)


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
    paid: bool = True
    """False for an answer that was paid for by another run; in no table, so that a replay's tables are equal."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One finished game as facts: what was said, decided and asked, and how it ended.

    `stance` is what all provers argued, None where they did not argue the same.
    """

    job: Job
    rounds: Sequence[Round]
    decision: int
    outcome: str
    stance: int | None
    rewards: Mapping[str, float]
    calls: Sequence[Call] = field(default_factory=tuple)
    error: str | None = None

    @property
    def correct(self) -> bool | None:
        """Whether the verdict is the label; None where transport failed, so that there was no game."""
        if self.outcome == TRANSPORT_FAILED:
            return None
        return self.outcome == DECIDED and self.decision == self.job.datapoint.label
