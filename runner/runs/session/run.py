"""Plays the games of a plan as a run: creates its folder, plays a session, and adds its rows to the leaderboard.

The command line and Python start benchmarks here, and a training run starts the games of each iteration here. A session
is one process's execution of a run (see `runner.runs.session.session`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.base.errors import (
    DamagedRunError,
    FolderGoneError,
    NipRunError,
    RunDirectoryError,
    RunError,
    SpecError,
    UsageError,
)
from runner.base.question_queue import QuestionQueue
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import read_bounded
from runner.base.text import counted
from runner.documents.fetched_files import MARKER, MAX_MARKER
from runner.models.api_keys import KeyUse
from runner.models.connectors import NO_PAGE
from runner.models.layers.budget import Budget, BudgetSettings
from runner.models.prices import describe_price, price_of
from runner.models.usage_totals import UsageTotals
from runner.results.baseline_scores import BaselineScores
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Manifest, ReplaySource, Status, TrainingPart, is_allowed_loss
from runner.results.metric_plugins import check_recorded_plugins
from runner.results.provenance.input_files import spec_hash, write_inputs
from runner.results.provenance.manifest_writer import updated_manifest
from runner.results.provenance.sources_snapshot import write_initial_files
from runner.results.spec_changes import compare_sizes, has_same_spec
from runner.results.table_columns import COLUMNS
from runner.rollouts.plan import Plan, human_groups, used_models
from runner.rollouts.transcript import RolloutTranscript
from runner.runs.execution.accounting import OnProgress
from runner.runs.execution.baseline_run import load_baseline
from runner.runs.execution.process import interruptible
from runner.runs.execution.shard_consistency import check_shards
from runner.runs.execution.shared_resources import SharedResources
from runner.runs.execution.spending import max_spending
from runner.runs.finished.debates import check_debates
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.saved_spec import recorded_plan
from runner.runs.finished.selection import ReplayOf, is_whole_replay
from runner.runs.finished.stored_problems import load_problems
from runner.runs.session.session import Session
from runner.spec.loader import Spec, load_saved


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run."""

    replay: ReplayOf | None = None
    """The run whose answers are replayed."""
    budget: Budget | None = None
    """A budget shared with other runs, which includes their spending so far; None for the spec's own budget."""
    holds_lock: bool = False
    """Whether the caller has locked the run, for example to count the run's spending in a shared budget."""
    ask_people: Callable[[], QuestionQueue] | None = None
    """Opens the page where people answer, at the first call, and returns its questions; None if there is no page."""
    on_progress: OnProgress | None = None
    """Called whenever the progress changes."""
    on_rollout: Callable[[RolloutTranscript], None] | None = None
    """Called with each finished rollout, in the order of the plan."""
    manual_models: Mapping[str, str] = field(default_factory=dict)
    """The names of the models that the user trained by hand for a training run, by model group."""
    allowed_keys: frozenset[KeyUse] = frozenset()
    """The API keys, with their servers, that the user allows a fetched spec to use, and the programs it may run."""
    reproduces: Mapping[str, Any] | None = None
    """The release that this run reproduces, for the manifest; None for all other runs."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The path of each LoRA adapter, by model name, for servers that must load the adapter again."""


@dataclass(frozen=True)
class GamesRun:
    """A plan of games with the id and the options of its run."""

    plan: Plan
    run_id: str
    options: RunOptions
    part: TrainingPart | None = None
    """The training run or tournament that these games belong to, if any."""


def run_games(run: GamesRun, results: Results) -> FinishedRun:
    """Play the games of a run or resume it, add the rows to the leaderboard, and return the result.

    A finished run is not played again.

    Raises:
        UsageError: the run is finished, and the plan would remove some of its games.
        BudgetExhausted: the budget does not allow the remaining games.
        ProviderRefusal: a provider rejects the API key, the billing, the model or a parameter.
        Interrupted: SIGINT or SIGTERM; run again to resume.
        RunError: an error of the disk, the journal or the leaderboard.
    """
    baseline = load_baseline(run.plan, results, run.run_id)  # before the lock creates a folder, because this may fail
    with nullcontext() if run.options.holds_lock else results.lock(run.run_id), interruptible(run.run_id):
        shared = SharedResources([run.plan])
        shared.servers.adapters = run.options.adapters
        session = open_session(run, results, shared, baseline=baseline)
        if isinstance(session, FinishedRun):
            return session
        with recording_failure(session, results):
            session.play_in_new_loop()
    if run.plan.shard is None:  # the rows of a shard are added by the merge
        with interruptible(run.run_id):
            results.board.append(session.folder)
    return session.result()


