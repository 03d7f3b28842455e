"""Runs a training run: creates its folder, runs its iterations, and adds its rows to the leaderboard.

In each iteration, models play games and are then fine-tuned on them. The games of an iteration, and each test, are a
separate run, called a part of the training run. `runner.training.loop` has the order of these stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from runner.base.errors import (
    JournalError,
    UsageError,
)
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import comma_join, did_you_mean
from runner.models.api_keys import KeyUse
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status, TrainingPart
from runner.results.spec_changes import changed_keys, has_same_spec
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import OnProgress, Progress
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.result import FinishedRun
from runner.runs.session.run import (
    GamesRun,
    RunOptions,
    has_outputs,
    rebuild_outputs,
    run_games,
    write_run_files,
)
from runner.runs.session.session_of_parts import SessionOfParts, saved_result
from runner.spec.loader import Spec
from runner.training.adapters import Adapters
from runner.training.backends.interface import Backend
from runner.training.backends.registry import TrainedGroup, create_backend
from runner.training.loop import RetestLoop, TrainingLoop, state_of
from runner.training.plan import TrainingPlan
from runner.training.stage_log import StageLog, read_stages, stage_log
from runner.training.stages import GamesPlayed, GroupOutcome, ModelSwitch, Stages, TestPlayed, TrainingEnded
from runner.training.summary import summarize
from runner.training.trainer_files import restore_files, store_trainer_files

TRAINERS_PREFIX = "training.trainers."


def train(
    plan: TrainingPlan, results: Results, run_id: str, options: RunOptions, sleep: Callable[[float], None] = time.sleep
) -> FinishedRun:
    """Run or resume all iterations (play, select, train, switch models), and return the result.

    The games of each iteration are a separate run, `<run_id>-i<iteration>`, and so is each test,
    `<run_id>-t<iteration>`; their manifests have `parent_run_id` and `iteration`. A budget covers only games, because
    the cost of training is unknown.

    Raises:
        Waiting: the user must train a model by hand; the message says how to continue.
        UsageError: the run has completed more iterations than the spec requests, or its id is too long.
        BudgetExhausted, ProviderRefusal, Interrupted, RunError: see `runner.runs.session.run.run_games`.
    """
    _check_manual_models(plan, options.manual_models)
    plan.check_run_id(run_id)
    with nullcontext() if options.holds_lock else results.lock(run_id):
        folder, manifest = results.open(plan, run_id)
        _rebuild_parts(results, folder, options.allowed_keys)
        finished = manifest.status == Status.DONE and folder.metrics.is_file()
        if finished and has_same_spec(folder, manifest, plan.games):
            return saved_result(results, folder, manifest)
        notes: tuple[str, ...] = ()
        if _iterations_left(plan, folder) == 0:
            notes = _unused_settings(plan, folder, manifest, is_finished=finished)
            if finished:
                return saved_result(results, folder, manifest, notes)
            plan = _with_saved_trainers(plan, folder)
        write_run_files(plan.games, folder)
        if _iterations_left(plan, folder):
            _store_trainer_files(plan, folder)
        session = _TrainingSession(plan, results, folder, manifest, options, sleep)
        session.add_notes(notes)
        session.complete()
    return session.result()


@dataclass
class _TrainingSession(SessionOfParts):
    """One process's execution of a training run. The training loop calls its methods to play and to train."""

    plan: TrainingPlan
    sleep: Callable[[float], None]
    _adapters: Adapters = field(init=False)
    _parts: list[Progress] = field(default_factory=list)
    """The progress of each part that this process has played."""

    def play(self) -> Mapping[str, Any]:
        """Run everything that is not done yet, and return the summary. The errors are those of `train`."""
        with stage_log(self.folder, self.plan.identity) as stages:
            loop = self._create_loop(stages)
            self._adapters = Adapters(self.plan.training.trainers, self.folder, stages, self._add_note_once)
            try:
                loop.run()
            finally:
                self._adapters.unload_all(self.plan.training.iterations, self.plan.spec.experiment.models)
            self._record_models(loop.models)
            return summarize(self.folder, stages, self.results.parts_of(self.folder.run_id))

    def _add_note_once(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

    def _create_loop(self, stages: StageLog) -> TrainingLoop | RetestLoop:
        if self.plan.training.rerun_tests is not None:
            return RetestLoop(self.plan, self.folder, stages, self._run_games)
        return TrainingLoop(
            self.plan,
            self.folder,
            stages,
            self._run_games,
            self._connect,
            self._record_outcomes,
            self._report_step,
            self.sleep,
        )

    def _run_games(self, games: Spec, part_id: str, kind: str, iteration: int) -> RunFolder:
        """Play a part of the training run, and return its folder.

        Raises:
            Interrupted: the part was interrupted.
            RunError: the part lost more games than the spec allows.
        """
        part = TrainingPart(self.folder.run_id, iteration, kind)
        options = RunOptions(
            budget=self.options.budget,
            ask_people=self.options.ask_people,
            on_progress=self._progress_callback(kind, iteration),
            on_rollout=self.options.on_rollout,
            adapters=self._adapters.load_needed(iteration, games.experiment.models),
        )
        # All parts record the protocol hash and the sources of the training run, because an earlier version of nip-run
        # may have started the run and computed the hash in another way.
        recorded = {
            **games.recorded_fields,
            "protocol_sha256": self.manifest.protocol_sha256,
            "sources": self.manifest.sources,
        }
        games = replace(games, recorded_fields=recorded)
        with self.naming_interrupted(part_id):
            result = run_games(GamesRun(Plan(games), part_id, options, part), self.results)
        self.accept_part(result)
        return result.folder

    def _progress_callback(self, kind: str, iteration: int) -> OnProgress | None:
        """Return a callback for the games of an iteration or a test, which adds the stage to their progress."""
        on_progress = self.options.on_progress
        if on_progress is None:
            return None
        if kind == "training":
            stage = f"{self._describe(iteration)}: games"
        else:
            is_last = iteration == self.plan.training.iterations
            stage = "last test" if is_last else f"test before {self._describe(iteration)}"

        def with_stage(progress: Progress) -> None:
            progress.stage = stage
            if not self._parts or self._parts[-1] is not progress:
                self._parts.append(progress)
            on_progress(progress)

        return with_stage

    def _report_step(self, iteration: int, step: str) -> None:
        """Report as progress that an iteration starts a step other than games."""
        if self.options.on_progress is not None:
            progress = Progress(stage=f"{self._describe(iteration)}: {step}")
            progress.count_calls_of(self._parts)
            self.options.on_progress(progress)

    def _describe(self, iteration: int) -> str:
        """Return words for an iteration, such as "iteration 0 (1 of 3)"; the first number is also in the part's id."""
        return f"iteration {iteration} ({iteration + 1} of {self.plan.training.iterations})"

    def _record_outcomes(self, games: RunFolder, outcomes: Mapping[str, GroupOutcome]) -> None:
        manifest = games.manifest()
        if manifest.training != outcomes:
            games.write_manifest(replace(manifest, training=dict(outcomes)))
            self.results.board.append(games)

    def _connect(self, group: str, model: ModelSettings, was_requested: bool) -> Backend:
        trainer, policy = self.plan.training.trainers[group], self.plan.spec.experiment.retry.transient
        manual_model = self.options.manual_models.get(group) if was_requested else None
        _store_trainer_files(self.plan, self.folder)
        trainer_folder = restore_files(self.plan.spec.trainer_files.get(group), self.folder, group)
        return create_backend(TrainedGroup(group, trainer, model, manual_model, policy, self.sleep, trainer_folder))

    def _record_models(self, models: Mapping[str, ModelSettings]) -> None:
        """Write the final models with all that trained them, and add them to the manifest."""
        states = {group: state_of(models[group]) for group in self.plan.trained_groups}
        atomic_write(self.folder.path / "state.json", orjson.dumps(states, option=orjson.OPT_INDENT_2))
        self.manifest = replace(
            self.manifest,
            agents=tuple({**row, "model": models[row["model_group"]].name} for row in self.manifest.agents),
            training={group: state["model"] for group, state in states.items()},
        )


def _store_trainer_files(plan: TrainingPlan, folder: RunFolder) -> None:
    """Store the current content of the trainers' files in the run's folder before a trainer uses them."""
    has_started = folder.manifest_path.is_file()
    trained = read_stages(folder.path, folder.identity()).find_all(TrainingEnded) if has_started else []
    store_trainer_files(plan, folder, {record.group for record in trained})


def _rebuild_parts(results: Results, folder: RunFolder, allowed: frozenset[KeyUse]) -> None:
    """Rebuild the metrics and tables that finished parts have lost, from their journals."""
    stages = Stages([])
    with suppress(JournalError):  # a finished run does not need its log, and an unfinished one reports it later
        stages = read_stages(folder.path, folder.identity())
    for record in (*stages.find_all(GamesPlayed), *stages.find_all(TestPlayed)):
        part = folder.sibling(record.run_id)
        if part.manifest_path.is_file() and part.journal.is_file() and not has_outputs(part):
            with results.lock(part.run_id):
                rebuild_outputs(part, results, allowed)


def _iterations_left(plan: TrainingPlan, folder: RunFolder) -> int:
    """Return the number of iterations that are not completed.

    Raises:
        UsageError: more iterations are completed than the spec requests.
    """
    done = len(read_stages(folder.path, folder.identity()).find_all(ModelSwitch))
    requested = plan.training.iterations
    if requested < done:
        raise UsageError(
            f"training.iterations: {requested} is fewer than the {done} iterations that run {folder.run_id} has "
            f"completed; set training.iterations to {done} or more, or start a new run with --again"
        )
    return requested - done


def _unused_settings(
    plan: TrainingPlan, folder: RunFolder, manifest: Manifest, *, is_finished: bool
) -> tuple[str, ...]:
    """Return a note on changed settings that have no effect because all iterations are done."""
    ignored = ["models.*.run"]
    if not is_finished:
        ignored += [key for key in plan.mutable_keys if not key.startswith(TRAINERS_PREFIX)]
    keys = changed_keys(folder, manifest, plan.games, ignored)
    if not keys:
        return ()
    done = f"all {plan.training.iterations} iterations are done"
    return (f"{done}, so these changed keys have no effect: {comma_join(keys)}; {folder.spec} is unchanged",)


def _with_saved_trainers(plan: TrainingPlan, folder: RunFolder) -> TrainingPlan:
    """Return the plan with the trainer settings in the run's saved spec, which trained the models."""
    saved = saved_plan(folder).spec.experiment.training
    assert saved is not None
    training = replace(plan.training, trainers=saved.trainers)
    return TrainingPlan(replace(plan.spec, experiment=replace(plan.spec.experiment, training=training)))


def _check_manual_models(plan: TrainingPlan, manual_models: Mapping[str, str]) -> None:
    """Check that the run trains each group in `--set-model` by hand.

    Raises:
        UsageError: the run does not train such a group, or the group's backend sets the model's name.
    """
    for group in manual_models:
        option = f"--set-model {group}=... (in Python: set_model)"
        if plan.training.rerun_tests is not None:
            raise UsageError(
                f"{option}: a run with rerun_tests trains no models, but tests the models of another run; remove this "
                "option"
            )
        if group not in plan.trained_groups:
            hint = did_you_mean(group, plan.trained_groups) or f"; it trains {comma_join(plan.trained_groups)}"
            raise UsageError(f"{option}: the run trains no model group {group!r}{hint}")
        trainer = plan.training.trainers[group]
        if not trainer.traits.by_hand:
            raise UsageError(f"{option}: the backend {trainer.backend} sets the name itself; remove this option")
