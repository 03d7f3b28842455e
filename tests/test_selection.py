"""Which rollouts are trained on, beyond the reference cases."""

from __future__ import annotations

from runner.training.selection import select_for
from runner.training.settings import SelectionSettings

WEIGHTED = SelectionSettings(method="weighted_sampling", epsilon=0.0)


def test_guesses_are_replaced_though_nothing_tells_the_other_rollouts_apart() -> None:
    found = select_for([0.0] * 8, WEIGHTED, replaced=0.5, seed=3)
    assert (len(found.guess_replaced), found.as_played) == (4, ())
    assert found.why_none is not None
    assert "nothing tells the rollouts apart" in found.why_none


def test_which_guesses_are_replaced_says_nothing_of_which_rollouts_are_drawn() -> None:
    rewards = [float(index % 2) for index in range(20)]
    drawn = {select_for(rewards, WEIGHTED, replaced=0.0, seed=seed).as_played for seed in range(10)}
    assert len(drawn) == 10
    some = select_for(rewards, WEIGHTED, replaced=0.5, seed=0)
    more = select_for(rewards, WEIGHTED, replaced=0.75, seed=0)
    assert set(some.guess_replaced) < set(more.guess_replaced)