def open_session(
    run: GamesRun,
    results: Results,
    shared: SharedResources,
    *,
    run_position: int = 0,
    baseline: BaselineScores | None = None,
) -> Session | FinishedRun:
    """Return the session that plays the rest of a run, or the run's result if the run is finished.

    The caller has locked the run. `run_position` is its position among the runs that share resources, and `baseline` is
    the result of `load_baseline`.

    Raises:
        UsageError: the run is finished, and the plan would remove some of its games.
        RunError: an error of the disk or the leaderboard, or the folder contains another run.
        DamagedRunError: the journal is missing, or the shards were merged, but metrics or tables are missing.
    """
    options = run.options
    merged_folder = check_shards(run.plan, results, run.run_id)
    if merged_folder is not None:
        return _merged_result(merged_folder)
    folder, manifest = results.open(run.plan, run.run_id)
    plan = run.plan.with_spec(replace(run.plan.spec, price_basis=manifest.price_basis))
    replay = options.replay or _recorded_replay(plan, manifest, run.run_id, results)
    replay_source = _replay_source(replay, folder, manifest)
    if _is_finished(plan, folder, manifest, replay):
        return _finished_result(plan, folder, manifest, results)
    if not is_whole_replay(replay):
        _check_has_answers(plan, folder, manifest)
    if human_groups(plan) and not is_whole_replay(replay):
        check_page(plan, options)
        shared.questions = options.ask_people() if options.ask_people is not None else None
    size_notes = _check_can_continue(plan, folder, manifest, results) if run.part is None else []
    price_notes = list(_notes_on_prices(plan, folder, manifest))
    _prepare_files(plan, folder, results, baseline)
    manifest = _manifest_of_session(plan, folder, manifest, options, run.part)
    manifest = replace(manifest, replay_of=replay_source)
    budget = options.budget or open_budget(plan.shard_experiment.budget, lambda: max_spending(plan, folder))
    session = Session(
        plan, folder, manifest, shared,
        run_position=run_position, budget=budget, replay=replay, baseline=baseline, on_progress=options.on_progress,
        on_rollout=options.on_rollout,
    )  # fmt: skip
    session.notes.extend(size_notes)
    session.price_notes = price_notes
    return session


def _prepare_files(plan: Plan, folder: RunFolder, results: Results, baseline: BaselineScores | None) -> None:
    """Write the files that a run has before its first game, once nothing prevents the run.

    Raises:
        RunError: the debates to judge are missing, or the leaderboard cannot be used.
    """
    check_debates(plan, folder)
    if plan.shard is None:
        results.board.check()
    write_run_files(plan, folder)
    if baseline is not None:
        baseline.write(folder)


def _manifest_of_session(
    plan: Plan, folder: RunFolder, manifest: Manifest, options: RunOptions, part: TrainingPart | None
) -> Manifest:
    """Return the manifest of a run for this session, not yet with the run that it replays."""
    return replace(
        updated_manifest(manifest, plan).with_null_fields("replay_of", "cache"),
        cache=relative_cache_path(plan.spec, folder),
        reproduces=options.reproduces or manifest.reproduces,
        **({} if part is None else asdict(part)),
    )


def check_page(plan: Plan, options: RunOptions) -> None:
    """Check that people can be asked, if a run needs them.

    Raises:
        UsageError: this command or function has no page where people answer.
    """
    for group in human_groups(plan):
        if options.ask_people is None and not is_whole_replay(options.replay):
            raise UsageError(f"models.{group}: {NO_PAGE}")


def _merged_result(folder: RunFolder) -> FinishedRun:
    """Return the result of a run whose shards were merged.

    Raises:
        DamagedRunError: metrics or tables are missing.
    """
    if not has_outputs(folder):
        raise DamagedRunError(
            f"{folder.path} has lost its metrics or tables; nip-run merge {folder.run_id} rebuilds them for free"
        )
    return FinishedRun.from_folder(folder)


def _finished_result(plan: Plan, folder: RunFolder, manifest: Manifest, results: Results) -> FinishedRun:
    """Return the result of a finished run, after adding its rows to the leaderboard if they are missing."""
    if plan.shard is None:
        results.board.append_missing(folder)
    notes = tuple(map(str, load_problems(folder)))
    return FinishedRun(folder, manifest, folder.read_metrics(), was_finished=True, notes=notes)


def _recorded_replay(plan: Plan, manifest: Manifest, run_id: str, results: Results) -> ReplayOf | None:
    """Return the replay that a run was started with, if the run is resumed from its saved spec; otherwise None."""
    if plan.spec.resumed_run_id != run_id or manifest.replay_of is None:
        return None
    return ReplayOf(_folder_of_replayed_run(manifest.replay_of.run_id, results), manifest.replay_of.until_round)


