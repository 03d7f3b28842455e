"""A provider that refuses a call may still answer calls in flight; these answers are paid for and saved."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import ProviderRefusal
from runner.rollouts.engine import REFUSED_SECONDS
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run
from tests.support.runs import journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

DEBATE = {
    "protocol": {"use": "debate", "max_message_rounds": 6}, "prompts": "prompts/code_validation/debate",
    "agents": {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
}  # fmt: skip
"""A protocol whose provers speak concurrently."""

TREES = {"rollouts": {"num_responses_per_timestep": 2, "concurrency": 8}, "protocol": {"max_message_rounds": 4}}
"""Every step has two answers, and the branches after them are played concurrently."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("game", [{}, DEBATE, TREES], ids=["nip", "debate", "trees"])
@pytest.mark.parametrize("kind", ["unauthorized", "insufficient_quota"])
def test_answers_in_flight_when_the_provider_refuses_are_saved(
    tmp_path: Path, kind: str, game: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latencies differ, so some answers arrive long after the first refusal."""
    monkeypatch.setattr("runner.rollouts.engine.REFUSED_SECONDS", HANG_SECONDS)
    with run_chat_server(kind=kind, after=12, latency=[0.02, 0.15]) as server:
        path = spec_file(tmp_path, server.base_url, size=24, **{"rollouts": {"concurrency": 24}, **game})
        with pytest.raises(ProviderRefusal):
            run_spec(path, tmp_path / "results")
        answered = server.stats()["kinds"]["answer"]
        assert server.stats()["open"] == 0
    records = journal_records(only_run(tmp_path / "results"))
    assert answered == 12
    assert sum(record["kind"] == "call" and "asked" in record for record in records) == answered


def test_no_call_starts_after_the_provider_has_refused_one(tmp_path: Path) -> None:
    with run_chat_server(kind="unauthorized", after=0, latency=[0.02, 0.15]) as server:
        path = spec_file(tmp_path, server.base_url, size=24, rollouts={"concurrency": 8})
        with pytest.raises(ProviderRefusal):
            run_spec(path, tmp_path / "results")
        assert server.requests == 8


@pytest.mark.full
def test_a_refusal_does_not_wait_for_calls_that_hang(tmp_path: Path) -> None:
    with run_chat_server(faults={"hang": 0.5}, hang=3600.0, kind="unauthorized", after=10) as server:
        spec_file(
            tmp_path, server.base_url, size=24, rollouts={"concurrency": 24}, models={"m": {"timeout": 3600.0}}
        )  # fmt: skip
        started = time.monotonic()
        done = nip_run("spec.yaml", "-q", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert time.monotonic() - started > REFUSED_SECONDS
