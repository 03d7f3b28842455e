"""Many endless bodies at once: memory stays limited, and the process still handles signals."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.processes import python, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import only_run
from tests.support.servers.client import LoopbackServer, run_loopback_server
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

CONCURRENT_CALLS_SCRIPT = """
import asyncio, resource, sys

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from runner.base.errors import ProviderRefusal, TransientError
from runner.models.interface import Request, SampleKey
from runner.models.providers.body_limits import BodySlots
from runner.models.providers.openai import OpenAiModel
from runner.models.settings import ModelSettings

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

async def calls():
    settings = ModelSettings(model="tiny", base_url=sys.argv[1], timeout=600.0)
    model = OpenAiModel(settings, "m", 64, body_slots=BodySlots())
    request = Request("m", [{"role": "user", "content": "x"}], SampleKey("p", 0, 0, "a", 0))
    before = peak()
    outcomes = await asyncio.gather(*(model.complete(request) for _ in range(16)), return_exceptions=True)
    assert all(isinstance(error, (TransientError, ProviderRefusal)) for error in outcomes), outcomes
    await model.close()
    print(peak() - before)

asyncio.run(calls())
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with run_loopback_server(LoopbackServer, "misbehaving") as started_server:
        yield started_server


@pytest.mark.parametrize(
    "row",
    [
        "endless body",
        pytest.param("gzip bomb", marks=pytest.mark.full),
        pytest.param("endless error", marks=pytest.mark.full),
        pytest.param("30 MiB that are no JSON", marks=pytest.mark.full),
    ],
)
def test_16_endless_bodies_at_once_take_little_memory(row: str, server: LoopbackServer) -> None:
    done = python(CONCURRENT_CALLS_SCRIPT, f"{server.root}/{quote(row)}/v1")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300  # MiB; 16 bodies that are read completely take at least 512


@pytest.mark.parametrize("row", ["endless body", pytest.param("slow body", marks=pytest.mark.full)])
def test_sigterm_ends_a_run_within_seconds(row: str, server: LoopbackServer, tmp_path: Path) -> None:
    transient = {"first_wait": 0.0, "max_wait": 0.0, "attempts": 1_000_000}
    base_url = f"{server.root}/{quote(row)}/v1"
    models = {"m": {"timeout": 3600.0}}
    path = spec_file(tmp_path, base_url, size=64, models=models, retry={"transient": transient})
    calls_before = server.stats().get(row, 0)
    process = start_nip_run(path, "--results", tmp_path / "r", cwd=tmp_path)
    wait_until(lambda: server.stats().get(row, 0) > calls_before + 3)
    process.send_signal(signal.SIGTERM)
    code, _, err = wait_for_exit(process)
    assert code == 130, err


SCRIPT_WITH_16_MIB = """
import resource, sys
import runner.models.providers.openai
from runner import run
from runner.base.errors import NipRunError
from runner.spec.loader import load_spec

run(load_spec(sys.argv[1], {"models.m.provider": "dummy", "models.m.base_url": None}), sys.argv[2] + "-before")
spec = load_spec(sys.argv[1])  # everything that a run needs is loaded now
with open("/proc/self/status") as status:
    (used,) = (int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
try:
    run(spec, sys.argv[2])
except NipRunError as error:
    print(*error.lines(), sep="\\n")
    sys.exit(error.exit_code)
"""


def test_a_run_out_of_memory_fails_with_a_message(server: LoopbackServer, tmp_path: Path) -> None:
    path = spec_file(tmp_path, f"{server.root}/endless%20body/v1", size=8, models={"m": {"timeout": 600.0}})
    for number in range(5):
        results = tmp_path / f"r{number}"
        done = python(SCRIPT_WITH_16_MIB, path, results, cwd=tmp_path)
        if "cannot allocate memory for thread-local data" not in done.stderr:
            break  # otherwise the C library ended the process, because a thread started at that moment
    assert (done.returncode, "failed: out of memory. Lower" in done.stdout) == (1, True), done.stderr
    assert json.loads((only_run(results) / "manifest.json").read_bytes())["status"] == "failed"
