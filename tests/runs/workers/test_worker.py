"""A single worker: its concurrent games, and runs of a single process, which do not import it."""

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


def test_a_single_process_run_imports_no_worker_module() -> None:
    code = "import sys\nfrom runner.cli.main import main\nmain(['missing.yaml'])\nprint('|', *sys.modules)"
    modules = python(code).stdout.rsplit("|", 1)[1].split()
    assert "runner.cli.experiments.run" in modules
    assert [name for name in modules if name.startswith("runner.runs.workers")] == []


class Writer:
    """A writer's end of a channel that stores the messages of a worker."""

    def __init__(self, games: int) -> None:
        self.messages: list[Any] = []
        self.is_over = asyncio.Event()
        self._games = games

    def send(self, message: Any) -> None:
        self.messages.append(message)
        if sum(isinstance(stored, messages.GameFinished) for stored in self.messages) == self._games:
            self.is_over.set()


DEBATE: dict[str, Any] = {
    "protocol": {"use": "debate", "max_message_rounds": 5},
    "prompts": "prompts/code_validation/debate",
    "agents": {"prover": None, **{name: {"model": "m"} for name in ("prover0", "prover1", "verifier")}},
}
"""A debate whose provers answer concurrently, so other games could continue while a game waits."""


@pytest.fixture
def _worker_logging() -> Iterator[None]:
    """Restore the logger that `Worker` configures for its process, which is the test process here."""
    logger = logging.getLogger("nip_run")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


@pytest.mark.usefixtures("_worker_logging")
@pytest.mark.parametrize("limit", [1, 3])
def test_a_worker_plays_no_more_games_at_once_than_its_leases_allow(tmp_path: Path, limit: int) -> None:
    plan = Plan(load_spec(spec_file(tmp_path, size=6, **DEBATE)))
    jobs = list(plan.jobs())

    async def play() -> list[Any]:
        writer, worker = Writer(len(jobs)), Worker()
        worker.connect(writer)
        start = messages.StartMessage(
            plan=plan, run_id="r", is_journal_bound_to_run=True, answers_cost_money=False, is_budgeted=False,
            sends_outputs=True, answered_model_groups=frozenset(), concurrency=8, adapters={},
        )  # fmt: skip
        leases = [messages.Lease(job, (), limit) for job in jobs]
        worker.receive([start, *leases])
        await writer.is_over.wait()
        return writer.messages

    appends = [message for message in asyncio.run(play()) if isinstance(message, messages.Append)]
    points = [sample[0] for message in appends for sample in message.samples]
    spans = {name: (points.index(name), len(points) - points[::-1].index(name)) for name in points}
    game_counts = [sum(begin <= index < end for begin, end in spans.values()) for index in range(len(points))]
    assert (len(spans), max(game_counts)) == (len(jobs), limit)
