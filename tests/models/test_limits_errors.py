"""Rate limits in error responses: learned and respected like those in other answers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.processes import nip_run_here, wait_until
from tests.support.runs import only_run, run_spec
from tests.support.servers.batch_client import BatchProvider, run_batch_provider
from tests.support.specs import spec_file

LONG_RETRY = {"transient": {"attempts": 30, "first_wait": 0.05, "max_wait": 0.2}}


def start_answering_after(provider: BatchProvider, after: int) -> threading.Thread:
    """Let the provider refuse its first `after` calls, and then answer without rate headers."""

    def change() -> None:
        wait_until(lambda: provider.stats()["chat"] >= after)
        provider.change(most_at_once=None, headers={})

    thread = threading.Thread(target=change)
    thread.start()
    return thread


@pytest.mark.full
def test_rate_in_429_headers_is_respected(tmp_path: Path) -> None:
    with run_batch_provider(most_at_once=0, headers={"x-ratelimit-limit-requests": "300"}) as provider:
        path = spec_file(tmp_path, provider.base_url, size=12, retry=LONG_RETRY)
        change_thread = start_answering_after(provider, after=8)
        started = time.monotonic()
        result = run_spec(path, tmp_path / "results")
        seconds = time.monotonic() - started
        change_thread.join()
        requests, kinds = provider.stats()["chat"], provider.stats()["kinds"]
    assert kinds["too_many"] >= 8
    assert result.metrics["outcomes"]["transport_failed"] == 0
    # The first 8 calls know no rate; then come a burst of 30 and 5 calls per second.
    assert seconds > (requests - 8 - 30) / 5 - 0.5
    assert result.folder.log.read_text().count("allows 300 requests per minute") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_rate_is_learned_even_if_no_call_is_answered(tmp_path: Path, kind: str) -> None:
    with run_batch_provider(most_at_once=0, headers={f"x-ratelimit-limit-{kind}": "60000"}) as provider:
        spec_file(tmp_path, provider.base_url, size=2, retry={"transient": {"attempts": 2}})
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 1
    assert f"allows 60000 {kind} per minute" in (only_run(tmp_path / "results") / "run.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_reset_time_in_a_429_delays_all_calls_of_the_group(tmp_path: Path, kind: str) -> None:
    headers = {f"x-ratelimit-remaining-{kind}": "0", f"x-ratelimit-reset-{kind}": "1500ms"}
    with run_batch_provider(most_at_once=0, headers=headers, clock=True) as provider:
        path = spec_file(tmp_path, provider.base_url, size=24, retry=LONG_RETRY, rollouts={"concurrency": 24})
        change_thread = start_answering_after(provider, after=9)
        result = run_spec(path, tmp_path / "results")
        change_thread.join()
        arrivals = provider.stats()["arrivals"]
    # The first 8 calls are concurrent; the ninth comes after the reset that the first response names.
    assert arrivals[8] - arrivals[0] >= 1.5
    assert result.metrics["outcomes"]["transport_failed"] == 0
