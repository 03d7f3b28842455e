"""The fine-tune jobs of an iteration, one for each model group: submitted, polled until they have ended, kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, Waiting
from runner.base.hashing import derived_seed, file_hash, tagged_hash
from runner.base.storage.safe_files import make_folder, open_to_read
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.interface import Backend, FineTuneJob, JobHandle, JobNote, JobState, JobStatus
from runner.training.dataset_stage import edited_by_user
from runner.training.plan import Models, TrainingPlan
from runner.training.stage_log import OUTPUT, StageLog, iteration_folder, job_folder
from runner.training.stages import DatasetReport, JobEnded, JobNoted, TrainingEnded, Waited
from runner.training.weights import recorded_weights

log = logging.getLogger("nip_run.training")

Connect = Callable[[str, ModelSettings, bool], Backend]
"""A model group's backend, told whether an earlier process has asked the user for the job's model."""


@dataclass(frozen=True)
class DatasetEdit:
    """What a user who trains by hand has made of a dataset, and what that changes in the outcome."""

    dataset: Path
    notes: Sequence[str]
    """What else there is to say of the dataset."""

    @property
    def note(self) -> str:
        return f"{self.dataset.name} was edited after it was built, and is trained on as it is now"

    def facts(self) -> dict[str, Any]:
        with open_to_read(self.dataset) as file:
            examples = sum(1 for line in file.read().splitlines() if line.strip())
        return {"edited": True, "examples": examples, "notes": [*self.notes, self.note]}


@dataclass
class GroupJob:
    """One group's fine-tune job of one iteration, perhaps not its first: one that failed is replaced on request."""

    job: FineTuneJob
    iteration: int
    attempt: int
    trainer: TrainerSettings
    backend: Backend
    stages: StageLog
    edit: DatasetEdit | None
    """What the user has made of the dataset."""
    was_asked_for: bool
    """Whether the user was asked for the model by an earlier process."""
    status: JobStatus = field(default=JobStatus(JobState.RUNNING), init=False)
    _handle: JobHandle = field(default_factory=dict, init=False)

    @property
    def group(self) -> str:
        return self.job.group

    def submit(self) -> None:
        """Submit the job, or find it again; one that has succeeded is not polled again."""
        trained = self.stages.trained(self.iteration, self.group)
        if trained is not None:
            self._handle = trained.handle
            self.status = JobStatus(JobState.SUCCEEDED, trained.model, facts=trained.facts)
            return
        try:
            make_folder(self.job.folder)
        except OSError as error:
            raise RunError(f"cannot make {self.job.folder}: {error.strerror}") from error
        if self.edit is not None:
            log.warning("iteration %d: %s: %s", self.iteration, self.group, self.edit.note)
        noted = self.stages.of_group(JobNoted, self.iteration, self.group)
        notes = [record.note for record in noted if record.attempt == self.attempt]
        self._handle = self.backend.submit(self.job, notes, self._keep)
        log.info("iteration %d: training %s from %s", self.iteration, self.group, self.job.base_model)

    def _keep(self, note: JobNote) -> None:
        self.stages.add(
            JobNoted(
                iteration=self.iteration,
                group=self.group,
                attempt=self.attempt,
                backend=self.trainer.backend,
                dataset_sha256=self.job.dataset_sha256,
                note=dict(note),
            )
        )

    def poll(self) -> None:
        """Poll the job, unless it has ended, and keep how it ended."""
        if self.status.has_ended:
            return
        before, self.status = self.status, self.backend.poll(self.job, self._handle)
        if self.status.message != before.message:
            log.info("iteration %d: %s: %s", self.iteration, self.group, self.status.message or self.status.state)
        if self.status.state == JobState.SUCCEEDED:
            self.stages.add(self._trained())
        elif self.status.has_ended:
            self.stages.add(self._ended())

    def _trained(self) -> TrainingEnded:
        assert self.status.model is not None
        edited = {} if self.edit is None else self.edit.facts()
        made = str(self.job.folder.absolute() / OUTPUT) if self.trainer.load_lora else self.status.model
        return TrainingEnded(
            iteration=self.iteration,
            group=self.group,
            attempt=self.attempt,
            model=self.status.model,
            dataset_sha256=self.job.dataset_sha256,
            handle=dict(self._handle),
            facts={**self.status.facts, **edited, **recorded_weights(made)},
        )

    def _ended(self) -> JobEnded:
        return JobEnded(
            iteration=self.iteration,
            group=self.group,
            attempt=self.attempt,
            state=str(self.status.state),
            message=self.status.message,
            facts=dict(self.status.facts),
        )

    def note_waiting(self) -> None:
        """Keep that the user was asked for this job's model."""
        if not self.was_asked_for:
            self.stages.add(Waited(iteration=self.iteration, group=self.group))


