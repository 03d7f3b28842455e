"""A backend for tests and dry runs: it trains nothing and returns a new name at once.

The name has the number of examples; a verifier of that name is right more often with the `dummy` provider.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import open_to_read
from runner.models.toy_models import trained_name
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, KeepNote


class DummyBackend:
    """A backend whose jobs succeed at once; the model's name depends on the base model, dataset, method and seed."""

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
