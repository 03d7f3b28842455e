"""A run submitted as a job of a Ray cluster, as in docs/how-to/use-ray.md: `ray job submit -- nip-run SPEC ...`.

It needs the dashboard, which takes jobs: pip install 'ray[default]'.
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
RUN = ["spec.yaml", "execution.engine=ray", "execution.workers=2"]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short, as Ray's sockets want it."""
    with tempfile.TemporaryDirectory(prefix="nr-") as name:
        yield Path(name)


def ray(nodes: ray_cluster.RayCluster, what: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """A command of Ray's on jobs."""
    line = [sys.executable, "-m", "ray.scripts.scripts", "job", what, "--address", nodes.jobs_address]
    return subprocess.run(
        [*line, *map(str, words)], env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


def submit(
    nodes: ray_cluster.RayCluster, work: Path, *words: str | Path, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return ray(nodes, "submit", *options, "--working-dir", work, "--", *command(*words))


def said_of_jobs(nodes: ray_cluster.RayCluster) -> str:
    with urllib.request.urlopen(f"{nodes.jobs_address}/api/jobs/") as answer:
        return str(answer.read().decode())


def test_a_job_is_the_run_of_one_process_with_its_exit_code_and_its_key_is_seen_nowhere(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_chat_server(latency=0.02, record=100) as server:
        spec = spec_file(tmp_path / "work", server.base_url, size=8, models=MODEL)
        monkeypatch.setenv("NODES_KEY", KEY)
        whole = run_spec(spec, tmp_path / "one")
        monkeypatch.delenv("NODES_KEY")
        with ray_cluster.run_cluster(short, 2, dashboard=True, NODES_KEY=KEY) as nodes:
            done = submit(nodes, tmp_path / "work", *RUN, "--results", tmp_path / "kept")
            assert done.returncode == 0, done.stdout + done.stderr
            refused = submit(nodes, tmp_path / "work", *RUN)
            jobs = said_of_jobs(nodes)
            seen = ray_cluster.find_files_with(KEY.encode(), nodes.folder, tmp_path)
            stores = ray_cluster.find_stores_with(KEY.encode())
            # The same search finds a key that came the other way, which the documentation warns of.
            planted = "sk-of-a-runtime-env-77d0"
            variables = json.dumps({"env_vars": {"PLANTED": planted}})
            ray(nodes, "submit", "--runtime-env-json", variables, "--", "true")
            assert planted in said_of_jobs(nodes)
            assert ray_cluster.find_files_with(planted.encode(), nodes.folder)
        assert {call["headers"].get("authorization") for call in server.recorded_requests()} == {f"Bearer {KEY}"}
    assert derived_files(only_run(tmp_path / "kept")) == derived_files(whole.path)
    assert not seen
    assert not stores
    assert KEY not in jobs
    assert refused.returncode == 1
    assert "failed with exit code 2" in refused.stdout
    assert "use --results DIR with a permanent folder" in refused.stdout
    assert [job["driver_exit_code"] for job in sorted(json.loads(jobs), key=lambda job: job["start_time"])] == [0, 2]


def test_a_job_that_is_stopped_lets_calls_come_in_and_the_next_one_goes_on(tmp_path: Path, short: Path) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path / "work", server.base_url, size=40)
        kept = tmp_path / "kept"
        with ray_cluster.run_cluster(short, 2, dashboard=True) as nodes:
            begun = ("--no-wait", "--submission-id", "first")
            submit(nodes, tmp_path / "work", *RUN, "--results", kept, options=begun)
            wait_until(lambda: server.requests >= 10)
            stopped = ray(nodes, "stop", "first")
            assert "was stopped" in stopped.stdout, stopped.stdout + stopped.stderr
            wait_until(lambda: not ray_cluster.find_actors())
            run = only_run(kept)
            assert len([one for one in journal_records(run) if one["kind"] == "call"]) == server.requests
            assert not (run / "in_flight").exists()
            said = ray(nodes, "logs", "first").stdout
            assert ANSWERS_ARE_SAVED in said
            assert "SIGTERM received" not in said
            again = submit(nodes, tmp_path / "work", *RUN, "--results", kept)
            assert again.returncode == 0, again.stdout + again.stderr
        assert max(server.stats()["bodies"].values()) == 1
    assert json.loads((run / "manifest.json").read_text())["status"] == "done"