@dataclass(frozen=True)
class JobStage:
    """Every group's job of an iteration, all at once."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    connect: Connect
    sleep: Callable[[float], None] = time.sleep

    def train(self, iteration: int, models: Models, reports: Mapping[str, DatasetReport]) -> None:
        """Train every group that has enough examples; when this returns, each has a record of its training.

        Raises:
            RunError: some jobs failed; what waits is asked for when the command is run again.
            Waiting: what has not ended is to be trained by hand.
        """
        fewest = self.plan.training.min_examples
        jobs = [
            self._job(iteration, models, group, report)
            for group, report in reports.items()
            if report.examples >= fewest
        ]
        for job in jobs:
            job.submit()
        self._await(jobs)
        check_succeeded(iteration, jobs)

    def _await(self, jobs: Sequence[GroupJob]) -> None:
        """Poll the jobs until none of them goes on by itself."""
        while True:
            for job in jobs:
                job.poll()
            running = [job for job in jobs if job.status.state == JobState.RUNNING]
            if not running:
                return
            self.sleep(min(job.trainer.seconds_between_polls for job in running))

    def _job(self, iteration: int, models: Models, group: str, report: DatasetReport) -> GroupJob:
        trainer = self.plan.training.trainers[group]
        # The user can name only a model that was asked for: the dataset of another has not been seen.
        was_asked_for = bool(self.stages.of_group(Waited, iteration, group))
        backend = self.connect(group, models[group], was_asked_for)
        dataset = iteration_folder(self.folder, iteration) / report.file
        edit = DatasetEdit(dataset, report.notes) if edited_by_user(trainer, dataset, report) else None
        sha256 = report.sha256 if edit is None else file_hash(dataset)
        assert sha256 is not None, "a dataset with enough examples is written"
        job = self._fine_tune_job(iteration, models, group, dataset, sha256)
        return GroupJob(
            job, iteration, self.stages.attempt(iteration, group), trainer, backend, self.stages, edit, was_asked_for
        )

    def _fine_tune_job(self, iteration: int, models: Models, group: str, dataset: Path, sha256: str) -> FineTuneJob:
        attempt = self.stages.attempt(iteration, group)
        key = f"{self.folder.run_id}/{iteration}/{group}/{attempt}"
        noted = self.stages.of_group(JobNoted, iteration, group)
        return FineTuneJob(
            # Two results folders may hold runs of one id; their jobs are not each other's.
            key=f"{key}/{tagged_hash('job', [self.stages.token, key])[:8]}",
            group=group,
            method=self.plan.method,
            base_model=self.plan.base_model(group, models),
            dataset=dataset,
            dataset_sha256=sha256,
            folder=job_folder(self.folder, iteration, group),
            seed=derived_seed("job", self.plan.identity, iteration, group),
            name=self.plan.spec.experiment.name,
            earlier_models=self._models_before(iteration, models, group),
            replaces=tuple(record.note for record in noted if record.attempt < attempt),
        )

    def _models_before(self, iteration: int, models: Models, group: str) -> frozenset[str]:
        """Every model that a group has had until an iteration's games, and what those came from."""
        now, untrained = models[group], self.plan.spec.experiment.models[group]
        trained = {r.model for r in self.stages.all(TrainingEnded) if r.group == group and r.iteration < iteration}
        lineage = {name for step in now.lineage for name in (step.model, step.from_model)}
        return frozenset({untrained.name, now.name, *trained, *lineage})


def check_succeeded(iteration: int, jobs: Sequence[GroupJob]) -> None:
    """See that all jobs that have ended have succeeded, and keep which of the others the user was asked for.

    Raises:
        RunError, Waiting: see `JobStage.train`.
    """
    failed = [job for job in jobs if job.status.state in (JobState.FAILED, JobState.CANCELLED)]
    if failed:
        lines = [
            f"iteration {iteration}: training {job.group} {job.status.state}: {job.status.message}" for job in failed
        ]
        raise RunError("\n".join([*lines, "The same command, run again, begins a new job in its place."]))
    waiting = [job for job in jobs if job.status.state == JobState.WAITING]
    if waiting:
        for job in waiting:
            job.note_waiting()
        raise Waiting("\n".join(job.status.message for job in waiting), [job.group for job in waiting])
