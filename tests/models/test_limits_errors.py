"""What a server says of its rates in answers that are errors is learnt, and waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.processes import nip_run_here, wait_until
from tests.support.runs import only_run, run_spec
from tests.support.servers.batch_client import BatchProvider, run_batch_provider
from tests.support.specs import spec_file

PATIENT = {"transient": {"attempts": 30, "first_wait": 0.05, "max_wait": 0.2}}


def relents(provider: BatchProvider, after: int) -> threading.Thread:
    """The provider refuses everything until `after` calls have come, and then answers without a word on rates."""

    def change() -> None:
        wait_until(lambda: provider.stats()["chat"] >= after)
        provider.change(most_at_once=None, headers={})

    thread = threading.Thread(target=change)
    thread.start()
    return thread


@pytest.mark.full
def test_the_rate_that_only_a_429_names_is_kept(tmp_path: Path) -> None:
    with run_batch_provider(most_at_once=0, headers={"x-ratelimit-limit-requests": "300"}) as provider:
        path = spec_file(tmp_path, provider.base_url, size=12, retry=PATIENT)
        changing = relents(provider, after=8)
        begun = time.monotonic()
        result = run_spec(path, tmp_path / "results")
        seconds = time.monotonic() - begun
        changing.join()
        asked, kinds = provider.stats()["chat"], provider.stats()["kinds"]
    assert kinds["too_many"] >= 8
    assert result.metrics["outcomes"]["transport_failed"] == 0
    # The first eight knew nothing yet; then a burst of 30 at once, then five a second.
    assert seconds > (asked - 8 - 30) / 5 - 0.5
    assert result.folder.log.read_text().count("allows 300 requests per minute") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_the_rate_is_learnt_though_no_call_is_ever_answered(tmp_path: Path, kind: str) -> None:
    with run_batch_provider(most_at_once=0, headers={f"x-ratelimit-limit-{kind}": "60000"}) as provider:
        spec_file(tmp_path, provider.base_url, size=2, retry={"transient": {"attempts": 2}})
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 1
    assert f"allows 60000 {kind} per minute" in (only_run(tmp_path / "results") / "run.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_a_429_that_names_its_reset_holds_the_whole_group_until_then(tmp_path: Path, kind: str) -> None:
    empty = {f"x-ratelimit-remaining-{kind}": "0", f"x-ratelimit-reset-{kind}": "1500ms"}
    with run_batch_provider(most_at_once=0, headers=empty, clock=True) as provider:
        path = spec_file(tmp_path, provider.base_url, size=24, retry=PATIENT, rollouts={"concurrency": 24})
        changing = relents(provider, after=9)
        result = run_spec(path, tmp_path / "results")
        changing.join()
        arrivals = provider.stats()["arrivals"]
    # Eight calls may be made at once in the beginning; the ninth request comes after the reset that the first names.
    assert arrivals[8] - arrivals[0] >= 1.5
    assert result.metrics["outcomes"]["transport_failed"] == 0
