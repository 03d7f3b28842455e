"""Submits, polls and records the fine-tuning jobs of an iteration, one for each model group.

This is a stage of the training loop. The backend of a group runs its jobs, for example at a provider.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from runner.training.stages import DatasetReport, JobEnded, JobNoted, JobWaited, TrainingEnded
from runner.training.weights import recorded_weights

log = logging.getLogger("nip_run.training")

ConnectBackend = Callable[[str, ModelSettings, bool], Backend]
"""Returns the backend of a model group, given the group's name and settings, and whether an earlier process has already
asked the user for the model of this job."""


@dataclass(frozen=True)
class DatasetEdit:
    """The user's edit of a dataset to train by hand, and the facts to record about it."""

    dataset: Path
    notes: Sequence[str]
    """The other notes on the dataset."""

    @property
    def note(self) -> str:
        """The note for the user."""
        return f"{self.dataset.name} was edited after it was built; the edited file is used for training"

    def facts(self) -> dict[str, Any]:
        """Return the facts about the edited dataset for the record of the training."""
        with open_to_read(self.dataset) as file:
            examples = sum(1 for line in file.read().splitlines() if line.strip())
        return {"edited": True, "examples": examples, "notes": [*self.notes, self.note]}


@dataclass
class GroupJob:
    """The fine-tuning job of one group in an iteration. If the job fails, the next process replaces it."""

    job: FineTuneJob
    iteration: int
    attempt: int
    trainer: TrainerSettings
    backend: Backend
    stages: StageLog
    edit: DatasetEdit | None
    """The user's edit of the dataset, if any."""
    was_requested: bool
    """Whether an earlier process asked the user for the model."""
    groups_at_same_servers: frozenset[str] = frozenset()
    """The other groups whose models are at the same servers, and need other names."""
    status: JobStatus = field(default=JobStatus(JobState.RUNNING), init=False)
    _handle: JobHandle = field(default_factory=dict, init=False)

    @property
    def group(self) -> str:
        return self.job.group

    def submit(self) -> None:
        """Submit the job unless it was submitted before. A job that has succeeded is neither submitted nor polled."""
        trained = self.stages.training_record(self.iteration, self.group)
        if trained is not None:
            self._handle = trained.handle
            self.status = JobStatus(JobState.SUCCEEDED, trained.model, facts=trained.facts)
            return
        try:
            make_folder(self.job.folder)
        except OSError as error:
            raise RunError(
                f"cannot create the folder {self.job.folder}: {error.strerror}. Check the permissions and the free "
                "space of the results folder, and run the same command again"
            ) from error
        if self.edit is not None:
            log.warning("iteration %d: %s: %s", self.iteration, self.group, self.edit.note)
        records = self.stages.group_records(JobNoted, self.iteration, self.group)
        # Another backend's notes have another meaning, for example the job's id at another provider.
        is_own = (self.attempt, self.trainer.backend)
        notes = [record.note for record in records if (record.attempt, record.backend) == is_own]
        self._handle = self.backend.submit(self._job_with_new_names(), notes, self._save_note)
        log.info("iteration %d: training %s from %s", self.iteration, self.group, self.job.base_model)

    def _save_note(self, note: JobNote) -> None:
        record = JobNoted(
            iteration=self.iteration, group=self.group, attempt=self.attempt, backend=self.trainer.backend,
            dataset_sha256=self.job.dataset_sha256, note=dict(note),
        )  # fmt: skip
        self.stages.add(record)

    def poll(self) -> None:
        """Poll the job unless it has ended. If it has now ended, record its end."""
        if self.status.has_ended:
            return
        previous, self.status = self.status, self.backend.poll(self._job_with_new_names(), self._handle)
        if self.status.message != previous.message:
            log.info("iteration %d: %s: %s", self.iteration, self.group, self.status.message or self.status.state)
        if self.status.state == JobState.SUCCEEDED:
            self.stages.add(self._training_record())
        elif self.status.has_ended:
            self.stages.add(self._end_record())

    def _job_with_new_names(self) -> FineTuneJob:
        """Return the job with the names of the models that other groups have got in this iteration, too."""
        trained = {
            record.model
            for group in self.groups_at_same_servers
            for record in self.stages.group_records(TrainingEnded, self.iteration, group)
        }
        return replace(self.job, other_models=self.job.other_models | trained)

    def _training_record(self) -> TrainingEnded:
        """Return the stage log's record of the successful training."""
        assert self.status.model is not None
        edit_facts = {} if self.edit is None else self.edit.facts()
        weights_path = str(self.job.folder.absolute() / OUTPUT) if self.trainer.load_lora else self.status.model
        return TrainingEnded(
            iteration=self.iteration, group=self.group, attempt=self.attempt, model=self.status.model,
            dataset_sha256=self.job.dataset_sha256, handle=dict(self._handle),
            facts={**self.status.facts, **edit_facts, **recorded_weights(weights_path)},
        )  # fmt: skip

    def _end_record(self) -> JobEnded:
        return JobEnded(
            iteration=self.iteration, group=self.group, attempt=self.attempt, state=str(self.status.state),
            message=self.status.message, facts=dict(self.status.facts),
        )  # fmt: skip

    def record_waiting(self) -> None:
        """Record that the user was asked for this job's model."""
        if not self.was_requested:
            self.stages.add(JobWaited(iteration=self.iteration, group=self.group))


