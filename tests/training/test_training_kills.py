"""Training runs killed at random times: the same result as an undisturbed run, and no duplicate jobs."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runner.results.folder import RunFolder
from tests.support.processes import start_nip_run_silently, wait_or_kill
from tests.support.servers.fine_tune_client import FineTuningProvider, run_fine_tuning_provider
from tests.support.training import malt_changes, provider_changes, read_datasets, training_spec

pytestmark = pytest.mark.full

KILLS = 20
AT_ONCE = 8
"""Calls in flight at the provider."""
PROVIDER: dict[str, Any] = {"latency": 0.01, "script": {"looks": 2}}
SHARED = {"share_prompts": True}
"""One request with `n` for all answers to a step."""
KINDS: dict[str, dict[str, Any]] = {
    "expert_iteration": {
        "training": {"iterations": 3, "guess_replacement": {"proportion": 0.5}, "test": {"scheme": "all"}},
        "models": {"p": SHARED, "v": SHARED},
    },
    "malt": malt_changes(
        training={"iterations": 2},
        rollouts={"num_responses_per_timestep": 3, "per_datapoint": 1},
        models={"p": SHARED, "v": SHARED},
    ),
}


def write_spec(folder: Path, provider: FineTuningProvider, kind: str) -> None:
    training_spec(folder, **provider_changes(provider.base_url, **KINDS[kind]))


def finish_run(folder: Path) -> None:
    assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=folder)) == 0


def run_and_kill(folder: Path, seconds: float) -> bool:
    """Kill the run after this time; return False if it had ended before."""
    process = start_nip_run_silently("spec.yaml", "-q", cwd=folder)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    return process.wait() != 0


def read_final_state(folder: Path) -> tuple[dict[str, bytes], bytes]:
    """Return the fine-tune datasets, their sidecars and the final state."""
    (run,) = (path.parent for path in folder.glob("results/runs/*/stages.jsonl"))
    return read_datasets(RunFolder(run)), (run / "state.json").read_bytes()


def list_jobs(provider: FineTuningProvider) -> list[tuple[Any, ...]]:
    """Return the provider's jobs by base model, method and content of the file."""
    return sorted((job["model"], job["method"]["type"], job["sha256"], job["status"]) for job in provider.jobs())


@pytest.mark.parametrize("kind", KINDS)
def test_killed_run_has_the_same_result_and_creates_no_duplicate_job(tmp_path: Path, kind: str) -> None:
    rng = random.Random(1)
    with run_fine_tuning_provider(**PROVIDER) as provider:
        started = time.monotonic()
        write_spec(tmp_path / "whole", provider, kind)
        finish_run(tmp_path / "whole")
        duration = time.monotonic() - started
        expected, jobs, calls = read_final_state(tmp_path / "whole"), list_jobs(provider), provider.stats()["chat"]
        models = provider.stats()["models"]
    assert {job[1] for job in jobs} == {"dpo" if kind == "malt" else "supervised"}
    assert len(jobs) >= 4
    assert any(name.startswith("ft:") for name in models)
    kills = 0
    for number in range(3 * KILLS):
        with run_fine_tuning_provider(**PROVIDER) as provider:
            folder = tmp_path / str(number)
            write_spec(folder, provider, kind)
            if not run_and_kill(folder, rng.uniform(0.3, duration)):
                continue
            finish_run(folder)
            assert read_final_state(folder) == expected
            assert list_jobs(provider) == jobs
            # Up to twice the calls in flight may have been answered but not stored.
            assert provider.stats()["chat"] - calls <= 2 * AT_ONCE
        kills += 1
        if kills == KILLS:
            break
    assert kills == KILLS


@pytest.mark.parametrize("kind", KINDS)
def test_repeatedly_killed_run_has_the_same_result(tmp_path: Path, kind: str) -> None:
    rng = random.Random(2)
    with run_fine_tuning_provider(**PROVIDER) as provider:
        write_spec(tmp_path / "whole", provider, kind)
        finish_run(tmp_path / "whole")
        expected, jobs = read_final_state(tmp_path / "whole"), list_jobs(provider)
    with run_fine_tuning_provider(**PROVIDER) as provider:
        write_spec(tmp_path / "killed", provider, kind)
        for _ in range(KILLS):
            run_and_kill(tmp_path / "killed", rng.uniform(0.6, 2.0))
        finish_run(tmp_path / "killed")
        assert read_final_state(tmp_path / "killed") == expected
        assert list_jobs(provider) == jobs
