"""A worker by itself: what it plays at once, and that a run by one process does without."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.rollouts.plan import Plan
from runner.runs.workers import messages
from runner.runs.workers.worker import Worker
from runner.spec.loader import load_spec
from tests.support.processes import python
from tests.support.specs import spec_file


def test_a_run_by_one_process_imports_nothing_of_this() -> None:
    code = "import sys\nfrom runner.cli.main import main\nmain(['missing.yaml'])\nprint('|', *sys.modules)"
    modules = python(code).stdout.rsplit("|", 1)[1].split()
    assert "runner.cli.experiments.run" in modules
    assert [name for name in modules if name.startswith("runner.runs.workers")] == []


class Writer:
    """The writer's end of a channel, as far as a worker sees it: it stores what it is sent."""

    def __init__(self, games: int) -> None:
        self.messages: list[Any] = []
        self.is_over = asyncio.Event()
        self._games = games

    def send(self, message: Any) -> None:
        self.messages.append(message)
        if sum(isinstance(one, messages.GameFinished) for one in self.messages) == self._games:
            self.is_over.set()


DEBATE: dict[str, Any] = {
    "protocol": {"use": "debate", "max_message_rounds": 5},
    "prompts": "prompts/code_validation/debate",
    "agents": {"prover": None, **{name: {"model": "m"} for name in ("prover0", "prover1", "verifier")}},
}
"""Whose provers answer at the same time, so that a game waits and others may go on."""


@pytest.fixture
def _worker_logging() -> Iterator[None]:
    """Restore the logger that `Worker` configures for its whole process, which is a worker's elsewhere."""
    logger = logging.getLogger("nip_run")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


@pytest.mark.usefixtures("_worker_logging")
@pytest.mark.parametrize("at_once", [1, 3])
def test_a_worker_plays_as_many_games_at_once_as_it_is_told_and_keeps_the_others_waiting(
    tmp_path: Path, at_once: int
) -> None:
    plan = Plan(load_spec(spec_file(tmp_path, size=6, **DEBATE)))
    jobs = list(plan.jobs())

    async def play() -> list[Any]:
        writer, worker = Writer(len(jobs)), Worker()
        worker.connect(writer)
        start = messages.StartMessage(
            plan=plan, run_id="r", is_journal_bound_to_run=True, answers_cost_money=False, is_budgeted=False,
            sends_outputs=True, answered_model_groups=frozenset(), concurrency=8, adapters={},
        )  # fmt: skip
        leases = [messages.Lease(job, (), at_once) for job in jobs]
        worker.receive([start, *leases])
        await writer.is_over.wait()
        return writer.messages

    appends = [one for one in asyncio.run(play()) if isinstance(one, messages.Append)]
    points = [sample[0] for one in appends for sample in one.samples]
    spans = {name: (points.index(name), len(points) - points[::-1].index(name)) for name in points}
    together = [sum(begin <= place < end for begin, end in spans.values()) for place in range(len(points))]
    assert (len(spans), max(together)) == (len(jobs), at_once)
