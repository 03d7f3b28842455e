"""A plan of games into a finished run: its folder, then a session, then its rows on the leaderboard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.base.errors import FolderGoneError, NipRunError, RunDirectoryError, RunError, UsageError
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import read_bounded
from runner.base.text import counted
from runner.documents.fetched_files import MARKER, MAX_MARKER
from runner.models.api_keys import KeyUse
from runner.models.layers.budget import Budget
from runner.results.baseline_scores import BaselineScores
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Manifest, ReplaySource, Status, TrainingPart, is_allowed_loss
from runner.results.provenance.input_files import write_inputs
from runner.results.provenance.manifest_writer import updated_manifest
from runner.results.provenance.sources_snapshot import write_beginning
from runner.results.spec_changes import is_unchanged, resized
from runner.results.tables import COLUMNS
from runner.rollouts.plan import Plan
from runner.rollouts.transcript import RolloutTranscript
from runner.runs.execution.accounting import Watch
from runner.runs.execution.baseline_run import compared_with
from runner.runs.execution.process import interruptible
from runner.runs.execution.shard_consistency import check_shards
from runner.runs.execution.shared_resources import Shared
from runner.runs.execution.spending import spending
from runner.runs.finished.debates import check_debates
from runner.runs.finished.problems import troubles_of
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import ReplayOf
from runner.runs.session.session import Session, interrupted
from runner.spec.loader import Spec


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is to be run."""

    replay: ReplayOf | None = None
    """Take the answers of another run."""
    budget: Budget | None = None
    """Shared with other runs, what their journals hold counted in; without one the spec's own holds for this run."""
    locked: bool = False
    """The caller has locked the run already, as whoever counts journals into a budget must."""
    watch: Watch | None = None
    """Called whenever the progress has moved."""
    on_rollout: Callable[[RolloutTranscript], None] | None = None
    """Called with each finished rollout, in the order of the plan."""
    manual_models: Mapping[str, str] = field(default_factory=dict)
    """Of a training run: the models that the user trained, by group."""
    allowed_keys: frozenset[KeyUse] = frozenset()
    """What the user lets a spec that came from elsewhere send, and where; and which programs it may run."""
    reproduces: Mapping[str, Any] | None = None
    """The release whose run this one plays again."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Models that are LoRA adapters, each with the path that a server that has lost it loads it from."""


def run_games(
    plan: Plan, results: Results, run_id: str, options: RunOptions, part: TrainingPart | None = None
) -> FinishedRun:
    """Play a plan's games, going on where an earlier run of it stopped, and put its rows on the leaderboard.

    A finished run is shown and not played again. `part` says of which training run these games are a part.

    Raises:
        UsageError: the run is finished, and would lose games that it has.
        BudgetExhausted: what is left does not fit the budget.
        ProviderRefusal: key, billing, unknown model, refused parameter.
        Interrupted: SIGINT or SIGTERM; run again to go on.
        RunError: disk, journal or leaderboard; the message says what to do.
    """
    compared = compared_with(plan, results, run_id)  # which may be an error, before the lock makes a folder
    with nullcontext() if options.locked else results.lock(run_id), interruptible(run_id):
        shared = Shared([plan])
        shared.servers.adapters = options.adapters
        session = opened(plan, results, run_id, options, shared, part=part, compared=compared)
        if isinstance(session, FinishedRun):
            return session
        with ending(session, results):
            shared.play(session.play)
            if shared.stop.stopping:  # a Ctrl-C of the last moment, when all was written
                raise interrupted(run_id)
    if plan.shard is None:  # a part's rows count with those of the others
        with interruptible(run_id):
            results.board.append(session.folder)
    return session.result()


