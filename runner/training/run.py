"""A training spec into a finished training run: its folder, its iterations, its rows on the leaderboard."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from runner.errors import BudgetExhausted, Interrupted, LeaderboardError, NipRunError, RunError, UsageError, Waiting
from runner.hashing import tagged_hash
from runner.models.layers.budget import Budget
from runner.models.settings import ModelSettings
from runner.models.tally import Tally
from runner.results import leaderboard
from runner.results.folder import DONE, FAILED, INTERRUPTED, RUNNING, RunFolder
from runner.results.inputs import resolved_spec, write_inputs
from runner.results.manifest import TrainingPart, changed_keys, now, open_folder, updated_manifest
from runner.runs.accounting import Watch
from runner.runs.process import interruptible, log_to, sigterm_as_keyboard_interrupt
from runner.runs.reconstruct import saved_plan
from runner.runs.run import RunResult, lock_run, run, run_name
from runner.runs.spending import spending
from runner.spec.load import Spec
from runner.storage.atomic import atomic_write, read_json
from runner.text import comma_join, did_you_mean
from runner.training.backends.base import Backend
from runner.training.backends.connect import backend_for, format_of_trainer
from runner.training.loop import Loop
from runner.training.plan import TrainingPlan, check_run_id
from runner.training.report import parts_of, summary
from runner.training.state import SWITCHED, Stages, read_stages, stage_log, state_of

TRAINERS = "training.trainers."

MOST_NOTES = 20
"""How many notes of its parts a training run repeats; the rest is in the parts' own logs."""


