"""The `retry` section of a spec: the reaction to each class of failure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from runner.documents.dataclass_schema import option


@dataclass(frozen=True, kw_only=True)
class InvalidResponsePolicy:
    """The reaction to an answer that cannot be parsed, or lacks a channel."""

    attempts: int = option("Number of answers to request, including the first.", default=3, minimum=1)
    then: Literal["empty_message", "abort_rollout", "fail_run"] = option(
        "After the last: continue with an empty message (as the original does), end the rollout with the outcome "
        "`invalid_response`, or stop the run. With `empty_message`, a verdict that only lacks its stated confidence "
        "is valid, and its confidence is unknown.",
        default="empty_message",
    )


@dataclass(frozen=True, kw_only=True)
class RefusedPolicy:
    """The reaction to a refusal or a content filter."""

    attempts: int = option(
        "Answers to request, including the first; 1: a refusal is the rollout's outcome.", default=1, minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class TransientPolicy:
    """The reaction to rate limits, time-outs, lost connections and 5xx."""

    attempts: int = option("Number of calls, including the first.", default=8, minimum=1)
    total_seconds: float = option("No new attempt after this many seconds.", default=900.0, exclusiveMinimum=0)
    first_wait: float = option(
        "Seconds before the second attempt, unless the server says when.", default=0.5, minimum=0
    )
    factor: float = option("Exponential backoff: the ratio of each wait to the one before.", default=2.0, minimum=1)
    max_wait: float = option("The longest wait in seconds; a server may ask for a longer one.", default=30.0, minimum=0)
    jitter: float = option(
        "Each wait is shortened by a random share of up to this value, so that calls spread out.",
        default=0.5,
        minimum=0,
        maximum=1,
    )

    def wait(self, attempts: int, rng: random.Random) -> float:
        """Return the seconds to wait after `attempts` failed attempts, if the server does not request a wait."""
        try:
            wait = min(self.first_wait * self.factor ** (attempts - 1), self.max_wait)
        except OverflowError:
            wait = self.max_wait
        return wait * (1 - self.jitter * rng.random())


@dataclass(frozen=True, kw_only=True)
class BreakerPolicy:
    """Circuit breaker: a server that seems down receives one call at a time. If it stays down, the run stops."""

    failures: int = option(
        "Number of consecutive failed calls to a server, over all games, after which its breaker opens and it receives "
        "one call at a time.",
        default=16,
        minimum=1,
    )
    probes: int = option(
        "Number of consecutive failures with the breaker open, each after a wait of `transient`, that stop the run.",
        default=7,
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The retry settings by class of failure. A fatal failure (key, billing, unknown model) always stops the run."""

    invalid_response: InvalidResponsePolicy = option(
        "Answers that cannot be parsed, or lack a channel.", factory=InvalidResponsePolicy
    )
    refused: RefusedPolicy = option("Refusals.", factory=RefusedPolicy)
    transient: TransientPolicy = option("Failures of transport.", factory=TransientPolicy)
    breaker: BreakerPolicy = option("A server that is down.", factory=BreakerPolicy)
