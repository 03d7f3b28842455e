"""A run worth $10 with a budget of $1 is never billed more than $1, despite faults and kills.

The provider bills each answer that it sent, even if the connection was lost or the run was killed before it arrived.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.processes import nip_run, start_nip_run_silently, wait_until
from tests.support.runs import journal_records, only_run
from tests.support.servers.batch_client import run_batch_provider
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

IN, OUT, SIZE = 20.0, 80.0, 300
MODEL = {"m": {"price": {"input": IN, "output": OUT}, "max_completion_tokens": 60, "timeout": 0.4}}
FAULTS = {
    "rate_limit": 0.05, "rate_limit_wait": 0.05, "server_error": 0.05, "drop": 0.05, "half_body": 0.05,
    "malformed": 0.05, "hang": 0.03,
}  # fmt: skip


def test_complete_run_costs_at_least_ten_dollars(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, size=SIZE, models=MODEL)
        assert nip_run("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        assert provider.billed_usd(IN, OUT) >= 10


@pytest.mark.parametrize("kills", [0, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_budget_of_a_dollar_is_not_exceeded_under_faults_and_kills(tmp_path: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    with run_batch_provider(faults=FAULTS, latency=0.02, chat={"seed": seed}) as provider:
        spec_file(
            tmp_path, provider.base_url, size=SIZE, models=MODEL, seed=100 + seed, budget={"usd": 1.0},
            rollouts={"concurrency": 16},
        )  # fmt: skip
        kill_count = 0
        for _ in range(kills):
            process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
            goal = provider.stats()["chat"] + rng.randrange(5, 40)
            wait_until(lambda: provider.stats()["chat"] >= goal or process.poll() is not None)  # noqa: B023 - called at once
            process.kill()
            kill_count += process.wait() < 0
        codes = {nip_run("spec.yaml", "-q", cwd=tmp_path).returncode for _ in range(2)}
        billed, chats = provider.billed_usd(IN, OUT), provider.stats()["chat"]
    assert codes == {3}
    assert billed <= 1.0
    if kills == 0:
        assert billed > 0.3
    records = journal_records(only_run(tmp_path / "results"))
    lost_calls = sum(record["charged"][2] for record in records if record["kind"] == "lost")
    assert lost_calls > 0 or kill_count == 0
    assert chats <= lost_calls + sum(record["kind"] in ("call", "failure") for record in records)