def train(
    spec: Spec,
    results: str | Path = "results",
    *,
    run_id: str | None = None,
    again: bool = False,
    budget: Budget | None = None,
    locked_runs: Collection[str] = (),
    watch: Watch | None = None,
    manual_models: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> RunResult:
    """Play, select, train and switch models, going on where an earlier process stopped.

    Each iteration's games are a run of their own, `<run_id>-i<iteration>`, and each test `<run_id>-t<iteration>`;
    `parent_run_id` and `iteration` say so. `manual_models` are those that the user trained, by group. `budget` is
    for games alone: what a trainer costs nobody tells us.

    Raises:
        Waiting: a model is to be trained by hand; the message says how to go on.
        UsageError: the run has done more iterations than are asked for, or cannot have this id.
        BudgetExhausted, ProviderRefusal, Interrupted, RunError: as `runner.runs.run.run`.
    """
    plan, results = TrainingPlan(spec), Path(results)
    _check_manual_models(plan, manual_models or {})
    name = run_id or run_name(plan.run_id, results, again=again)
    check_run_id(name)
    with nullcontext() if name in locked_runs else lock_run(results, name):
        folder, manifest = open_folder(plan.games, results, name, plan)
        finished = manifest["status"] == DONE
        if finished and manifest["spec_sha256"] == tagged_hash("spec", resolved_spec(plan.games)):
            return _as_it_was(results, folder, manifest)
        unused: tuple[str, ...] = ()
        if _iterations_left(plan, folder) == 0:
            unused = _unused(plan, folder, manifest)
            if finished:
                return _as_it_was(results, folder, manifest, unused)
            plan = _as_trained(plan, folder)
        write_inputs(plan.games, folder)
        if budget is None and spec.experiment.budget.limited:
            budget = Budget(spec.experiment.budget)
            budget.add_spent(training_spending(results, name))
        work = _Work(
            plan, results, folder, updated_manifest(manifest, plan.games), budget, watch, manual_models or {}, sleep
        )
        work.note(unused)
        try:
            work.run()
        except NipRunError as error:
            for line in work.notes:
                error.add_note(f"note: {line}")
            raise
    with interruptible(name):
        leaderboard.append(results, folder)
    return RunResult(folder, work.manifest, read_json(folder.metrics), notes=work.notes)


@dataclass
class _Work:
    """One process's work on a training run: what its loop is told to play, to train with and to write down."""

    plan: TrainingPlan
    results: Path
    folder: RunFolder
    manifest: dict[str, Any]
    budget: Budget | None
    watch: Watch | None
    manual_models: Mapping[str, str]
    sleep: Callable[[float], None]
    _notes: list[str] = field(default_factory=list)

    def run(self) -> None:
        """All that is left to do; see `train` for what it raises."""
        formats = {group: format_of_trainer(self.plan.training.trainers[group]) for group in self.plan.trained}
        with (
            sigterm_as_keyboard_interrupt(),
            _finishing(self.folder, self.manifest, self.results),
            log_to(self.folder.log),
            stage_log(self.folder.path) as stages,
        ):
            loop = Loop(self.plan, self.folder, stages, self._play, self._connect, formats, self._switched, self.sleep)
            loop.run()
            self._finish(stages, loop.models)

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say of the run and of its parts, so many lines of it."""
        more = len(self._notes) - MOST_NOTES
        kept = tuple(self._notes[:MOST_NOTES])
        return kept if more <= 0 else (*kept, f"and {more} more notes of its parts")

    def note(self, lines: Iterable[str]) -> None:
        self._notes.extend(lines)

    def _play(self, games: Spec, part_id: str, kind: str, iteration: int) -> RunFolder:
        part = TrainingPart(self.folder.run_id, iteration, kind)
        played = run(games, self.results, run_id=part_id, budget=self.budget, watch=self.watch, part=part)
        transport_failed = played.manifest.get("transport_failed")
        if transport_failed:
            # Games that no answer reached are neither trained on nor measured by: the same command asks for them.
            raise RunError(
                f"run {part_id}: {comma_join(played.notes) or f'{transport_failed} games failed in transport'}"
            )
        self.note(f"{part_id}: {line}" for line in played.notes)
        return played.folder

    def _switched(self, games: RunFolder, outcomes: Mapping[str, Any]) -> None:
        row = games.manifest()
        if row.get("training") != outcomes:
            games.write_manifest({**row, "training": dict(outcomes)})
            leaderboard.append(self.results, games)

    def _connect(self, group: str, model: ModelSettings, asked_for: bool) -> Backend:
        trainer, policy = self.plan.training.trainers[group], self.plan.spec.experiment.retry.transient
        named = self.manual_models.get(group) if asked_for else None
        return backend_for(group, trainer, model, named, policy=policy, sleep=self.sleep)

    def _finish(self, stages: Stages, models: Mapping[str, ModelSettings]) -> None:
        """The end of it: the models that it came to, and how they measured on the way."""
        folder, manifest = self.folder, self.manifest
        states = {group: state_of(models[group]) for group in self.plan.trained}
        atomic_write(folder.path / "state.json", orjson.dumps(states, option=orjson.OPT_INDENT_2))
        end = summary(folder, stages, parts_of(self.results, folder.run_id))
        atomic_write(folder.metrics, orjson.dumps(end, option=orjson.OPT_INDENT_2))
        for row in manifest["agents"]:
            row.update(model=models[row["model_group"]].name)
        manifest.update(status=DONE, finished_at=now(), training={g: states[g]["model"] for g in states})
        folder.write_manifest(manifest)


def _as_it_was(results: Path, folder: RunFolder, manifest: dict[str, Any], notes: tuple[str, ...] = ()) -> RunResult:
    """A finished run, of which nothing is changed."""
    if not leaderboard.holds(results, folder.run_id):
        leaderboard.append(results, folder)
    return RunResult(folder, manifest, read_json(folder.metrics), was_finished=True, notes=notes)


def _iterations_left(plan: TrainingPlan, folder: RunFolder) -> int:
    """How many iterations are to be done.

    Raises:
        UsageError: more have been done than are asked for.
    """
    done, asked = len(read_stages(folder.path).all(SWITCHED)), plan.training.iterations
    if asked < done:
        raise UsageError(
            f"training.iterations: {asked} is fewer than the {done} that run {folder.run_id} has done; ask for {done} "
            "or more, or begin anew with --again"
        )
    return asked - done


def _unused(plan: TrainingPlan, folder: RunFolder, manifest: dict[str, Any]) -> tuple[str, ...]:
    """What to say of settings that nobody was trained by, all iterations being done; perhaps nothing."""
    free = [] if manifest["status"] == DONE else [key for key in plan.mutable_keys if not key.startswith(TRAINERS)]
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
        if group not in plan.trained:
            raise UsageError(
                f"--set-model {group}=...: no such model group is trained{did_you_mean(group, plan.trained)}; "
                f"there are {comma_join(plan.trained)}"
            )
        backend = plan.training.trainers[group].backend
        if backend != "files":
            raise UsageError(f"--set-model {group}=...: its backend is {backend}, which gives the name itself")


def training_spending(results: Path, run_id: str) -> Tally:
    """What the games of a training run have cost so far."""
    total = Tally()
    for folder in parts_of(results, run_id):
        total += spending(saved_plan(folder), folder)
    return total


@contextmanager
def _finishing(folder: RunFolder, manifest: dict[str, Any], results: Path) -> Iterator[None]:
    """Have the manifest and the board say how the run stands, whatever happens."""

    def end(status: str) -> None:
        with suppress(NipRunError):
            manifest.update(status=status, finished_at=now())
            folder.write_manifest(manifest)
            with suppress(LeaderboardError):
                leaderboard.append(results, folder, wait_seconds=1.0)

    manifest["status"] = RUNNING
    folder.write_manifest(manifest)
    try:
        yield
    except KeyboardInterrupt:
        end(INTERRUPTED)
        raise Interrupted(f"run {folder.run_id} was interrupted; what was paid for is kept") from None
    except (Waiting, Interrupted, BudgetExhausted):
        end(INTERRUPTED)
        raise
    except Exception:
        end(FAILED)
        raise
