"""Misbehaving fine-tuning servers: bounded requests, the right error class, and no leaked key."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from runner.base.errors import NipRunError, ProviderRefusal, RunError
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.registry import TrainedGroup, create_backend
from tests.support.fine_tuning_jobs import make_job
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import environment, wait_or_kill, wait_until
from tests.support.servers.client import LoopbackServer, run_loopback_server

pytestmark = pytest.mark.full

KEY = "sk-Loop/back+0123456789abcdef"
QUICK = TransientPolicy(attempts=3, first_wait=0.001, max_wait=0.002)


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with run_loopback_server(LoopbackServer, "misbehaving") as started:
        yield started


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("row", "kind", "calls"),
    [
        ("endless body", RunError, 2),
        ("gzip bomb", RunError, 2),
        pytest.param("slow body", RunError, 3, marks=pytest.mark.gate),
        pytest.param("slow head", RunError, 3, marks=pytest.mark.gate),
        ("endless headers", RunError, 3),
        ("endless error", RunError, 3),
        ("endless refusal", ProviderRefusal, 1),
        ("deep nesting", RunError, 3),
        ("redirect 307", ProviderRefusal, 1),
        ("key in an error", RunError, 3),
        ("key in an error, escaped", RunError, 3),
        ("key in an error that refuses", ProviderRefusal, 1),
        ("key in headers", RunError, 3),
        ("key in the status line", RunError, 3),
        ("key in an answer", RunError, 3),
    ],
)
def test_status_request_to_a_misbehaving_server_is_bounded(
    row: str,
    kind: type[NipRunError],
    calls: int,
    server: LoopbackServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    model = ModelSettings(
        model="tiny", base_url=f"{server.root}/{quote(row)}/v1", api_key_env="ROW_VARIABLE",
        timeout=1.0 if row.startswith("slow") else 2 * HANG_SECONDS,
    )  # fmt: skip
    backend = create_backend(
        TrainedGroup("m", TrainerSettings(backend="openai"), model, policy=QUICK, sleep=lambda _: None)
    )
    before, started = server.stats().get(row, 0), time.monotonic()
    with pytest.raises(kind) as raised:
        backend.poll(make_job(tmp_path), {"job": "ftjob-1"})
    assert server.stats()[row] - before == calls
    assert time.monotonic() - started < HANG_SECONDS  # the model's timeout did not end the call
    assert KEY not in "".join(traceback.format_exception(raised.value))


POLL = """
import sys
from pathlib import Path
from runner.base.errors import Interrupted
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings
from runner.runs.execution.process import interruptible
from runner.spec.training_settings import TrainerSettings
from runner.training.backends.registry import TrainedGroup, create_backend
from tests.support.fine_tuning_jobs import make_job

model = ModelSettings(model="tiny", base_url=sys.argv[1], timeout=3600.0)
backend = create_backend(TrainedGroup("m", TrainerSettings(backend="openai"), model, policy=TransientPolicy()))
try:
    with interruptible("a run"):
        backend.poll(make_job(Path(sys.argv[2])), {"job": "ftjob-1"})
except Interrupted:
    sys.exit(130)
"""


@pytest.mark.parametrize("row", ["slow body", "slow head"])
def test_sigterm_ends_the_wait_for_a_job(row: str, server: LoopbackServer, tmp_path: Path) -> None:
    before = server.stats().get(row, 0)
    arguments = [sys.executable, "-c", POLL, f"{server.root}/{quote(row)}/v1", str(tmp_path)]
    process = subprocess.Popen(arguments, env=environment(), stdin=subprocess.DEVNULL)
    wait_until(lambda: server.stats().get(row, 0) > before)
    process.send_signal(signal.SIGTERM)
    assert wait_or_kill(process) == 130
