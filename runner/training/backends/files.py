"""The user trains: the dataset is written, the run waits, and the user gives the new model's name."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import make_folder, make_folders
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, KeepNote
from runner.training.backends.model_name import name_problem

README = """\
Model group {group} of {name} waits to be trained, by you and with whatever you like.

  train       {base_model}
  by          {method}
  on          {dataset}
              (SHA-256 {sha256})
  with seed   {seed}, if your trainer takes one

When the new model can be asked at the group's server, run the same nip-run command again, with

  --set-model {group}=NAME

where NAME is the model's name as the server knows it. The run goes on with it.
"""
METHODS = {"sft": "supervised fine-tuning (sft)", "dpo": "direct preference optimisation (dpo)"}


class FilesBackend:
    """`manual_model` is the name that the user gave for the group; it is for the first job that is polled."""

    def __init__(self, manual_model: str | None = None) -> None:
        self._manual_model = manual_model
        self._named_for: str | None = None

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        """Write down what is to be done.

        Raises:
            RunError: it cannot be written.
        """
        del notes, keep
        try:
            make_folders(job.folder.parent)
            make_folder(job.folder)
        except OSError as error:
            raise RunError(f"cannot make {job.folder}: {error.strerror}") from error
        text = README.format(
            group=job.group, name=job.name, base_model=job.base_model, method=METHODS[job.method],
            dataset=job.dataset.absolute(), sha256=job.dataset_sha256, seed=job.seed,
        )  # fmt: skip
        atomic_write(job.folder / "README.txt", text)
        return {}

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """The name that was given, or that one is waited for.

        Raises:
            RunError: what was given cannot be a model's name.
        """
        del handle
        option = f"--set-model {job.group}=NAME"
        todo = (
            f"train {job.base_model} on {job.dataset} ({job.method}; {job.folder / 'README.txt'} says more), then run "
            f"the same command again with {option}"
        )
        if self._manual_model is None or self._named_for not in (None, job.key):
            return JobStatus(JobState.WAITING, message=todo)
        # Most likely the command of the last iteration, run again as it was.
        if self._manual_model == job.base_model:
            return JobStatus(
                JobState.WAITING, message=f"{self._manual_model} is what is to be trained, not the result: {todo}"
            )
        if self._manual_model in job.earlier_models:
            said = f"{self._manual_model} is a model that {job.group} had before, not the result"
            return JobStatus(JobState.WAITING, message=f"{said}: {todo}")
        wrong = name_problem(self._manual_model, job.base_model)
        if wrong is not None:
            raise RunError(f"{option}: the name cannot be used: {wrong}")
        self._named_for = job.key
        return JobStatus(JobState.SUCCEEDED, self._manual_model, "named on the command line")
