"""Files of `specs/cluster/` that users copy: they are valid and play a run in shards to its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.results.leaderboard.results_folder import Results
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import environment, wait_for_requests, wait_until
from tests.support.runs import derived_files, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

CLUSTER = ROOT / "specs" / "cluster"
SCRIPTS = sorted(path.name for path in CLUSTER.glob("*.sh"))


def load_job() -> dict[str, Any]:
    (job,) = yaml.safe_load_all((CLUSTER / "kubernetes-job.yaml").read_text("utf-8"))
    return dict(job)


@pytest.fixture
def cluster_folder(tmp_path: Path) -> Path:
    """Return a folder with a spec and a cluster's commands: `nip-run`, and an `ssh` to this machine."""
    spec_file(tmp_path, size=6)
    write_script(tmp_path / "bin" / "nip-run", f'exec {sys.executable} -m runner "$@"')
    write_script(tmp_path / "bin" / "ssh", 'shift; exec sh -c "$1"')
    return tmp_path


def write_script(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
    path.chmod(0o755)


def make_environment(folder: Path, **extra: str) -> dict[str, str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return environment(
        **{"RUN": "big", "SPEC": "spec.yaml", "SHARDS": "2", "PYTHONPATH": str(ROOT), **extra, "PATH": path}
    )


def run_script(name: str, *arguments: str, folder: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", CLUSTER / name, *arguments], cwd=folder, env=make_environment(folder, **extra),
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def has_files_of_whole_run(folder: Path) -> bool:
    whole_run = run_spec(folder / "spec.yaml", folder / "whole", run_id="big").folder.path
    run = only_run(folder / "results")
    return run.name == "big" and derived_files(run) == derived_files(whole_run)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_valid_bash_and_names_a_missing_variable(name: str, tmp_path: Path) -> None:
    assert subprocess.run(["bash", "-n", CLUSTER / name], check=False).returncode == 0
    assert os.access(CLUSTER / name, os.X_OK)
    done = subprocess.run(
        ["bash", CLUSTER / name], cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode
    assert "RUN: set RUN to an id for the run" in done.stderr


def test_the_kubernetes_job_is_indexed_and_has_a_pod_for_each_shard() -> None:
    job = load_job()
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert values["SHARDS"] == str(spec["completions"])
    assert pod["restartPolicy"] == "Never", "a limit of failures for each index requires it"
    assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"] == container["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.full
def test_a_slurm_array_plays_the_run_and_its_last_task_merges(cluster_folder: Path) -> None:
    for task in ("2", "1"):
        done = run_script(
            "slurm-array.sh", "-q", folder=cluster_folder, SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_TASK_COUNT="1"
        )
        assert done.returncode == 0, done.stderr
    assert has_files_of_whole_run(cluster_folder)
    repeated = run_script("slurm-array.sh", "-q", folder=cluster_folder, SLURM_ARRAY_TASK_ID="1")
    assert repeated.returncode == 0, "a task that is requeued too late does no harm"


@pytest.mark.full
def test_a_slurm_task_that_runs_out_of_time_is_requeued_and_resumes(cluster_folder: Path) -> None:
    write_script(cluster_folder / "bin" / "scontrol", 'echo "$@" > requeued')
    with run_chat_server(latency=0.2) as server:
        spec_file(cluster_folder, server.base_url, size=6)
        shutil.copytree(cluster_folder, cluster_folder.with_name("fresh"), ignore=shutil.ignore_patterns("bin"))
        task = make_environment(cluster_folder, SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_JOB_ID="77")
        process = subprocess.Popen(["bash", CLUSTER / "slurm-array.sh", "-q"], cwd=cluster_folder, env=task)
        wait_for_requests(server, "requests", 2, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == 130
        assert (cluster_folder / "requeued").read_text("utf-8") == "requeue 77_1\n"
        for number in ("1", "2"):
            assert run_script("slurm-array.sh", "-q", folder=cluster_folder, SLURM_ARRAY_TASK_ID=number).returncode == 0
        assert has_files_of_whole_run(cluster_folder)
        wait_until(lambda: process.poll() is not None)


@pytest.mark.full
@pytest.mark.parametrize("copy", ["no", "yes"])
def test_a_loop_over_ssh_plays_the_run_and_merges(cluster_folder: Path, copy: str) -> None:
    """Without a shared disk, the hosts use another folder."""
    folder = cluster_folder
    if copy == "yes":
        folder = cluster_folder / "far"
        spec_file(folder, size=6)
    done = run_script(
        "ssh-loop.sh", "one", "two", folder=cluster_folder, FOLDER=str(folder), COPY=copy, SSH="ssh", SHARDS="9",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert has_files_of_whole_run(cluster_folder)
    assert (Results(cluster_folder / "results").board.query("SELECT run_id, rollouts FROM runs")[1]) == [("big", 6)]


@pytest.mark.full
def test_the_pods_of_the_job_play_the_run(cluster_folder: Path) -> None:
    (container,) = load_job()["spec"]["template"]["spec"]["containers"]
    command = [*container["command"], *container["args"]]
    for index in ("0", "1"):
        pod = subprocess.run(
            command,
            cwd=cluster_folder,
            env=make_environment(cluster_folder, JOB_COMPLETION_INDEX=index),
            capture_output=True,
            text=True,
            check=False,
        )
        assert pod.returncode == 0, pod.stderr
    assert has_files_of_whole_run(cluster_folder)
