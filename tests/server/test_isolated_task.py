"""Server tasks in worker processes: every way to end is reported, and no files stay behind."""

from __future__ import annotations

import errno
import hashlib
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
from runner.base.storage.safe_files import make_folders
from runner.server.isolated_task import (
    IsolatedTaskError,
    TaskLimits,
    TaskResult,
    TaskStatus,
    is_server_fault,
    run_isolated,
    run_with_check_limits,
)
from runner.server.settings import Settings
from runner.server.store.blobs import BlobStoreError
from runner.server.store.object_store import ObjectBlobStore

MEMORY = 4 << 30
SMALL_MEMORY = 600 << 20


def describe_process(folder: Path, word: str) -> dict[str, Any]:
    limits = (resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
    return {
        "word": word, "temporary": tempfile.gettempdir() == str(folder), "nice": os.nice(0),
        "limits": [resource.getrlimit(limit) for limit in limits],
    }  # fmt: skip


def sleep_long(_: Path) -> None:
    time.sleep(60)


def loop_forever(_: Path) -> None:
    while True:
        pass


def allocate_at_once(_: Path) -> int:
    return len(bytearray(2 * MEMORY))


def start_many_threads(_: Path) -> int:
    """Use up the memory with thread stacks, until a thread cannot start."""
    for _number in range(MEMORY >> 20):
        Thread(target=time.sleep, args=(60,), daemon=True).start()
    return 0


def allocate_piecewise(_: Path) -> int:
    """Allocate the memory in pieces and write to each."""
    return len([b"x" * (1 << 20) for _number in range(2 * SMALL_MEMORY >> 20)])


def query_duckdb(_: Path) -> int:
    """Query DuckDB and compute with NumPy; both reserve more addresses than the memory limit."""
    import numpy as np
    import scipy.special

    from runner.base.storage.duckdb_connections import connect

    with connect() as database:
        (row,) = database.execute("SELECT sum(n) FROM range(100000) numbers(n)").fetchall()
    return int(np.ceil(scipy.special.stdtr(3, 0) + row[0]))


def kill_itself(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def return_long_text(_: Path) -> str:
    return "x" * 2_000


def fail_without_database(_: Settings, __: Path) -> dict[str, Any]:
    """Raise as `Database` does while PostgreSQL restarts."""
    try:
        raise OperationalError("SELECT 1", {}, OSError("connection refused"))
    except OperationalError as error:
        raise RunError("cannot use the database") from error


def raise_usage_error(_: Settings, __: Path) -> dict[str, Any]:
    raise UsageError("no such column")


def exceed_memory(_: Settings, __: Path) -> dict[str, Any]:
    return {"size": allocate_at_once(__)}


def kill_checked_task(_: Settings, __: Path) -> dict[str, Any]:
    kill_itself(__)
    return {}


def fail_with_full_disk(_: Settings, folder: Path) -> dict[str, Any]:
    try:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))
    except OSError as error:
        raise RunError(f"cannot write {folder}") from error


@pytest.mark.gate
def test_task_runs_within_its_limits_and_leaves_no_files(tmp_path: Path) -> None:
    limits = TaskLimits(memory=MEMORY, seconds=60, file_bytes=1 << 20, nice=3)
    result = run_isolated(limits, tmp_path, describe_process, "acme")
    assert result.status is TaskStatus.FINISHED
    assert result.value == {
        "word": "acme", "temporary": True, "nice": min(19, os.nice(0) + 3),
        "limits": [[MEMORY, MEMORY], [60, 65], [1 << 20, 1 << 20], [0, 0]],
    }  # fmt: skip
    assert not [*tmp_path.iterdir()]


@pytest.mark.full
@pytest.mark.parametrize(
    ("task", "seconds", "expected"),
    [
        (allocate_at_once, 60, TaskResult(TaskStatus.OUT_OF_MEMORY)),
        pytest.param(start_many_threads, 60, TaskResult(TaskStatus.OUT_OF_MEMORY), marks=pytest.mark.full),
        (kill_itself, 60, TaskResult(TaskStatus.DIED, failure=f"ended with exit code {-signal.SIGKILL}")),
        (sleep_long, 0.5, TaskResult(TaskStatus.TIMED_OUT)),
        pytest.param(loop_forever, 2, TaskResult(TaskStatus.TIMED_OUT), marks=pytest.mark.full),
    ],
)
def test_task_without_a_result_reports_how_it_ended(
    tmp_path: Path, task: Any, seconds: float, expected: TaskResult
) -> None:
    assert run_isolated(TaskLimits(memory=MEMORY, seconds=seconds), tmp_path, task) == expected
    assert not [*tmp_path.iterdir()]


@pytest.mark.full
def test_memory_limit_counts_used_memory_and_not_reserved_addresses(tmp_path: Path) -> None:
    limits = TaskLimits(memory=SMALL_MEMORY, seconds=60)
    assert run_isolated(limits, tmp_path, allocate_piecewise) == TaskResult(TaskStatus.OUT_OF_MEMORY)
    assert run_isolated(limits, tmp_path, query_duckdb).status is TaskStatus.FINISHED


@pytest.mark.full
def test_oversized_result_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.server.isolated_task.MAX_RESULT_BYTES", 1_000)
    result = run_isolated(TaskLimits(memory=MEMORY, seconds=60), tmp_path, return_long_text)
    assert (result.status, result.failure.startswith("left a result that cannot be read")) == (TaskStatus.DIED, True)


@pytest.mark.parametrize(
    ("task", "message"),
    [(raise_usage_error, "^no such column$"), (exceed_memory, "more memory than .*MiB, the limit of this server")],
)
def test_refused_check_raises_a_release_error_with_the_reason(tmp_path: Path, task: Any, message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        run_with_check_limits(Settings(folder=tmp_path, check_bytes=MEMORY), task)


@pytest.mark.parametrize("task", [kill_checked_task, fail_with_full_disk, fail_without_database])
def test_server_failure_during_a_check_is_not_blamed_on_the_upload(tmp_path: Path, task: Any) -> None:
    with pytest.raises(IsolatedTaskError, match="the server could not finish"):
        run_with_check_limits(Settings(folder=tmp_path), task)


def test_unwritable_folder_starts_no_task(tmp_path: Path) -> None:
    (tmp_path / "incoming").write_text("no folder")
    with pytest.raises(IsolatedTaskError, match="the server cannot start a process now"):
        run_with_check_limits(Settings(folder=tmp_path), kill_checked_task)


def test_object_store_that_fails_while_a_blob_is_read_is_a_fault_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the server would refuse an upload because its own store failed."""
    data = b"x" * (2 << 20)
    sha256 = hashlib.sha256(data).hexdigest()
    (tmp_path / "file").write_bytes(data)
    make_folders(tmp_path / "store")
    for name, value in (("ENDPOINT", "http://127.0.0.1:9"), ("ALLOW_HTTP", "true"), ("ACCESS_KEY_ID", "x"),
                        ("SECRET_ACCESS_KEY", "x")):  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    store = ObjectBlobStore(f"file://{tmp_path / 'store'}")
    store.put(sha256, tmp_path / "file")
    with store.open(sha256) as source:
        os.truncate(tmp_path / "store" / sha256[:2] / sha256, 0)
        with pytest.raises(BlobStoreError, match="cannot read a blob") as failure:
            source.read(100)
    assert is_server_fault(failure.value)
    with pytest.raises(BlobStoreError, match="cannot list the blobs"):
        list(ObjectBlobStore("s3://bucket").hashes())
