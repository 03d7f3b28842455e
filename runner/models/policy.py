"""The `retry` section of a spec: what to do about each class of failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runner.documents.fields import option


@dataclass(frozen=True, kw_only=True)
class InvalidResponsePolicy:
    """What to do about an answer that cannot be parsed or lacks a channel."""

    attempts: int = option("How many answers are asked for in all.", default=3, minimum=1)
    then: Literal["empty_message", "abort_rollout", "fail_run"] = option(
        "After the last: go on with an empty message (the original's way), end the rollout with the outcome "
        "`invalid_response`, or stop the run.",
        default="empty_message",
    )


@dataclass(frozen=True, kw_only=True)
class RefusedPolicy:
    """What to do about a refusal or a content filter."""

    attempts: int = option(
        "How many answers are asked for in all; 1: a refusal is the rollout's outcome.", default=1, minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class TransientPolicy:
    """What to do about rate limits, time-outs, lost connections and 5xx."""

    attempts: int = option("How many calls in all.", default=8, minimum=1)
    total_seconds: float = option("No new attempt after this long.", default=900.0, exclusiveMinimum=0)
    first_wait: float = option(
        "Seconds before the second attempt, where the server says nothing.", default=0.5, minimum=0
    )
    factor: float = option("Each wait is this much longer than the one before.", default=2.0, minimum=1)
    max_wait: float = option(
        "No own wait is longer, in seconds; what the server asks for may be.", default=30.0, minimum=0
    )
    jitter: float = option(
        "Up to this share of a wait is taken off at random, so that calls do not come in step.",
        default=0.5,
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True, kw_only=True)
class BreakerPolicy:
    """When a server counts as down: it is asked one call at a time, and then the run stops, to be gone on with."""

    failures: int = option(
        "So many calls to one server that fail in a row, whichever games they are of, open its breaker: it is asked "
        "one call at a time.",
        default=16,
        minimum=1,
    )
    probes: int = option(
        "So many calls one at a time that fail in a row stop the run, with the waits of `transient` before each.",
        default=7,
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class Retry:
    """One retry layer, by class of failure. A fatal failure (key, billing, unknown model) always stops the run."""

    invalid_response: InvalidResponsePolicy = option(
        "Answers that do not follow the wire format.", factory=InvalidResponsePolicy
    )
    refused: RefusedPolicy = option("Refusals.", factory=RefusedPolicy)
    transient: TransientPolicy = option("Failures of transport.", factory=TransientPolicy)
    breaker: BreakerPolicy = option("A server that is down.", factory=BreakerPolicy)
