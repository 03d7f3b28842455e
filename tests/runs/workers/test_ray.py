"""A run on Ray writes the files of a single process, even if nodes fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import ANSWERS_ARE_SAVED
from runner.runs.workers import messages
from runner.runs.workers.cluster import connection
from runner.runs.workers.cluster.connection import connected
from runner.runs.workers.cluster.pool import RayPool
from runner.spec.experiment import Execution
from tests.support import ray_cluster
from tests.support.processes import command, environment, nip_run, wait_for_exit, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.training import malt_changes, training_spec
from tests.support.worker_processes import read_sorted_answers

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("ray_namespace")]

LOCAL_RAY = ("execution.engine=ray", "execution.workers=2")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder with a short path, which Ray's sockets need."""
    with tempfile.TemporaryDirectory(prefix="nr-") as name:
        yield Path(name)


def cluster_options(nodes: ray_cluster.RayCluster, workers: int = 2) -> list[str]:
    return ["execution.engine=ray", f"execution.workers={workers}", f"execution.address={nodes.address}"]


def start_in_process_group(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a command in its own process group, like a terminal's foreground job."""
    return subprocess.Popen(
        command(*arguments), cwd=cwd, env=environment(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def has_ray_stopped() -> bool:
    return not (ray_cluster.find_actors() or ray_cluster.find_raylets())


def test_a_run_on_a_local_cluster_gives_the_single_process_files_and_stops_the_cluster(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.0, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        single_process_run = run_spec(path, tmp_path / "one")
        done = nip_run("spec.yaml", *LOCAL_RAY, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert server.stats()["max_open"] <= 8
    assert [row["status"] for row in json.loads(done.stdout)] == ["done"]  # Ray prints nothing to stdout
    run = only_run(tmp_path / "results")
    assert derived_files(run) == derived_files(single_process_run.path)
    assert read_sorted_answers(run) == read_sorted_answers(single_process_run.path)
    wait_until(has_ray_stopped)


def test_ctrl_c_waits_for_calls_in_flight_and_leaves_no_ray_process(tmp_path: Path) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path, server.base_url, size=40)
        process = start_in_process_group("spec.yaml", *LOCAL_RAY, cwd=tmp_path)
        wait_until(lambda: server.requests >= 10 or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = wait_for_exit(process)
        assert code == 130, err
        assert ANSWERS_ARE_SAVED in err
        run = only_run(tmp_path / "results")
        assert len([record for record in journal_records(run) if record["kind"] == "call"]) == server.requests
        assert not (run / "in_flight").exists()
        wait_until(has_ray_stopped)
        run_spec(tmp_path / "spec.yaml", tmp_path / "results")
        assert max(server.stats()["bodies"].values()) == 1


@pytest.mark.parametrize("is_local", [True, False])
def test_workers_exit_with_a_killed_driver_and_the_next_run_resumes(
    tmp_path: Path, short_folder: Path, is_local: bool
) -> None:
    with run_chat_server(latency=0.05) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        single_process_run = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(latency=0.5)
        with ray_cluster.run_cluster(short_folder, *([] if is_local else [2])) as nodes:
            process = start_in_process_group(
                "spec.yaml", *(LOCAL_RAY if is_local else cluster_options(nodes)), cwd=tmp_path
            )
            wait_until(lambda: server.requests >= needed + 12 or process.poll() is not None)
            assert len(ray_cluster.find_actors()) == 2
            process.kill()
            wait_for_exit(process)
            wait_until(has_ray_stopped if is_local else lambda: not ray_cluster.find_actors())
            result = run_spec(path, tmp_path / "results")
        (lost,) = (record["charged"][2] for record in journal_records(result.path) if record["kind"] == "lost")
        assert server.requests - 2 * needed <= lost <= 8
    assert derived_files(result.path) == derived_files(single_process_run.path)


def test_a_run_resumes_on_a_new_cluster_while_that_of_a_killed_driver_still_stops(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        single_process_run = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(latency=0.5)
        process = start_in_process_group("spec.yaml", *LOCAL_RAY, cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + 12 or process.poll() is not None)
        process.kill()
        wait_for_exit(process)
        done = nip_run("spec.yaml", *LOCAL_RAY, cwd=tmp_path)  # immediately after the kill
        assert done.returncode == 0, done.stderr
        wait_until(has_ray_stopped)
        result = only_run(tmp_path / "results")
        (lost,) = (record["charged"][2] for record in journal_records(result) if record["kind"] == "lost")
        assert server.requests - 2 * needed <= lost <= 8
    assert derived_files(result) == derived_files(single_process_run.path)


@pytest.mark.parametrize("kind", ["sweep", "training"])
def test_a_command_starts_one_local_cluster_for_all_its_runs(tmp_path: Path, short_folder: Path, kind: str) -> None:
    if kind == "sweep":
        spec, overrides = spec_file(tmp_path, size=4), ["sweep={seed: [1, 2, 3]}"]
    else:
        spec, overrides = training_spec(tmp_path), []
    done = nip_run(spec, *LOCAL_RAY, *overrides, "-q", cwd=tmp_path, RAY_TMPDIR=str(short_folder))
    assert done.returncode == 0, done.stderr
    runs = [run for run in (tmp_path / "results/runs").iterdir() if (run / "journal.jsonl").is_file()]
    assert len(runs) >= 2
    assert len(list(short_folder.glob("ray/session_2*"))) == 1
    wait_until(has_ray_stopped)


def test_ctrl_c_during_a_sweep_stops_its_local_cluster(tmp_path: Path, short_folder: Path) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path, server.base_url, size=4)
        process = start_in_process_group(
            "spec.yaml", *LOCAL_RAY, "sweep={seed: [1, 2]}", cwd=tmp_path, RAY_TMPDIR=str(short_folder)
        )
        runs = tmp_path / "results/runs"
        wait_until(lambda: len(list(runs.glob("*/journal.jsonl"))) == 2 or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = wait_for_exit(process)
    assert code == 130, err
    assert ANSWERS_ARE_SAVED in err
    assert len(list(short_folder.glob("ray/session_2*"))) == 1
    wait_until(has_ray_stopped)


def test_a_key_that_a_node_lacks_is_reported_with_node_and_variable(tmp_path: Path, short_folder: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"api_key_env": "NODES_KEY"}})
    with ray_cluster.run_cluster(short_folder, 1) as nodes:
        done = nip_run("spec.yaml", *cluster_options(nodes, 1), cwd=tmp_path, NODES_KEY="sk-of-the-driver-alone")
    assert done.returncode == 4, done.stderr
    assert "NODES_KEY" in done.stderr
    assert "on node 127.0.0.1 (pid " in done.stderr
    assert "before `ray start`" in done.stderr


def test_a_joining_node_without_the_key_is_noted_and_a_node_with_the_key_plays(
    tmp_path: Path, short_folder: Path
) -> None:
    with (
        run_chat_server(latency=0.2) as server,
        ray_cluster.run_cluster(short_folder, 1, NODES_KEY="sk-of-the-nodes-alone") as nodes,
    ):
        model = {"api_key_env": "NODES_KEY"}
        spec_file(tmp_path, server.base_url, size=150, models={"m": model})
        process = start_in_process_group("spec.yaml", *cluster_options(nodes, 3), cwd=tmp_path)
        wait_until(lambda: server.requests >= 10 or process.poll() is not None)
        assert len(ray_cluster.find_actors()) == 1
        nodes.add_node(1)
        nodes.add_node(1, NODES_KEY="sk-of-the-nodes-alone")
        wait_until(lambda: len(ray_cluster.find_actors()) >= 2 or process.poll() is not None)
        code, _, err = wait_for_exit(process)
    assert code == 0, err
    notes = " ".join(json.loads((only_run(tmp_path / "results") / "manifest.json").read_text()).get("notes", []))
    assert "the other workers continue" in err + notes


def test_workers_without_free_cpus_are_noted_and_then_end_the_run(short_folder: Path) -> None:
    received: list[Any] = []

    async def wait(address: str) -> None:
        async with connected(Execution(engine="ray", workers=2, address=address)):
            pool = RayPool(2, notice_seconds=0.5, patience_seconds=2.0)

            def receive(batch: Sequence[Any]) -> None:
                received.extend(batch)

            worker = await pool.start(receive, received.append)
            deadline = time.monotonic() + 30
            while not any(isinstance(message, messages.CannotStart) for message in received):
                assert time.monotonic() < deadline, received
                await asyncio.sleep(0.1)
            await worker.end(immediately=True)

    with ray_cluster.run_cluster(short_folder, 0) as nodes:
        asyncio.run(wait(nodes.address))
    *notes, start_failure = received
    assert notes
    assert all(
        "a worker needs 1 CPU, and the cluster has 1 node with 0 CPUs (0 free)" in message.line for message in notes
    )
    assert "Add nodes, free some CPUs" in str(start_failure.failure.to_exception())


def test_raylet_reports_are_hidden_by_a_switch_that_ray_still_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The switch is private to Ray; the public `log_to_driver` covers only the output of workers."""
    import ray
    from ray._private import worker

    assert worker._worker_logs_enabled is True, "Ray dropped the switch that connection.py uses"

    def report(line: str) -> str:
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
        return capsys.readouterr().out

    assert "one" in report("one")
    with connection._without_ray_output(ray):
        assert not report("two")
    assert "three" in report("three")


def test_an_address_without_a_cluster_gives_an_error_message(tmp_path: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1")
    done = nip_run("spec.yaml", *LOCAL_RAY, "execution.address=127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "cannot connect to the Ray cluster at 127.0.0.1:1 (execution.address)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("method", ["expert_iteration", "malt"])
def test_a_training_run_on_ray_gives_the_single_process_files(tmp_path: Path, short_folder: Path, method: str) -> None:
    path = training_spec(tmp_path, **(malt_changes() if method == "malt" else {}))
    with ray_cluster.run_cluster(short_folder, 2) as nodes:
        for name, options in (("one", []), ("two", cluster_options(nodes))):
            done = nip_run("run", path, *options, "-q", "--results", name, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
    run_names = sorted(run.name for run in (tmp_path / "one/runs").iterdir() if (run / "journal.jsonl").is_file())
    assert len(run_names) >= 2
    for name in run_names:
        assert derived_files(tmp_path / "two/runs" / name) == derived_files(tmp_path / "one/runs" / name)
