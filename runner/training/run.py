"""A training spec into a finished training run: its folder, its iterations, its rows on the leaderboard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace

import orjson

from runner.base.errors import BudgetExhausted, FolderGoneError, Interrupted, NipRunError, RunError, UsageError, Waiting
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import comma_join, did_you_mean
from runner.models.layers.budget import Budget
from runner.models.settings import ModelSettings
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import AgentRow, Manifest, Status, TrainingPart
from runner.results.provenance.input_files import write_inputs
from runner.results.provenance.manifest_writer import updated_manifest
from runner.results.provenance.sources_snapshot import write_beginning
from runner.results.spec_changes import changed_keys, is_unchanged
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Progress, Watch
from runner.runs.execution.process import interruptible, log_to, sigterm_as_keyboard_interrupt
from runner.runs.execution.spending import spending
from runner.runs.finished.problems import troubles_of
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.result import FinishedRun
from runner.runs.session.run import RunOptions, cache_beside, mark_as_fetched, run_games
from runner.spec.loader import Spec
from runner.training.adapters import Adapters
from runner.training.backends.interface import Backend
from runner.training.backends.registry import backend_for
from runner.training.lineage import state_of
from runner.training.loop import Loop
from runner.training.plan import TrainingPlan, check_run_id
from runner.training.rerun import Rerun
from runner.training.stage_log import StageLog, read_stages, stage_log
from runner.training.stages import GroupOutcome, Stages, Switched, TrainingEnded
from runner.training.summary import summary
from runner.training.trainer_files import restore_files, store_trainer_files

TRAINERS = "training.trainers."

MAX_NOTES = 20
"""How many notes of its parts a training run repeats; the rest is in the parts' own logs."""


def train(
    plan: TrainingPlan,
    results: Results,
    run_id: str,
    options: RunOptions,
    sleep: Callable[[float], None] = time.sleep,
) -> FinishedRun:
    """Play, select, train and switch models, going on where an earlier process stopped.

    Each iteration's games are a run of their own, `<run_id>-i<iteration>`, and each test `<run_id>-t<iteration>`;
    `parent_run_id` and `iteration` say so. A budget is for games alone: what a trainer costs nobody tells us.

    Raises:
        Waiting: a model is to be trained by hand; the message says how to go on.
        UsageError: the run has done more iterations than are asked for, or cannot have this id.
        BudgetExhausted, ProviderRefusal, Interrupted, RunError: as `runner.runs.session.run.run_games`.
    """
    _check_manual_models(plan, options.manual_models)
    check_run_id(run_id)
    with nullcontext() if options.locked else results.lock(run_id):
        folder, manifest = results.open(plan, run_id)
        finished = manifest.status == Status.DONE
        if finished and is_unchanged(folder, manifest, plan.games):
            return _as_it_was(results, folder, manifest)
        unused: tuple[str, ...] = ()
        if _iterations_left(plan, folder) == 0:
            unused = _unused(plan, folder, manifest)
            if finished:
                return _as_it_was(results, folder, manifest, unused)
            plan = _as_trained(plan, folder)
        mark_as_fetched(plan.spec, folder)
        if not folder.manifest_path.is_file():
            write_beginning(plan.spec, folder)
        write_inputs(plan.games, folder)
        if _iterations_left(plan, folder):
            _store_trainer_files(plan, folder)
        settings = plan.spec.experiment.budget
        if options.budget is None and settings.limited:
            budget = Budget(settings)
            budget.add_spent(spent_on_games(results, run_id))
            options = replace(options, budget=budget)
        manifest = updated_manifest(manifest, plan.games).recording("cache")
        work = _Work(plan, results, folder, replace(manifest, cache=cache_beside(plan.spec, folder)), options, sleep)
        work.note(unused)
        try:
            work.complete()
        except NipRunError as error:
            for line in work.notes:
                error.add_note(f"note: {line}")
            raise
    with interruptible(run_id):
        results.board.append(folder)
    return FinishedRun(folder, work.manifest, folder.read_metrics(), notes=work.notes)


