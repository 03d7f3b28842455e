"""A run on a Ray cluster whose actors are killed and whose nodes change gives the files of a single process.

The server counts the requests. Further checks cover a budget and a rate limit that all workers share, and search Ray's
logs, sessions and object stores for the key, which only the nodes have. The search must find planted values there.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import ray_cluster
from tests.support.processes import command, environment
from tests.support.runs import derived_files, journal_records, only_run, read_calls, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file
from tests.support.worker_processes import read_sorted_answers

GAMES = 1000
CONCURRENCY = 32
WORKERS = 4
KEY = "sk-of-the-nodes-alone-7b1e4d"
BUDGET = 1500
PER_MINUTE = 3000
KILLS = 10

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("ray_namespace")]


def test_a_run_on_ray_with_killed_actors_and_nodes_gives_the_single_process_files(check: SoftAssertions) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="nr-") as name,  # a socket's path must be short
        run_chat_server(latency=[0.0, 0.1], record=50) as server,
        ray_cluster.run_cluster(Path(name) / "ray", 2, NODES_KEY=KEY) as nodes,
    ):
        second_node = nodes.add_node(2, NODES_KEY=KEY)
        checks = _ClusterChecks(Path(name), server, nodes, check)
        checks.check_kills(KILLS, second_node, random.Random(1))
        checks.check_budget()
        checks.check_rate()
        checks.check_key()


class _ClusterChecks:
    def __init__(
        self, folder: Path, server: LoopbackServer, nodes: ray_cluster.RayCluster, check: SoftAssertions
    ) -> None:
        self._folder, self._server, self._nodes, self._check = folder, server, nodes, check
        self._places_with_key: list[str] = []
        self._ray = ["execution.engine=ray", f"execution.workers={WORKERS}", f"execution.address={nodes.address}"]

    def _write_spec(self, name: str, size: int, model: dict[str, object] | None = None, **changes: object) -> Path:
        model = {"api_key_env": "NODES_KEY", **(model or {})}
        rollouts = {"concurrency": CONCURRENCY}
        return spec_file(
            self._folder / name, self._server.base_url, size=size, models={"m": model}, rollouts=rollouts,
            retry={"breaker": {"failures": 1000}}, **changes,
        )  # fmt: skip

    def _start_run(self, name: str, *overrides: str) -> subprocess.Popen[str]:
        """Start a run by workers from a process that has no key."""
        return subprocess.Popen(
            command("spec.yaml", *self._ray, *overrides, "-q"), cwd=self._folder / name, env=environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _look_for_key(self) -> None:
        key = KEY.encode()
        self._places_with_key += ray_cluster.find_files_with(key, self._nodes.folder)
        self._places_with_key += [f"the object store of raylet {pid}" for pid in ray_cluster.find_stores_with(key)]

    def check_kills(self, kill_count: int, second_node: object, rng: random.Random) -> None:
        check, server = self._check, self._server
        path = self._write_spec("kills", GAMES)
        os.environ["NODES_KEY"] = KEY
        single_process_run = run_spec(path, self._folder / "one")
        del os.environ["NODES_KEY"]
        needed = server.requests
        process = self._start_run("kills")
        killed_pids, removed, added = [], False, False
        steps = sorted([(number + rng.random()) / (kill_count + 1) for number in range(kill_count)])
        for number, step in enumerate(steps):
            if not self._wait_for_requests(process, needed + int(step * needed)):
                break
            if number == kill_count // 3:
                self._nodes.kill_node(second_node)
                removed = True
            if number == 2 * kill_count // 3:
                self._nodes.add_node(2, NODES_KEY=KEY)
                added = True
            killed_pids += self._kill_random_actor(process, rng)
            self._look_for_key()
        _, err = process.communicate(timeout=300)
        error_text = err[-400:] if process.returncode else ""
        check(process.returncode == 0, f"the run ended with exit code {process.returncode} {error_text}".rstrip())
        run = only_run(self._folder / "kills/results")
        records = journal_records(run)
        samples = read_calls(run)
        lost = [record["charged"][2] for record in records if record["kind"] == "lost"]
        requests = server.requests - needed
        check(len(killed_pids) == kill_count, f"actors killed: {len(killed_pids)}; kept as lost: {len(lost)} records")
        check(removed and added, "a node removed, another one added")
        check(len(set(samples)) == needed, f"records lost: {needed - len(set(samples))} of {needed}")
        check(len(samples) == len(set(samples)), f"records doubled: {len(samples) - len(set(samples))}")
        check(requests - needed <= sum(lost), f"asked again: {requests - needed}; counted as lost: {sum(lost)}")
        check(max(lost, default=0) <= CONCURRENCY, f"most lost at one death: {max(lost, default=0)}")
        expected_files = derived_files(single_process_run.folder.path)
        check(
            derived_files(run) == expected_files, f"files byte-identical to those of one process: {len(expected_files)}"
        )
        check(
            read_sorted_answers(run) == read_sorted_answers(single_process_run.folder.path),
            "the journal's answers are those of one process, as a set",
        )
        max_open = server.stats()["max_open"]
        check(max_open <= CONCURRENCY, f"most calls at once, at the server: {max_open} of {CONCURRENCY}")

    def _wait_for_requests(self, process: subprocess.Popen[str], goal: int) -> bool:
        deadline = time.monotonic() + 180
        while self._server.requests < goal or not ray_cluster.find_actors():
            assert time.monotonic() < deadline, "no progress"
            if process.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def _kill_random_actor(self, process: subprocess.Popen[str], rng: random.Random) -> list[int]:
        while process.poll() is None:
            with suppress(ProcessLookupError, IndexError):
                pid = rng.choice(ray_cluster.find_actors())
                os.kill(pid, signal.SIGKILL)
                return [pid]
        return []

    def check_budget(self) -> None:
        self._write_spec("budget", GAMES, budget={"completions": BUDGET})
        requests_before = self._server.requests
        process = self._start_run("budget")
        process.communicate(timeout=300)
        requests = self._server.requests - requests_before
        self._check(process.returncode == 3, f"a budget that is used up: exit code {process.returncode}")
        self._check(requests == BUDGET, f"calls at the server with a budget of {BUDGET}: {requests}")

    def check_rate(self) -> None:
        self._write_spec("rate", 150, {"requests_per_minute": PER_MINUTE})
        self._server.change(clock=True)
        process = self._start_run("rate")
        process.communicate(timeout=300)
        self._server.change(clock=False)
        arrivals = self._server.stats()["arrivals"]
        burst, calls = PER_MINUTE / 10, len(arrivals)
        # A call may be on its way for a tenth of a second longer than the one before it.
        excess = max(
            number + 1 - burst - (later - earlier + 0.1) * PER_MINUTE / 60
            for first, earlier in enumerate(arrivals)
            for number, later in enumerate(arrivals[first:])
        )
        self._check(process.returncode == 0, f"a run of {calls} calls at {PER_MINUTE} a minute")
        self._check(calls > burst, f"more calls than the burst of {burst:.0f}, so that the rate is met")
        self._check(excess <= 0, f"calls at the server beyond burst and rate, over any stretch: {max(excess, 0):.0f}")

    def check_key(self) -> None:
        self._look_for_key()
        check = self._check
        sent = {request["headers"].get("authorization") for request in self._server.recorded_requests()}
        check(sent == {f"Bearer {KEY}"}, "the server got the key, which the command's own process had not")
        check(
            not self._places_with_key,
            f"places of Ray's that hold the key: {sorted(set(self._places_with_key)) or 'none'}",
        )
        check(not ray_cluster.find_files_with(KEY.encode(), self._folder), "files of the run that hold it: none")
        self._check_planted_values()

    def _check_planted_values(self) -> None:
        """Check that the search finds a planted object and a planted variable of Ray's `runtime_env`."""
        import ray

        variable, text = f"planted-{os.urandom(6).hex()}", f"planted-{os.urandom(6).hex()}"
        ray.init(address=self._nodes.address, runtime_env={"env_vars": {"PLANTED": variable}}, log_to_driver=False)
        reference = ray.put(text * 20_000)
        ray.get(ray.remote(lambda: os.environ["PLANTED"]).remote())
        stores, logs = (
            ray_cluster.find_stores_with(text.encode()),
            ray_cluster.find_files_with(variable.encode(), self._nodes.folder),
        )
        del reference
        ray.shutdown()
        self._check(stores, f"a planted object is found in {len(stores)} object store(s)")
        self._check(
            logs,
            f"a variable given by runtime_env, which nip-run does not use, is found in {len(logs)} log(s) of Ray's",
        )
