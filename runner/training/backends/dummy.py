"""The backend `dummy` for tests and dry runs: it trains nothing and immediately returns a new model name.

The name contains the number of examples. The more examples, the more often the `dummy` provider gives correct verdicts
for a verifier with this name.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import open_to_read
from runner.models.toy_models import trained_name
from runner.training.backends.interface import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, SaveNote


class DummyBackend:
    """A backend whose jobs succeed immediately. A model's name depends on the base model, dataset, method and seed."""

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], save_note: SaveNote) -> JobHandle:
        del job, notes, save_note
        return {}

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        del handle
        digest = tagged_hash("dummy-model", [job.base_model, job.method, job.dataset_sha256, job.seed])[:8]
        with open_to_read(job.dataset) as file:
            examples = sum(1 for line in file if line.strip())
        return JobStatus(
            JobState.SUCCEEDED, trained_name(job.base_model, examples, digest), "a toy: no model was trained"
        )
