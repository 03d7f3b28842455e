"""Fine-tuning jobs of OpenAI, or of a server with the same API.

A job costs money, so it is created once. The backend notes the id of the uploaded file before it creates the job.
After any attempt that may have worked (a lost answer, a 5xx, a killed process), it lists the account's jobs before
every further attempt, and creates a job only if complete listings lack it. A job is recognized by the key in its
metadata, or by its file if the server drops metadata. Uploads cost nothing: one whose answer was lost is repeated.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from runner.base.errors import CallError, NipRunError, ProviderRefusal, RunError, TransientError
from runner.base.hashing import tagged_hash
from runner.base.redaction import redacted
from runner.base.text import escape_controls
from runner.models.connectors import fine_tuning_api
from runner.models.fine_tuning_api import SETTLING_LISTINGS, ApiCallError
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, KeepNote
from runner.training.backends.model_name import name_problem

METADATA_KEY: Final = "nip_run"
MAX_SERVER_WAIT: Final = 900.0
"""Seconds that one call waits at most because the server asks for it; a longer wait stops the run."""
MAX_SEED: Final = 2**31
MAX_SUFFIX: Final = 64

_RUNNING_STATUSES = {
    "validating_files": "its files are being validated",
    "queued": "queued",
    "running": "running",
    "paused": "paused: it goes on when it is resumed at the provider",
}
_PER_DAY = re.compile(r"\bdaily|\bper day\b", re.IGNORECASE)
_NO_TRAINING = re.compile(
    r"training_not_available|fine.?tun\w*\b.{0,80}\b(not (be )?(available|supported|enabled)|no longer|deprecated)",
    re.IGNORECASE | re.DOTALL,
)

T = TypeVar("T")


@dataclass
class _Submission:
    """How far a submission has come, and the jobs of earlier ones, which it must not take for its own."""

    files: list[str] = field(default_factory=list)
    """The files of its attempts, the current one last."""
    job: str | None = None
    earlier_jobs: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, notes: Sequence[JobNote]) -> _Submission:
        submission = cls()
        for note in notes:
            if "job" in note:
                submission.job = str(note["job"])
            elif "file" in note:
                submission.restart(str(note["file"]))
        return submission

    def restart(self, file: str) -> None:
        """Go on with another file; if there was a job, the file is for another job."""
        if self.job is not None:
            self.earlier_jobs.add(self.job)
            self.files.clear()
        self.files.append(file)
        self.job = None


class OpenAiBackend:
    """The jobs of one model group."""

    def __init__(
        self,
        group: str,
        trainer: TrainerSettings,
        model: ModelSettings,
        *,
        policy: TransientPolicy,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._trainer, self._model = group, trainer, model
        self._policy, self._sleep, self._clock = policy, sleep, clock
        self._api = fine_tuning_api(model, group)
        self._first_polls: dict[str, float] = {}
        self._jitter = random.Random()

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        """See `Backend.submit`; the handle has the job's id under `job`."""
        noted = _Submission.of(notes)
        if noted.job is not None:
            return {"job": noted.job}
        noted.earlier_jobs.update(str(note["job"]) for note in job.replaces if "job" in note)
        is_resumed = bool(noted.files)
        if not is_resumed:
            noted.restart(self._upload(job, keep))
        try:
            found = self._find_or_create(job, noted, is_uncertain=is_resumed)
        except _FileRefused:
            if not is_resumed:
                raise
            # The provider keeps files only so long, and this one is from an earlier process.
            noted.restart(self._upload(job, keep))
            found = self._find_or_create(job, noted, is_uncertain=True)
        keep({"job": found, "file": noted.files[-1]})
        return {"job": found}

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """See `Backend.poll`."""
        name = str(handle["job"])
        found = self._retrieve(name)
        status = str(found.status)
        facts = {
            key: value
            for key in ("status", "trained_tokens", "estimated_finish", "created_at", "finished_at")
            if isinstance(value := getattr(found, key, None), (str, int))
        }
        facts = {"job": name, **facts}
        if status == "succeeded":
            model = found.fine_tuned_model
            wrong = name_problem(model, job.base_model) if isinstance(model, str) else "there is none"
            if wrong is not None:
                raise RunError(
                    f"{self._job(name)} has succeeded, but its model has no name to ask for: {wrong}\nFind the model's "
                    f"name at the provider, or train it by hand; then set training.trainers.{job.group}.backend=files, "
                    f"run the command again, and once more with --set-model {job.group}=NAME"
                )
            return JobStatus(JobState.SUCCEEDED, model, f"{name} has succeeded", facts)
        if status == "failed":
            return JobStatus(JobState.FAILED, None, f"{self._job(name)} failed: {_why(found)}", facts)
        if status == "cancelled":
            return JobStatus(JobState.CANCELLED, None, f"{self._job(name)} was cancelled at the provider", facts)
        if status == "validating_files":
            self._check_validating_time(job, name)
        return JobStatus(
            JobState.RUNNING,
            None,
            f"{name}: {_RUNNING_STATUSES.get(status, escape_controls(redacted(status))[:80])}",
            facts,
        )

    def _check_validating_time(self, job: FineTuneJob, name: str) -> None:
        """See that a job does not validate its files for ever; each process waits for as long as the spec says.

        Raises:
            RunError: it has taken too long.
        """
        max_minutes = self._trainer.validating_minutes
        waited = self._clock() - self._first_polls.setdefault(name, self._clock())
        if waited > max_minutes * 60:
            raise RunError(
                f"{self._job(name)} is still validating its files after {max_minutes:g} minutes "
                f"(training.trainers.{job.group}.validating_minutes); look at it there. Running the same command "
                "again goes on waiting for it."
            )

    def _job(self, name: str) -> str:
        return f"fine-tuning job {name} at {self._model.server_label(self._group)}"

    # The calls

    def _upload(self, job: FineTuneJob, keep: KeepNote) -> str:
        """Upload the dataset; a file that is uploaded twice, because an answer was lost, is trained on once."""
        name = f"nip-{job.method}-{tagged_hash('fine-tune', job.key)[:12]}.jsonl"
        if not job.dataset.is_file():
            raise RunError(f"cannot read {job.dataset}, the dataset of {job.group}")

        file = self._retrying(lambda: self._api.upload(job.dataset, name), f"upload {job.dataset}", job)
        keep({"file": file})
        return file

    def _find_or_create(self, job: FineTuneJob, submission: _Submission, *, is_uncertain: bool) -> str:
        """Return the id of the job; look for it before every creation if an attempt so far may have created it."""
        body = self._body(job, submission.files[-1])

        def once() -> str:
            nonlocal is_uncertain
            if is_uncertain and (found := self._find(job, submission)) is not None:
                return found
            was_uncertain, is_uncertain = is_uncertain, True
            try:
                return self._api.create_job(body)
            except ApiCallError as failed:
                # A refusal of this attempt says nothing about an earlier one, whose answer was lost.
                is_uncertain = was_uncertain or failed.may_have_worked
                raise

        return self._retrying(once, f"create a fine-tuning job on {job.base_model}", job)

    def _find(self, job: FineTuneJob, submission: _Submission) -> str | None:
        """Return the id of the job if it exists; None only if several complete listings lack it."""
        for listing in range(1, SETTLING_LISTINGS + 1):
            for name, candidate in self._api.list_jobs().items():
                metadata = getattr(candidate, "metadata", None)
                mark = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
                is_ours = mark == _mark(job) or (
                    mark is None and getattr(candidate, "training_file", None) in submission.files
                )
                if is_ours and name not in submission.earlier_jobs:
                    return name
            if listing < SETTLING_LISTINGS:
                self._sleep(self._policy.wait(listing, self._jitter))
        return None

    def _body(self, job: FineTuneJob, file: str) -> dict[str, Any]:
        """What a job is asked for by; hyperparameters that the spec does not set are left to the provider."""
        kind = "supervised" if job.method == "sft" else "dpo"
        names = ("n_epochs", "batch_size", "learning_rate_multiplier", *(("beta",) if kind == "dpo" else ()))
        chosen = {name: value for name in names if (value := getattr(self._trainer, name)) is not None}
        method = {"type": kind, kind: {"hyperparameters": chosen}} if chosen else {"type": kind}
        suffix = suffix_of(self._trainer.suffix or job.name)
        return {
            "model": job.base_model,
            "training_file": file,
            "method": method,
            "seed": job.seed % MAX_SEED,
            "metadata": {METADATA_KEY: _mark(job)},
            **({"suffix": suffix} if suffix else {}),
        }

    def _retrieve(self, name: str) -> Any:
        return self._retrying(lambda: self._api.retrieve_job(name), f"look at fine-tuning job {name}")

    def _retrying(self, call: Callable[[], T], what: str, submitted: FineTuneJob | None = None) -> T:
        """Call until it succeeds, as the policy for transient failures says; the server's wish first.

        Raises:
            ProviderRefusal: no such call can succeed.
            RunError: it did not succeed in time.
        """
        started, obeyed, attempt = self._clock(), 0.0, 0
        while True:
            attempt += 1
            try:
                return call()
            except ApiCallError as error:
                failed, ours, cause = error, error.error, error.__cause__
            if not isinstance(ours, TransientError):
                raise self._permanent_error(failed, what, submitted) from cause
            asked = ours.retry_after
            per_day = submitted is not None and ours.status == 429 and _mentions(_PER_DAY, failed.detail)
            if (asked and asked + obeyed > MAX_SERVER_WAIT) or (per_day and not asked):
                raise RunError(f"cannot {what}: {ours}\n{_retry_advice(asked, per_day=per_day)}") from cause
            wait = asked or self._policy.wait(attempt, self._jitter)
            max_attempts = min(self._policy.attempts, ours.attempts or self._policy.attempts)
            late = not asked and self._clock() - started + wait > self._policy.total_seconds
            if late or attempt >= max_attempts:
                raise RunError(
                    f"cannot {what}, after {attempt} attempts: {ours}\nRun the same command again to go on from here."
                ) from cause
            self._sleep(wait)
            obeyed += asked or 0.0

    def _permanent_error(self, failed: ApiCallError, what: str, submitted: FineTuneJob | None) -> NipRunError:
        """A failure that asking again does not mend, as what the user can do about it."""
        ours, status, detail = failed.error, failed.status, failed.detail
        said = f"cannot {what}: {ours}"
        if submitted is None and status == 404:
            return RunError(
                f"{said}\nThe job is not known there: it was created with another key or at another server, or it is "
                "too old."
            )
        if submitted is not None and status in (400, 404) and detail.get("param") == "training_file":
            return _FileRefused(said)
        if submitted is not None and (status in (403, 404, 405) or _mentions(_NO_TRAINING, detail)):
            return ProviderRefusal(
                f"{said}\nWhere a provider takes no fine-tuning jobs (any more, or for this model), set "
                f"training.trainers.{submitted.group}.backend to `command` (your own trainer) or `files` (you train by "
                "hand)."
            )
        return RunError(said) if isinstance(ours, CallError) else ProviderRefusal(said)


