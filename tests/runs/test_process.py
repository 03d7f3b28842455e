"""Signals during games and between them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.base.errors import Interrupted
from runner.base.storage.duckdb_connections import interruptible_queries
from runner.base.storage.locks import locked
from runner.results.leaderboard import database
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.process import (
    interruptible,
    sigterm_as_keyboard_interrupt,
    stopping_on_signals,
    wait_for_signal_handlers,
)
from tests.support.processes import environment, has_open, python, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


def test_signal_handlers_are_restored_after_games() -> None:
    async def play() -> None:
        stop = StopSwitch()
        with stopping_on_signals(stop):
            signal.raise_signal(signal.SIGTERM)
            await wait_for_signal_handlers()
        assert stop.is_stopping

    original_handler = signal.getsignal(signal.SIGTERM)
    with sigterm_as_keyboard_interrupt():
        interrupt_handler = signal.getsignal(signal.SIGTERM)
        assert interrupt_handler is not original_handler
        asyncio.run(play())
        assert signal.getsignal(signal.SIGTERM) is interrupt_handler
    assert signal.getsignal(signal.SIGTERM) is original_handler


@pytest.fixture
def default_sigint_handler() -> Iterator[None]:
    """Use Python's handler for Ctrl-C, because workers of the test runner ignore Ctrl-C."""
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous_handler)


QUERY_SCRIPT = """
import os, signal, threading, duckdb
from runner.base.storage.duckdb_connections import interruptible_queries
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with interruptible_queries():
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        duckdb.connect(":memory:", config={"threads": 1}).execute("SELECT sum(range & 3) FROM range(1_000_000_000_000)")
except KeyboardInterrupt:
    print("as Ctrl-C")
"""


def test_ctrl_c_during_a_query_raises_keyboard_interrupt() -> None:
    done = python(QUERY_SCRIPT)
    assert done.stdout == "as Ctrl-C\n", done.stderr


INTERRUPTED_QUERIES_SCRIPT = """
import os, random, signal, threading
from runner.base.storage.duckdb_connections import connect, run_query
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
connection, rng, interrupts = connect(), random.Random(1), 0
question = "SELECT count(*) FROM range(10_000_000_000) a, range(1000) b WHERE a.range % 7 = b.range % 11"
for _ in range(40):
    try:
        # The signal is repeated in case the first one arrives before the call, where Python does not check for it.
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-3), 1)
        run_query(connection, lambda: connection.execute(question))
    except KeyboardInterrupt:
        interrupts += not any(thread.name == "question" for thread in threading.enumerate())
    signal.setitimer(signal.ITIMER_REAL, 0)
print(interrupts)
"""


@pytest.mark.gate
def test_ctrl_c_at_the_start_of_a_query_always_interrupts_and_stops_the_query() -> None:
    assert python(INTERRUPTED_QUERIES_SCRIPT).stdout == "40\n"


def test_other_errors_during_a_query_are_raised_unchanged() -> None:
    with pytest.raises(RuntimeError, match="something else"), interruptible_queries():
        raise RuntimeError("something else")


@pytest.mark.usefixtures("default_sigint_handler")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_outside_of_the_games_interrupts_the_run(number: signal.Signals) -> None:
    with pytest.raises(Interrupted, match="tiny-1 was interrupted"), interruptible("tiny-1"):
        signal.raise_signal(number)


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_last_game_exits_130_and_prints_the_resume_command(
    tmp_path: Path, number: signal.Signals
) -> None:
    path, results = spec_file(tmp_path, size=2), tmp_path / "here"
    results.mkdir()
    with locked(results / database.LOCK, "the board"):
        process = start_nip_run("spec.yaml", "--results", "here", cwd=tmp_path)
        wait_until(lambda: process.poll() is not None or any(results.glob("runs/*/metrics.json")))
        wait_until(lambda: process.poll() is not None or '"done"' in (only_run(results) / "manifest.json").read_text())
        wait_until(lambda: process.poll() is not None or has_open(process.pid, database.LOCK))  # it waits for the lock
        process.send_signal(number)
        code, _, err = wait_for_exit(process)
    assert code == 130, err
    assert "Resume with: nip-run run spec.yaml --results here" in err
    resumed = run_spec(path, results)
    assert resumed.was_finished
    assert Results(results).board.has_finished(resumed.folder.run_id)


NOTEBOOK_SCRIPT = """
import asyncio, signal, threading
from runner import load_spec, run
signal.signal(signal.SIGINT, signal.default_int_handler)
async def cell():
    try:
        run(load_spec("spec.yaml"))
    except BaseException as error:
        print(type(error).__name__, [thread.name for thread in threading.enumerate() if "nip-run" in thread.name])
asyncio.new_event_loop().run_until_complete(cell())
"""


@pytest.mark.full
def test_one_interrupt_in_a_notebook_saves_answers_in_flight(tmp_path: Path) -> None:
    with run_chat_server(latency=0.3) as server:
        spec_file(tmp_path, server.base_url, rollouts={"concurrency": 2})
        process = subprocess.Popen(
            [sys.executable, "-c", NOTEBOOK_SCRIPT], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_until(lambda: server.requests >= 3 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, out, err = wait_for_exit(process)
        request_count = server.requests
    assert out == "Interrupted []\n", err
    assert request_count <= 6
    assert len([r for r in journal_records(only_run(tmp_path / "results")) if r["kind"] == "call"]) == request_count
