"""Somebody else trains: the files are there, the run waits, and the user says what the new model is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.errors import RunError
from runner.storage.atomic import write_whole
from runner.training.backends.base import FineTuneJob, JobState, Look, Note
from runner.training.backends.names import wrong_with_name

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
    """`chosen` is the name that the user gave for the group; it is for the first job that is looked at."""

    def __init__(self, chosen: str | None = None) -> None:
        self._chosen = chosen
        self._chosen_for: str | None = None

    def begin(self, job: FineTuneJob, known: Sequence[Mapping[str, Any]], note: Note) -> Mapping[str, Any]:
        """Write down what is to be done.

        Raises:
            RunError: it cannot be written.
        """
        del known, note
        try:
            job.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make {job.folder}: {error.strerror}") from error
        text = README.format(
            group=job.group, name=job.name, base_model=job.base_model, method=METHODS[job.method],
            dataset=job.dataset.absolute(), sha256=job.dataset_sha256, seed=job.seed,
        )  # fmt: skip
        write_whole(job.folder / "README.txt", text)
        return {}

    def look(self, job: FineTuneJob, handle: Mapping[str, Any]) -> Look:
        """The name that was given, or that one is waited for.

        Raises:
            RunError: what was given can be no model's name.
        """
        del handle
        option = f"--set-model {job.group}=NAME"
        todo = (
            f"train {job.base_model} on {job.dataset} ({job.method}; {job.folder / 'README.txt'} says more), then run "
            f"the same command again with {option}"
        )
        if self._chosen is None or self._chosen_for not in (None, job.key):
            return Look(JobState.WAITING, message=todo)
        # Most likely the command of the last iteration, run again as it was.
        if self._chosen == job.base_model:
            return Look(JobState.WAITING, message=f"{self._chosen} is what is to be trained, not the result: {todo}")
        if self._chosen in job.had:
            said = f"{self._chosen} is a model that {job.group} had before, not the result"
            return Look(JobState.WAITING, message=f"{said}: {todo}")
        wrong = wrong_with_name(self._chosen, job.base_model)
        if wrong is not None:
            raise RunError(f"{option}: the name cannot be used: {wrong}")
        self._chosen_for = job.key
        return Look(JobState.SUCCEEDED, self._chosen, "named on the command line")
