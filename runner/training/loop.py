"""The training loop: play, test, build datasets, fine-tune, switch models, and repeat.

The log records each stage before the next one starts, so a killed run resumes at the stage that was interrupted.
Nothing is paid for twice: games have journals, datasets are computed from the games, and a backend creates only one job
even if the job is submitted several times.

The lineage of a model is its name and its fine-tuning steps, which the loop updates after each iteration.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace

from runner.base.text import comma_join
from runner.documents.dataclass_schema import from_plain, to_plain
from runner.models.settings import FineTuneStep, ModelSettings
from runner.results.folder import RunFolder
from runner.spec.model_sources import STEP_KEYS
from runner.training.backends.registry import check_startable
from runner.training.dataset_stage import DatasetStage
from runner.training.games import RunPart, TrainingGames
from runner.training.jobs import ConnectBackend, JobStage
from runner.training.plan import TrainingPlan
from runner.training.stage_log import StageLog
from runner.training.stages import DatasetReport, GroupOutcome, GroupResult, ModelState, ModelSwitch, TrainingEnded

log = logging.getLogger("nip_run.training")


@dataclass
class TrainingLoop:
    """A process's loop over the iterations of a training run."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    run_part: InitVar[RunPart]
    connect_backend: InitVar[ConnectBackend]
    on_switch: Callable[[RunFolder, Mapping[str, GroupOutcome]], None]
    """Called after an iteration, with the folder of its games and the outcome of each model group."""
    on_step: Callable[[int, str], None]
    """Called when a step other than games starts, with the iteration and a description of the step."""
    sleep: InitVar[Callable[[float], None]] = time.sleep
    models: dict[str, ModelSettings] = field(init=False)
    """The current models of the run."""

    def __post_init__(self, run_part: RunPart, connect_backend: ConnectBackend, sleep: Callable[[float], None]) -> None:
        self.models = dict(self.plan.spec.experiment.models)
        self._games = TrainingGames(self.plan, self.folder, self.stages, run_part)
        self._datasets = DatasetStage(self.plan, self.folder, self.stages, self._games)
        self._jobs = JobStage(self.plan, self.folder, self.stages, connect_backend, sleep)

    def run(self) -> None:
        """Run all iterations and tests.

        Raises:
            Waiting: a model must be trained by hand.
            RunError: games, a dataset or a job failed.
            ProviderRefusal, BudgetExhausted, Interrupted: see `runner.base.errors`.
        """
        iterations = self.plan.training.iterations
        self._games.check_parts_exist()
        if len(self.stages.find_all(ModelSwitch)) < iterations:
            stored = {group: files.files for group, files in self.plan.spec.trainer_files.items()}
            check_startable(self.plan.training.trainers, stored)
        for iteration in range(iterations):
            switched = self.stages.find_last(ModelSwitch, iteration) or self._train(iteration)
            self.models = with_states(self.models, switched.models)
            self.on_switch(self._games.folder_of(iteration), switched.outcomes)
        self._games.play_test(iterations, self.models)

    def _train(self, iteration: int) -> ModelSwitch:
        """Do all stages of an iteration that are not done yet, and return the record of the new models."""
        self._games.play_iteration(iteration, self.models)
        self._games.play_test(iteration, self.models)
        self.on_step(iteration, "building datasets")
        reports = self._datasets.update_datasets(iteration)
        self.on_step(iteration, f"fine-tuning {comma_join(reports)}")
        self._jobs.train(iteration, self.models, reports)
        trained = {group: self.stages.training_record(iteration, group) for group in reports}
        switched = ModelSwitch(
            iteration=iteration,
            models={group: state_of(self._model_after(group, record)) for group, record in trained.items()},
            outcomes={group: self._outcome(report, trained[group]) for group, report in reports.items()},
        )
        for group, outcome in switched.outcomes.items():
            if outcome["outcome"] == GroupResult.TOO_FEW:
                log.info(
                    "iteration %d: %s is not trained, because it has %d examples and needs %d",
                    iteration, group, outcome["examples"], outcome["min_examples"],
                )  # fmt: skip
        self.stages.add(switched)
        return switched

    def _outcome(self, report: DatasetReport, trained: TrainingEnded | None) -> GroupOutcome:
        """Return the outcome of an iteration for a group, including the reasons why examples were left out."""
        omitted = {"left_out": report.left_out} if report.left_out else {}
        notes = {"notes": report.notes} if report.notes else {}
        if trained is None:
            result = {"outcome": GroupResult.TOO_FEW, "min_examples": self.plan.training.min_examples}
        else:
            result = {
                "outcome": GroupResult.TRAINED,
                "model": trained.model,
                "dataset_sha256": trained.dataset_sha256,
                "job": trained.provider_job,
                **trained.facts,
            }
        return {"examples": report.examples, **omitted, **notes, **result}

    def _model_after(self, group: str, trained: TrainingEnded | None) -> ModelSettings:
        """Return the group's model settings after an iteration; unchanged if it was not trained."""
        settings = self.models[group]
        if trained is None:
            return settings
        step = FineTuneStep(
            model=trained.model,
            from_model=self.plan.base_model(group, self.models),
            run_id=self.folder.run_id,
            iteration=trained.iteration,
            method=self.plan.method,
            dataset_sha256=trained.dataset_sha256,
            job=trained.provider_job,
            weights_sha256=trained.facts.get("weights_sha256"),
        )
        return after_training(settings, self.plan.spec.experiment.models[group], step)


@dataclass
class RetestLoop:
    """A process's loop over the tests of another run's models, on other datapoints or with more repeats.

    A training spec with `rerun_tests` runs this loop instead of `TrainingLoop`, whose interface it has.
    """

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


def after_training(settings: ModelSettings, untrained: ModelSettings, step: FineTuneStep) -> ModelSettings:
    """Return a model's settings after a fine-tuning step. A step that starts from the base model starts a new lineage.

    `untrained` are the settings in the spec.
    """
    earlier_steps = settings.lineage if step.from_model == settings.name else untrained.lineage
    base = untrained.base_model or untrained.name
    return replace(settings, model=step.model, base_model=base, lineage=(*earlier_steps, step))


def with_states(models: Mapping[str, ModelSettings], states: Mapping[str, ModelState]) -> dict[str, ModelSettings]:
    """Return the model groups with the models of these states."""
    result = dict(models)
    for group, state in states.items():
        steps = ({name: step[name] for name in step.keys() & STEP_KEYS} for step in state["lineage"])
        lineage = tuple(from_plain(FineTuneStep, step) for step in steps)
        result[group] = replace(result[group], model=state["model"], base_model=state["base_model"], lineage=lineage)
    return result


def state_of(settings: ModelSettings) -> ModelState:
    """Return a model's state for the log and `state.json`."""
    return {
        "model": settings.name,
        "base_model": settings.base_model or settings.name,
        "lineage": to_plain(settings.lineage),
    }
