"""The selection of rollouts that expert iteration trains on (Neural Interactive Proofs, ICLR 2025, appendix).

Every random choice uses a seed that the caller derives from run, iteration and agent. The generator is NumPy's legacy
one, because its streams are the same in every version of NumPy.
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
"""The number of bits that the legacy generator accepts as a seed."""


@dataclass(frozen=True)
class SelectedRollouts:
    """The indices of one agent's rollouts to train on, unchanged or with its guess replaced by the label."""

    as_played: tuple[int, ...]
    guess_replaced: tuple[int, ...] = ()
    none_reason: str | None = None
    """The reason if no unchanged rollout could be selected."""


def select(rewards: Sequence[float], settings: SelectionSettings, seed: int) -> list[int]:
    """Return the indices of the rollouts to train one agent on; `rewards` are the agent's, one for each rollout.

    The order is that of the rollouts for a threshold, and that of sampling for weighted sampling.

    Raises:
        ValueError: all weights are 0, or there are too few positive weights to sample without replacement.
    """
    if settings.method == "threshold":
        threshold = settings.reward_threshold
        return [index for index, reward in enumerate(rewards) if _passes(reward, threshold)]
    size = sample_size(len(rewards), settings)
    weights = probabilities(rewards, settings)
    if np.isnan(weights).any():
        raise ValueError("all rewards are equal or below the minimum, so no rollout has a positive weight")
    if not settings.replacement and size > np.count_nonzero(weights):
        raise ValueError(f"cannot sample {size} rollouts without replacement: fewer have a positive weight")
    generator = np.random.RandomState(seed % 2**SEED_BITS)
    precise = weights.astype(np.float64)
    sampled = generator.choice(len(rewards), size=size, replace=settings.replacement, p=precise / precise.sum())
    return [int(index) for index in sampled]


def _passes(reward: float, threshold: float) -> bool:
    """Return whether a reward reaches the threshold; one that is exact in float32 is also compared in float32.

    The original code compares in float32.
    """
    if float(np.float32(reward)) == reward:
        return reaches(reward, float(np.float32(threshold))) or reaches(reward, threshold)
    return reaches(reward, threshold)


def sample_size(rollouts: int, settings: SelectionSettings) -> int:
    """Return how many rollouts weighted sampling selects; halves are rounded to the even neighbor."""
    return round(settings.sample_size_factor * rollouts)


def probabilities(rewards: Sequence[float], settings: SelectionSettings) -> NDArray[np.float32]:
    """Return each rollout's sampling probability (rollout); NaN if no reward is above the minimum.

    The weight is the excess of the reward over the minimum, as a share of the total, mixed with `epsilon` parts of a
    uniform distribution.
    """
    values: NDArray[Any] = np.asarray(rewards, np.float32)
    minimum = values.min(initial=np.inf) if settings.minimum is None else np.float32(settings.minimum)
    excess = np.maximum(values, minimum) - minimum
    with np.errstate(invalid="ignore"):
        shares = excess / excess.sum()
    mixed: NDArray[np.float32] = (shares + settings.epsilon / max(len(values), 1)) / (1 + settings.epsilon)
    return mixed


def replaced_proportion(settings: GuessReplacement, iteration: int) -> float:
    """Return the share of rollouts in an iteration where the label replaces the verifier's guess."""
    if settings.annealing == "linear":
        return max(0.0, settings.proportion - settings.annealing_rate * iteration)
    if settings.annealing == "exponential":
        return settings.proportion * (1 - settings.annealing_rate) ** iteration
    if settings.annealing == "none":
        return settings.proportion
    raise ValueError(f"unknown annealing {settings.annealing!r}")


def select_for(
    rewards: Sequence[float],
    settings: SelectionSettings,
    *,
    replaced: float,
    seed: int,
) -> SelectedRollouts:
    """Select one agent's rollouts; for a random share `replaced` of all, its guess is replaced instead.

    Those are trained on regardless of rewards, because the label already says what is right.
    """
    count = int(replaced * len(rewards))
    order = np.random.RandomState(derived_seed("replaced", seed) % 2**SEED_BITS).permutation(len(rewards))
    guess_replaced = tuple(sorted(int(index) for index in order[:count]))
    rest = sorted(int(index) for index in order[count:])
    try:
        chosen = select([rewards[index] for index in rest], settings, derived_seed("drawn", seed)) if rest else []
    except ValueError as error:
        return SelectedRollouts((), guess_replaced, str(error))
    return SelectedRollouts(tuple(rest[index] for index in chosen), guess_replaced)
