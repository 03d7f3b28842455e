"""One game to play, as a plain value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.game.protocols.rounds import Round
from runner.rollouts.agents.agent import Observation
from runner.spec.datasets.loader import Datapoint


@dataclass(frozen=True, slots=True)
class Job:
    """One game to play. `index` is its place in the run's tables, nothing more."""

    index: int
    rollout_id: str
    datapoint: Datapoint
    repeat: int
    seed: int
    stance: int | None = None
    """What provers argue here, of opposed ones the first, where each datapoint is played both ways; else None."""
    swapped: bool | None = None
    """Whether two seats have exchanged their players, where each datapoint is played both ways; else None."""
    stances_exchanged: bool | None = None
    """Whether opposed provers have exchanged their stances, where each datapoint is played both ways; else None."""

    @property
    def number(self) -> int:
        """Which play of its datapoint it is, over the plays of every block: the `repeat` of its samples.

        A block of two plays a repeat has the numbers 2 * repeat and 2 * repeat + 1, so that a run can get more repeats.
        """
        number = self.repeat
        for variant in (self.stance, self.swapped):
            if variant is not None:
                number = 2 * number + variant
        return number

    @property
    def prover_stance(self) -> int:
        """What provers argue whose stance the protocol leaves to the game: its own, or its datapoint's."""
        return self.datapoint.prover_stance if self.stance is None else self.stance

    def observation(self, round_: int, rounds: Sequence[Round]) -> Observation:
        """What an agent knows in a round of this game, with these rounds behind it."""
        point = self.datapoint
        return Observation(round_, rounds, point.columns, self.seed, self.prover_stance, point.id, self.number)
