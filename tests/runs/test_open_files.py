"""A limit on open files below the concurrency lowers the concurrency and does not count as a server failure."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
from pathlib import Path

import httpx2
import openai
import pytest

from runner.base.errors import RunError
from runner.models.providers.client_errors import map_client_error
from runner.models.settings import ModelSettings
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment
from tests.support.runs import journal_records, only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_stop_the_run_without_a_retry(number: int) -> None:
    error = openai.APIConnectionError(request=httpx2.Request("POST", "http://127.0.0.1/v1"))
    error.__cause__ = httpx2.ConnectError("cannot connect")
    error.__cause__.__cause__ = OSError(number, "Too many open files")
    mapped_error = map_client_error(error, ModelSettings(model="tiny", base_url="http://127.0.0.1/v1"), "m")
    assert isinstance(mapped_error, RunError)
    assert "ulimit -n" in str(mapped_error)


def run_with_file_limit(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("spec.yaml"), cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=HANG_SECONDS, check=False, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )  # fmt: skip


@pytest.mark.full
def test_a_hard_limit_on_open_files_lowers_the_concurrency_with_a_note(tmp_path: Path) -> None:
    with run_chat_server(latency=0.2) as server:
        spec_file(tmp_path, server.base_url, size=100, rollouts={"concurrency": 100})
        done = run_with_file_limit(tmp_path, 80)
    assert done.returncode == 0, done.stderr
    assert "concurrent calls instead of 100 (rollouts.concurrency)" in done.stderr.replace("\n", " ")
    run = only_run(tmp_path / "results")
    assert json.loads((run / "metrics.json").read_text())["outcomes"]["transport_failed"] == 0
    assert not [record for record in journal_records(run) if record["kind"] == "failure"]


@pytest.mark.full
def test_a_sufficient_limit_on_open_files_is_not_mentioned(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=4, rollouts={"concurrency": 16})
        done = run_with_file_limit(tmp_path, 256)
    assert done.returncode == 0, done.stderr
    assert "concurrent calls" not in done.stderr
