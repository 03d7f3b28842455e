"""Fine-tuning jobs at a provider, for the tests of the backend that submits them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.interface import FineTuneJob, JobState, JobStatus
from runner.training.backends.openai import OpenAiBackend
from runner.training.backends.registry import TrainedGroup, create_backend
from tests.support.hang_guard import HANG_SECONDS
from tests.support.servers.fine_tune_client import FineTuningProvider

SHORT_WAITS = TransientPolicy(attempts=6, first_wait=0.001, max_wait=0.002)
EXAMPLE = {"messages": [{"role": "user", "content": "Is it right?"}, {"role": "assistant", "content": "Yes."}]}


def make_job(folder: Path, **changes: Any) -> FineTuneJob:
    (folder / "job").mkdir(parents=True, exist_ok=True)
    method = changes.get("method", "sft")
    pair = {"input": {"messages": []}, "preferred_output": [], "non_preferred_output": []}
    dataset = folder / f"m.{method}.jsonl"
    dataset.write_text((json.dumps(EXAMPLE if method == "sft" else pair) + "\n") * 12)
    values: dict[str, Any] = {
        "key": "run/1/m", "group": "m", "method": method, "base_model": "tiny", "dataset": dataset,
        "dataset_sha256": "ab" * 32, "folder": folder / "job", "seed": 7, "name": "my run",
    }  # fmt: skip
    return FineTuneJob(**{**values, **changes})


def make_backend(server: FineTuningProvider, *, waits: list[float] | None = None, **trainer: Any) -> OpenAiBackend:
    model: dict[str, Any] = trainer.pop("model", {})
    policy = trainer.pop("policy", SHORT_WAITS)
    backend = create_backend(TrainedGroup(
        "m", TrainerSettings(backend="openai", **trainer), ModelSettings(model="tiny", base_url=server.base_url,
        **{"timeout": HANG_SECONDS, **model}), policy=policy, sleep=time.sleep if waits is None else waits.append,
    ))  # fmt: skip
    assert isinstance(backend, OpenAiBackend)
    return backend


def submit_job(server: FineTuningProvider, job: FineTuneJob, **options: Any) -> tuple[OpenAiBackend, Mapping[str, Any]]:
    backend = make_backend(server, **options)
    return backend, backend.submit(job, [], lambda record: None)


def poll_to_end(backend: OpenAiBackend, job: FineTuneJob, handle: Mapping[str, Any]) -> list[JobStatus]:
    statuses = [backend.poll(job, handle)]
    while statuses[-1].state in (JobState.RUNNING, JobState.WAITING):
        assert len(statuses) < 50
        statuses.append(backend.poll(job, handle))
    return statuses


class SimulatedKill(BaseException):
    """Raised to simulate that the process is killed."""


def fail_on_record(record: Mapping[str, Any]) -> None:
    raise AssertionError(record)
