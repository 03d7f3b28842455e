"""A run whose server is down ends soon, with any number of games, and saves all paid answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import nip_run, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import journal_records, only_run, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

POLICY = {"transient": {"first_wait": 0.01, "max_wait": 0.05}, "breaker": {"failures": 10, "probes": 4}}


@pytest.fixture
def unreachable_url() -> Iterator[str]:
    """Yield the URL of a reserved port without a server."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}/v1"


@pytest.mark.parametrize("games", [pytest.param(30, marks=pytest.mark.full), 300])
def test_a_run_on_an_unreachable_server_ends_after_few_calls_whatever_its_size(
    tmp_path: Path, games: int, unreachable_url: str
) -> None:
    spec_file(tmp_path, unreachable_url, size=games, retry=POLICY, rollouts={"concurrency": 16})
    result = nip_run("spec.yaml", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "cannot reach http://127.0.0.1:" in result.stderr.replace("\n", " ")
    assert "retrying one call at a time" in result.stderr
    failure_count = sum(record["kind"] == "failure" for record in journal_records(only_run(tmp_path / "results")))
    assert 14 <= failure_count <= 16 + 4
    assert "Traceback" not in result.stderr


def test_the_screen_soon_says_that_the_server_is_unreachable(tmp_path: Path, unreachable_url: str) -> None:
    """The spec has the default retry policy."""
    spec_file(tmp_path, unreachable_url, size=100, retry=None, rollouts={"concurrency": 64})
    process = start_nip_run("spec.yaml", cwd=tmp_path)
    log = tmp_path / "results"
    wait_until(lambda: any("retrying one call at a time" in path.read_text() for path in log.rglob("run.log")))
    process.terminate()
    code, _, stderr = wait_for_exit(process)
    assert code == 130
    assert "calls in a row failed; retrying one call at a time" in stderr


def test_a_run_resumes_after_its_server_was_down(tmp_path: Path) -> None:
    with run_chat_server(kind="overloaded", after=20) as server:
        spec_file(tmp_path, server.base_url, size=12, retry=POLICY)
        first = nip_run("spec.yaml", cwd=tmp_path)
        assert first.returncode == 1
        assert "cannot reach" in first.stderr
    saved_answers = sum(record["kind"] == "call" for record in journal_records(only_run(tmp_path / "results")))
    assert saved_answers == 20
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=12, retry=POLICY)
        second = nip_run("spec.yaml", cwd=tmp_path)
        assert second.returncode == 0, second.stderr
        rows = table(only_run(tmp_path / "results"), "completions")
        assert server.requests == sum(row["error"] is None for row in rows) - saved_answers


def test_answers_of_another_server_are_saved_when_the_run_gives_up(tmp_path: Path, unreachable_url: str) -> None:
    """These answers are billed, so the journal must contain them when the run stops."""
    with run_chat_server(latency=1.0) as server:
        spec_file(
            tmp_path, server.base_url, size=40, retry=POLICY, rollouts={"concurrency": 40},
            protocol={"use": "debate", "max_message_rounds": 4}, prompts="prompts/code_validation/debate",
            models={"down": {"provider": "openai", "model": "tiny", "base_url": unreachable_url}},
            agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "down"}},
        )  # fmt: skip
        result = nip_run("spec.yaml", cwd=tmp_path)
        assert result.returncode == 1, result.stderr
        assert "cannot reach" in result.stderr
        saved_answers = sum(record["kind"] == "call" for record in journal_records(only_run(tmp_path / "results")))
        assert (saved_answers, server.requests > 0) == (server.requests, True)


def test_short_outages_do_not_stop_a_run(tmp_path: Path) -> None:
    outage: dict[str, Any] = {"faults": {"overloaded": 0.6, "drop": 0.2}}
    with run_chat_server(**outage) as server:
        spec_file(tmp_path, server.base_url, size=12, retry={"transient": {"attempts": 30}})
        result = nip_run("spec.yaml", "-q", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
