"""The outputs of a finished game: the data for the run's files and counts.

Outputs are small plain data: numbers, and lines that are ready to be written. The process that plays a game, which may
be a worker, builds its outputs. The main process, called the writer, writes all outputs in the order of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.models.costs import CallCosts
from runner.results.finetune.game_lines import AgentExample, ExampleBuilder
from runner.results.game_measurements import GameMeasurement, measure_game
from runner.results.metric_plugins import add_plugin_metrics
from runner.results.tables import Rows, encode_rows
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.runs.execution.accounting import Accounting, RolloutCounts
from runner.spec.experiment import FineTune
from runner.statistics.variance_components import Play


class GameScore(NamedTuple):
    """The score of a game whose datapoint has a label, for the variance components of the run."""

    group: str
    play: Play
    correct: float


class RolloutOutput(NamedTuple):
    """The outputs of one rollout."""

    rows: Sequence[Rows]
    """The rows of each table."""
    measurement: GameMeasurement
    """The contributions to the run's metrics."""
    examples: Sequence[AgentExample]
    """The examples for fine-tune files."""
    score: GameScore | None
    """The score; None if the rollout's verdict is neither correct nor wrong."""


class WorkerRollout(NamedTuple):
    """The outputs of a rollout that a worker played, sent to the writer instead of the rollout."""

    output: RolloutOutput
    counts: RolloutCounts
    answer_and_message_counts: tuple[int, int]
    """The numbers of answers and messages. If a rollout has a problem, the worker sends the rollout itself instead."""


@dataclass(frozen=True)
class WorkerGame:
    """The outputs of a game that a worker played."""

    rollouts: Sequence[WorkerRollout]

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return sum(
            sum(len(rows.lines) for rows in rollout.output.rows)
            + sum(len(example.line[0]) + len(example.trace) for example in rollout.output.examples)
            for rollout in self.rollouts
        )


class OutputBuilder:
    """Builds the outputs of rollouts."""

    def __init__(self, plan: Plan, run_id: str, example_builder: ExampleBuilder | None) -> None:
        self._protocol, self._run_id, self._example_builder = plan.spec.protocol, run_id, example_builder
        self._plugin_metrics = plan.spec.experiment.metrics

    def build(self, rollout: Rollout) -> RolloutOutput:
        """Build the outputs of a rollout."""
        measurement, names = measure_game(self._protocol, rollout, self._plugin_metrics), self._plugin_metrics
        return RolloutOutput(
            encode_rows(
                self._run_id, rollout, {name: values[0] for _, name, values in measurement.added if name in names}
            ),
            measurement,
            () if self._example_builder is None else self._example_builder.of(rollout),
            _score_rollout(rollout),
        )


def _score_rollout(rollout: Rollout) -> GameScore | None:
    job, correct = rollout.job, rollout.correct
    if correct is None:
        return None
    point = job.datapoint
    play = Play(point.id, job.stance, job.swapped, job.stances_exchanged)
    return GameScore(point.group, play, float(correct))


def fine_tune_settings(plan: Plan) -> FineTune | None:
    """Return the settings of a run's fine-tune files; None for no files, and for a shard, as the merge writes them."""
    return plan.spec.experiment.fine_tune if plan.shard is None else None


def needs_rollouts(plan: Plan) -> bool:
    """Return whether the writer needs the rollouts themselves, and not only their outputs.

    The writer needs them for the statistics and preference pairs of trees (several responses to each step of a
    game), for debates that are judged again, and for the stopping rule (`until`).
    """
    return plan.tree_shape is not None or plan.debates is not None or plan.spec.experiment.until is not None


_MAX_INTERNED = 1 << 12
"""The table of interned values is cleared when it has this many."""


class WorkerOutputBuilder:
    """Builds the outputs of games in a worker."""

    def __init__(self, plan: Plan, run_id: str, costs: CallCosts) -> None:
        """Prepare the builder.

        Raises:
            UsageError: `fine_tune` names an agent that does not exist, or a plugin cannot be used.
        """
        add_plugin_metrics(plan.spec.experiment.metrics)
        settings = fine_tune_settings(plan)
        example_builder = None
        if settings:
            swapped_agents = plan.players(swapped=True) if plan.seats else {}
            example_builder = ExampleBuilder(settings, plan.players(), run_id, swapped_agents=swapped_agents)
        self._builder = OutputBuilder(plan, run_id, example_builder)
        self._accounting = Accounting(plan, costs)
        self._intern_table: dict[Any, Any] = {}

    def build(self, rollouts: Sequence[Rollout]) -> WorkerGame | None:
        """Build the outputs of a game. Return None if a rollout has a problem; the writer then needs the rollouts."""
        outputs = []
        for rollout in rollouts:
            answer_and_message_counts = self._accounting.problems.problem_free_counts(rollout)
            if answer_and_message_counts is None:
                return None
            output = self._builder.build(rollout)
            measurement = output.measurement._replace(added=self._intern(output.measurement.added))
            counts = self._intern(self._accounting.rollout_counts(rollout))
            outputs.append(
                WorkerRollout(output._replace(measurement=measurement), counts, self._intern(answer_and_message_counts))
            )
        return WorkerGame(outputs)

    def _intern(self, value: Any) -> Any:
        """Return the first value that was equal to this one, so that pickle writes equal values only once."""
        if len(self._intern_table) >= _MAX_INTERNED:
            self._intern_table.clear()
        return self._intern_table.setdefault(value, value)
