"""Rewards into the rollouts that expert iteration trains on (Neural Interactive Proofs, ICLR 2025, appendix).

Every draw comes from a seed that the caller derives from run, iteration and agent. The generator is NumPy's legacy one,
because its streams are the same in every version.
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
"""What the legacy generator takes."""


@dataclass(frozen=True)
class SelectedRollouts:
    """Indices of rollouts for one agent: those trained on as they are, and those whose guess the label replaces."""

    as_played: tuple[int, ...]
    guess_replaced: tuple[int, ...] = ()
    why_none: str | None = None
    """Why none could be drawn to be trained on as it is."""


def select(rewards: Sequence[float], settings: SelectionSettings, seed: int) -> list[int]:
    """The indices of the rollouts that one agent is trained on; `rewards` are its own, one a rollout.

    Threshold: in their order. Weighted sampling: in the order of the draws.

    Raises:
        ValueError: there is nothing to weigh by, or without replacement too few rollouts have a chance.
    """
    if settings.method == "threshold":
        threshold = settings.reward_threshold
        return [index for index, reward in enumerate(rewards) if _passes(reward, threshold)]
    size = sample_size(len(rewards), settings)
    chances = probabilities(rewards, settings)
    if np.isnan(chances).any():
        raise ValueError("all rewards are the same or below the minimum, so that nothing tells the rollouts apart")
    if not settings.replacement and size > np.count_nonzero(chances):
        raise ValueError(f"{size} rollouts are to be drawn without replacement, and fewer have a chance")
    generator = np.random.RandomState(seed % 2**SEED_BITS)
    wide = chances.astype(np.float64)
    drawn = generator.choice(len(rewards), size=size, replace=settings.replacement, p=wide / wide.sum())
    return [int(index) for index in drawn]


def _passes(reward: float, threshold: float) -> bool:
    """Whether a rollout is selected by its reward; a reward in float32, as the original's are, meets float32."""
    if float(np.float32(reward)) == reward:
        return reaches(reward, float(np.float32(threshold))) or reaches(reward, threshold)
    return reaches(reward, threshold)


def sample_size(rollouts: int, settings: SelectionSettings) -> int:
    """How many rollouts weighted sampling draws; halves go to the even neighbour, as Python rounds."""
    return round(settings.sample_size_factor * rollouts)


def probabilities(rewards: Sequence[float], settings: SelectionSettings) -> NDArray[np.float32]:
    """Each rollout's chance to be drawn (rollout); NaN where no reward is above the minimum.

    What a reward is above the minimum, as a share of all, mixed with `epsilon` parts of an even chance.
    """
    given: NDArray[Any] = np.asarray(rewards, np.float32)
    least = given.min(initial=np.inf) if settings.minimum is None else np.float32(settings.minimum)
    above = np.maximum(given, least) - least
    with np.errstate(invalid="ignore"):
        shares = above / above.sum()
    mixed: NDArray[np.float32] = (shares + settings.epsilon / max(len(given), 1)) / (1 + settings.epsilon)
    return mixed


def replaced_proportion(settings: GuessReplacement, iteration: int) -> float:
    """For which share of the rollouts the label replaces the verifier's guess in an iteration."""
    if settings.annealing == "linear":
        return max(0.0, settings.proportion - settings.annealing_rate * iteration)
    if settings.annealing == "exponential":
        return settings.proportion * (1 - settings.annealing_rate) ** iteration
    if settings.annealing == "none":
        return settings.proportion
    raise ValueError(f"no annealing {settings.annealing!r}")


def select_for(
    rewards: Sequence[float],
    settings: SelectionSettings,
    *,
    replaced: float,
    seed: int,
) -> SelectedRollouts:
    """One agent's rollouts; for the share `replaced` of them, drawn at random, its guess is replaced instead.

    Those are trained on whatever the rewards of the others are: the label needs no reward to say what is right.
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
