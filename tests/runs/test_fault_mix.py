"""A run on a server that fails nearly every second call has the records of a run without failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.processes import nip_run
from tests.support.runs import only_run, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

FAULTS = (
    "rate_limit", "rate_limit_seconds", "server_error", "drop", "half_body", "malformed", "empty_choices",
    "null_content", "hang",
)  # fmt: skip
RETRY = {"transient": {"first_wait": 0.02, "max_wait": 0.2, "attempts": None}, "invalid_response": {"attempts": 5}}


class Outcome(NamedTuple):
    kinds: Mapping[str, int]
    outcomes: Mapping[str, int]
    rollouts: list[dict[str, Any]]
    messages: list[dict[str, Any]]


def play(folder: Path, faults: tuple[str, ...]) -> Outcome:
    """Play 300 rollouts in a folder, at a server that has 5 % of each fault."""
    folder.mkdir()
    with run_chat_server(faults=dict.fromkeys(faults, 0.05), latency=0.2, hang=3.0, seed=1) as server:
        spec_file(
            folder, server.base_url, size=300, models={"m": {"timeout": 0.6}}, rollouts={"concurrency": 64}, retry=RETRY
        )
        done = nip_run("spec.yaml", "-q", cwd=folder)
        assert done.returncode == 0, done.stderr
        kinds = server.stats()["kinds"]
    run = only_run(folder / "results")
    assert json.loads((run / "manifest.json").read_text())["status"] == "done"
    outcomes = json.loads((run / "metrics.json").read_text())["outcomes"]
    return Outcome(kinds, outcomes, table(run, "rollouts"), table(run, "messages"))


def test_nine_kinds_of_fault_change_no_record(tmp_path: Path) -> None:
    calm, storm = play(tmp_path / "calm", ()), play(tmp_path / "storm", FAULTS)
    assert set(FAULTS) <= set(storm.kinds)
    assert sum(storm.kinds.values()) <= 2.2 * sum(calm.kinds.values())  # 45 % of the calls fail, and are retried once
    assert storm.rollouts == calm.rollouts
    assert storm.messages == calm.messages
    assert storm.outcomes == calm.outcomes
    assert storm.outcomes["transport_failed"] == 0
