"""A toy that trains nothing: a new name at once, for tests and dry runs.

The name says how many examples there were, and the `dummy` provider has a verifier of that name be right more often.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import open_to_read
from runner.models.toy_models import trained_name
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, KeepNote


class DummyBackend:
    """Every job succeeds at once; the name says which base model, and depends on all that a training depends on."""

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        del job, notes, keep
        return {}

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        del handle
        digest = tagged_hash("dummy-model", [job.base_model, job.method, job.dataset_sha256, job.seed])[:8]
        with open_to_read(job.dataset) as file:
            examples = sum(1 for line in file if line.strip())
        return JobStatus(
            JobState.SUCCEEDED, trained_name(job.base_model, examples, digest), "a toy: no model was trained"
        )
