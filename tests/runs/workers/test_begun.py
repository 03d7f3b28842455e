"""Processes of workers are begun before it is known what they play, where somebody seems to want them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.cli.experiments.run_ahead import guessed
from runner.rollouts.plan import Plan
from runner.runs.execution.process import cores_here
from runner.runs.workers import messages
from runner.runs.workers.message_codec import Packed, packed, unpacked
from runner.runs.workers.prestarted import begun_ahead, taken
from runner.runs.workers.worker import Playing
from runner.spec.loader import load_spec
from tests.support.processes import ended, python, started, until
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file
from tests.support.workers import is_running, workers_of

SAID = {
    "a line": "execution:\n  processes: 3\n",
    "one line": "execution: {engine: processes, processes: 3}\n",
    "JSON": json.dumps({"name": "x", "execution": {"processes": 3}}),
}


@pytest.mark.parametrize("text", SAID.values(), ids=SAID)
def test_how_many_processes_are_wanted_is_seen_in_a_spec(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    assert guessed([str(path)]) == 3


def test_what_the_command_says_comes_after_what_the_spec_says(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SAID["a line"])
    assert guessed(["execution.processes=5", str(path)]) == 5
    assert guessed([str(path), "execution={processes: 4}"]) == 4


def test_no_processes_are_seen_where_nobody_says_so(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: processes\n# execution: {processes: 4}\nexecution: {engine: ray, workers: 4}\n")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert guessed([str(path), str(fifo), str(tmp_path), str(tmp_path / "missing.yaml"), "a\0b", "seed=2"]) == 0


def test_processes_that_were_begun_ahead_are_taken_first_and_the_others_end() -> None:
    before = workers_of(os.getpid())
    with begun_ahead(64):
        ahead = [pid for pid in workers_of(os.getpid()) if pid not in before]
        assert len(ahead) == cores_here()
        first = taken()
        assert first.process.pid == ahead[0]
    others = set(ahead[1:])
    assert is_running(first.process.pid)
    assert not any(map(is_running, others))
    another = taken()
    assert another.process.pid not in ahead
    for one in (first, another):
        one.let_go()


@pytest.mark.skipif(cores_here() < 2, reason="one core has one begun")
def test_a_process_that_has_ended_before_it_is_needed_is_not_taken_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = workers_of(os.getpid())
    with begun_ahead(2):
        ahead = [pid for pid in workers_of(os.getpid()) if pid not in before]
        os.kill(ahead[0], 9)
        os.waitid(os.P_PID, ahead[0], os.WEXITED | os.WNOWAIT)
        one = taken()
        assert one.process.pid == ahead[1]
        assert "begun ahead was killed by SIGKILL" in caplog.text
    one.let_go()


@pytest.mark.skipif(not sys.platform.startswith("linux") or cores_here() < 2, reason="Linux forks; one core has one")
def test_the_workers_of_a_command_are_forks_of_it_which_end_with_it(tmp_path: Path) -> None:
    with serving(latency=30.0) as server:
        spec_file(tmp_path, server.base_url, size=4)
        process = started("spec.yaml", "execution.processes=2", cwd=tmp_path)
        until(lambda: server.requests > 0)
        workers = workers_of(process.pid)
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in workers]
        process.kill()
        ended(process)
        until(lambda: not any(map(is_running, workers)))
    assert names == ["nip-run worker"] * 2


def test_a_run_by_one_process_imports_nothing_of_this() -> None:
    code = "import sys\nfrom runner.cli.main import main\nmain(['missing.yaml'])\nprint('|', *sys.modules)"
    modules = python(code).stdout.rsplit("|", 1)[1].split()
    assert "runner.cli.experiments.run" in modules
    assert [name for name in modules if name.startswith("runner.runs.workers")] == []


def test_what_all_get_is_made_bytes_of_once_and_comes_out_as_itself() -> None:
    once = Packed([1, {"two": (3,)}])
    assert unpacked(packed([once, once])) == [[1, {"two": (3,)}]] * 2


class Told:
    """The writer's end of a link, as far as a worker sees it: what it is sent is kept."""

    def __init__(self, games: int) -> None:
        self.messages: list[Any] = []
        self.is_over = asyncio.Event()
        self._games = games

    def send(self, message: Any) -> None:
        self.messages.append(message)
        if sum(isinstance(one, messages.GameFinished) for one in self.messages) == self._games:
            self.is_over.set()

    def close(self) -> None: ...


DEBATE: dict[str, Any] = {
    "protocol": {"use": "debate", "max_message_rounds": 5},
    "prompts": "prompts/code_validation/debate",
    "agents": {"prover": None, **{name: {"model": "m"} for name in ("prover0", "prover1", "verifier")}},
}
"""Whose provers answer at the same time, so that a game waits and others may go on."""


@pytest.fixture
def _worker_logging() -> Iterator[None]:
    """Restore the logger that `Playing` configures for its whole process, which is a worker's elsewhere."""
    logger = logging.getLogger("nip_run")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


@pytest.mark.usefixtures("_worker_logging")
@pytest.mark.parametrize("at_once", [1, 3])
def test_a_worker_plays_so_many_games_at_once_and_others_that_it_is_leased_wait(tmp_path: Path, at_once: int) -> None:
    plan = Plan(load_spec(spec_file(tmp_path, size=6, **DEBATE)))
    jobs = list(plan.jobs())

    async def play() -> list[Any]:
        told, worker = Told(len(jobs)), Playing()
        worker.connected(told)
        start = messages.Start(plan, "r", True, False, False, True, frozenset(), 8, {}, is_far=False)
        leases = [messages.Lease(messages.job_fields(job), job.datapoint.id, (), at_once) for job in jobs]
        worker.receive([start, *leases])
        await told.is_over.wait()
        return told.messages

    appends = [one for one in asyncio.run(play()) if isinstance(one, messages.Append)]
    points = [sample[0] for one in appends for sample in one.samples]
    spans = {name: (points.index(name), len(points) - points[::-1].index(name)) for name in points}
    together = [sum(begin <= place < end for begin, end in spans.values()) for place in range(len(points))]
    assert (len(spans), max(together)) == (len(jobs), at_once)
