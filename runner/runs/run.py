"""A spec into a finished run: its folder, then a session, then its rows on the leaderboard."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import LeaderboardError, NipRunError, RunDirectoryError, UsageError
from runner.hashing import tagged_hash
from runner.models.layers.budget import Budget
from runner.results.folder import DONE, RunFolder, run_folders
from runner.results.inputs import resolved_spec, write_inputs
from runner.results.manifest import TrainingPart, open_folder, updated_manifest
from runner.rollouts.plan import Plan
from runner.runs.accounting import Watch
from runner.runs.process import interruptible
from runner.runs.session import Session
from runner.runs.spending import spending
from runner.runs.wiring import ReplayOf
from runner.spec.experiment import RUN_ID_PATTERN
from runner.spec.load import Spec
from runner.storage.atomic import read_json
from runner.storage.locks import locked


@dataclass(frozen=True)
class RunResult:
    """What a run left."""

    folder: RunFolder
    manifest: dict[str, Any]
    metrics: dict[str, Any]
    was_finished: bool = False
    notes: tuple[str, ...] = ()


def run(
    spec: Spec,
    results: str | Path = "results",
    *,
    run_id: str | None = None,
    again: bool = False,
    replay: ReplayOf | None = None,
    budget: Budget | None = None,
    locked_runs: Collection[str] = (),
    watch: Watch | None = None,
    part: TrainingPart | None = None,
) -> RunResult:
    """Play a spec's games, going on where an earlier run of it stopped, and put its rows on the leaderboard.

    A finished run is shown and not played again; `again` plays it anew, as a run of its own. `replay` plays it
    with another run's answers. `budget` is shared by the points of a sweep, what their journals hold counted in;
    without one the spec's own holds for this run alone. `locked_runs` are those that the caller has locked already (see
    `lock_run`), as whoever counts journals into a budget must. `watch` is called whenever the progress has moved.
    `part` says of which training run these games are a part.

    Raises:
        BudgetExhausted: what is left does not fit the budget.
        ProviderRefusal: key, billing, unknown model, refused parameter.
        Interrupted: SIGINT or SIGTERM; run again to go on.
        RunError: disk, journal or leaderboard; the message says what to do.
    """
    from runner.results import leaderboard

    plan, results = Plan(spec), Path(results)
    name = run_id or run_name(plan.run_id, results, again=again, replay=replay is not None)
    with nullcontext() if name in locked_runs else lock_run(results, name), interruptible(name):
        folder, manifest = open_folder(plan, results, name)
        source = _source_of(replay, folder, manifest)
        # Games that no answer reached are not finished: the same command asks for them again.
        whole = manifest["status"] == DONE and not (manifest.get("transport_failed") and replay is None)
        if whole and manifest["spec_sha256"] == tagged_hash("spec", resolved_spec(plan)):
            if not leaderboard.holds(results, name):
                leaderboard.append(results, folder)
            return RunResult(folder, manifest, read_json(folder.metrics), was_finished=True)
        write_inputs(plan, folder)
        if budget is None and spec.experiment.budget.limited:
            budget = Budget(spec.experiment.budget)
            budget.add_spent(spending(plan, folder))
        manifest = {**updated_manifest(manifest, plan), "replay_of": source, "cache": _cache_beside(spec, folder)}
        manifest.update(part.fields if part is not None else {})
        session = Session(plan, folder, manifest, budget=budget, replay=replay, watch=watch)
        _play(session, results)
    with interruptible(name):
        leaderboard.append(results, folder)
    return RunResult(folder, session.manifest, read_json(folder.metrics), notes=tuple(session.notes))


def _source_of(replay: ReplayOf | None, folder: RunFolder, manifest: Mapping[str, Any]) -> list[Any] | None:
    """What a run replays: a run's id and until which round.

    Raises:
        RunDirectoryError: the folder holds what was played otherwise.
    """
    source = None if replay is None else [replay.run.name, replay.until_round]
    if manifest.get("replay_of", source) != source:
        raise RunDirectoryError(
            f"{folder.path} holds {_played(manifest['replay_of'])}, and not {_played(source)}; "
            "choose another --run-id or --results"
        )
    return source


def _play(session: Session, results: Path) -> None:
    """Play; an error has the run's notes, and the board says that the run did not finish."""
    from runner.results import leaderboard

    try:
        session.play()
    except NipRunError as error:
        for line in session.notes:
            error.add_note(f"note: {line}")
        with suppress(LeaderboardError):  # the board's own troubles must not hide why
            leaderboard.append(results, session.folder, wait_seconds=1.0)
        raise


def lock_run(results: Path, run_id: str) -> AbstractContextManager[None]:
    """Keep a run to this process; its folder is made if it is not there.

    Raises:
        UsageError: no run can have this id.
        RunDirectoryError: another process has it; the message names the process.
    """
    if not re.fullmatch(RUN_ID_PATTERN, run_id):
        raise UsageError(f"{run_id!r} cannot be a run's id; it has the form {RUN_ID_PATTERN}")
    return locked(RunFolder(results / "runs" / run_id).lock, f"run {run_id}")


def _played(source: list[Any] | None) -> str:
    """How a run got its answers, for messages."""
    if source is None:
        return "a live run"
    return f"a replay of {source[0]}" + ("" if source[1] is None else f" until round {source[1]}")


def _cache_beside(spec: Spec, folder: RunFolder) -> str | None:
    """The cache's path from the run's folder, so that no path of this machine is in the manifest."""
    return None if spec.cache is None else os.path.relpath(spec.cache, folder.path)


def run_name(run_id: str, results: Path, *, again: bool = False, replay: bool = False) -> str:
    """The id of the run that a plan with this id makes: its own, or the next free one where it is to be played anew.

    An unfinished run of the same kind is gone on with.
    """
    taken = {folder.run_id: folder for folder in run_folders(results)}
    if not (again or replay) or run_id not in taken:
        return run_id
    base = f"{run_id}-replay" if replay else run_id
    number = 1 if replay else 2
    while True:
        name = base if replay and number == 1 else f"{base}-{number}"
        if name not in taken or taken[name].manifest()["status"] != DONE:
            return name
        number += 1
