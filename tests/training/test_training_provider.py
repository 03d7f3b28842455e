"""Training runs from the command line, with a simulated fine-tuning provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.results.folder import RunFolder
from tests.support.processes import nip_run, nip_run_here
from tests.support.servers.fine_tune_client import run_fine_tuning_provider
from tests.support.training import provider_changes, read_datasets, training_spec

SHARED = {"models": {"p": {"share_prompts": True}, "v": {"share_prompts": True}}}


def read_final_state(folder: Path) -> tuple[dict[str, bytes], bytes]:
    (run,) = (path.parent for path in folder.glob("results/runs/*/stages.jsonl"))
    return read_datasets(RunFolder(run)), (run / "state.json").read_bytes()


@pytest.mark.full
def test_job_created_just_before_a_kill_is_found_by_the_next_process(tmp_path: Path) -> None:
    """The log does not have the created job yet: both processes must use the same key for it."""
    training = {"iterations": 1, "test": {"scheme": "none"}}
    with run_fine_tuning_provider() as provider:
        frozen = {"verifier": {"freeze": True}}
        path = training_spec(
            tmp_path, **provider_changes(provider.base_url, training=training, agents=frozen, **SHARED)
        )
        spec = yaml.safe_load(path.read_text())
        del spec["training"]["trainers"]["v"]
        path.write_text(yaml.safe_dump(spec))
        assert nip_run("spec.yaml", cwd=tmp_path).returncode == 0
        state = read_final_state(tmp_path)
        (log,) = tmp_path.glob("results/runs/*/stages.jsonl")
        lines = log.read_bytes().splitlines(keepends=True)
        note_index = next(index for index, line in enumerate(lines) if b'"job":"ftjob' in line)
        log.write_bytes(b"".join(lines[:note_index]))
        manifest = json.loads((log.parent / "manifest.json").read_bytes())
        (log.parent / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        done = nip_run("spec.yaml", cwd=tmp_path)
        assert (done.returncode, len(provider.jobs())) == (0, 1), done.stderr
    assert read_final_state(tmp_path) == state


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"end": "failed", "error": {"code": "bad", "message": "a bad line", "param": None}}, "a bad line"),
        ({"end": "cancelled"}, "cancelled"),
    ],
)
def test_failed_job_ends_the_run_and_the_next_command_starts_a_new_job(
    tmp_path: Path, script: dict[str, Any], message: str
) -> None:
    with run_fine_tuning_provider(script=script) as provider:
        training = {"iterations": 1, "test": {"scheme": "none"}}
        training_spec(tmp_path, **provider_changes(provider.base_url, training=training, **SHARED))
        failed = nip_run_here("spec.yaml", cwd=tmp_path)
        assert failed.returncode == 1
        assert message in failed.stderr
        assert "to start a new job" in failed.stderr
        assert "Traceback" not in failed.stderr
        first, chats = len(provider.jobs()), provider.stats()["chat"]
        provider.change(script={"end": "succeeded"})
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(provider.jobs()) == 2 * first
        assert provider.stats()["chat"] == chats


@pytest.mark.full
def test_unobserved_job_failure_is_reported_before_a_new_job_is_created(tmp_path: Path) -> None:
    with run_fine_tuning_provider(script={"through": ["validating_files"], "end": None}) as provider:
        training = {"iterations": 1, "test": {"scheme": "none"}}
        spec = provider_changes(provider.base_url, training=training, **SHARED)
        for trainer in spec["training"]["trainers"].values():
            trainer["validating_minutes"] = 0.005
        training_spec(tmp_path, **spec)
        assert nip_run_here("spec.yaml", cwd=tmp_path).returncode == 1
        first, second = [job["id"] for job in provider.jobs()]
        provider.set_job(first, status="failed", error={"code": "bad_line", "message": "line 3 was flagged"})
        provider.set_job(second, status="succeeded", model="ft:small:by-hand:1x1")
        provider.change(script={"end": "succeeded"})
        failed = nip_run_here("spec.yaml", cwd=tmp_path)
        assert failed.returncode == 1
        assert "line 3 was flagged" in failed.stderr
        assert len(provider.jobs()) == 2
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(provider.jobs()) == 3


@pytest.mark.full
def test_job_stuck_in_validation_is_an_error_and_awaited_again(tmp_path: Path) -> None:
    with run_fine_tuning_provider(script={"through": ["validating_files"], "end": None}) as provider:
        spec = provider_changes(provider.base_url, training={"iterations": 1}, **SHARED)
        for trainer in spec["training"]["trainers"].values():
            trainer["validating_minutes"] = 0.005
        training_spec(tmp_path, **spec)
        stuck_run = nip_run_here("spec.yaml", cwd=tmp_path)
        assert stuck_run.returncode == 1
        assert "still validating its files" in stuck_run.stderr
        names = [job["id"] for job in provider.jobs()]
        for number, name in enumerate(names):
            provider.set_job(name, status="succeeded", model=f"ft:tiny:by-hand:1x{number:06x}")
        done = nip_run_here("spec.yaml", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert [job["id"] for job in provider.jobs()] == names
        assert len(json.loads(done.stdout)[0]["iterations"]) == 1


@pytest.mark.full
def test_running_job_keeps_the_dataset_that_it_was_created_with(tmp_path: Path) -> None:
    with run_fine_tuning_provider(script={"through": ["validating_files"], "end": None}) as provider:
        training = {"iterations": 1, "test": {"scheme": "none"}}
        spec = provider_changes(provider.base_url, training=training, **SHARED)
        spec["training"]["trainers"]["p"]["validating_minutes"] = 0.005
        training_spec(tmp_path, **spec)
        assert nip_run_here("spec.yaml", cwd=tmp_path).returncode == 1
        for number, job in enumerate(provider.jobs()):
            provider.set_job(job["id"], status="succeeded", model=f"ft:tiny:by-hand:{number}")
        done = nip_run_here("spec.yaml", "training.trainers.p.format=trl", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        uploaded = {job["id"]: job["sha256"] for job in provider.jobs()}
    steps = [model["lineage"][0] for model in json.loads(read_final_state(tmp_path)[1]).values()]
    assert {step["job"]: step["dataset_sha256"] for step in steps} == uploaded
