"""Rebuilds a run's finished rollouts from its journal, offline and without cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from runner.base.errors import RunDirectoryError, RunError, UsageError
from runner.base.storage.log_lines import JournalReader
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join
from runner.models.interface import Request, SampleKey
from runner.models.journal_index import FollowedIndex, open_index
from runner.models.journal_records import CallRecord, FailureRecord, RequestRecord
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.rollouts.failed_calls import failed_call
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_debates import Debates
from runner.rollouts.recorded_games import AnsweredRequest, NotRecordedError, RecordedGames
from runner.rollouts.rollout import Call, Rollout
from runner.spec.datasets.loader import Dataset
from runner.spec.loader import load_saved


def saved_plan(folder: RunFolder, dataset: Dataset | None = None) -> Plan:
    """Return the plan of a run from the spec and inputs saved with it; `dataset` replaces the saved dataset.

    A run that it replays may have grown since. The recorded hash keeps the rollout ids unchanged.
    """
    manifest = folder.manifest()
    spec = replace(load_saved(folder.spec, dataset), shard=manifest.shard, price_basis=manifest.price_basis)
    replayed = manifest.replayed_sha256
    debates = None if spec.rejudged is None else read_debates(spec.rejudged.path)
    return Plan(spec if replayed is None else replace(spec, replayed=replayed), debates)


def played_plan(folder: RunFolder, dataset: Dataset | None = None) -> Plan:
    """Return `saved_plan` after checking that the spec and inputs are unchanged since the run was played.

    Pass `dataset` if the rows of the datapoints are not in the run's folder.

    Raises:
        RunDirectoryError: the spec or inputs have changed.
    """
    plan, manifest = saved_plan(folder, dataset), folder.manifest()
    changed = [
        name
        for name, is_same in (
            ("the datapoints", plan.spec.dataset.sha256 == manifest.dataset_sha256),
            ("the rules, prompts or models", plan.game_hash == manifest.game_sha256),
        )
        if not is_same
    ]
    if changed:
        raise RunDirectoryError(
            f"{folder.path} has changed since its run started: {folder.spec.name} or the files in inputs/ are not what "
            f"was played ({comma_join(changed)} differ). Restore them, or play a new run with --again"
        )
    return plan


def read_debates(path: Path) -> Debates:
    """Read the debates saved with a run that judges them.

    Raises:
        RunError: they cannot be read.
    """
    try:
        with open_to_read(path) as file:
            return Debates.from_lines(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged or was edited: it cannot be read as debates. Restore the file") from error


def played_jobs(folder: RunFolder, plan: Plan) -> Iterator[Job]:
    """Yield the jobs that a run's tables have or will have.

    A run that stopped once it was decided ends after the decisive game, although its journal may have answers of later
    games.
    """
    manifest = folder.manifest()
    stopped_early = plan.spec.experiment.until is not None and manifest.status in PLAYED
    return islice(plan.jobs(), manifest.rollouts if stopped_early else None)


def find_rollout(folder: RunFolder, plan: Plan, name: str) -> Rollout:
    """Return the first rollout, or branch of a tree, with this rollout id, id prefix or datapoint id.

    Raises:
        UsageError: there is no such rollout.
        RunError: it is not finished.
    """

    def is_match(job: Job) -> bool:
        return bool(name) and (job.rollout_id.startswith(name) or job.datapoint.id == name)

    # The ids of a tree's branches are known only after it was rebuilt.
    jobs = [job for job in played_jobs(folder, plan) if plan.shape is not None or is_match(job)]
    reconstructor = Reconstructor(folder, plan)
    try:
        for job in jobs:
            for rollout in reconstructor.of_job(job):
                if is_match(rollout.job):
                    return rollout
    finally:
        reconstructor.close()
    if jobs and plan.shape is None:
        raise RunError(f"rollout {jobs[0].rollout_id} is not finished; run the same command again to resume")
    first = next(plan.jobs())
    raise UsageError(f"{folder.run_id} has no rollout {name!r}; its first is {first.rollout_id} ({first.datapoint.id})")


class Reconstructor:
    """Rebuilds the games of one run from its journal.

    The rollouts list failed attempts only if `with_failures` is true; `failures` returns them in any case.
    """

    def __init__(
        self, folder: RunFolder, plan: Plan, *, with_failures: bool = False, followed: FollowedIndex | None = None
    ) -> None:
        """Open the journal, or use `followed`, the index of a journal that is read while it grows."""
        if followed is None and not folder.journal.is_file():
            raise RunError(f"{folder.path} has no journal, so its rollouts cannot be read")
        self.plan, self._folder = plan, folder
        self._reader: JournalReader | FollowedIndex
        if followed is None:
            self._reader, self._recorded = open_index(folder.journal, folder.manifest().identity)
        else:
            self._reader, self._recorded = followed, followed.index
        self._games = RecordedGames(plan, self._recorded.get, self._failed if with_failures else lambda _: ())

    def of_job(self, job: Job) -> list[Rollout]:
        """Return the rollout of a game or all branches of a tree; empty if the journal does not have all answers."""
        return self.with_answered_of(job)[0]

    def with_answered_of(self, job: Job) -> tuple[list[Rollout], list[AnsweredRequest]]:
        """Return the same with the answered requests of the job, also if the game is not finished."""
        self._games.answered = answered = list[AnsweredRequest]()
        try:
            return self._games.rollouts(job), answered
        except NotRecordedError:
            return [], answered

    def by_job(self) -> Iterator[list[Rollout]]:
        """Yield the rollouts of every finished game or tree, in the order of the plan."""
        for rollouts, _ in self.with_answered():
            yield rollouts

    def with_answered(self) -> Iterator[tuple[list[Rollout], list[AnsweredRequest]]]:
        """Yield the same, each with its answered requests."""
        for job in played_jobs(self._folder, self.plan):
            rollouts, answered = self.with_answered_of(job)
            if rollouts:
                yield rollouts, answered

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every finished rollout, in the order of the plan."""
        for rollouts in self.by_job():
            yield from rollouts

    def failures(self, job: Job) -> Sequence[FailureRecord]:
        """Return the failed attempts of a game in the order of their failure."""
        return self._recorded.failures(job.datapoint.id, job.number)

    def _failed(self, job: Job) -> list[Call]:
        models = self.plan.spec.experiment.models
        return [failed_call(record, models[self.plan.group_of(record.sample)].name) for record in self.failures(job)]

    def __len__(self) -> int:
        """Return the number of answers and ends of games in the journal."""
        return len(self._recorded)

    def asked(self, sample: SampleKey) -> RequestRecord | None:
        """Return the request of a sample, or None if the journal does not have its result."""
        record = self._recorded.get(sample)
        return None if record is None else record.request

    def requests(self) -> Iterator[Request]:
        """Yield every request whose result is in the journal, in the order of the plan, also of unfinished games."""
        for job in self.plan.jobs():
            _, answered = self.with_answered_of(job)
            yield from (request.request for request in answered)

    def from_cache(self, request: Request) -> bool:
        """Return whether the run got the answer to this request from its cache."""
        # Shared calls are not looked up, because all of their answers except the first also have this mark.
        record = None if request.group in self.plan.sharing else self._recorded.get(request.sample)
        return isinstance(record, CallRecord) and record.completion.from_cache

    def created_ms(self, sample: SampleKey) -> float | None:
        """Return when the server created an answer; see `CallRecord.created_ms`."""
        record = self._recorded.get(sample)
        return record.created_ms if isinstance(record, CallRecord) else None

    def close(self) -> None:
        self._reader.close()
