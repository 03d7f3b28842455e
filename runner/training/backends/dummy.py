"""No training at all: a new name at once, for tests and dry runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.hashing import tagged_hash
from runner.training.backends.base import FineTuneJob, JobHandle, JobNote, JobState, JobStatus, KeepNote

_MADE_BY_US = re.compile(r"(:dummy-[0-9a-f]{8})+\Z")


class DummyBackend:
    """Every job succeeds at once; the name says which base model, and depends on all that a training depends on."""

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        del job, notes, keep
        return {}

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        del handle
        digest = tagged_hash("dummy-model", [job.base_model, job.method, job.dataset_sha256, job.seed])[:8]
        return JobStatus(
            JobState.SUCCEEDED, f"{_MADE_BY_US.sub('', job.base_model)}:dummy-{digest}", "no model was trained"
        )