def opened(
    plan: Plan,
    results: Results,
    run_id: str,
    options: RunOptions,
    shared: Shared,
    *,
    order: int = 0,
    part: TrainingPart | None = None,
    compared: BaselineScores | None = None,
) -> Session | FinishedRun:
    """The session that plays what is left of a run, which the caller has locked; its result where nothing is.

    `compared` is what `compared_with` finds.

    Raises:
        UsageError: the run is finished, and would lose games that it has.
        RunError: disk or leaderboard; the folder holds something else.
    """
    merged = check_shards(plan, results, run_id)
    if merged is not None:
        return FinishedRun.opened(merged)
    folder, manifest = results.open(plan, run_id)
    plan = plan.with_spec(replace(plan.spec, price_basis=manifest.price_basis))
    replay = options.replay
    if replay is None and plan.spec.begun_as == run_id and manifest.replay_of is not None:
        replay = ReplayOf(_played_as(manifest.replay_of.run_id, results), manifest.replay_of.until_round)
    source = _source_of(replay, folder, manifest)
    if _is_finished(plan, folder, manifest, replay):
        if plan.shard is None:
            results.board.append_missing(folder)
        metrics = folder.read_metrics()
        return FinishedRun(folder, manifest, metrics, was_finished=True, notes=tuple(map(str, troubles_of(folder))))
    if part is None and manifest.parent_run_id is not None:
        raise RunDirectoryError(
            f"{folder.path} is a part of the training run {manifest.parent_run_id}, which resumes as a whole: "
            f"nip-run {results.run(manifest.parent_run_id).path}; or play the part as a new run with --again"
        )
    changes = _checked_size(plan, folder, manifest) if part is None else []
    check_debates(plan, folder)
    if plan.shard is None:
        results.board.check()
    _write_inputs(plan, folder, compared)
    manifest = replace(
        updated_manifest(manifest, plan).recording("replay_of", "cache"),
        replay_of=source,
        cache=cache_beside(plan.spec, folder),
        reproduces=options.reproduces or manifest.reproduces,
        **({} if part is None else asdict(part)),
    )
    session = Session(
        plan,
        folder,
        manifest,
        shared,
        order=order,
        budget=options.budget or _own_budget(plan, folder),
        replay=replay,
        watch=options.watch,
        on_rollout=options.on_rollout,
        compared=compared,
    )
    session.notes.extend(changes)
    return session


def _write_inputs(plan: Plan, folder: RunFolder, compared: BaselineScores | None) -> None:
    """What a run is played from, into its folder, where it is not there."""
    mark_as_fetched(plan.spec, folder)
    if not folder.manifest_path.is_file():
        write_beginning(plan.spec, folder)
    write_inputs(plan, folder)
    if compared is not None:
        compared.write(folder)


def _own_budget(plan: Plan, folder: RunFolder) -> Budget | None:
    """What the spec allows this run alone, with what its journal holds counted in; None where there is no limit."""
    settings = plan.share.budget
    if not settings.limited:
        return None
    budget = Budget(settings)
    budget.add_spent(spending(plan, folder))
    return budget


def _is_finished(plan: Plan, folder: RunFolder, manifest: Manifest, replay: ReplayOf | None) -> bool:
    """Whether all that is asked for is done; of more games lost in transport than are allowed, those are asked again.

    0.1.0 knew no such bound: its runs are `done` whatever they lost.
    """
    share = plan.spec.experiment.rollouts.max_transport_failed
    kept = is_allowed_loss(manifest.transport_failed or 0, manifest.rollouts or 0, share)
    finished = manifest.status == Status.DONE and (kept or replay is not None)
    finished = finished and folder.metrics.is_file() and all(folder.table(name).is_file() for name in COLUMNS)
    return finished and is_unchanged(folder, manifest, plan)


def _played_as(run_id: str, results: Results) -> Path:
    """The folder of a run that was replayed: its own, or else a copy's."""
    own = results.run(run_id)
    copies = () if own.manifest_path.is_file() else results.runs()
    return next((copy.path for copy in copies if copy.manifest().run_id == run_id), own.path)


