"""Selects the rollouts that expert iteration trains on (Neural Interactive Proofs, ICLR 2025, appendix).

Every random choice uses a seed that the caller derives from the run, the iteration and the agent. The random generator
is NumPy's legacy `RandomState`, because its streams are the same in every version of NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.base.hashing import derived_seed
from runner.game.protocols.rewards import reaches
from runner.spec.training_settings import GuessReplacement, SelectionSettings

SEED_BITS = 32
"""The maximum number of bits of a seed for `RandomState`."""


@dataclass(frozen=True)
class SelectedRollouts:
    """The indices of the rollouts to train one agent on."""

    as_played: tuple[int, ...]
    """The rollouts to train on with the agent's own answers."""
    guess_replaced: tuple[int, ...] = ()
    """The rollouts to train on with the label instead of the verifier's guess."""
    empty_reason: str | None = None
    """The reason why no rollout could be selected for `as_played`; None if some were selected."""


def select_by_reward(rewards: Sequence[float], settings: SelectionSettings, seed: int) -> list[int]:
    """Return the indices of the rollouts to train one agent on; `rewards` has the agent's reward in each rollout.

    With a threshold, the indices are in ascending order; with weighted sampling, in the order of sampling.

    Raises:
        ValueError: all weights are 0, or there are too few positive weights to sample without replacement.
    """
    if settings.method == "threshold":
        threshold = settings.reward_threshold
        return [index for index, reward in enumerate(rewards) if _passes_threshold(reward, threshold)]
    size = sample_size(len(rewards), settings)
    weights = probabilities(rewards, settings)
    if np.isnan(weights).any():
        raise ValueError("all rewards are equal or below the minimum, so no rollout has a positive weight")
    if not settings.replacement and size > np.count_nonzero(weights):
        raise ValueError(
            f"cannot sample {size} rollouts without replacement, because only {np.count_nonzero(weights)} have a "
            "positive weight"
        )
    generator = np.random.RandomState(seed % 2**SEED_BITS)
    weights64 = weights.astype(np.float64)
    sampled = generator.choice(len(rewards), size=size, replace=settings.replacement, p=weights64 / weights64.sum())
    return [int(index) for index in sampled]


def _passes_threshold(reward: float, threshold: float) -> bool:
    """Return whether a reward reaches the threshold.

    A reward that float32 represents exactly also passes if it reaches the threshold rounded to float32, because the
    original code compares in float32.
    """
    if float(np.float32(reward)) == reward:
        return reaches(reward, float(np.float32(threshold))) or reaches(reward, threshold)
    return reaches(reward, threshold)


def sample_size(rollouts: int, settings: SelectionSettings) -> int:
    """Return the number of rollouts that weighted sampling selects. Halves are rounded to the even neighbor."""
    return round(settings.sample_size_factor * rollouts)


def probabilities(rewards: Sequence[float], settings: SelectionSettings) -> NDArray[np.float32]:
    """Return the sampling probability of each rollout; all are NaN if no reward is above the minimum.

    A rollout's weight is the excess of its reward over the minimum. The weights are normalized and mixed with a uniform
    distribution in the proportion 1 : `epsilon`.
    """
    values: NDArray[Any] = np.asarray(rewards, np.float32)
    minimum = values.min(initial=np.inf) if settings.minimum is None else np.float32(settings.minimum)
    excess = np.maximum(values, minimum) - minimum
    with np.errstate(invalid="ignore"):
        shares = excess / excess.sum()
    mixed: NDArray[np.float32] = (shares + settings.epsilon / max(len(values), 1)) / (1 + settings.epsilon)
    return mixed


def replaced_proportion(settings: GuessReplacement, iteration: int) -> float:
    """Return the share of an iteration's rollouts where the label replaces the verifier's guess."""
    if settings.annealing == "linear":
        return max(0.0, settings.proportion - settings.annealing_rate * iteration)
    if settings.annealing == "exponential":
        return settings.proportion * (1 - settings.annealing_rate) ** iteration
    if settings.annealing == "none":
        return settings.proportion
    raise ValueError(f"unknown annealing {settings.annealing!r}")


def select_rollouts(
    rewards: Sequence[float], settings: SelectionSettings, *, replaced: float, seed: int
) -> SelectedRollouts:
    """Return the rollouts to train one agent on.

    In a random share `replaced` of all rollouts, the label replaces the agent's guess. These rollouts are selected with
    any reward. `select_by_reward` selects from the others.
    """
    count = int(replaced * len(rewards))
    order = np.random.RandomState(derived_seed("replaced", seed) % 2**SEED_BITS).permutation(len(rewards))
    guess_replaced = tuple(sorted(int(index) for index in order[:count]))
    rest = sorted(int(index) for index in order[count:])
    try:
        rest_rewards = [rewards[index] for index in rest]
        chosen = select_by_reward(rest_rewards, settings, derived_seed("drawn", seed)) if rest else []
    except ValueError as error:
        return SelectedRollouts((), guess_replaced, str(error))
    return SelectedRollouts(tuple(rest[index] for index in chosen), guess_replaced)
