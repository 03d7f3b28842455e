"""How long to wait where the server says nothing: longer each time, up to a bound, with jitter."""

from __future__ import annotations

import random

from runner.models.retry_policy import TransientPolicy


def own_wait(policy: TransientPolicy, attempt: int, rng: random.Random) -> float:
    """Seconds before the next call after `attempt` failed ones."""
    try:
        wait = min(policy.first_wait * policy.factor ** (attempt - 1), policy.max_wait)
    except OverflowError:
        wait = policy.max_wait
    return wait * (1 - policy.jitter * rng.random())
