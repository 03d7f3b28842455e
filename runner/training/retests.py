"""Tests the models of a finished training run again, on other datapoints or with more repeats.

A training spec with `rerun_tests` runs this loop instead of `TrainingLoop`.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from runner.documents.dataclass_schema import to_plain
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.training.games import RunPart, TrainingGames
from runner.training.lineage import with_states
from runner.training.plan import TrainingPlan
from runner.training.stage_log import StageLog
from runner.training.stages import ModelSwitch


@dataclass
class RetestLoop:
    """A process's loop over the tests of another run's models. It has the interface of `TrainingLoop`."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    run_part: InitVar[RunPart]
    models: dict[str, ModelSettings] = field(init=False)
    """The current models of the run."""

    def __post_init__(self, run_part: RunPart) -> None:
        self.models = dict(self.plan.spec.experiment.models)
        self._games = TrainingGames(self.plan, self.folder, self.stages, run_part)

    def run(self) -> None:
        """Run a test before each iteration and after the last one.

        Raises:
            RunError, ProviderRefusal, BudgetExhausted, Interrupted: see `TrainingLoop.run`.
        """
        rerun = self.plan.training.rerun_tests
        assert rerun is not None
        self._games.check_parts_exist()
        for iteration, new_models in enumerate(rerun.models):
            self._games.play_test(iteration, self.models)
            switched = self.stages.find_last(ModelSwitch, iteration)
            if switched is None:
                states = {group: to_plain(model) for group, model in new_models.items()}
                switched = ModelSwitch(iteration=iteration, models=states, outcomes={})
                self.stages.add(switched)
            self.models = with_states(self.models, switched.models)
        self._games.play_test(len(rerun.models), self.models)
