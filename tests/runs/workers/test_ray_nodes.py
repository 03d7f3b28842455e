"""A run on a Ray cluster: actors killed ten times, a node removed, another one added; it ends as one process would.

The server counts what it is asked. Then a budget and a rate, over all workers; and the key, which
only the nodes have, looked for in Ray's logs, sessions and object stores, where the same search finds words that were
put there.
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


def test_a_run_on_a_cluster_whose_actors_and_nodes_die_ends_as_one_process_would(check: SoftAssertions) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="nr-") as name,  # a socket's path must be short
        run_chat_server(latency=[0.0, 0.1], record=50) as server,
        ray_cluster.run_cluster(Path(name) / "ray", 2, NODES_KEY=KEY) as nodes,
    ):
        second = nodes.add_node(2, NODES_KEY=KEY)
        cluster = _Cluster(Path(name), server, nodes, check)
        cluster.kills(KILLS, second, random.Random(1))
        cluster.budget()
        cluster.rate()
        cluster.key()


class _Cluster:
    def __init__(
        self, here: Path, server: LoopbackServer, nodes: ray_cluster.RayCluster, check: SoftAssertions
    ) -> None:
        self._here, self._server, self._nodes, self._check = here, server, nodes, check
        self._key_seen: list[str] = []
        self._ray = ["execution.engine=ray", f"execution.workers={WORKERS}", f"execution.address={nodes.address}"]

    def _spec(self, name: str, size: int, model: dict[str, object] | None = None, **changes: object) -> Path:
        model = {"api_key_env": "NODES_KEY", **(model or {})}
        rollouts = {"concurrency": CONCURRENCY}
        return spec_file(
            self._here / name, self._server.base_url, size=size, models={"m": model}, rollouts=rollouts,
            retry={"breaker": {"failures": 1000}}, **changes,
        )  # fmt: skip

    def _started(self, name: str, *overrides: str) -> subprocess.Popen[str]:
        """A run by workers, from a process that has no key."""
        return subprocess.Popen(
            command("spec.yaml", *self._ray, *overrides, "-q"), cwd=self._here / name, env=environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _look_for_key(self) -> None:
        word = KEY.encode()
        self._key_seen += ray_cluster.find_files_with(word, self._nodes.folder)
        self._key_seen += [f"the object store of raylet {pid}" for pid in ray_cluster.find_stores_with(word)]

    def kills(self, wanted: int, second: object, rng: random.Random) -> None:
        check, server = self._check, self._server
        path = self._spec("kills", GAMES)
        os.environ["NODES_KEY"] = KEY
        whole = run_spec(path, self._here / "one")
        del os.environ["NODES_KEY"]
        needed = server.requests
        process = self._started("kills")
        killed, removed, added = [], False, False
        steps = sorted([(number + rng.random()) / (wanted + 1) for number in range(wanted)])
        for number, step in enumerate(steps):
            if not self._until(process, needed + int(step * needed)):
                break
            if number == wanted // 3:
                self._nodes.kill_node(second)
                removed = True
            if number == 2 * wanted // 3:
                self._nodes.add_node(2, NODES_KEY=KEY)
                added = True
            killed += self._kill(process, rng)
            self._look_for_key()
        _, err = process.communicate(timeout=300)
        said = err[-400:] if process.returncode else ""
        check(process.returncode == 0, f"the run ended with exit code {process.returncode} {said}".rstrip())
        run = only_run(self._here / "kills/results")
        records = journal_records(run)
        samples = read_calls(run)
        lost = [record["charged"][2] for record in records if record["kind"] == "lost"]
        asked = server.requests - needed
        check(len(killed) == wanted, f"actors killed: {len(killed)}; kept as lost: {len(lost)} records")
        check(removed and added, "a node removed, another one added")
        check(len(set(samples)) == needed, f"records lost: {needed - len(set(samples))} of {needed}")
        check(len(samples) == len(set(samples)), f"records doubled: {len(samples) - len(set(samples))}")
        check(asked - needed <= sum(lost), f"asked again: {asked - needed}; counted as lost: {sum(lost)}")
        check(max(lost, default=0) <= CONCURRENCY, f"most lost at one death: {max(lost, default=0)}")
        wanted_files = derived_files(whole.folder.path)
        check(derived_files(run) == wanted_files, f"files byte-identical to those of one process: {len(wanted_files)}")
        check(
            read_sorted_answers(run) == read_sorted_answers(whole.folder.path),
            "the journal's answers are those of one process, as a set",
        )
        most = server.stats()["max_open"]
        check(most <= CONCURRENCY, f"most calls at once, at the server: {most} of {CONCURRENCY}")

    def _until(self, process: subprocess.Popen[str], goal: int) -> bool:
        late = time.monotonic() + 180
        while self._server.requests < goal or not ray_cluster.find_actors():
            assert time.monotonic() < late, "no progress"
            if process.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def _kill(self, process: subprocess.Popen[str], rng: random.Random) -> list[int]:
        while process.poll() is None:
            with suppress(ProcessLookupError, IndexError):
                pid = rng.choice(ray_cluster.find_actors())
                os.kill(pid, signal.SIGKILL)
                return [pid]
        return []

    def budget(self) -> None:
        self._spec("budget", GAMES, budget={"completions": BUDGET})
        before = self._server.requests
        process = self._started("budget")
        process.communicate(timeout=300)
        asked = self._server.requests - before
        self._check(process.returncode == 3, f"a budget that is used up: exit code {process.returncode}")
        self._check(asked == BUDGET, f"calls at the server with a budget of {BUDGET}: {asked}")

    def rate(self) -> None:
        self._spec("rate", 150, {"requests_per_minute": PER_MINUTE})
        self._server.change(clock=True)
        process = self._started("rate")
        process.communicate(timeout=300)
        self._server.change(clock=False)
        came = self._server.stats()["arrivals"]
        burst, calls = PER_MINUTE / 10, len(came)
        # A call may be on its way for a tenth of a second longer than the one before it.
        over = max(
            number + 1 - burst - (later - earlier + 0.1) * PER_MINUTE / 60
            for first, earlier in enumerate(came)
            for number, later in enumerate(came[first:])
        )
        self._check(process.returncode == 0, f"a run of {calls} calls at {PER_MINUTE} a minute")
        self._check(calls > burst, f"more calls than the burst of {burst:.0f}, so that the rate is met")
        self._check(over <= 0, f"calls at the server beyond burst and rate, over any stretch: {max(over, 0):.0f}")

    def key(self) -> None:
        self._look_for_key()
        check = self._check
        sent = {request["headers"].get("authorization") for request in self._server.recorded_requests()}
        check(sent == {f"Bearer {KEY}"}, "the server got the key, which the command's own process had not")
        check(not self._key_seen, f"places of Ray's that hold the key: {sorted(set(self._key_seen)) or 'none'}")
        check(not ray_cluster.find_files_with(KEY.encode(), self._here), "files of the run that hold it: none")
        self._planted()

    def _planted(self) -> None:
        """The same search finds what is there: an object, and a variable of Ray's `runtime_env`."""
        import ray

        variable, text = f"planted-{os.urandom(6).hex()}", f"planted-{os.urandom(6).hex()}"
        ray.init(address=self._nodes.address, runtime_env={"env_vars": {"PLANTED": variable}}, log_to_driver=False)
        kept = ray.put(text * 20_000)
        ray.get(ray.remote(lambda: os.environ["PLANTED"]).remote())
        stores, logs = (
            ray_cluster.find_stores_with(text.encode()),
            ray_cluster.find_files_with(variable.encode(), self._nodes.folder),
        )
        del kept
        ray.shutdown()
        self._check(stores, f"a planted object is found in {len(stores)} object store(s)")
        self._check(
            logs,
            f"a variable given by runtime_env, which nip-run does not use, is found in {len(logs)} log(s) of Ray's",
        )
