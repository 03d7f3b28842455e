"""The loopback provider that fine-tunes behaves as the tests of training expect."""

from __future__ import annotations

import json
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from runner.models.settings import ModelSettings
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.interface import FineTuneJob, JobState
from runner.training.backends.registry import TrainedGroup, create_backend
from tests.support.hang_guard import HANG_SECONDS
from tests.support.runs import metric, run_spec
from tests.support.servers.fine_tune import count_trainings
from tests.support.servers.fine_tune_client import FineTuningProvider, run_fine_tuning_provider
from tests.support.specs import spec_file


def train_model(
    server: FineTuningProvider, folder: Path, base_model: str, *, examples: int = 12, key: str = "run/1/m"
) -> str:
    """Train a model once more and return the new model's name."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = folder / "m.sft.jsonl"
    dataset.write_text((json.dumps({"messages": []}) + "\n") * examples)
    model = ModelSettings(model=base_model, base_url=server.base_url, timeout=HANG_SECONDS)
    backend = create_backend(TrainedGroup("m", TrainerSettings(backend="openai"), model))
    job = FineTuneJob(key, "m", "sft", base_model, dataset, "ab" * 32, folder / "job", 7, "tiny")
    handle = backend.submit(job, [], lambda record: None)
    while (status := backend.poll(job, handle)).state is JobState.RUNNING:
        pass
    assert status.model is not None
    return status.model


@pytest.mark.full
def test_accuracy_of_a_verifier_grows_with_its_trainings(tmp_path: Path) -> None:
    accuracies = []
    with run_fine_tuning_provider(accuracy=0.5, gain=0.15) as server:
        names = ["tiny"]
        for index in range(3):
            names.append(train_model(server, tmp_path / str(index), names[-1]))
        for index in (0, 1, 3):
            (tmp_path / f"play{index}").mkdir()
            path = spec_file(
                tmp_path / f"play{index}", server.base_url, size=150, models={"m": {"model": names[index]}}
            )
            result = run_spec(path, tmp_path / f"play{index}" / "results")
            accuracies.append(metric(result, "accuracy")["value"])
        model_requests = server.stats()["models"]
    assert [count_trainings(name) for name in names] == [0, 1, 2, 3]
    assert len(set(names)) == 4
    assert accuracies[0] < accuracies[1] < accuracies[2]
    assert accuracies[0] < 0.6
    assert accuracies[2] > 0.85
    assert set(model_requests) == {names[0], names[1], names[3]}


def test_equal_jobs_get_equal_model_names_at_two_servers(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        with run_fine_tuning_provider() as server:
            names.append(train_model(server, tmp_path, train_model(server, tmp_path, "tiny")))
            other_name = train_model(server, tmp_path, "tiny", examples=13)
            assert other_name != names[-1]
    assert names[0] == names[1]


def test_model_answers_only_after_its_job_has_succeeded(tmp_path: Path) -> None:
    body: dict[str, Any] = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]}
    with run_fine_tuning_provider() as server:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            server.request_json("/v1/chat/completions", {**body, "model": "ft:tiny:tiny:1x000000"})
        name = train_model(server, tmp_path, "tiny")
        answer = server.request_json("/v1/chat/completions", {**body, "model": name})
        models = server.request_json("/v1/models")
    assert answer["model"] == name
    assert [model["id"] for model in models["data"]] == ["tiny", "small", name]
