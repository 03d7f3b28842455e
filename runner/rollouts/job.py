"""A job: the description of one game to play, or of the tree of its branches. The plan creates jobs."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.value_class import value_class
from runner.game.protocols.ballot import CORRECT, INCORRECT, Ballot
from runner.game.protocols.protocol import Protocol, stance_word
from runner.game.protocols.rounds import Round
from runner.rollouts.agents.agent import Observation
from runner.spec.datasets.datapoint import Datapoint


@value_class(frozen=True, slots=True)
class Job:
    """The description of one game to play. `index` is the game's position in the plan and in the run's tables."""

    index: int
    rollout_id: str
    datapoint: Datapoint
    repeat: int
    seed: int
    stance: int | None = None
    """The stance that provers argue (of opposed provers, the first); None if the spec key `stances` is not set."""
    swapped: bool | None = None
    """Whether the two agents in the spec key `seats` have exchanged their models; None if `seats` is not set."""
    stances_exchanged: bool | None = None
    """Whether opposed provers have exchanged their stances; None if `stances` is not set or provers are not opposed."""

    @property
    def number(self) -> int:
        """The number of this game among all games of its datapoint. It is the `repeat` of the game's samples.

        A block of two games has the numbers 2 * repeat and 2 * repeat + 1, so that repeats can be added to a run.
        """
        number = self.repeat
        for variant in (self.stance, self.swapped):
            if variant is not None:
                number = 2 * number + variant
        return number

    @property
    def stance_name(self) -> str | None:
        """The stance that provers argue (of opposed provers, the first) as a word; None if `stances` is not set."""
        if self.stance is None:
            return None
        if self.datapoint.answers is not None:
            return CORRECT if self.stance else INCORRECT
        return stance_word(self.stance)

    @property
    def prover_stance(self) -> int:
        """The stance for provers whose stance the protocol does not fix: `stance`, else the datapoint's."""
        return self.datapoint.prover_stance if self.stance is None else self.stance

    def observation(self, round_: int, rounds: Sequence[Round]) -> Observation:
        """Return the observation of an agent in a round of this game. `rounds` are the rounds before this round."""
        point = self.datapoint
        return Observation(
            round_, rounds, point.columns, self.seed, self.prover_stance, point.id, self.number,
            point.answers, self.stance,
        )  # fmt: skip

    def ballot(self, protocol: Protocol) -> Ballot | None:
        """Return the answers of this game; None if the protocol lists no answers."""
        answers = self.datapoint.answers
        return None if answers is None else protocol.ballot(answers, self.seed, self.stance)
