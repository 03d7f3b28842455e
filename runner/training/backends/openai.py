"""The backend `openai`: fine-tuning jobs at OpenAI, or at a server with the same API.

A job costs money and must be created only once. The backend saves the id of the uploaded file before it creates the
job. An attempt to create the job may have worked even if its answer was lost, the server failed or the process was
killed. After such an attempt, the backend lists the account's jobs before every further attempt. It creates a job only
if the job is in none of several complete listings. It recognizes a job by the key in the job's metadata, or by the
training file if the server drops metadata. Uploads cost nothing, so an upload whose answer was lost is repeated.
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
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, SaveNote
from runner.training.backends.model_name import name_problem

METADATA_KEY: Final = "nip_run"
MAX_SERVER_WAIT: Final = 900.0
"""The maximum total wait in seconds that a server may request for a call. If it requests more, the run stops."""
MAX_SEED: Final = 2**31
MAX_SUFFIX: Final = 64

_RUNNING_STATUSES = {
    "validating_files": "the provider is validating the files",
    "queued": "queued",
    "running": "running",
    "paused": "paused; resume the job at the provider",
}
_PER_DAY = re.compile(r"\bdaily|\bper day\b", re.IGNORECASE)
_NO_TRAINING = re.compile(
    r"training_not_available|fine.?tun\w*\b.{0,80}\b(not (be )?(available|supported|enabled)|no longer|deprecated)",
    re.IGNORECASE | re.DOTALL,
)

T = TypeVar("T")


@dataclass
class _Submission:
    """The progress of submitting a job."""

    files: list[str] = field(default_factory=list)
    """The ids of the files uploaded for the job, the current one last."""
    job: str | None = None
    """The id of the job; None until it is known."""
    earlier_jobs: set[str] = field(default_factory=set)
    """The ids of earlier jobs, which must not be mistaken for the job of this submission."""

    @classmethod
    def from_notes(cls, notes: Sequence[JobNote]) -> _Submission:
        submission = cls()
        for note in notes:
            if "job" in note:
                submission.job = str(note["job"])
            elif "file" in note:
                submission.use_file(str(note["file"]))
        return submission

    def use_file(self, file: str) -> None:
        """Use another uploaded file for the job. If there is already a job, the file is for a new one."""
        if self.job is not None:
            self.earlier_jobs.add(self.job)
            self.files.clear()
        self.files.append(file)
        self.job = None


@dataclass(eq=False)
class OpenAiBackend:
    """Submits and polls the jobs of one model group."""

    group: str
    trainer: TrainerSettings
    model: ModelSettings
    policy: TransientPolicy
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._api = fine_tuning_api(self.model, self.group)
        self._first_poll_times: dict[str, float] = {}
        self._submitted: set[str] = set()
        """The ids of the jobs that this process has created or found at the server."""
        self._jitter = random.Random()

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], save_note: SaveNote) -> JobHandle:
        """Upload the dataset and create the job, if necessary; see `Backend.submit`.

        The handle has the job's id under `job`.
        """
        submission = _Submission.from_notes(notes)
        if submission.job is not None:
            return {"job": submission.job}
        submission.earlier_jobs.update(str(note["job"]) for note in job.replaces if "job" in note)
        is_resumed = bool(submission.files)
        if not is_resumed:
            submission.use_file(self._upload(job, save_note))
        try:
            job_id = self._find_or_create(job, submission, is_uncertain=is_resumed)
        except _FileRefused:
            if not is_resumed:
                raise
            # The file is from an earlier process, and providers delete files after some time.
            submission.use_file(self._upload(job, save_note))
            job_id = self._find_or_create(job, submission, is_uncertain=True)
        save_note({"job": job_id, "file": submission.files[-1]})
        self._submitted.add(job_id)
        return {"job": job_id}

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """Return the job's status at the provider; see `Backend.poll`."""
        name = str(handle["job"])
        label = self._job_label(name)
        remote_job = self._call_with_retries(
            lambda: self._api.retrieve_job(name),
            f"retrieve fine-tuning job {name}",
            retries_not_found=name in self._submitted,
        )
        status = str(remote_job.status)
        facts = {
            key: value
            for key in ("status", "trained_tokens", "estimated_finish", "created_at", "finished_at")
            if isinstance(value := getattr(remote_job, key, None), (str, int))
        }
        facts = {"job": name, **facts}
        if status == "succeeded":
            model = remote_job.fine_tuned_model
            problem = name_problem(model, job) if isinstance(model, str) else "the provider gives no name"
            if problem is not None:
                raise RunError(
                    f"{label} has succeeded, but its model has no valid name: {problem}\nFind the name at "
                    f"the provider, or train the model by hand. Then run the command again with "
                    f"training.trainers.{job.group}.backend=files, and once more with --set-model {job.group}=NAME"
                )
            return JobStatus(JobState.SUCCEEDED, model, f"{name} has succeeded", facts)
        if status == "failed":
            return JobStatus(JobState.FAILED, None, f"{label} failed: {_failure_reason(remote_job)}", facts)
        if status == "cancelled":
            return JobStatus(JobState.CANCELLED, None, f"{label} was cancelled at the provider", facts)
        if status == "validating_files":
            self._check_validating_time(job, name)
        return JobStatus(
            JobState.RUNNING,
            None,
            f"{name}: {_RUNNING_STATUSES.get(status, escape_controls(redacted(status))[:80])}",
            facts,
        )

    def _check_validating_time(self, job: FineTuneJob, name: str) -> None:
        """Check that the provider has not validated a job's files for longer than the spec allows, in this process.

        Raises:
            RunError: the validation takes too long.
        """
        max_minutes = self.trainer.validating_minutes
        waited = self.clock() - self._first_poll_times.setdefault(name, self.clock())
        if waited > max_minutes * 60:
            raise RunError(
                f"{self._job_label(name)} is still validating its files after {max_minutes:g} minutes "
                f"(training.trainers.{job.group}.validating_minutes). Check the job at the provider, or run the same "
                "command again to keep waiting."
            )

    def _job_label(self, name: str) -> str:
        return f"fine-tuning job {name} at {self.model.server_label(self.group)}"

    # The calls

    def _upload(self, job: FineTuneJob, save_note: SaveNote) -> str:
        """Upload the dataset and return the file's id.

        If an answer is lost, the dataset is uploaded again. Only one of the files is used for training.
        """
        name = f"nip-{job.method}-{tagged_hash('fine-tune', job.key)[:12]}.jsonl"
        if not job.dataset.is_file():
            raise RunError(
                f"the dataset of {job.group}, {job.dataset}, is missing; run the same command again to build it"
            )

        file = self._call_with_retries(lambda: self._api.upload(job.dataset, name), f"upload {job.dataset}", job)
        save_note({"file": file})
        return file

    def _find_or_create(self, job: FineTuneJob, submission: _Submission, *, is_uncertain: bool) -> str:
        """Return the id of the job, and create it if necessary.

        `is_uncertain` is true if an earlier attempt may have created the job. Then look for the job before creating it.
        Do the same after every further attempt that may have worked.
        """
        body = self._request_body(job, submission.files[-1])

        def attempt_once() -> str:
            nonlocal is_uncertain
            if is_uncertain and (job_id := self._find(job, submission)) is not None:
                return job_id
            was_uncertain, is_uncertain = is_uncertain, True
            try:
                return self._api.create_job(body)
            except ApiCallError as failed:
                # A refusal of this attempt says nothing about an earlier attempt whose answer was lost.
                is_uncertain = was_uncertain or failed.may_have_worked
                raise

        return self._call_with_retries(attempt_once, f"create a fine-tuning job on {job.base_model}", job)

    def _find(self, job: FineTuneJob, submission: _Submission) -> str | None:
        """Return the id of the job if it exists; None only if it is in none of several complete listings."""
        for listing in range(1, SETTLING_LISTINGS + 1):
            for name, candidate in self._api.list_jobs().items():
                metadata = getattr(candidate, "metadata", None)
                key = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
                is_match = key == _metadata_key_of(job) or (
                    key is None and getattr(candidate, "training_file", None) in submission.files
                )
                if is_match and name not in submission.earlier_jobs:
                    return name
            if listing < SETTLING_LISTINGS:
                self.sleep(self.policy.wait(listing, self._jitter))
        return None

    def _request_body(self, job: FineTuneJob, file: str) -> dict[str, object]:
        """Return the request body for a job, without hyperparameters that the spec does not set."""
        kind = "supervised" if job.method == "sft" else "dpo"
        names = ("n_epochs", "batch_size", "learning_rate_multiplier", *(("beta",) if kind == "dpo" else ()))
        chosen = {name: value for name in names if (value := getattr(self.trainer, name)) is not None}
        method = {"type": kind, kind: {"hyperparameters": chosen}} if chosen else {"type": kind}
        suffix = suffix_of(self.trainer.suffix or job.name)
        return {
            "model": job.base_model,
            "training_file": file,
            "method": method,
            "seed": job.seed % MAX_SEED,
            "metadata": {METADATA_KEY: _metadata_key_of(job)},
            **({"suffix": suffix} if suffix else {}),
        }

    def _call_with_retries(
        self,
        call: Callable[[], T],
        action: str,
        submitted: FineTuneJob | None = None,
        *,
        retries_not_found: bool = False,
    ) -> T:
        """Call until the call succeeds, and return its result. `submitted` is the job that the call submits, if any.

        With `retries_not_found`, the status 404 is retried, because a server may not find a new job immediately.
        The policy for transient failures sets the attempts and waits, but a wait that the server requests has priority.

        Raises:
            ProviderRefusal: the provider refuses the call, so that no attempt can succeed.
            RunError: no attempt succeeded in time.
        """
        started, waited, attempt = self.clock(), 0.0, 0
        while True:
            attempt += 1
            try:
                return call()
            except ApiCallError as error:
                failed, api_error, cause = error, error.error, error.__cause__
            is_not_found = retries_not_found and failed.status == 404
            if not isinstance(api_error, TransientError):
                if not is_not_found or attempt >= self.policy.attempts:
                    raise self._permanent_error(failed, action, submitted) from cause
                api_error = TransientError(str(api_error))
            requested = api_error.retry_after
            per_day = submitted is not None and api_error.status == 429 and _has_match(_PER_DAY, failed.detail)
            if (requested and requested + waited > MAX_SERVER_WAIT) or (per_day and not requested):
                raise RunError(f"cannot {action}: {api_error}\n{_retry_advice(requested, per_day=per_day)}") from cause
            wait = requested or self.policy.wait(attempt, self._jitter)
            max_attempts = min(self.policy.attempts, api_error.attempts or self.policy.attempts)
            is_late = not requested and self.clock() - started + wait > self.policy.total_seconds
            if is_late or attempt >= max_attempts:
                raise RunError(
                    f"cannot {action}, after {attempt} attempts: {api_error}\n"
                    "Run the same command again to continue from here."
                ) from cause
            self.sleep(wait)
            waited += requested or 0.0

    def _permanent_error(self, failed: ApiCallError, action: str, submitted: FineTuneJob | None) -> NipRunError:
        """Return the error for a failure that a retry would not fix, with advice for the user."""
        error, status, detail = failed.error, failed.status, failed.detail
        message = f"cannot {action}: {error}"
        if submitted is None and status == 404:
            return RunError(
                f"{message}\nThe server does not know the job: it was created with another API key or at another "
                "server, or it is too old. Set the key and address that created the job, or start over with --again."
            )
        if submitted is not None and status in (400, 404) and detail.get("param") == "training_file":
            return _FileRefused(message)
        if submitted is not None and (status in (403, 404, 405) or _has_match(_NO_TRAINING, detail)):
            return ProviderRefusal(
                f"{message}\nIf the provider does not accept fine-tuning jobs (for this model, or any more), set "
                f"training.trainers.{submitted.group}.backend to `command` (your own trainer) or `files` (you train by "
                "hand)."
            )
        return RunError(message) if isinstance(error, CallError) else ProviderRefusal(message)