def _check_has_answers(plan: Plan, folder: RunFolder, manifest: Manifest) -> None:
    """Check that a run that has answers of models or people still has its journal.

    Raises:
        DamagedRunError: the journal is missing or empty, so all these answers would be paid for again.
    """
    has_journal = folder.journal.is_file() and folder.journal.stat().st_size > 0
    are_free = not any(group.traits.metered or group.traits.asks_people for group in used_models(plan).values())
    if manifest.completions and not has_journal and not are_free:
        raise DamagedRunError(
            f"{folder.journal} is missing or empty, so nip-run would ask again for the "
            f"{counted(manifest.completions, 'answer')} of run {folder.run_id}; restore the file, or add "
            "--run-id NAME, or --again, to play a new run"
        )


def _check_can_continue(plan: Plan, folder: RunFolder, manifest: Manifest, results: Results) -> list[str]:
    """Check that a benchmark may play the remaining games of this run, and return notes.

    Raises:
        RunDirectoryError: the run is a part of a training run.
        UsageError: the plan leaves out games that the run has played.
    """
    if manifest.parent_run_id is not None:
        raise RunDirectoryError(
            f"{folder.path} is a part of the run {manifest.parent_run_id}; resume that run with "
            f"nip-run {results.run(manifest.parent_run_id).path}, or add --again to play the part as a new run"
        )
    return _notes_on_size(plan, folder, manifest)


def write_run_files(plan: Plan, folder: RunFolder) -> None:
    """Write the spec and inputs of a run to its folder, if they are missing."""
    _mark_as_fetched(plan.spec, folder)
    if not folder.manifest_path.is_file():
        write_initial_files(plan.spec, folder)
    write_inputs(plan, folder)


def open_budget(settings: BudgetSettings, spent: Callable[[], UsageTotals]) -> Budget | None:
    """Return a budget that includes a run's spending so far, the result of `spent`; None if there is no limit."""
    if not settings.limited:
        return None
    budget = Budget(settings)
    budget.add_spent(spent())
    return budget


def _is_finished(plan: Plan, folder: RunFolder, manifest: Manifest, replay: ReplayOf | None) -> bool:
    """Return whether a run has all files and games of the plan, and lost no more games than the plan allows.

    The status alone is not enough: 0.1.0 had no limit, so its runs are `done` even if they lost games.
    """
    share = plan.spec.experiment.rollouts.max_transport_failed
    has_allowed_loss = is_allowed_loss(manifest.transport_failed or 0, manifest.rollouts or 0, share)
    is_done = manifest.status == Status.DONE and (has_allowed_loss or replay is not None)
    return is_done and has_outputs(folder) and has_same_spec(folder, manifest, plan)


def has_outputs(folder: RunFolder) -> bool:
    """Return whether a run has its metrics and all its tables."""
    return folder.metrics.is_file() and all(folder.table(name).is_file() for name in COLUMNS)


def rebuild_outputs(folder: RunFolder, results: Results, allowed: frozenset[KeyUse]) -> FinishedRun:
    """Rebuild the metrics and tables of a run that was played. No model is called. The caller has locked the run.

    `allowed` is what the user allows a downloaded run.

    Raises:
        UsageError: a plugin of a metric is not allowed, or not installed in the run's version.
        RunError: the journal or an input is missing, damaged or changed.
        Interrupted: SIGINT or SIGTERM; call this function again.
    """
    if not folder.journal.is_file():
        raise RunError(f"{folder.journal} is missing, so the run's metrics and tables cannot be rebuilt; restore it")
    plan = recorded_plan(saved_plan(folder).spec, folder, Plan)
    check_recorded_plugins(plan.spec, allowed)
    session = Session(plan, folder, folder.manifest(), SharedResources([plan]), recorded_only=True)
    with interruptible(folder.run_id):
        session.play_in_new_loop()
        results.board.append(folder)
    return session.result()


def _folder_of_replayed_run(run_id: str, results: Results) -> Path:
    """Return the folder named after a replayed run or, if there is none, any folder with a copy of the run."""
    run_folder = results.run(run_id)
    copies = () if run_folder.manifest_path.is_file() else results.runs()
    return next((copy.path for copy in copies if copy.manifest().run_id == run_id), run_folder.path)


