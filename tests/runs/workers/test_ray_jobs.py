"""A run submitted as a job of a Ray cluster, as in docs/how-to/use-ray.md: `ray job submit -- nip-run SPEC ...`.

These tests need the dashboard, which accepts jobs: pip install 'ray[default]'.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.base.errors import ANSWERS_ARE_SAVED
from tests.support import ray_cluster
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

pytestmark = [
    pytest.mark.full,
    pytest.mark.usefixtures("ray_namespace"),
    pytest.mark.skipif(
        ray_cluster.find_missing_dashboard() is not None, reason=ray_cluster.find_missing_dashboard() or ""
    ),
]

KEY = "sk-of-the-nodes-alone-51c2"
MODEL = {"m": {"api_key_env": "NODES_KEY"}}
RUN_ARGUMENTS = ["spec.yaml", "execution.engine=ray", "execution.workers=2"]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder with a short path, which Ray's sockets need."""
    with tempfile.TemporaryDirectory(prefix="nr-") as name:
        yield Path(name)


def run_job_command(
    nodes: ray_cluster.RayCluster, action: str, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run a `ray job` command."""
    command_line = [sys.executable, "-m", "ray.scripts.scripts", "job", action, "--address", nodes.jobs_address]
    return subprocess.run(
        [*command_line, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def submit(
    nodes: ray_cluster.RayCluster, work: Path, *arguments: str | Path, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return run_job_command(nodes, "submit", *options, "--working-dir", work, "--", *command(*arguments))


def read_jobs(nodes: ray_cluster.RayCluster) -> str:
    with urllib.request.urlopen(f"{nodes.jobs_address}/api/jobs/") as response:
        return str(response.read().decode())


def test_a_job_gives_the_single_process_files_and_exit_code_and_never_shows_its_key(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_chat_server(latency=0.02, record=100) as server:
        spec = spec_file(tmp_path / "work", server.base_url, size=8, models=MODEL)
        monkeypatch.setenv("NODES_KEY", KEY)
        single_process_run = run_spec(spec, tmp_path / "one")
        monkeypatch.delenv("NODES_KEY")
        with ray_cluster.run_cluster(short_folder, 2, dashboard=True, NODES_KEY=KEY) as nodes:
            done = submit(nodes, tmp_path / "work", *RUN_ARGUMENTS, "--results", tmp_path / "kept")
            assert done.returncode == 0, done.stdout + done.stderr
            refused = submit(nodes, tmp_path / "work", *RUN_ARGUMENTS)
            jobs = read_jobs(nodes)
            files_with_key = ray_cluster.find_files_with(KEY.encode(), nodes.folder, tmp_path)
            stores_with_key = ray_cluster.find_stores_with(KEY.encode())
            # The search finds a key in a runtime environment, which the documentation warns against.
            planted = "sk-of-a-runtime-env-77d0"
            variables = json.dumps({"env_vars": {"PLANTED": planted}})
            run_job_command(nodes, "submit", "--runtime-env-json", variables, "--", "true")
            assert planted in read_jobs(nodes)
            assert ray_cluster.find_files_with(planted.encode(), nodes.folder)
        assert {call["headers"].get("authorization") for call in server.recorded_requests()} == {f"Bearer {KEY}"}
    assert derived_files(only_run(tmp_path / "kept")) == derived_files(single_process_run.path)
    assert not files_with_key
    assert not stores_with_key
    assert KEY not in jobs
    assert refused.returncode == 1
    assert "failed with exit code 2" in refused.stdout
    assert "use --results DIR with a permanent folder" in refused.stdout
    assert [job["driver_exit_code"] for job in sorted(json.loads(jobs), key=lambda job: job["start_time"])] == [0, 2]


def test_a_stopped_job_waits_for_calls_in_flight_and_the_next_job_resumes(tmp_path: Path, short_folder: Path) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path / "work", server.base_url, size=40)
        results = tmp_path / "kept"
        with ray_cluster.run_cluster(short_folder, 2, dashboard=True) as nodes:
            submit_options = ("--no-wait", "--submission-id", "first")
            submit(nodes, tmp_path / "work", *RUN_ARGUMENTS, "--results", results, options=submit_options)
            wait_until(lambda: server.requests >= 10)
            stopped = run_job_command(nodes, "stop", "first")
            assert "was stopped" in stopped.stdout, stopped.stdout + stopped.stderr
            wait_until(lambda: not ray_cluster.find_actors())
            run = only_run(results)
            assert len([record for record in journal_records(run) if record["kind"] == "call"]) == server.requests
            assert not (run / "in_flight").exists()
            logs = run_job_command(nodes, "logs", "first").stdout
            assert ANSWERS_ARE_SAVED in logs
            assert "SIGTERM received" not in logs
            second = submit(nodes, tmp_path / "work", *RUN_ARGUMENTS, "--results", results)
            assert second.returncode == 0, second.stdout + second.stderr
        assert max(server.stats()["bodies"].values()) == 1
    assert json.loads((run / "manifest.json").read_text())["status"] == "done"
