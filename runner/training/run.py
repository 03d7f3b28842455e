"""Runs a training run: creates its folder, runs its iterations, and adds its rows to the leaderboard.

In each iteration, models play games and are then fine-tuned on them. The games of an iteration, and each test, are a
separate run, called a part of the training run. `runner.training.loop` has the order of these stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace

import orjson

from runner.base.errors import (
    ANSWERS_ARE_SAVED,
    BudgetExhausted,
    FolderGoneError,
    Interrupted,
    JournalError,
    NipRunError,
    RunError,
    UsageError,
    Waiting,
)
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import comma_join, did_you_mean
from runner.models.settings import ModelSettings
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status, TrainingPart
from runner.results.provenance.manifest_writer import updated_manifest
from runner.results.spec_changes import changed_keys, has_same_spec
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import OnProgress, Progress
from runner.runs.execution.process import interrupted_error, interruptible, log_to, sigterm_as_keyboard_interrupt
from runner.runs.execution.spending import max_spending
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.stored_problems import load_problems
from runner.runs.session.run import (
    RunOptions,
    has_outputs,
    open_budget,
    rebuild_outputs,
    relative_cache_path,
    run_games,
    write_run_files,
)
from runner.spec.loader import Spec
from runner.training.adapters import Adapters
from runner.training.backends.interface import Backend
from runner.training.backends.registry import backend_for
from runner.training.lineage import state_of
from runner.training.loop import TrainingLoop
from runner.training.plan import TrainingPlan, check_run_id
from runner.training.retests import RetestLoop
from runner.training.stage_log import StageLog, read_stages, stage_log
from runner.training.stages import GamesPlayed, GroupOutcome, ModelSwitch, Stages, TestPlayed, TrainingEnded
from runner.training.summary import summarize
from runner.training.trainer_files import restore_files, store_trainer_files

TRAINERS_PREFIX = "training.trainers."

MAX_NOTES = 20
"""The maximum number of notes of a training run and its parts. The logs of the parts have all notes."""


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
    check_run_id(run_id)
    with nullcontext() if options.holds_lock else results.lock(run_id):
        folder, manifest = results.open(plan, run_id)
        _rebuild_parts(results, folder)
        finished = manifest.status == Status.DONE and folder.metrics.is_file()
        if finished and has_same_spec(folder, manifest, plan.games):
            return _saved_result(results, folder, manifest)
        notes: tuple[str, ...] = ()
        if _iterations_left(plan, folder) == 0:
            notes = _unused_settings(plan, folder, manifest, is_finished=finished)
            if finished:
                return _saved_result(results, folder, manifest, notes)
            plan = _with_saved_trainers(plan, folder)
        _write_inputs(plan, folder)
        settings = plan.spec.experiment.budget
        budget = options.budget or open_budget(settings, lambda: spent_on_games(results, run_id))
        options = replace(options, budget=budget)
        manifest = updated_manifest(manifest, plan.games).with_null_fields("cache")
        manifest = replace(manifest, cache=relative_cache_path(plan.spec, folder))
        session = _TrainingSession(plan, results, folder, manifest, options, sleep)
        session.add_notes(notes)
        try:
            session.complete()
        except NipRunError as error:
            error.with_notes(f"note: {line}" for line in session.notes)
            raise
    with interruptible(run_id):
        results.board.append(folder)
    return FinishedRun(folder, session.manifest, folder.read_metrics(), notes=session.notes)


def _write_inputs(plan: TrainingPlan, folder: RunFolder) -> None:
    """Write the spec, inputs and trainers' files of a run to its folder."""
    write_run_files(plan.games, folder)
    if _iterations_left(plan, folder):
        _store_trainer_files(plan, folder)


