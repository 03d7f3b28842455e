"""The `retry` section of a spec: what to do about each class of failure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from runner.documents.dataclass_schema import option


@dataclass(frozen=True, kw_only=True)
class InvalidResponsePolicy:
    """What to do about an answer that cannot be parsed, or lacks a channel."""

    attempts: int = option("How many answers to ask for, the first included.", default=3, minimum=1)
    then: Literal["empty_message", "abort_rollout", "fail_run"] = option(
        "After the last: go on with an empty message (the original's way), end the rollout with the outcome "
        "`invalid_response`, or stop the run. A verdict that lacks only its stated confidence stands with "
        "`empty_message`, and its confidence is unknown.",
        default="empty_message",
    )


@dataclass(frozen=True, kw_only=True)
class RefusedPolicy:
    """What to do about a refusal or a content filter."""

    attempts: int = option(
        "How many answers to ask for, the first included; 1: a refusal is the rollout's outcome.", default=1, minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class TransientPolicy:
    """What to do about rate limits, time-outs, lost connections and 5xx."""

    attempts: int = option("How many calls to make, the first included.", default=8, minimum=1)
    total_seconds: float = option("No new attempt after this many seconds.", default=900.0, exclusiveMinimum=0)
    first_wait: float = option(
        "Seconds before the second attempt, unless the server says when.", default=0.5, minimum=0
    )
    factor: float = option("Exponential backoff: each wait is this many times the one before.", default=2.0, minimum=1)
    max_wait: float = option("The longest wait in seconds; a server may ask for a longer one.", default=30.0, minimum=0)
    jitter: float = option(
        "Up to this share of each wait is taken off at random, so that calls spread out.",
        default=0.5,
        minimum=0,
        maximum=1,
    )

    def wait(self, attempts: int, rng: random.Random) -> float:
        """Return the seconds to wait after so many failed attempts, if the server does not say."""
        try:
            wait = min(self.first_wait * self.factor ** (attempts - 1), self.max_wait)
        except OverflowError:
            wait = self.max_wait
        return wait * (1 - self.jitter * rng.random())


@dataclass(frozen=True, kw_only=True)
class BreakerPolicy:
    """Circuit breaker: a server that seems down is asked one call at a time; if it stays down, the run stops."""

    failures: int = option(
        "This many failed calls in a row to one server, over all games, open its breaker: then it is asked one "
        "call at a time.",
        default=16,
        minimum=1,
    )
    probes: int = option(
        "This many failures in a row while the breaker is open, each after a wait of `transient`, stop the run.",
        default=7,
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class Retry:
    """One retry layer, by class of failure. A fatal failure (key, billing, unknown model) always stops the run."""

    invalid_response: InvalidResponsePolicy = option(
        "Answers that cannot be parsed, or lack a channel.", factory=InvalidResponsePolicy
    )
    refused: RefusedPolicy = option("Refusals.", factory=RefusedPolicy)
    transient: TransientPolicy = option("Failures of transport.", factory=TransientPolicy)
    breaker: BreakerPolicy = option("A server that is down.", factory=BreakerPolicy)