def _checked_size(plan: Plan, folder: RunFolder, manifest: Manifest) -> list[str]:
    """What to note of a finished run that a plan goes on with.

    Raises:
        UsageError: it has games that the plan leaves out, and its tables would lose them.
    """
    found = resized(folder, plan) if manifest.status in PLAYED else None
    if found is None:
        return []
    if found.stops_sooner and not found.is_smaller:
        raise UsageError(
            f"run {folder.run_id} is finished, and this `until` may stop before all that it has played; add --run-id "
            "NAME, or --again, to play it as a run of its own"
        )
    if found.is_smaller:
        if plan.debates is not None:
            raise UsageError(
                f"run {folder.run_id} has judged {manifest.rollouts:,} debates, and this asks for {plan.size:,}, which "
                "leaves out some of them; add --run-id NAME, or --again, to judge them as a run of its own"
            )
        asked, repeats = len(plan.points), plan.spec.experiment.rollouts.per_datapoint
        raise UsageError(
            f"run {folder.run_id} is finished with {_games(found.datapoints, found.per_datapoint, other=repeats)}, and "
            f"this asks for {_games(asked, repeats, other=found.per_datapoint)}, which leaves out some of them; add "
            "--run-id NAME, or --again, to play it as a run of its own"
        )
    group_by = plan.spec.dataset.group_by
    by = f"group_by={group_by}" if group_by else "datapoint: no group_by is given"
    return [f"run {folder.run_id}: intervals are counted anew, by {by}"] if found.is_regrouped else []


def _games(datapoints: int, repeats: int, *, other: int) -> str:
    """So many datapoints; with their plays, where there are several, or `other` plays beside which they are told."""
    points = "1 datapoint" if datapoints == 1 else f"{datapoints:,} datapoints"
    return points if repeats == other == 1 else f"{counted(datapoints * repeats, 'rollout')} of {points}"


def _source_of(replay: ReplayOf | None, folder: RunFolder, manifest: Manifest) -> ReplaySource | None:
    """What a run replays.

    Raises:
        RunDirectoryError: the folder holds what was played otherwise.
        RunError: the manifest of what is replayed is damaged.
    """
    source = None
    if replay is not None:
        source = ReplaySource(RunFolder(replay.run).manifest().run_id, replay.until_round)
        if manifest.replay_of == ReplaySource(replay.run.name, replay.until_round):
            return manifest.replay_of  # begun when a copy was recorded by its folder's name
    if "replay_of" in manifest.recorded and manifest.replay_of != source:
        raise RunDirectoryError(
            f"{folder.path} holds {_origin(manifest.replay_of)}, and not {_origin(source)}; "
            "choose another --run-id or --results"
        )
    return source


def _origin(source: ReplaySource | None) -> str:
    """How a run got its answers, for messages."""
    if source is None:
        return "a live run"
    return f"a replay of {source.run_id}" + ("" if source.until_round is None else f" until round {source.until_round}")


@contextmanager
def ending(session: Session, results: Results) -> Iterator[None]:
    """Give an error of play the run's notes, and have the board say that the run did not finish."""
    try:
        yield
    except NipRunError as error:
        for line in session.notes:
            error.add_note(f"note: {line}")
        # Where the folder is gone there may be no board to write to, or another's.
        is_there = not isinstance(error, FolderGoneError) and session.folder.manifest_path.is_file()
        if is_there and session.plan.shard is None:
            results.board.append_unfinished(session.folder)
        raise


def mark_as_fetched(spec: Spec, folder: RunFolder) -> None:
    """Have what is saved of a spec that came from elsewhere be no more trusted than the spec is."""
    if spec.fetched is None:
        return
    try:
        said = read_bounded(spec.fetched / MARKER, MAX_MARKER)
    except OSError as error:
        raise RunError(f"cannot read {spec.fetched / MARKER}: {error.strerror}; get the release again") from error
    atomic_write(folder.path / MARKER, said)


def cache_beside(spec: Spec, folder: RunFolder) -> str | None:
    """The cache's path from the run's folder, so that no path of this machine is in the manifest."""
    return None if spec.cache is None else os.path.relpath(spec.cache, folder.path)
