"""Fine-tuning providers: refusals, rate limits, and API keys."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import NipRunError, ProviderRefusal, RunError
from tests.support.fine_tuning_jobs import fail_on_record, make_backend, make_job, submit_job
from tests.support.servers.fine_tune_client import FineTuningProvider, run_fine_tuning_provider


@pytest.fixture
def server() -> Iterator[FineTuningProvider]:
    with run_fine_tuning_provider() as running:
        yield running


def submit_error(
    server: FineTuningProvider, folder: Path, waits: list[float] | None = None, **options: Any
) -> NipRunError:
    with pytest.raises(NipRunError) as raised:
        make_backend(server, waits=waits, **options).submit(make_job(folder), [], lambda record: None)
    assert server.jobs() == []
    return raised.value


@pytest.mark.full
@pytest.mark.parametrize("kind", ["daily", "busy"])
def test_rate_limit_is_waited_for_as_long_as_the_server_asks(
    server: FineTuningProvider, tmp_path: Path, kind: str
) -> None:
    server.change(creates=[kind, kind], asks_to_wait="400")
    waits: list[float] = []
    submit_job(server, make_job(tmp_path), waits=waits)
    assert waits == [400, 400]
    assert len(server.jobs()) == 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", ["daily", "busy"])
@pytest.mark.parametrize("wait_seconds", ["1000", "7200", "1e300", None])
def test_longer_rate_limit_is_an_error_that_names_the_time_to_retry(
    server: FineTuningProvider, tmp_path: Path, kind: str, wait_seconds: str | None
) -> None:
    wait = wait_seconds or email.utils.formatdate(time.time() + 7200, usegmt=True)
    server.change(creates=[kind], asks_to_wait=wait)
    waits: list[float] = []
    failure = submit_error(server, tmp_path, waits)
    assert isinstance(failure, RunError)
    assert waits == []
    assert ("limit per day" in str(failure)) is (kind == "daily")
    if wait_seconds != "1e300":
        local_hour = time.strftime("%Y-%m-%d %H:", time.localtime(time.time() + float(wait_seconds or 7200)))
        assert f"Run the same command again after {local_hour}" in str(failure)


def test_short_waits_are_bounded_in_total(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["busy"] * 20, asks_to_wait="400")
    waits: list[float] = []
    submit_error(server, tmp_path, waits)
    assert waits == [400, 400]


def test_daily_limit_without_a_wait_is_an_error(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["daily"])
    waits: list[float] = []
    failure = submit_error(server, tmp_path, waits)
    assert waits == []
    assert "in a few hours" in str(failure)


def test_rerun_after_a_daily_limit_creates_the_job(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["daily"])
    notes: list[Mapping[str, Any]] = []
    with pytest.raises(RunError):
        make_backend(server).submit(make_job(tmp_path), notes, notes.append)
    make_backend(server).submit(make_job(tmp_path), notes, notes.append)
    assert len(server.jobs()) == len(server.files()) == 1


@pytest.mark.full
@pytest.mark.parametrize("kind", ["forbidden", "unknown_model", "no_route"])
def test_error_for_a_provider_without_fine_tuning_names_other_backends(
    server: FineTuningProvider, tmp_path: Path, kind: str
) -> None:
    server.change(creates=[kind] * 9)
    failure = submit_error(server, tmp_path)
    assert isinstance(failure, ProviderRefusal)
    assert "training.trainers.m.backend" in str(failure)
    assert "`command`" in str(failure)
    assert "`files`" in str(failure)
    assert "tiny" in str(failure)


@pytest.mark.parametrize("stage", ["uploads", "creates"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [("broke", ProviderRefusal), ("unauthorized", ProviderRefusal), ("policy", RunError), ("too_large", RunError)],
)
def test_permanent_errors_are_not_retried(
    server: FineTuningProvider, tmp_path: Path, stage: str, kind: str, expected: type[NipRunError]
) -> None:
    server.change(**{stage: [kind] * 9})
    assert isinstance(submit_error(server, tmp_path), expected)
    posts = [entry for entry in server.recorded_requests() if entry["method"] == "POST"]
    assert len(posts) == (1 if stage == "uploads" else 2)


@pytest.mark.full
def test_attempts_to_create_a_job_are_bounded(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["error"] * 20)
    failure = submit_error(server, tmp_path)
    assert "after 6 attempts" in str(failure)
    assert (
        len([e for e in server.recorded_requests() if (e["method"], e["path"]) == ("POST", "/v1/fine_tuning/jobs")])
        == 6
    )


def test_missing_dataset_is_an_error_before_any_call(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path, dataset=tmp_path / "gone.jsonl")
    with pytest.raises(RunError, match=r"gone\.jsonl"):
        make_backend(server).submit(job, [], fail_on_record)
    assert server.recorded_requests() == []


# Keys


def test_keys_are_sent_to_no_server_unless_the_spec_names_them(
    server: FineTuningProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-mine")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-secret-of-the-admin")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-mine: secret")
    job = make_job(tmp_path)
    backend, handle = submit_job(server, job)
    backend.poll(job, handle)
    backend.submit(job, [{"file": "file-0"}], lambda record: None)
    assert len(server.recorded_requests()) >= 4
    assert "secret" not in json.dumps(server.recorded_requests())


def test_key_named_in_the_spec_is_sent(
    server: FineTuningProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-theirs")
    submit_job(server, make_job(tmp_path), model={"api_key_env": "THEIR_KEY"})
    assert {request["headers"]["authorization"] for request in server.recorded_requests()} == {"Bearer sk-theirs"}


def test_nothing_is_sent_without_the_key(server: FineTuningProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THEIR_KEY", raising=False)
    with pytest.raises(ProviderRefusal, match="THEIR_KEY"):
        make_backend(server, model={"api_key_env": "THEIR_KEY"})