@dataclass
class _TrainingSession:
    """One process's execution of a training run. The training loop calls its methods to play and to train."""

    plan: TrainingPlan
    results: Results
    folder: RunFolder
    manifest: Manifest
    options: RunOptions
    sleep: Callable[[float], None]
    _notes: list[str] = field(default_factory=list)
    _adapters: Adapters = field(init=False)
    _parts: list[Progress] = field(default_factory=list)
    """The progress of each part that this process has played."""

    def complete(self) -> None:
        """Run everything that is not done yet. The errors are those of `train`."""
        with (
            sigterm_as_keyboard_interrupt(),
            self._updating_status(),
            log_to(self.folder.log),
            stage_log(self.folder, self.plan.identity) as stages,
        ):
            loop = self._create_loop(stages)
            self._adapters = Adapters(self.plan.training.trainers, self.folder, stages, self._notes.append)
            try:
                loop.run()
            finally:
                self._adapters.unload_all(self.plan.training.iterations, self.plan.spec.experiment.models)
            self._finish(stages, loop.models)

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

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the run and its parts, shortened to `MAX_NOTES`."""
        omitted = len(self._notes) - MAX_NOTES
        more = [f"and {omitted} more notes in the logs of the run's parts"] if omitted > 0 else []
        return (*self._notes[:MAX_NOTES], *more)

    def add_notes(self, lines: Iterable[str]) -> None:
        self._notes.extend(lines)

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
        try:
            result = run_games(Plan(games), self.results, part_id, options, part)
        except Interrupted as error:
            message = f"run {self.folder.run_id} was interrupted in {part_id}; run the same command again to resume it"
            raise Interrupted(f"{message}. {ANSWERS_ARE_SAVED}").with_notes(error.lines()[1:]) from None
        if result.manifest.status != Status.DONE:
            # A part that lost more games than the spec allows is not used. The next process plays the lost games again.
            problems = load_problems(result.folder)
            unanswered = [str(problem) for problem in problems if problem.kind == "transport_failed"]
            reason = result.lost or comma_join(unanswered) or "no game got its answers"
            raise RunError(
                f"run {part_id}, a part of the training run {self.folder.run_id}, is {result.manifest.status}: "
                f"{reason}. Run the same command again to play the lost games again"
            )
        self.add_notes(f"{part_id}: {line}" for line in result.notes)
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
        return backend_for(group, trainer, model, manual_model, policy=policy, sleep=self.sleep, cwd=trainer_folder)

    def _finish(self, stages: Stages, models: Mapping[str, ModelSettings]) -> None:
        """Write the final models and the summary with all test results, and mark the run as done."""
        folder = self.folder
        states = {group: state_of(models[group]) for group in self.plan.trained_groups}
        atomic_write(folder.path / "state.json", orjson.dumps(states, option=orjson.OPT_INDENT_2))
        metrics = summarize(folder, stages, self.results.parts_of(folder.run_id))
        folder.unseal()
        atomic_write(folder.metrics, orjson.dumps(metrics, option=orjson.OPT_INDENT_2))
        folder.seal()
        self._write_manifest(
            replace(
                self.manifest.ended(Status.DONE),
                agents=tuple({**row, "model": models[row["model_group"]].name} for row in self.manifest.agents),
                training={group: state["model"] for group, state in states.items()},
            )
        )

    def _write_manifest(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.folder.write_manifest(manifest)

    @contextmanager
    def _updating_status(self) -> Iterator[None]:
        """Set the run's status in the manifest to running, and to its final value if the block raises an error."""

        def write_end(status: Status, error: Exception | None = None) -> None:
            with suppress(NipRunError):
                self._write_manifest(self.manifest.with_error(error).ended(status))
                self.results.board.append_unfinished(self.folder)

        self._write_manifest(replace(self.manifest, status=Status.RUNNING))
        try:
            yield
        except KeyboardInterrupt:
            write_end(Status.INTERRUPTED)
            raise interrupted_error(self.folder.run_id) from None
        except FolderGoneError:
            raise  # do not write to the path, which may now belong to another folder
        except (Waiting, Interrupted, BudgetExhausted) as error:
            write_end(Status.INTERRUPTED, error)
            raise
        except Exception as error:
            write_end(Status.FAILED, error)
            raise


def _store_trainer_files(plan: TrainingPlan, folder: RunFolder) -> None:
    """Store the current content of the trainers' files in the run's folder before a trainer uses them."""
    has_started = folder.manifest_path.is_file()
    trained = read_stages(folder.path, folder.identity()).find_all(TrainingEnded) if has_started else []
    store_trainer_files(plan, folder, {record.group for record in trained})


def _saved_result(results: Results, folder: RunFolder, manifest: Manifest, notes: tuple[str, ...] = ()) -> FinishedRun:
    """Return the result of a finished run, without running anything."""
    results.board.append_missing(folder)
    return FinishedRun(folder, manifest, folder.read_metrics(), was_finished=True, notes=notes)


def _rebuild_parts(results: Results, folder: RunFolder) -> None:
    """Rebuild the metrics and tables that finished parts have lost, from their journals."""
    stages = Stages([])
    with suppress(JournalError):  # a finished run does not need its log, and an unfinished one reports it later
        stages = read_stages(folder.path, folder.identity())
    for record in (*stages.find_all(GamesPlayed), *stages.find_all(TestPlayed)):
        part = folder.sibling(record.run_id)
        if part.manifest_path.is_file() and part.journal.is_file() and not has_outputs(part):
            with results.lock(part.run_id):
                rebuild_outputs(part, results)


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
            raise UsageError(
                f"{option}: the run trains no model group {group!r}{did_you_mean(group, plan.trained_groups)}; it "
                f"trains {comma_join(plan.trained_groups)}"
            )
        trainer = plan.training.trainers[group]
        if not trainer.traits.by_hand:
            raise UsageError(f"{option}: the backend {trainer.backend} sets the name itself; remove this option")


def spent_on_games(results: Results, run_id: str) -> UsageTotals:
    """Return the usage and cost of a training run's games so far."""
    total = UsageTotals()
    for folder in results.parts_of(run_id):
        total += max_spending(saved_plan(folder), folder)
    return total