def _notes_on_prices(plan: Plan, folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    """Yield a note for each model group whose `price` in the spec has changed since the run's earlier calls."""
    if not folder.journal.is_file() or manifest.spec_sha256 == spec_hash(plan):
        return
    try:
        earlier_models = load_saved(folder.spec).experiment.models
    except SpecError:
        return  # the file is about to be replaced
    for name, settings in used_models(plan).items():
        earlier_settings = earlier_models.get(name, settings)
        if earlier_settings.price != settings.price:
            earlier, price = (price_of(each, plan.spec.price_basis.day) for each in (earlier_settings, settings))
            yield (
                f"models.{name}: the price was {describe_price(earlier, price)} for earlier calls, and is now "
                f"{describe_price(price, earlier)}"
            )


def _notes_on_size(plan: Plan, folder: RunFolder, manifest: Manifest) -> list[str]:
    """Return notes on how the plan changes a run that was already finished.

    Raises:
        UsageError: the plan leaves out games that the run has played, so they would vanish from its tables.
    """
    change = compare_sizes(folder, plan) if manifest.status in PLAYED else None
    if change is None:
        return []
    if change.stops_sooner and not change.is_smaller:
        raise UsageError(
            f"run {folder.run_id} is finished, and this `until` may stop before games that the run has played; add "
            "--run-id NAME, or --again, to play a new run"
        )
    if change.is_smaller:
        if plan.debates is not None:
            raise UsageError(
                f"run {folder.run_id} has judged {manifest.rollouts:,} debates, but this spec selects only "
                f"{plan.size:,}; add --run-id NAME, or --again, to judge them in a new run"
            )
        repeats = plan.spec.experiment.rollouts.per_datapoint
        with_rollouts = max(repeats, change.per_datapoint) > 1
        played = _describe_size(change.datapoints, change.per_datapoint, with_rollouts=with_rollouts)
        selected = _describe_size(len(plan.points), repeats, with_rollouts=with_rollouts)
        raise UsageError(
            f"run {folder.run_id} is finished with {played}, but this spec selects only {selected}; add --run-id NAME, "
            "or --again, to play a new run"
        )
    if not change.is_regrouped:
        return []
    group_by = plan.spec.dataset.group_by
    by = f"group_by={group_by}" if group_by else "datapoint, because group_by is not set"
    return [f"run {folder.run_id}: confidence intervals are recomputed, clustered by {by}"]


def _describe_size(datapoints: int, repeats: int, *, with_rollouts: bool) -> str:
    """Describe the size of a run, such as "10 rollouts of 5 datapoints" or, without rollouts, "5 datapoints"."""
    points = "1 datapoint" if datapoints == 1 else f"{datapoints:,} datapoints"
    return f"{counted(datapoints * repeats, 'rollout')} of {points}" if with_rollouts else points


def _replay_source(replay: ReplayOf | None, folder: RunFolder, manifest: Manifest) -> ReplaySource | None:
    """Return the source of a run's replay, or None for a live run.

    Raises:
        RunDirectoryError: the folder has a run with another source.
        RunError: the manifest of the replayed run is damaged.
    """
    source = None
    if replay is not None:
        source = ReplaySource(RunFolder(replay.run).manifest().run_id, replay.until_round)
        if manifest.replay_of == ReplaySource(replay.run.name, replay.until_round):
            return manifest.replay_of  # earlier versions recorded the folder's name instead of the run id
    if "replay_of" in manifest.recorded and manifest.replay_of != source:
        raise RunDirectoryError(
            f"{folder.path} has {_describe_source(manifest.replay_of)}, but this command plays "
            f"{_describe_source(source)}; choose another --run-id NAME or --results DIR"
        )
    return source


def _describe_source(source: ReplaySource | None) -> str:
    """Describe the source of a run's answers."""
    if source is None:
        return "a live run"
    return f"a replay of {source.run_id}" + ("" if source.until_round is None else f" until round {source.until_round}")


@contextmanager
def recording_failure(session: Session, results: Results) -> Iterator[None]:
    """If the block raises a `NipRunError`, add the run's notes to it and the unfinished run to the leaderboard."""
    try:
        yield
    except NipRunError as error:
        error.with_notes(f"note: {line}" for line in session.notes)
        # If the folder is gone, the leaderboard may be gone too, or belong to other results.
        has_folder = not isinstance(error, FolderGoneError) and session.folder.manifest_path.is_file()
        if has_folder and session.plan.shard is None:
            results.board.append_unfinished(session.folder)
        raise


def _mark_as_fetched(spec: Spec, folder: RunFolder) -> None:
    """Mark the run's folder as downloaded if its spec was downloaded, so that the saved spec is not trusted either."""
    if spec.fetched is None:
        return
    try:
        marker = read_bounded(spec.fetched / MARKER, MAX_MARKER)
    except OSError as error:
        raise RunError(
            f"cannot read {spec.fetched / MARKER}: {error.strerror}; download the release again with nip-run get"
        ) from error
    atomic_write(folder.path / MARKER, marker)


def relative_cache_path(spec: Spec, folder: RunFolder) -> str | None:
    """Return the cache's path relative to the run's folder, to keep absolute paths out of the manifest."""
    return None if spec.cache is None else os.path.relpath(spec.cache, folder.path)
