"""The `retry` section of a spec: the reaction to each class of failure.

The layers around the providers, batches and trainers follow it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from runner.documents.dataclass_schema import option


@dataclass(frozen=True, kw_only=True)
class InvalidResponsePolicy:
    """The reaction to an answer that cannot be parsed, or lacks a channel."""

    attempts: int = option(
        "Maximum number of answers to request if nip-run cannot read an answer, including the first.",
        default=3,
        minimum=1,
    )
    then: Literal["empty_message", "abort_rollout", "fail_run"] = option(
        "What follows if nip-run cannot read the last answer either. `empty_message`: continue with an empty message; "
        "if only the stated confidence is missing, the verdict counts. `abort_rollout`: end the game with the outcome "
        "`invalid_response`. `fail_run`: stop the run.",
        default="empty_message",
    )


@dataclass(frozen=True, kw_only=True)
class RefusedPolicy:
    """The reaction to a refusal or a content filter."""

    attempts: int = option(
        "Maximum number of answers to request after a refusal, including the first. 1: a refusal ends the game.",
        default=1,
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class TransientPolicy:
    """The reaction to rate limits, time-outs, lost connections and 5xx."""

    attempts: int = option(
        "Maximum number of calls for one answer if calls fail, including the first.", default=8, minimum=1
    )
    total_seconds: float = option(
        "Do not repeat a call after this number of seconds.", default=900.0, exclusiveMinimum=0
    )
    first_wait: float = option(
        "Seconds to wait before the second call, unless the server states a time.", default=0.5, minimum=0
    )
    factor: float = option("Each wait is this number of times as long as the previous wait.", default=2.0, minimum=1)
    max_wait: float = option(
        "Maximum wait in seconds, unless the server asks for a longer wait.", default=30.0, minimum=0
    )
    jitter: float = option(
        "Shorten each wait by a random share of up to this value, so that many calls are not repeated at the same "
        "time.",
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
        "After this number of failed calls to a server in a row, nip-run sends it one call at a time (circuit "
        "breaker).",
        default=16,
        minimum=1,
    )
    probes: int = option(
        "The run stops if this number of these single calls fail in a row. nip-run waits before each as "
        "`retry.transient` says.",
        default=7,
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The retry settings by class of failure. A fatal failure (key, billing, unknown model) always stops the run."""

    invalid_response: InvalidResponsePolicy = option(
        "After an answer that nip-run cannot read, or that has no message for a channel.", factory=InvalidResponsePolicy
    )
    refused: RefusedPolicy = option("After a refusal of the model or a content filter.", factory=RefusedPolicy)
    transient: TransientPolicy = option(
        "After rate limits, timeouts, lost connections and status 5xx.", factory=TransientPolicy
    )
    breaker: BreakerPolicy = option("If a server is down.", factory=BreakerPolicy)