class _FileRefused(ProviderRefusal):
    """The job's file is unknown or cannot be used."""


def _mark(job: FineTuneJob) -> str:
    """What a job carries, for people who look at it at the provider and for us; a value has at most 512 characters."""
    return job.key if len(job.key) <= 512 else tagged_hash("fine-tune", job.key)


def suffix_of(text: str) -> str:
    """A text as the suffix of a model's name: at most 64 of the characters that every name may have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:MAX_SUFFIX].strip("-_.")


def _mentions(pattern: re.Pattern[str], detail: Mapping[str, Any]) -> bool:
    return any(pattern.search(str(detail.get(key) or "")) for key in ("code", "message"))


def _retry_advice(asked: float | None, *, per_day: bool) -> str:
    """When it is worth trying again, for a person."""
    limit = "This is a limit per day. " if per_day else ""
    if asked:
        at = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(time.time() + min(asked, 1e9)))
        return f"{limit}Run the same command again after {at.strip()}, to go on from here."
    return f"{limit}The server does not say when it ends: run the same command again in some hours, to go on from here."


def _why(found: Any) -> str:
    error = getattr(found, "error", None)
    parts = {name: getattr(error, name, None) for name in ("code", "message", "param")}
    code, message, param = (escape_controls(redacted(str(parts[name])))[:1000] if parts[name] else "" for name in parts)
    said = ": ".join(part for part in (code, message) if part)
    return f"{said or 'the provider gives no reason'}{f' ({param})' if param else ''}"
