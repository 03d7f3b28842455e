"""The backend `files`: the run waits until the user has trained a model by hand and given its name (`--set-model`)."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, SaveNote
from runner.training.backends.model_name import name_problem

README = """\
Train the model of group {group} of {name} with any tool you like.

  base model  {base_model}
  method      {method}
  dataset     {dataset}
              (SHA-256 {sha256})
  seed        {seed}, if your trainer has one

When the group's server serves the new model, run the same nip-run command again with

  --set-model {group}=NAME

where NAME is the model's name at the server. The run continues with it.
"""
METHODS = {"sft": "supervised fine-tuning (sft)", "dpo": "direct preference optimization (dpo)"}


class FilesBackend:
    """Waits for the user. `manual_model` is the name that the user gave for the model of the first polled job."""

    def __init__(self, manual_model: str | None = None) -> None:
        self._manual_model = manual_model
        self._job_of_manual_model: str | None = None

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], save_note: SaveNote) -> JobHandle:
        """Write a README with instructions for the user.

        Raises:
            RunError: the README cannot be written.
        """
        del notes, save_note
        text = README.format(
            group=job.group, name=job.name, base_model=job.base_model, method=METHODS[job.method],
            dataset=job.dataset.absolute(), sha256=job.dataset_sha256, seed=job.seed,
        )  # fmt: skip
        atomic_write(job.folder / "README.txt", text)
        return {}

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """Return the status: SUCCEEDED with the name that the user gave, or WAITING with instructions.

        Raises:
            RunError: the given name is not a valid model name.
        """
        del handle
        option = f"--set-model {job.group}=NAME"
        instruction = (
            f"train {job.base_model} on {job.dataset} ({job.method}; details in {job.folder / 'README.txt'}), then run "
            f"the same command again with {option}"
        )
        if self._manual_model is None or self._job_of_manual_model not in (None, job.key):
            return JobStatus(JobState.WAITING, message=instruction)
        # A name that was used before most likely means that the user repeated the previous command unchanged.
        if self._manual_model == job.base_model:
            return JobStatus(
                JobState.WAITING,
                message=f"{self._manual_model} is the base model, not the trained model: {instruction}",
            )
        if self._manual_model in job.earlier_models:
            message = f"{self._manual_model} is an earlier model of {job.group}, not the newly trained model"
            return JobStatus(JobState.WAITING, message=f"{message}: {instruction}")
        problem = name_problem(self._manual_model, job)
        if problem is not None:
            raise RunError(f"{option}: the name is not valid: {problem}")
        self._job_of_manual_model = job.key
        return JobStatus(JobState.SUCCEEDED, self._manual_model, "named on the command line")