@dataclass
class _Work:
    """One process's work on a training run: what its loop is told to play, to train with and to write down."""

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
        """All that is left to do; see `train` for what it raises."""
        with (
            sigterm_as_keyboard_interrupt(),
            self._finishing(),
            log_to(self.folder.log),
            stage_log(self.folder, self.plan.identity) as stages,
        ):
            loop = self._loop(stages)
            self._adapters = Adapters(self.plan.training.trainers, self.folder, stages, lambda line: self.note([line]))
            try:
                loop.run()
            finally:
                self._adapters.end(self.plan.training.iterations, self.plan.spec.experiment.models)
            self._finish(stages, loop.models)

    def _loop(self, stages: StageLog) -> Loop | Rerun:
        if self.plan.training.rerun_tests is not None:
            return Rerun(self.plan, self.folder, stages, self._run_games)
        return Loop(
            self.plan, self.folder, stages, self._run_games, self._connect, self._switched, self._begins, self.sleep
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the run and its parts, at most this many lines."""
        more = len(self._notes) - MAX_NOTES
        kept = tuple(self._notes[:MAX_NOTES])
        return kept if more <= 0 else (*kept, f"and {more} more notes of its parts")

    def note(self, lines: Iterable[str]) -> None:
        self._notes.extend(lines)

    def _run_games(self, games: Spec, part_id: str, kind: str, iteration: int) -> RunFolder:
        part = TrainingPart(self.folder.run_id, iteration, kind)
        given = self.options
        watch = self._watch_of(kind, iteration)
        adapters = self._adapters.use(iteration, games.experiment.models)
        options = RunOptions(budget=given.budget, watch=watch, on_rollout=given.on_rollout, adapters=adapters)
        # All parts have the hash that their run began with, which an earlier version made otherwise, and its sources.
        recorded = {
            **games.as_recorded,
            "protocol_sha256": self.manifest.protocol_sha256,
            "sources": self.manifest.sources,
        }
        games = replace(games, as_recorded=recorded)
        try:
            played = run_games(Plan(games), self.results, part_id, options, part)
        except Interrupted as error:
            whole = Interrupted(f"run {self.folder.run_id} was interrupted in {part_id}; what was paid for is kept")
            raise whole.with_notes(error.lines()[1:]) from None
        if played.manifest.status != Status.DONE:
            # What lost more than the spec allows is neither trained on nor measured by: the same command asks again.
            unanswered = [str(trouble) for trouble in troubles_of(played.folder) if trouble.kind == "transport_failed"]
            lost = played.lost or comma_join(unanswered) or "no game got its answers"
            raise RunError(f"run {part_id}, a part of {self.folder.run_id}, is {played.manifest.status}: {lost}")
        self.note(f"{part_id}: {line}" for line in played.notes)
        return played.folder

    def _watch_of(self, kind: str, iteration: int) -> Watch | None:
        """What is shown of the games of an iteration, or of a test: which of how many it is, too."""
        watch = self.options.watch
        if watch is None:
            return None
        if kind == "training":
            stage = f"{self._which(iteration)}: games"
        else:
            is_last = iteration == self.plan.training.iterations
            stage = "last test" if is_last else f"test before {self._which(iteration)}"

        def with_stage(progress: Progress) -> None:
            progress.stage = stage
            if not self._parts or self._parts[-1] is not progress:
                self._parts.append(progress)
            watch(progress)

        return with_stage

    def _begins(self, iteration: int, what: str) -> None:
        """Tell those who watch of what an iteration does besides games."""
        if self.options.watch is not None:
            progress = Progress(stage=f"{self._which(iteration)}: {what}")
            progress.count_calls_of(self._parts)
            self.options.watch(progress)

    def _which(self, iteration: int) -> str:
        """An iteration by its number, which counts from 0 as in the ids of its games."""
        return f"iteration {iteration} ({iteration + 1} of {self.plan.training.iterations})"

    def _switched(self, games: RunFolder, outcomes: Mapping[str, GroupOutcome]) -> None:
        manifest = games.manifest()
        if manifest.training != outcomes:
            games.write_manifest(replace(manifest, training=dict(outcomes)))
            self.results.board.append(games)

    def _connect(self, group: str, model: ModelSettings, asked_for: bool) -> Backend:
        trainer, policy = self.plan.training.trainers[group], self.plan.spec.experiment.retry.transient
        named = self.options.manual_models.get(group) if asked_for else None
        _store_trainer_files(self.plan, self.folder)
        here = restore_files(self.plan.spec.trainer_files.get(group), self.folder, group)
        return backend_for(group, trainer, model, named, policy=policy, sleep=self.sleep, here=here)

    def _finish(self, stages: Stages, models: Mapping[str, ModelSettings]) -> None:
        """The end of it: the models that it came to, and how they measured on the way."""
        folder = self.folder
        states = {group: state_of(models[group]) for group in self.plan.trained}
        atomic_write(folder.path / "state.json", orjson.dumps(states, option=orjson.OPT_INDENT_2))
        end = summary(folder, stages, self.results.parts_of(folder.run_id))
        folder.unseal()
        atomic_write(folder.metrics, orjson.dumps(end, option=orjson.OPT_INDENT_2))
        folder.seal()
        self._write_manifest(
            replace(
                self.manifest.ended(Status.DONE),
                agents=tuple(_with_model(row, models[row["model_group"]]) for row in self.manifest.agents),
                training={group: state["model"] for group, state in states.items()},
            )
        )

    def _write_manifest(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.folder.write_manifest(manifest)

    @contextmanager
    def _finishing(self) -> Iterator[None]:
        """Have the manifest and the board say how the run stands, whatever happens."""

        def end(status: Status, error: Exception | None = None) -> None:
            with suppress(NipRunError):
                self._write_manifest(self.manifest.stopped_by(error).ended(status))
                self.results.board.append_unfinished(self.folder)

        self._write_manifest(replace(self.manifest, status=Status.RUNNING))
        try:
            yield
        except KeyboardInterrupt:
            end(Status.INTERRUPTED)
            raise Interrupted(f"run {self.folder.run_id} was interrupted; what was paid for is kept") from None
        except FolderGoneError:
            raise  # what stands at the folder's place now is not ours to write to
        except (Waiting, Interrupted, BudgetExhausted) as error:
            end(Status.INTERRUPTED, error)
            raise
        except Exception as error:
            end(Status.FAILED, error)
            raise


def _store_trainer_files(plan: TrainingPlan, folder: RunFolder) -> None:
    """Store the trainers' files as they are now, before they are used."""
    trained = read_stages(folder.path, folder.identity()).all(TrainingEnded) if folder.manifest_path.is_file() else []
    store_trainer_files(plan, folder, {record.group for record in trained})


def _with_model(row: AgentRow, model: ModelSettings) -> AgentRow:
    return {**row, "model": model.name}


def _as_it_was(results: Results, folder: RunFolder, manifest: Manifest, notes: tuple[str, ...] = ()) -> FinishedRun:
    """A finished run, of which nothing is changed."""
    results.board.append_missing(folder)
    return FinishedRun(folder, manifest, folder.read_metrics(), was_finished=True, notes=notes)


def _iterations_left(plan: TrainingPlan, folder: RunFolder) -> int:
    """How many iterations are to be done.

    Raises:
        UsageError: more have been done than are asked for.
    """
    done, asked = len(read_stages(folder.path, folder.identity()).all(Switched)), plan.training.iterations
    if asked < done:
        raise UsageError(
            f"training.iterations: {asked} is fewer than the {done} that run {folder.run_id} has done; ask for {done} "
            "or more, or start over with --again"
        )
    return asked - done


def _unused(plan: TrainingPlan, folder: RunFolder, manifest: Manifest) -> tuple[str, ...]:
    """A note on settings that no model was trained by, since all iterations are done; perhaps none."""
    free = [] if manifest.status == Status.DONE else [key for key in plan.mutable_keys if not key.startswith(TRAINERS)]
    keys = changed_keys(folder, manifest, plan.games, ["models.*.run", *free])
    if not keys:
        return ()
    done = f"all {plan.training.iterations} iterations are done"
    return (
        f"{done}; {folder.spec} stays as it is, and these keys differ from it and were not used: {comma_join(keys)}",
    )


def _as_trained(plan: TrainingPlan, folder: RunFolder) -> TrainingPlan:
    """The plan with the trainers that the run's models were trained by."""
    saved = saved_plan(folder).spec.experiment.training
    assert saved is not None
    training = replace(plan.training, trainers=saved.trainers)
    return TrainingPlan(replace(plan.spec, experiment=replace(plan.spec.experiment, training=training)))


def _check_manual_models(plan: TrainingPlan, manual_models: Mapping[str, str]) -> None:
    for group in manual_models:
        given = f"--set-model {group}=... (in Python: set_model)"
        if plan.training.rerun_tests is not None:
            raise UsageError(f"{given}: rerun_tests trains nothing, it tests the models of another run")
        if group not in plan.trained:
            raise UsageError(
                f"{given}: no such model group is trained{did_you_mean(group, plan.trained)}; there are "
                f"{comma_join(plan.trained)}"
            )
        trainer = plan.training.trainers[group]
        if not trainer.traits.by_hand:
            raise UsageError(f"{given}: its backend is {trainer.backend}, which gives the name itself")


def spent_on_games(results: Results, run_id: str) -> UsageTotals:
    """What the games of a training run have cost so far."""
    total = UsageTotals()
    for folder in results.parts_of(run_id):
        total += spending(saved_plan(folder), folder)
    return total
