"""Rebuilds a run's finished rollouts from its journal, without calls to models.

Commands, pages and exports read games with `Reconstructor`. A job is a game, or a tree whose branches are rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from runner.base.errors import RunDirectoryError, RunError, SpecError, UsageError
from runner.base.storage.fetched_markers import fetched_folder
from runner.base.storage.log_lines import JournalReader
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join
from runner.models.interface import Request, SampleKey
from runner.models.journal_index import FollowedIndex, open_index
from runner.models.journal_records import CallRecord, FailureRecord, RequestRecord
from runner.models.prices import Pricing
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest
from runner.rollouts.failed_calls import failed_calls_finder
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_debates import Debates
from runner.rollouts.recorded_games import AnsweredRequest, GameRebuilder, NotRecordedError
from runner.rollouts.rollout import Rollout
from runner.runs.finished.rollout_details import RolloutDetails
from runner.spec.datasets.loader import Dataset
from runner.spec.loader import load_saved

MAX_RENDERED = 16 << 20
"""Maximum number of characters of rendered prompts in memory: enough for 1,000 datapoints with repeated games."""


def saved_plan(folder: RunFolder, dataset: Dataset | None = None, *, trusts_manifest: bool = False) -> Plan:
    """Return the plan of a run from its saved spec and inputs; `dataset` replaces the saved dataset.

    With `trusts_manifest`, a spec and inputs that have the hashes in the manifest are not checked again, because they
    passed the checks when the run started. The manifest of a downloaded run is not trusted.

    The rollout ids of a replay depend on the hash of the replayed run. The plan uses the hash in the manifest, because
    more games may have been added to the replayed run since then.
    """
    manifest = folder.manifest()
    if trusts_manifest and fetched_folder([folder.path]) is None:
        with suppress(SpecError):  # The checks may find more errors.
            plan = _load_plan(folder, manifest, dataset, manifest.spec_sha256)
            if not _changed_parts(manifest, plan):
                return plan
    return _load_plan(folder, manifest, dataset)


def _load_plan(
    folder: RunFolder, manifest: Manifest, dataset: Dataset | None, checked_sha256: str | None = None
) -> Plan:
    """Return the plan. A spec with the hash `checked_sha256` is not checked."""
    spec = load_saved(folder.spec, dataset, checked_sha256=checked_sha256)
    spec = replace(spec, shard=manifest.shard, price_basis=manifest.price_basis, plugins=manifest.plugins or {})
    replayed_sha256 = manifest.replayed_sha256
    debates = None if spec.rejudged is None else read_debates(spec.rejudged.path)
    return Plan(spec if replayed_sha256 is None else replace(spec, replayed_sha256=replayed_sha256), debates)


def played_plan(folder: RunFolder, dataset: Dataset | None = None, *, trusts_manifest: bool = False) -> Plan:
    """Check that a run's saved spec and inputs are unchanged since the run was played, and return the run's plan.

    Pass `dataset` if the run's folder does not have the rows of its datapoints. For `trusts_manifest` see `saved_plan`.

    Raises:
        RunDirectoryError: the spec or inputs have changed.
    """
    plan = saved_plan(folder, dataset, trusts_manifest=trusts_manifest)
    check_played(folder, plan)
    return plan


def check_played(folder: RunFolder, plan: Plan) -> None:
    """Check that the saved spec and inputs of a run, from which `plan` was loaded, are unchanged since it was played.

    Raises:
        RunDirectoryError: the spec or inputs have changed.
    """
    if changed_parts := _changed_parts(folder.manifest(), plan):
        raise RunDirectoryError(
            f"{folder.path} has changed since its run started: {folder.spec.name} or files in inputs/ were edited "
            f"({comma_join(changed_parts)} differ). Restore these files, or add --again to play a new run"
        )


def _changed_parts(manifest: Manifest, plan: Plan) -> list[str]:
    """Return the parts of a plan that differ from the run that was played."""
    hashes = {
        "the datapoints": (plan.spec.dataset.sha256, manifest.dataset_sha256),
        "the rules, prompts or models": (plan.game_hash, manifest.game_sha256),
    }
    return [part for part, (loaded, played) in hashes.items() if loaded != played]


def read_debates(path: Path) -> Debates:
    """Read the debates saved with a run that judges them.

    Raises:
        RunError: the file cannot be read.
    """
    try:
        with open_to_read(path) as file:
            return Debates.from_lines(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged or was edited, so its debates cannot be read. Restore the file") from error


def played_jobs(folder: RunFolder, plan: Plan) -> Iterator[Job]:
    """Yield the jobs in a run's tables or, for an unfinished run, the jobs that its tables will have.

    If the stopping rule `until` ended the run, the tables end with the decisive game. The journal may have answers for
    later games, which were in progress at that moment.
    """
    manifest = folder.manifest()
    may_have_stopped_early = plan.spec.experiment.until is not None and manifest.status in PLAYED
    return islice(plan.jobs(), manifest.rollouts if may_have_stopped_early else None)


def find_rollout(folder: RunFolder, plan: Plan, name: str) -> Rollout:
    """Return the first rollout (or branch of a tree) whose id starts with `name` or whose datapoint has this id.

    Raises:
        UsageError: there is no such rollout.
        RunError: the rollout is not finished.
    """

    def is_match(job: Job) -> bool:
        return bool(name) and (job.rollout_id.startswith(name) or job.datapoint.id == name)

    # The ids of branches are known only after their tree was rebuilt.
    jobs = [job for job in played_jobs(folder, plan) if plan.tree_shape is not None or is_match(job)]
    with closing(Reconstructor(folder, plan)) as reconstructor:
        for rollout in (rollout for job in jobs for rollout in reconstructor.rollouts_of(job)):
            if is_match(rollout.job):
                return rollout
    if jobs and plan.tree_shape is None:
        raise RunError(
            f"rollout {jobs[0].rollout_id} of run {folder.run_id} is not finished; resume the run with "
            f"nip-run {folder.path}"
        )
    first_job = next(plan.jobs())
    raise UsageError(
        f"{folder.run_id} has no rollout {name!r}; the first one is {first_job.rollout_id} "
        f"({first_job.datapoint.id}), and nip-run show {folder.run_id} --all lists all rollouts"
    )


class Reconstructor:
    """Rebuilds the games of one run from its journal.

    The rollouts include their failed calls only if `with_failures` is true.
    """

    def __init__(
        self, folder: RunFolder, plan: Plan, *, with_failures: bool = False, followed: FollowedIndex | None = None
    ) -> None:
        """Open the journal, or use `followed`, the index of a journal that a run is still writing."""
        if followed is None and not folder.journal.is_file():
            raise RunError(
                f"{folder.path} has no {folder.journal.name}, so its rollouts cannot be read; restore the journal from "
                "a backup"
            )
        self.plan, self._folder = plan, folder
        plan.spec.prompts.rendered.max_size = MAX_RENDERED
        self._reader: JournalReader | FollowedIndex
        if followed is None:
            self._reader, self._index = open_index(folder.journal, folder.manifest().identity)
        else:
            self._reader, self._index = followed, followed.index
        failed_calls = failed_calls_finder(plan, self._index.failures) if with_failures else lambda _: ()
        self._games = GameRebuilder(plan, self._index.get, failed_calls)

    def rollouts_of(self, job: Job) -> list[Rollout]:
        """Return the rollout of a game, or all branches of a tree; empty if the journal lacks some of the answers."""
        return self.rollouts_and_requests_of(job)[0]

    def rollouts_and_requests_of(self, job: Job) -> tuple[list[Rollout], list[AnsweredRequest]]:
        """Return the result of `rollouts_of`, and the answered requests of the job, even if it is unfinished."""
        self._games.answered = answered = list[AnsweredRequest]()
        try:
            return self._games.rollouts(job), answered
        except NotRecordedError:
            return [], answered

    def rollouts_by_job(self) -> Iterator[list[Rollout]]:
        """Yield the rollouts of every finished game or tree, in the order of the plan."""
        for rollouts, _ in self.rollouts_and_requests():
            yield rollouts

    def rollouts_and_requests(self) -> Iterator[tuple[list[Rollout], list[AnsweredRequest]]]:
        """Yield the rollouts of every finished game or tree with their answered requests, in the order of the plan."""
        for job in played_jobs(self._folder, self.plan):
            rollouts, answered = self.rollouts_and_requests_of(job)
            if rollouts:
                yield rollouts, answered

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every finished rollout, in the order of the plan."""
        for rollouts in self.rollouts_by_job():
            yield from rollouts

    def failures(self, job: Job) -> Sequence[FailureRecord]:
        """Return the records of a game's failed calls, in the order of failure."""
        return self._index.failures(job.datapoint.id, job.number)

    def __len__(self) -> int:
        """Return the number of results in the journal: answers, and errors that ended a game."""
        return len(self._index)

    def details(self, rollout: Rollout) -> RolloutDetails:
        """Return a rollout of this run with the records of its calls."""
        job, spec = rollout.job, self.plan.spec
        agents = self._games.agents[bool(job.swapped)]
        return RolloutDetails(rollout, spec.protocol, agents, self.failures(job), self._prices[bool(job.swapped)])

    @cached_property
    def _prices(self) -> Mapping[bool, Mapping[str, Pricing | None]]:
        """The prices of each agent's calls. Key True: games with swapped models; key False: other games."""
        price_of = self.plan.spec.price_basis.price_of
        return {
            swapped: {name: price_of(agent.model_settings) for name, agent in agents.items()}
            for swapped, agents in self._games.agents.items()
        }

    def request_record(self, sample: SampleKey) -> RequestRecord | None:
        """Return the recorded request of a sample; None if the journal does not have its result."""
        record = self._index.get(sample)
        return None if record is None else record.request

    def requests(self) -> Iterator[Request]:
        """Yield every request whose result is in the journal, including unfinished games, in the order of the plan."""
        for job in self.plan.jobs():
            _, answered = self.rollouts_and_requests_of(job)
            yield from (request.request for request in answered)

    def is_from_cache(self, request: Request) -> bool:
        """Return whether the run got the answer to this request from its cache."""
        # If one call requests several samples, the journal marks all answers except the first as cached, although the
        # cache did not give them.
        record = None if request.group in self.plan.sharing_groups else self._index.get(request.sample)
        return isinstance(record, CallRecord) and record.completion.from_cache

    def close(self) -> None:
        self._reader.close()
