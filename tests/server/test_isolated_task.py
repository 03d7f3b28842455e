"""Work of a server in a process of its own: however it ends, that is told, and nothing of it stays."""

from __future__ import annotations

import errno
import os
import resource
import signal
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from runner.base.errors import ReleaseError, RunError, UsageError
from runner.server.isolated_task import (
    IsolatedTaskError,
    TaskLimits,
    TaskResult,
    TaskStatus,
    run_isolated,
    run_with_check_limits,
)
from runner.server.settings import Settings

MEMORY = 4 << 30
LITTLE = 600 << 20


def describe_process(place: Path, word: str) -> dict[str, Any]:
    limits = (resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
    return {
        "word": word, "temporary": tempfile.gettempdir() == str(place), "nice": os.nice(0),
        "limits": [resource.getrlimit(one) for one in limits],
    }  # fmt: skip


def slow(_: Path) -> None:
    time.sleep(60)


def busy(_: Path) -> None:
    while True:
        pass


def greedy(_: Path) -> int:
    return len(bytearray(2 * MEMORY))


def many(_: Path) -> int:
    """Takes it for stacks of threads, of which one cannot be begun."""
    for _number in range(MEMORY >> 20):
        Thread(target=time.sleep, args=(60,), daemon=True).start()
    return 0


def filled(_: Path) -> int:
    """Takes it piece by piece, each of which is written to."""
    return len([b"x" * (1 << 20) for _number in range(2 * LITTLE >> 20)])


def query_duckdb(_: Path) -> int:
    """A question to DuckDB, whose answer numpy has: each reserves more addresses than there may be memory."""
    import numpy as np
    import scipy.special

    from runner.base.storage.duckdb_connections import connect

    with connect() as database:
        (found,) = database.execute("SELECT sum(n) FROM range(100000) numbers(n)").fetchall()
    return int(np.ceil(scipy.special.stdtr(3, 0) + found[0]))


def killed(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def long(_: Path) -> str:
    return "x" * 2_000


def without_database(_: Settings, __: Path) -> dict[str, Any]:
    """Raise as `Database` does while PostgreSQL restarts."""
    try:
        raise OperationalError("SELECT 1", {}, OSError("connection refused"))
    except OperationalError as error:
        raise RunError("cannot use the database") from error


def refused(_: Settings, __: Path) -> dict[str, Any]:
    raise UsageError("no such column")


def refused_memory(_: Settings, __: Path) -> dict[str, Any]:
    return {"size": greedy(__)}


def killed_for(_: Settings, __: Path) -> dict[str, Any]:
    killed(__)
    return {}


def without_room(_: Settings, place: Path) -> dict[str, Any]:
    try:
        raise OSError(errno.ENOSPC, "No space left on device", str(place))
    except OSError as error:
        raise RunError(f"cannot write {place}") from error


@pytest.mark.gate
def test_work_is_done_within_its_bounds_and_leaves_nothing(tmp_path: Path) -> None:
    bounds = TaskLimits(memory=MEMORY, seconds=60, file_bytes=1 << 20, nice=os.nice(0) + 3)
    ending = run_isolated(bounds, tmp_path, describe_process, "acme")
    assert ending.status is TaskStatus.FINISHED
    assert ending.value == {
        "word": "acme", "temporary": True, "nice": max(-20, min(19, 2 * os.nice(0) + 3)),
        "limits": [[MEMORY, MEMORY], [60, 65], [1 << 20, 1 << 20], [0, 0]],
    }  # fmt: skip
    assert not [*tmp_path.iterdir()]


@pytest.mark.full
@pytest.mark.parametrize(
    ("work", "seconds", "ending"),
    [
        (greedy, 60, TaskResult(TaskStatus.OUT_OF_MEMORY)),
        pytest.param(many, 60, TaskResult(TaskStatus.OUT_OF_MEMORY), marks=pytest.mark.full),
        (killed, 60, TaskResult(TaskStatus.DIED, failure=f"ended with exit code {-signal.SIGKILL}")),
        (slow, 0.5, TaskResult(TaskStatus.TIMED_OUT)),
        pytest.param(busy, 2, TaskResult(TaskStatus.TIMED_OUT), marks=pytest.mark.full),
    ],
)
def test_work_that_does_not_answer_says_how_it_ended(
    tmp_path: Path, work: Any, seconds: float, ending: TaskResult
) -> None:
    assert run_isolated(TaskLimits(memory=MEMORY, seconds=seconds), tmp_path, work) == ending
    assert not [*tmp_path.iterdir()]


@pytest.mark.full
def test_memory_is_what_is_taken_and_not_what_is_reserved(tmp_path: Path) -> None:
    bounds = TaskLimits(memory=LITTLE, seconds=60)
    assert run_isolated(bounds, tmp_path, filled) == TaskResult(TaskStatus.OUT_OF_MEMORY)
    assert run_isolated(bounds, tmp_path, query_duckdb).status is TaskStatus.FINISHED


@pytest.mark.full
def test_an_answer_that_is_too_long_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.server.isolated_task.MAX_RESULT_BYTES", 1_000)
    ending = run_isolated(TaskLimits(memory=MEMORY, seconds=60), tmp_path, long)
    assert (ending.status, ending.failure.startswith("left a result that cannot be read")) == (TaskStatus.DIED, True)


@pytest.mark.parametrize(
    ("work", "said"),
    [(refused, "^no such column$"), (refused_memory, "more memory than .*MiB, the limit of this server")],
)
def test_whoever_wants_the_answer_alone_is_told_why_there_is_none(tmp_path: Path, work: Any, said: str) -> None:
    with pytest.raises(ReleaseError, match=said):
        run_with_check_limits(Settings(folder=tmp_path, check_bytes=MEMORY), work)


@pytest.mark.parametrize("work", [killed_for, without_room, without_database])
def test_what_the_server_could_not_do_is_no_word_on_what_was_asked(tmp_path: Path, work: Any) -> None:
    with pytest.raises(IsolatedTaskError, match="the server could not finish"):
        run_with_check_limits(Settings(folder=tmp_path), work)


def test_a_folder_that_takes_nothing_begins_no_work(tmp_path: Path) -> None:
    (tmp_path / "incoming").write_text("no folder")
    with pytest.raises(IsolatedTaskError, match="the server cannot start a process now"):
        run_with_check_limits(Settings(folder=tmp_path), killed_for)
