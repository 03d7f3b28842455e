"""A training spec into a finished training run: its folder, its iterations, its rows on the leaderboard."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import orjson

from runner import leaderboard
from runner.errors import BudgetExhausted, Interrupted, LeaderboardError, NipRunError, RunError, UsageError
from runner.files import read_json, write_whole
from runner.ids import tagged_hash
from runner.journal import Journal, read_journal
from runner.models.budget import Amount, Budget
from runner.models.settings import ModelSettings
from runner.rederive import saved_plan
from runner.rundir import (
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    Part,
    RunFolder,
    now,
    open_folder,
    refreshed,
    resolved,
    run_folders,
    write_inputs,
)
from runner.runs import RunResult, lock_run, run, run_name
from runner.session import Watch
from runner.spec.load import Spec
from runner.spending import spending
from runner.surroundings import log_to, terminated_like_ctrl_c
from runner.text import listed, nearest
from runner.training.backends.base import Backend
from runner.training.backends.connect import backend_for, format_of
from runner.training.loop import Loop, Waiting
from runner.training.plan import TrainingPlan
from runner.training.state import BEGUN, SWITCHED, StageLog, log_path, models_after, state_of


def train(
    spec: Spec,
    results: str | Path = "results",
    *,
    run_id: str | None = None,
    again: bool = False,
    budget: Budget | None = None,
    held: Collection[str] = (),
    watch: Watch | None = None,
    chosen: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> RunResult:
    """Play, select, train and switch models, going on where an earlier process stopped.

    Each iteration's games are a run of their own, `<run_id>-i<iteration>`, and each test `<run_id>-t<iteration>`;
    `parent_run_id` and `iteration` say so. `chosen` holds the models that were trained by hand, by group. `budget` is
    for games alone: what a trainer costs nobody tells us.

    Raises:
        Waiting: a model is to be trained by hand; the message says how to go on.
        BudgetExhausted, ProviderRefusal, Interrupted, RunError: as `runner.runs.run`.
    """
    plan, results = TrainingPlan(spec), Path(results)
    _check_chosen(plan, chosen or {})
    name = run_id or run_name(plan.run_id, results, again=again)
    with nullcontext() if name in held else lock_run(results, name):
        folder, manifest = open_folder(plan.games, results, name, plan.identity)
        if manifest["status"] == DONE and manifest["spec_sha256"] == tagged_hash("spec", resolved(plan.games)):
            if not leaderboard.holds(results, name):
                leaderboard.append(results, folder)
            return RunResult(folder, manifest, read_json(folder.metrics), was_finished=True)
        write_inputs(plan.games, folder)
        manifest = refreshed(manifest, plan.games)
        if budget is None and spec.experiment.budget.limited:
            budget = Budget(spec.experiment.budget)
            budget.add_spent(training_spending(results, name))

        def play(games: Spec, part_id: str, kind: str, iteration: int) -> RunFolder:
            part = Part(name, iteration, kind)
            played = run(games, results, run_id=part_id, budget=budget, watch=watch, part=part)
            lost = played.manifest.get("transport_failed")
            if lost:
                # Games that no answer reached are neither trained on nor measured by: the same command asks for them.
                raise RunError(f"run {part_id}: {listed(played.notes) or f'{lost} games failed in transport'}")
            return played.folder

        def switched(games: RunFolder, outcomes: Mapping[str, Any]) -> None:
            row = games.manifest()
            if row.get("training") != outcomes:
                games.write_manifest({**row, "training": dict(outcomes)})
                leaderboard.append(results, games)

        def connect(group: str, model: ModelSettings, asked_for: bool) -> Backend:
            trainer, policy = plan.training.trainers[group], spec.experiment.retry.transient
            named = (chosen or {}).get(group) if asked_for else None
            return backend_for(group, trainer, model, named, policy=policy, sleep=wait)

        def wait(seconds: float) -> None:
            with terminated_like_ctrl_c():
                sleep(seconds)

        with _finishing(folder, manifest, results), log_to(folder.log), _stages(folder) as stages:
            formats = {group: format_of(plan.training.trainers[group]) for group in plan.trained}
            loop = Loop(plan, folder, stages, play, connect, formats, switched, wait)
            loop.run()
            _finish(folder, manifest, plan, stages, results)
    leaderboard.append(results, folder)
    return RunResult(folder, manifest, read_json(folder.metrics))


def _check_chosen(plan: TrainingPlan, chosen: Mapping[str, str]) -> None:
    for group in chosen:
        if group not in plan.trained:
            raise UsageError(
                f"--set-model {group}=...: no such model group is trained{nearest(group, plan.trained)}; "
                f"there are {listed(plan.trained)}"
            )
        backend = plan.training.trainers[group].backend
        if backend != "files":
            raise UsageError(f"--set-model {group}=...: its backend is {backend}, which gives the name itself")


def training_spending(results: Path, run_id: str) -> Amount:
    """What the games of a training run have cost so far."""
    total = Amount()
    for folder in parts_of(results, run_id):
        total += spending(saved_plan(folder), folder)
    return total


def parts_of(results: Path, run_id: str) -> list[RunFolder]:
    """The runs that are a part of a training run, in the order of their iterations, games before tests."""
    found = [
        (manifest["iteration"], folder.run_id, folder)
        for folder in run_folders(results)
        if (manifest := folder.manifest()).get("parent_run_id") == run_id
    ]
    return [folder for _, _, folder in sorted(found, key=lambda row: row[:2])]


@contextmanager
def _stages(folder: RunFolder) -> Iterator[StageLog]:
    """The log of a run's stages, open."""
    journal = Journal(log_path(folder.path))
    try:
        stages = StageLog(journal, [record for _, record in read_journal(log_path(folder.path))])
        if not stages.records:
            # What tells this run's jobs from those of a run of the same id in another folder.
            stages.add(BEGUN, -1, token=secrets.token_hex(8))
        yield stages
    finally:
        asyncio.run(journal.close())


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


def _finish(folder: RunFolder, manifest: dict[str, Any], plan: TrainingPlan, stages: StageLog, results: Path) -> None:
    """The end of it: the models that it came to, and how they measured on the way."""
    models = dict(plan.spec.experiment.models)
    curve = []
    for iteration in range(plan.training.iterations):
        switched = stages.one(SWITCHED, iteration)
        assert switched is not None
        models = models_after(models, switched)
        curve.append({"iteration": iteration, "outcomes": switched["outcomes"], "models": switched["models"]})
    states = {group: state_of(models[group]) for group in plan.trained}
    write_whole(folder.path / "state.json", orjson.dumps(states, option=orjson.OPT_INDENT_2))
    summary = {
        "run_id": folder.run_id,
        "outcomes": {},
        "metrics": [],
        "iterations": curve,
        "tests": _tests(folder, results),
    }
    write_whole(folder.metrics, orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    for row in manifest["agents"]:
        row.update(model=models[row["model_group"]].name)
    manifest.update(status=DONE, finished_at=now(), training={g: states[g]["model"] for g in states})
    folder.write_manifest(manifest)


def _tests(folder: RunFolder, results: Path) -> list[dict[str, Any]]:
    """How the models measured: a row a test."""
    rows = []
    for part in parts_of(results, folder.run_id):
        manifest = part.manifest()
        if manifest["kind"] == "benchmark":
            accuracy = next(m for m in read_json(part.metrics)["metrics"] if m["metric"] == "accuracy")
            shown = {name: accuracy[name] for name in ("value", "ci_low", "ci_high", "n", "clusters")}
            rows.append({"iteration": manifest["iteration"], "run_id": part.run_id, "accuracy": shown})
    return rows