class _FileRefused(ProviderRefusal):
    """Raised if the server does not know the job's file or cannot use it."""


def _metadata_key_of(job: FineTuneJob) -> str:
    """Return the key of a job for its metadata, or a hash of the key if it has more than 512 characters."""
    return job.key if len(job.key) <= 512 else tagged_hash("fine-tune", job.key)


def suffix_of(text: str) -> str:
    """Convert a text to the suffix of a model's name: at most 64 characters, all valid in model names."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:MAX_SUFFIX].strip("-_.")


def _has_match(pattern: re.Pattern[str], detail: Mapping[str, object]) -> bool:
    return any(pattern.search(str(detail.get(key) or "")) for key in ("code", "message"))


def _retry_advice(wait_seconds: float | None, *, per_day: bool) -> str:
    """Return a sentence that says when to run the command again."""
    limit = "This is a limit per day. " if per_day else ""
    if wait_seconds:
        retry_time = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(time.time() + min(wait_seconds, 1e9)))
        return f"{limit}Run the same command again after {retry_time.strip()} to continue from here."
    return f"{limit}The server does not say how long to wait. Run the same command again in a few hours to continue."


def _failure_reason(remote_job: Any) -> str:
    error = getattr(remote_job, "error", None)
    parts = {name: getattr(error, name, None) for name in ("code", "message", "param")}
    code, message, param = (escape_controls(redacted(str(parts[name])))[:1000] if parts[name] else "" for name in parts)
    reason = ": ".join(part for part in (code, message) if part)
    return f"{reason or 'the provider gives no reason'}{f' ({param})' if param else ''}"
