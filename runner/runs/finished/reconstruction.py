"""A run's journal into its rollouts again: free, offline, and whole for every game that was finished."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from runner.base.async_runner import one_after_another, run_sync
from runner.base.errors import NipRunError, RunDirectoryError, RunError, UsageError
from runner.base.storage.log_lines import JournalReader
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.journal_index import FollowedIndex, open_index
from runner.models.journal_records import CallRecord, EndedRecord, FailureRecord, RequestRecord
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.rollouts.engine import Engine
from runner.rollouts.failed_calls import failed_call
from runner.rollouts.job import Job
from runner.rollouts.judging import JudgingEngine
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_debates import Debates
from runner.rollouts.rollout import Call, Rollout
from runner.spec.datasets.loader import Dataset
from runner.spec.loader import load_saved

AT_ONCE = 16
"""Games that are played before the first of them is told: to start and end a loop costs as much as a short game."""


class AnsweredRequest(NamedTuple):
    """A request as the engine made it again, and what the journal has of the one that was answered."""

    request: Request
    asked: RequestRecord


class _NotRecorded(NipRunError):
    """The journal lacks an answer that a game needs: the game was not finished."""


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


def engine_of(plan: Plan, complete: Complete, **options: Any) -> Engine:
    """What plays a plan's games, or has the debates judged that it has instead."""
    options["swapped"] = plan.agents(swapped=True) if plan.seats else {}
    if plan.debates is None:
        return Engine(plan.spec.protocol, plan.agents(), complete, branch=plan.branch, shape=plan.shape, **options)
    return JudgingEngine(plan.spec.protocol, plan.agents(), complete, plan=plan, **options)


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
    """Plays games from one run's journal.

    Of the attempts that failed it knows too (see `failures`); the rollouts have them only `with_failures`.
    """

    def __init__(
        self, folder: RunFolder, plan: Plan, *, with_failures: bool = False, followed: FollowedIndex | None = None
    ) -> None:
        """`followed` is the index of a journal that is read while it grows."""
        if followed is None and not folder.journal.is_file():
            raise RunError(f"{folder.path} holds no journal")
        self.plan, self._folder = plan, folder
        self._asked: list[AnsweredRequest] = []
        self._reader: JournalReader | FollowedIndex
        if followed is None:
            self._reader, self._recorded = open_index(folder.journal, folder.manifest().identity)
        else:
            self._reader, self._recorded = followed, followed.index
        self._engine = engine_of(plan, self._complete, **({"failed_calls": self._failed} if with_failures else {}))

    async def _complete(self, request: Request) -> Completion:
        record = self._recorded.get(request.sample)
        if record is None:
            raise _NotRecorded
        self._asked.append(AnsweredRequest(request, record.asked))
        if isinstance(record, EndedRecord):
            raise record.as_error()
        return record.completion

    def of_job(self, job: Job) -> list[Rollout]:
        """One game again, or all branches of one tree; nothing where the journal does not hold all of it."""
        return run_sync(lambda: self._of_job(job))

    def of_jobs(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Rollout], list[AnsweredRequest]]]:
        """Some games again, each as `of_job` gives it, with what was answered in it."""
        with one_after_another() as to_end:
            for job in jobs:
                self._asked = []
                yield job, to_end(self._of_job(job)), self._asked

    def by_job(self) -> Iterator[list[Rollout]]:
        """The rollouts of every finished game or tree, in the order of the plan."""
        for rollouts, _ in self.with_requests():
            yield rollouts

    def with_requests(self) -> Iterator[tuple[list[Rollout], list[Request]]]:
        """The same, each with the requests that were answered in it."""
        for rollouts, answered in self.with_answered():
            yield rollouts, [one.request for one in answered]

    def with_answered(self) -> Iterator[tuple[list[Rollout], list[AnsweredRequest]]]:
        """The same, with what the journal has of each request, too."""
        jobs = played_jobs(self._folder, self.plan)
        with one_after_another() as to_end:
            while some := list(islice(jobs, AT_ONCE)):
                found: list[tuple[list[Rollout], list[AnsweredRequest]]] = []
                to_end(self._add_jobs(some, found))
                yield from found

    async def _add_jobs(self, jobs: Iterable[Job], found: list[tuple[list[Rollout], list[AnsweredRequest]]]) -> None:
        """Play games into `found`: a loop's end makes the `repr` of what its coroutine returned, which may be long."""
        for job in jobs:
            self._asked = []
            if rollouts := await self._of_job(job):
                found.append((rollouts, self._asked))

    def rollouts(self) -> Iterator[Rollout]:
        """Every finished rollout, in the order of the plan."""
        for rollouts in self.by_job():
            yield from rollouts

    async def _of_job(self, job: Job) -> list[Rollout]:
        try:
            return await self._engine.play(job)
        except _NotRecorded:
            return []

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
        with one_after_another() as to_end:
            for job in self.plan.jobs():
                self._asked = []
                to_end(self._of_job(job))
                yield from (one.request for one in self._asked)

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
