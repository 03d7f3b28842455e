"""Which rollouts are trained on, beyond the reference cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import SpecError
from runner.spec.loader import load_spec
from runner.spec.training_settings import SelectionSettings
from runner.training.selection import select_rollouts
from tests.support.training import training_spec

WEIGHTED = SelectionSettings(method="weighted_sampling", epsilon=0.0)


def test_guesses_are_replaced_though_the_other_rollouts_are_alike() -> None:
    found = select_rollouts([0.0] * 8, WEIGHTED, replaced=0.5, seed=3)
    assert (len(found.guess_replaced), found.as_played) == (4, ())
    assert found.empty_reason is not None
    assert "no rollout has a positive weight" in found.empty_reason


def test_replacing_guesses_changes_no_rollout_that_is_drawn() -> None:
    rewards = [float(index % 2) for index in range(20)]
    drawn = {select_rollouts(rewards, WEIGHTED, replaced=0.0, seed=seed).as_played for seed in range(10)}
    assert len(drawn) == 10
    some = select_rollouts(rewards, WEIGHTED, replaced=0.5, seed=0)
    more = select_rollouts(rewards, WEIGHTED, replaced=0.75, seed=0)
    assert set(some.guess_replaced) < set(more.guess_replaced)


def test_the_largest_selection_that_a_spec_may_ask_for_can_be_drawn() -> None:
    most = SelectionSettings(method="weighted_sampling", sample_size_factor=100.0, epsilon=100.0)
    found = select_rollouts([float(index % 2) for index in range(20)], most, replaced=0.0, seed=0)
    assert len(found.as_played) == 100 * 20
    assert len(set(found.as_played)) == 20


def test_rewards_that_differ_in_their_last_bits_are_a_tie() -> None:
    rewards = [0.7 + 0.1, 0.8, 0.8 - 0.9e-9, 0.8 - 1.1e-9, 0.75, float(np.float32(0.8)), float(np.float32(0.1) * 8)]
    found = select_rollouts(rewards, SelectionSettings(reward_threshold=0.8), replaced=0.0, seed=0)
    assert found.as_played == (0, 1, 2, 5, 6)
    nothing = select_rollouts([0.3 - 0.1 - 0.2, -1e-8], SelectionSettings(reward_threshold=0.0), replaced=0.0, seed=0)
    assert nothing.as_played == (0,)


@pytest.mark.parametrize("name", ["sample_size_factor", "epsilon"])
def test_a_selection_that_cannot_be_drawn_is_refused_before_any_game(tmp_path: Path, name: str) -> None:
    path = training_spec(tmp_path, training={"selection": {"method": "weighted_sampling", name: 100.5}})
    with pytest.raises(SpecError, match=rf"training\.selection\.{name}: .*100"):
        load_spec(path)
