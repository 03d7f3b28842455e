"""Selection of rollouts for training, beyond the reference cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import SpecError
from runner.spec.loader import load_spec
from runner.spec.training_settings import SelectionSettings
from runner.training.dataset_building import select_rollouts
from tests.support.training import training_spec

WEIGHTED = SelectionSettings(method="weighted_sampling", epsilon=0.0)


def test_guesses_are_replaced_if_all_rewards_are_equal() -> None:
    selection = select_rollouts([0.0] * 8, WEIGHTED, replaced=0.5, seed=3)
    assert (len(selection.guess_replaced), selection.as_played) == (4, ())
    assert selection.empty_reason is not None
    assert "no rollout has a positive weight" in selection.empty_reason


def test_sampled_rollouts_depend_on_the_seed_and_replaced_guesses_are_nested() -> None:
    rewards = [float(index % 2) for index in range(20)]
    selections = {select_rollouts(rewards, WEIGHTED, replaced=0.0, seed=seed).as_played for seed in range(10)}
    assert len(selections) == 10
    half_replaced = select_rollouts(rewards, WEIGHTED, replaced=0.5, seed=0)
    mostly_replaced = select_rollouts(rewards, WEIGHTED, replaced=0.75, seed=0)
    assert set(half_replaced.guess_replaced) < set(mostly_replaced.guess_replaced)


def test_largest_allowed_selection_can_be_sampled() -> None:
    settings = SelectionSettings(method="weighted_sampling", sample_size_factor=100.0, epsilon=100.0)
    selection = select_rollouts([float(index % 2) for index in range(20)], settings, replaced=0.0, seed=0)
    assert len(selection.as_played) == 100 * 20
    assert len(set(selection.as_played)) == 20


def test_rewards_with_rounding_differences_are_equal() -> None:
    rewards = [0.7 + 0.1, 0.8, 0.8 - 0.9e-9, 0.8 - 1.1e-9, 0.75, float(np.float32(0.8)), float(np.float32(0.1) * 8)]
    selection = select_rollouts(rewards, SelectionSettings(reward_threshold=0.8), replaced=0.0, seed=0)
    assert selection.as_played == (0, 1, 2, 5, 6)
    zero_selection = select_rollouts(
        [0.3 - 0.1 - 0.2, -1e-8], SelectionSettings(reward_threshold=0.0), replaced=0.0, seed=0
    )
    assert zero_selection.as_played == (0,)


@pytest.mark.parametrize("name", ["sample_size_factor", "epsilon"])
def test_selection_that_cannot_be_sampled_is_rejected_before_any_game(tmp_path: Path, name: str) -> None:
    path = training_spec(tmp_path, training={"selection": {"method": "weighted_sampling", name: 100.5}})
    with pytest.raises(SpecError, match=rf"training\.selection\.{name}: .*100"):
        load_spec(path)