@dataclass(frozen=True)
class JobStage:
    """Runs the fine-tuning jobs of all groups in an iteration concurrently."""

    plan: TrainingPlan
    folder: RunFolder
    stages: StageLog
    connect_backend: ConnectBackend
    sleep: Callable[[float], None] = time.sleep

    def train(self, iteration: int, models: Models, reports: Mapping[str, DatasetReport]) -> None:
        """Train every group that has enough examples, and record each group's training.

        Raises:
            RunError: some jobs failed.
            Waiting: no job failed, but the user must train some models by hand.
        """
        min_examples = self.plan.training.min_examples
        jobs = [
            self._create_job(iteration, models, group, report)
            for group, report in reports.items()
            if report.examples >= min_examples
        ]
        for job in jobs:
            job.submit()
        self._wait_for_jobs(jobs)
        check_succeeded(iteration, jobs)

    def _wait_for_jobs(self, jobs: Sequence[GroupJob]) -> None:
        """Poll the jobs until none of them is running."""
        while True:
            for job in jobs:
                job.poll()
            running = [job for job in jobs if job.status.state == JobState.RUNNING]
            if not running:
                return
            self.sleep(min(job.trainer.seconds_between_polls for job in running))

    def _create_job(self, iteration: int, models: Models, group: str, report: DatasetReport) -> GroupJob:
        trainer, attempt = self.plan.training.trainers[group], self.stages.attempt_number(iteration, group)
        # `--set-model` counts only if an earlier process requested the model: only then, the user had its dataset.
        was_requested = bool(self.stages.group_records(JobWaited, iteration, group))
        backend = self.connect_backend(group, models[group], was_requested)
        dataset = iteration_folder(self.folder, iteration) / report.file
        edit = DatasetEdit(dataset, report.notes) if edited_by_user(trainer, dataset, report) else None
        sha256 = report.sha256 if edit is None else file_hash(dataset)
        assert sha256 is not None, "a dataset with enough examples is written"
        # By hand, the user may deliberately train one model for several groups.
        others = frozenset[str]() if trainer.traits.by_hand else _groups_at_same_servers(models, group)
        job = self._fine_tune_job(iteration, models, group, dataset, sha256)
        other_models = frozenset[str]().union(*(self._models_before(iteration, models, other) for other in others))
        job = replace(job, other_models=other_models)
        return GroupJob(job, iteration, attempt, trainer, backend, self.stages, edit, was_requested, others)

    def _fine_tune_job(self, iteration: int, models: Models, group: str, dataset: Path, sha256: str) -> FineTuneJob:
        """Return the job that trains a group's model on a dataset."""
        attempt = self.stages.attempt_number(iteration, group)
        key = f"{self.folder.run_id}/{iteration}/{group}/{attempt}"
        notes = self.stages.group_records(JobNoted, iteration, group)
        return FineTuneJob(
            # The token distinguishes the jobs of two runs that have the same id in different results folders.
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
            replaces=tuple(record.note for record in notes if record.attempt < attempt),
        )

    def _models_before(self, iteration: int, models: Models, group: str) -> frozenset[str]:
        """Return the names of all models that a group had up to this iteration, including their base models."""
        model, untrained = models[group], self.plan.spec.experiment.models[group]
        trained_models = {
            record.model
            for record in self.stages.find_all(TrainingEnded)
            if record.group == group and record.iteration < iteration
        }
        lineage_models = {name for step in model.lineage for name in (step.model, step.from_model)}
        return frozenset({untrained.name, model.name, *trained_models, *lineage_models})


def _groups_at_same_servers(models: Models, group: str) -> frozenset[str]:
    """Return the other groups whose models are at one of a group's servers."""
    servers = {(models[group].provider, address) for address in models[group].addresses}
    return frozenset(
        other
        for other, settings in models.items()
        if other != group and not servers.isdisjoint((settings.provider, address) for address in settings.addresses)
    )


def check_succeeded(iteration: int, jobs: Sequence[GroupJob]) -> None:
    """Check that no job has failed, and record the jobs that wait for the user.

    Raises:
        RunError, Waiting: see `JobStage.train`.
    """
    failed = [job for job in jobs if job.status.state in (JobState.FAILED, JobState.CANCELLED)]
    if failed:
        lines = [
            f"iteration {iteration}: training {job.group} {job.status.state}: {job.status.message}" for job in failed
        ]
        raise RunError("\n".join([*lines, "Run the same command again to start a new job for each of them."]))
    waiting = [job for job in jobs if job.status.state == JobState.WAITING]
    if waiting:
        for job in waiting:
            job.record_waiting()
        raise Waiting("\n".join(job.status.message for job in waiting), [job.group for job in waiting])
