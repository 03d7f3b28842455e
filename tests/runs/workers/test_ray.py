"""A run on Ray is the run of one process, whatever becomes of its nodes."""

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

LOCAL = ("execution.engine=ray", "execution.workers=2")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short, as Ray's sockets want it."""
    with tempfile.TemporaryDirectory(prefix="nr-") as name:
        yield Path(name)


def on(nodes: ray_cluster.RayCluster, workers: int = 2) -> list[str]:
    return ["execution.engine=ray", f"execution.workers={workers}", f"execution.address={nodes.address}"]


def start_in_process_group(*words: str | Path, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """A command with a process group of its own, as a terminal's foreground has it."""
    return subprocess.Popen(
        command(*words), cwd=cwd, env=environment(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def nothing_left() -> bool:
    return not (ray_cluster.find_actors() or ray_cluster.find_raylets())


def test_a_run_is_that_of_one_process_on_a_cluster_that_ends_with_it(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.0, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        whole = run_spec(path, tmp_path / "one")
        done = nip_run("spec.yaml", *LOCAL, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert server.stats()["max_open"] <= 8
    assert [row["status"] for row in json.loads(done.stdout)] == ["done"]  # and nothing of Ray's is between
    run = only_run(tmp_path / "results")
    assert derived_files(run) == derived_files(whole.path)
    assert read_sorted_answers(run) == read_sorted_answers(whole.path)
    wait_until(nothing_left)


def test_ctrl_c_lets_calls_in_flight_come_in_and_leaves_nothing(tmp_path: Path) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path, server.base_url, size=40)
        process = start_in_process_group("spec.yaml", *LOCAL, cwd=tmp_path)
        wait_until(lambda: server.requests >= 10 or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = wait_for_exit(process)
        assert code == 130, err
        assert ANSWERS_ARE_SAVED in err
        run = only_run(tmp_path / "results")
        assert len([one for one in journal_records(run) if one["kind"] == "call"]) == server.requests
        assert not (run / "in_flight").exists()
        wait_until(nothing_left)
        run_spec(tmp_path / "spec.yaml", tmp_path / "results")
        assert max(server.stats()["bodies"].values()) == 1


@pytest.mark.parametrize("is_local", [True, False])
def test_workers_end_with_a_driver_that_is_killed_and_the_next_one_goes_on(
    tmp_path: Path, short: Path, is_local: bool
) -> None:
    with run_chat_server(latency=0.05) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        whole = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(latency=0.5)
        with ray_cluster.run_cluster(short, *([] if is_local else [2])) as nodes:
            process = start_in_process_group("spec.yaml", *(LOCAL if is_local else on(nodes)), cwd=tmp_path)
            wait_until(lambda: server.requests >= needed + 12 or process.poll() is not None)
            assert len(ray_cluster.find_actors()) == 2
            process.kill()
            wait_for_exit(process)
            wait_until(nothing_left if is_local else lambda: not ray_cluster.find_actors())
            result = run_spec(path, tmp_path / "results")
        (lost,) = (record["charged"][2] for record in journal_records(result.path) if record["kind"] == "lost")
        assert server.requests - 2 * needed <= lost <= 8
    assert derived_files(result.path) == derived_files(whole.path)


def test_a_run_goes_on_by_another_ray_while_that_of_a_killed_driver_still_ends(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        whole = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(latency=0.5)
        process = start_in_process_group("spec.yaml", *LOCAL, cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + 12 or process.poll() is not None)
        process.kill()
        wait_for_exit(process)
        done = nip_run("spec.yaml", *LOCAL, cwd=tmp_path)  # at once
        assert done.returncode == 0, done.stderr
        wait_until(nothing_left)
        result = only_run(tmp_path / "results")
        (lost,) = (record["charged"][2] for record in journal_records(result) if record["kind"] == "lost")
        assert server.requests - 2 * needed <= lost <= 8
    assert derived_files(result) == derived_files(whole.path)


@pytest.mark.parametrize("kind", ["sweep", "training"])
def test_what_one_command_plays_is_played_by_one_ray_of_its_own(tmp_path: Path, short: Path, kind: str) -> None:
    if kind == "sweep":
        spec, words = spec_file(tmp_path, size=4), ["sweep={seed: [1, 2, 3]}"]
    else:
        spec, words = training_spec(tmp_path), []
    done = nip_run(spec, *LOCAL, *words, "-q", cwd=tmp_path, RAY_TMPDIR=str(short))
    assert done.returncode == 0, done.stderr
    games = [run for run in (tmp_path / "results/runs").iterdir() if (run / "journal.jsonl").is_file()]
    assert len(games) >= 2
    assert len(list(short.glob("ray/session_2*"))) == 1
    wait_until(nothing_left)


def test_ctrl_c_between_two_points_leaves_nothing_of_their_ray(tmp_path: Path, short: Path) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path, server.base_url, size=4)
        process = start_in_process_group(
            "spec.yaml", *LOCAL, "sweep={seed: [1, 2]}", cwd=tmp_path, RAY_TMPDIR=str(short)
        )
        runs = tmp_path / "results/runs"
        wait_until(lambda: len(list(runs.glob("*/journal.jsonl"))) == 2 or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = wait_for_exit(process)
    assert code == 130, err
    assert ANSWERS_ARE_SAVED in err
    assert len(list(short.glob("ray/session_2*"))) == 1
    wait_until(nothing_left)


def test_a_key_that_a_node_has_not_is_told_by_node_and_variable(tmp_path: Path, short: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"api_key_env": "NODES_KEY"}})
    with ray_cluster.run_cluster(short, 1) as nodes:
        done = nip_run("spec.yaml", *on(nodes, 1), cwd=tmp_path, NODES_KEY="sk-of-the-driver-alone")
    assert done.returncode == 4, done.stderr
    assert "NODES_KEY" in done.stderr
    assert "on node 127.0.0.1 (pid " in done.stderr
    assert "before `ray start`" in done.stderr


def test_a_node_that_joins_and_cannot_play_is_noted_and_one_that_can_plays(tmp_path: Path, short: Path) -> None:
    with (
        run_chat_server(latency=0.2) as server,
        ray_cluster.run_cluster(short, 1, NODES_KEY="sk-of-the-nodes-alone") as nodes,
    ):
        model = {"api_key_env": "NODES_KEY"}
        spec_file(tmp_path, server.base_url, size=150, models={"m": model})
        process = start_in_process_group("spec.yaml", *on(nodes, 3), cwd=tmp_path)
        wait_until(lambda: server.requests >= 10 or process.poll() is not None)
        assert len(ray_cluster.find_actors()) == 1
        nodes.add_node(1)
        nodes.add_node(1, NODES_KEY="sk-of-the-nodes-alone")
        wait_until(lambda: len(ray_cluster.find_actors()) >= 2 or process.poll() is not None)
        code, _, err = wait_for_exit(process)
    assert code == 0, err
    notes = " ".join(json.loads((only_run(tmp_path / "results") / "manifest.json").read_text()).get("notes", []))
    assert "the other workers continue" in err + notes


def test_workers_that_no_node_has_room_for_are_told_of_and_then_end_the_run(short: Path) -> None:
    heard: list[Any] = []

    async def wait(address: str) -> None:
        async with connected(Execution(engine="ray", workers=2, address=address)):
            pool = RayPool(2, notice_seconds=0.5, patience_seconds=2.0)

            def receive(batch: Sequence[Any]) -> None:
                heard.extend(batch)

            worker = await pool.start(receive, heard.append)
            late = time.monotonic() + 30
            while not any(isinstance(one, messages.CannotStart) for one in heard):
                assert time.monotonic() < late, heard
                await asyncio.sleep(0.1)
            await worker.end(immediately=True)

    with ray_cluster.run_cluster(short, 0) as nodes:
        asyncio.run(wait(nodes.address))
    *notes, failed = heard
    assert notes
    assert all("a worker needs 1 CPU, and the cluster has 1 node with 0 CPUs (0 free)" in one.line for one in notes)
    assert "Add nodes, free some CPUs" in str(failed.failure.to_exception())


def test_what_raylets_report_is_kept_from_the_output_by_a_switch_that_ray_still_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is private to Ray, which has no public one: `log_to_driver` is of what workers print alone."""
    import ray
    from ray._private import worker

    assert worker._worker_logs_enabled is True, "Ray dropped the switch that connection.py uses"

    def report(said: str) -> str:
        worker.print_to_stdstream({"lines": [said], "pid": "raylet", "is_err": False}, ignore_prefix=False)
        return capsys.readouterr().out

    assert "one" in report("one")
    with connection._without_ray_output(ray):
        assert not report("two")
    assert "three" in report("three")


def test_an_address_where_no_cluster_is_ends_in_words(tmp_path: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1")
    done = nip_run("spec.yaml", *LOCAL, "execution.address=127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "cannot connect to the Ray cluster at 127.0.0.1:1 (execution.address)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("method", ["expert_iteration", "malt"])
def test_a_training_run_plays_its_games_and_tests_on_ray(tmp_path: Path, short: Path, method: str) -> None:
    path = training_spec(tmp_path, **(malt_changes() if method == "malt" else {}))
    with ray_cluster.run_cluster(short, 2) as nodes:
        for name, words in (("one", []), ("two", on(nodes))):
            done = nip_run("run", path, *words, "-q", "--results", name, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
    games = sorted(run.name for run in (tmp_path / "one/runs").iterdir() if (run / "journal.jsonl").is_file())
    assert len(games) >= 2
    for name in games:
        assert derived_files(tmp_path / "two/runs" / name) == derived_files(tmp_path / "one/runs" / name)
