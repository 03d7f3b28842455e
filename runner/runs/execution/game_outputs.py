"""A finished game into all that its run's files and counts get of it: made anywhere, written in the order of the plan.

What is made of a game is plain and small: lines that are ready to be written, and numbers. The process of a run makes
and writes; where workers play, they make, and the writer only writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.game.protocols.protocol import Protocol
from runner.models.costs import CallCosts
from runner.results.finetune.game_lines import Examples, MadeExample, examples_of
from runner.results.game_measurements import GameMeasurement, measured
from runner.results.tables import Rows, table_rows
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.runs.execution.accounting import Accounting, CountedRollout
from runner.spec.experiment import FineTune


class GameScore(NamedTuple):
    """A game that was right or wrong, as what is said of how much plays differ needs it."""

    group: str
    datapoint: str
    stance: int | None
    swapped: bool | None
    stances_exchanged: bool | None
    correct: float


class GameOutput(NamedTuple):
    """What is made of one rollout."""

    rows: Sequence[Rows]
    """Of each table."""
    measured: GameMeasurement
    examples: Sequence[MadeExample]
    score: GameScore | None


class MadeElsewhere(NamedTuple):
    """What the writer is told of a rollout in the place of the rollout, where it needs no more."""

    made: GameOutput
    counted: CountedRollout
    smooth: tuple[int, int]
    """The answers and messages of a rollout in which nothing went wrong: what did is told with the whole rollout."""


@dataclass(frozen=True)
class MadeGame:
    """A game that was made of by another process."""

    rollouts: Sequence[MadeElsewhere]

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return sum(
            sum(len(rows.lines) for rows in one.made.rows)
            + sum(len(example.line[0]) + len(example.trace) for example in one.made.examples)
            for one in self.rollouts
        )


class OutputMaker:
    """Makes of rollouts what the files of their run get."""

    def __init__(self, protocol: Protocol, run_id: str, examples: Examples | None) -> None:
        self._protocol, self._run_id, self._examples = protocol, run_id, examples

    def made(self, rollout: Rollout) -> GameOutput:
        """What the files get of a rollout."""
        return GameOutput(
            table_rows(self._run_id, rollout),
            measured(self._protocol, rollout),
            () if self._examples is None else self._examples.of(rollout),
            _score(rollout),
        )


def _score(rollout: Rollout) -> GameScore | None:
    job, correct = rollout.job, rollout.correct
    if correct is None:
        return None
    point = job.datapoint
    return GameScore(point.group, point.id, job.stance, job.swapped, job.stances_exchanged, float(correct))


def fine_tune_of(plan: Plan) -> FineTune | None:
    """What is said of the fine-tune files of a run; None where it makes none: those of shards are made of all of it."""
    return plan.spec.experiment.fine_tune if plan.shard is None else None


def needs_rollouts(plan: Plan) -> bool:
    """Whether something of a run follows from its rollouts as a whole, or together, and not from what is made of each.

    A tree's statistics and pairs do, and what is said of debates that are judged again, and whether a run is decided.
    """
    return plan.shape is not None or plan.debates is not None or plan.spec.experiment.until is not None


_SAME = 1 << 12
"""How many different numbers of games are remembered."""


class WorkersMaker:
    """Makes of games what the writer is told."""

    def __init__(self, plan: Plan, run_id: str, costs: CallCosts) -> None:
        """Raises `UsageError` where an agent that `fine_tune` names is not there."""
        settings = fine_tune_of(plan)
        examples = None
        if settings:
            swapped = plan.players(swapped=True) if plan.seats else {}
            examples = examples_of(settings, plan.players(), run_id, swapped=swapped)
        self._maker, self._accounting = OutputMaker(plan.spec.protocol, run_id, examples), Accounting(plan, costs)
        self._same: dict[Any, Any] = {}

    def made(self, rollouts: Sequence[Rollout]) -> list[MadeElsewhere] | None:
        """What is made of a game; None where the writer must have the rollouts, since something went wrong in them."""
        found = []
        for rollout in rollouts:
            smooth = self._accounting.smooth(rollout)
            if smooth is None:
                return None
            made = self._maker.made(rollout)
            numbers = made.measured._replace(added=self._known(made.measured.added))
            counted = self._known(self._accounting.counted(rollout))
            found.append(MadeElsewhere(made._replace(measured=numbers), counted, self._known(smooth)))
        return found

    def _known(self, numbers: Any) -> Any:
        """The first that was equal: a batch of messages holds it once."""
        if len(self._same) >= _SAME:
            self._same.clear()
        return self._same.setdefault(numbers, numbers)
