"""A run's journal into its rollouts again: free, offline, and whole for every game that was finished."""

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


def saved_plan(folder: RunFolder, given: Dataset | None = None) -> Plan:
    """The plan of a run, from the resolved spec and the inputs saved with it.

    A run that it replays may have grown since; the rollouts keep the ids that they were played under.
    """
    manifest = folder.manifest()
    spec = replace(load_saved(folder.spec, given), shard=manifest.shard, price_basis=manifest.price_basis)
    replayed = manifest.replayed_sha256
    debates = None if spec.rejudged is None else read_debates(spec.rejudged.path)
    return Plan(spec if replayed is None else replace(spec, replayed=replayed), debates)


def played_plan(folder: RunFolder, given: Dataset | None = None) -> Plan:
    """`saved_plan` of a run whose records are read for what was played: numbers and verdicts follow from its inputs.

    `given` is what is known of its datapoints, where their rows are not there.

    Raises:
        RunDirectoryError: its spec or inputs are not those that it was played with.
    """
    plan, manifest = saved_plan(folder, given), folder.manifest()
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
            f"{folder.path} was changed since its run began: {folder.spec.name} or what is in inputs/ is not what was "
            f"played ({comma_join(changed)} differ). Put it back, or play it as a new run with --again"
        )
    return plan


def read_debates(path: Path) -> Debates:
    """The debates that were saved with a run which judges them.

    Raises:
        RunError: they cannot be read.
    """
    try:
        with open_to_read(path) as file:
            return Debates.from_lines(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read as debates; were they edited?") from error


def played_jobs(folder: RunFolder, plan: Plan) -> Iterator[Job]:
    """The games that a run's tables have or are to have: of one that has stopped since it was decided, no further ones.

    Its journal has answers of games that had begun beyond the last, too.
    """
    manifest = folder.manifest()
    stopped = plan.spec.experiment.until is not None and manifest.status in PLAYED
    return islice(plan.jobs(), manifest.rollouts if stopped else None)


def rollout_named(folder: RunFolder, plan: Plan, name: str) -> Rollout:
    """The first rollout with this id, start of an id, or datapoint; of a tree, the first such branch.

    Raises:
        UsageError: there is none.
        RunError: it is not finished.
    """

    def meant(job: Job) -> bool:
        return bool(name) and (job.rollout_id.startswith(name) or job.datapoint.id == name)

    # The branches of a tree are known only once it is played again.
    jobs = [job for job in played_jobs(folder, plan) if plan.shape is not None or meant(job)]
    reconstructor = Reconstructor(folder, plan)
    try:
        for job in jobs:
            for rollout in reconstructor.of_job(job):
                if meant(rollout.job):
                    return rollout
    finally:
        reconstructor.close()
    if jobs and plan.shape is None:
        raise RunError(f"rollout {jobs[0].rollout_id} is not finished; run the same command again to resume")
    first = next(plan.jobs())
    raise UsageError(
        f"run {folder.run_id} has no rollout {name!r}; its first is {first.rollout_id} ({first.datapoint.id})"
    )


class Reconstructor:
    """Rebuilds the games of one run from its journal.

    Of the attempts that failed it knows too (see `failures`); the rollouts have them only `with_failures`.
    """

    def __init__(
        self, folder: RunFolder, plan: Plan, *, with_failures: bool = False, followed: FollowedIndex | None = None
    ) -> None:
        """`followed` is the index of a journal that is read while it grows."""
        if followed is None and not folder.journal.is_file():
            raise RunError(f"{folder.path} holds no journal")
        self.plan, self._folder = plan, folder
        self._reader: JournalReader | FollowedIndex
        if followed is None:
            self._reader, self._recorded = open_index(folder.journal, folder.manifest().identity)
        else:
            self._reader, self._recorded = followed, followed.index
        self._games = RecordedGames(plan, self._recorded.get, self._failed if with_failures else lambda _: ())

    def of_job(self, job: Job) -> list[Rollout]:
        """Return one game, or all branches of one tree; nothing if the journal does not hold all of it."""
        return self.with_answered_of(job)[0]

    def with_answered_of(self, job: Job) -> tuple[list[Rollout], list[AnsweredRequest]]:
        """Return the same, with the requests that were answered in it, also of a game that is not finished."""
        self._games.answered = answered = list[AnsweredRequest]()
        try:
            return self._games.rollouts(job), answered
        except NotRecordedError:
            return [], answered

    def by_job(self) -> Iterator[list[Rollout]]:
        """The rollouts of every finished game or tree, in the order of the plan."""
        for rollouts, _ in self.with_answered():
            yield rollouts

    def with_answered(self) -> Iterator[tuple[list[Rollout], list[AnsweredRequest]]]:
        """The same, each with the requests that were answered in it."""
        for job in played_jobs(self._folder, self.plan):
            rollouts, answered = self.with_answered_of(job)
            if rollouts:
                yield rollouts, answered

    def rollouts(self) -> Iterator[Rollout]:
        """Every finished rollout, in the order of the plan."""
        for rollouts in self.by_job():
            yield from rollouts

    def failures(self, job: Job) -> Sequence[FailureRecord]:
        """The failed attempts of a game, in the order in which they failed."""
        return self._recorded.failures(job.datapoint.id, job.number)

    def _failed(self, job: Job) -> list[Call]:
        models = self.plan.spec.experiment.models
        return [failed_call(record, models[self.plan.group_of(record.sample)].name) for record in self.failures(job)]

    def __len__(self) -> int:
        """How many answers, and ends of games, the journal holds."""
        return len(self._recorded)

    def asked(self, sample: SampleKey) -> RequestRecord | None:
        """What was asked for a sample, where the journal holds how that ended."""
        record = self._recorded.get(sample)
        return None if record is None else record.asked

    def requests(self) -> Iterator[Request]:
        """Every request that the journal holds the end of, of unfinished games too, in the order of the plan."""
        for job in self.plan.jobs():
            _, answered = self.with_answered_of(job)
            yield from (one.request for one in answered)

    def from_cache(self, request: Request) -> bool:
        """Whether the run had the answer to this request from its cache."""
        # Of a call that was shared, all answers but the first are marked so: they cost nothing either.
        record = None if request.group in self.plan.sharing else self._recorded.get(request.sample)
        return isinstance(record, CallRecord) and record.completion.from_cache

    def created_ms(self, sample: SampleKey) -> float | None:
        """Return when the server created an answer; see `CallRecord.created_ms`."""
        record = self._recorded.get(sample)
        return record.created_ms if isinstance(record, CallRecord) else None

    def close(self) -> None:
        self._reader.close()
