"""What a provider that fine-tunes refuses, how long it is waited for, and which key it gets."""

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


def refused(server: FineTuningProvider, folder: Path, waits: list[float] | None = None, **options: Any) -> NipRunError:
    with pytest.raises(NipRunError) as raised:
        make_backend(server, waits=waits, **options).submit(make_job(folder), [], lambda record: None)
    assert server.jobs() == []
    return raised.value


@pytest.mark.full
@pytest.mark.parametrize("kind", ["daily", "busy"])
def test_a_limit_is_waited_for_as_long_as_the_server_asks(
    server: FineTuningProvider, tmp_path: Path, kind: str
) -> None:
    server.change(creates=[kind, kind], asks_to_wait="400")
    waits: list[float] = []
    submit_job(server, make_job(tmp_path), waits=waits)
    assert waits == [400, 400]
    assert len(server.jobs()) == 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", ["daily", "busy"])
@pytest.mark.parametrize("asked", ["1000", "7200", "1e300", None])
def test_a_longer_limit_is_an_error_that_says_when_to_come_back(
    server: FineTuningProvider, tmp_path: Path, kind: str, asked: str | None
) -> None:
    wait = asked or email.utils.formatdate(time.time() + 7200, usegmt=True)
    server.change(creates=[kind], asks_to_wait=wait)
    waits: list[float] = []
    failure = refused(server, tmp_path, waits)
    assert isinstance(failure, RunError)
    assert waits == []
    assert ("limit per day" in str(failure)) is (kind == "daily")
    if asked != "1e300":
        at = time.strftime("%Y-%m-%d %H:", time.localtime(time.time() + float(asked or 7200)))
        assert f"Run the same command again after {at}" in str(failure)


def test_waits_that_are_short_one_by_one_are_not_endless_together(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["busy"] * 20, asks_to_wait="400")
    waits: list[float] = []
    refused(server, tmp_path, waits)
    assert waits == [400, 400]


def test_a_limit_per_day_without_an_end_is_not_waited_for(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["daily"])
    waits: list[float] = []
    failure = refused(server, tmp_path, waits)
    assert waits == []
    assert "in a few hours" in str(failure)


def test_after_a_limit_per_day_the_same_command_creates_the_job(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["daily"])
    known: list[Mapping[str, Any]] = []
    with pytest.raises(RunError):
        make_backend(server).submit(make_job(tmp_path), known, known.append)
    make_backend(server).submit(make_job(tmp_path), known, known.append)
    assert len(server.jobs()) == len(server.files()) == 1


@pytest.mark.full
@pytest.mark.parametrize("kind", ["forbidden", "unknown_model", "no_route"])
def test_a_provider_that_takes_no_jobs_names_the_other_ways(
    server: FineTuningProvider, tmp_path: Path, kind: str
) -> None:
    server.change(creates=[kind] * 9)
    failure = refused(server, tmp_path)
    assert isinstance(failure, ProviderRefusal)
    assert "training.trainers.m.backend" in str(failure)
    assert "`command`" in str(failure)
    assert "`files`" in str(failure)
    assert "tiny" in str(failure)


@pytest.mark.parametrize("where", ["uploads", "creates"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [("broke", ProviderRefusal), ("unauthorized", ProviderRefusal), ("policy", RunError), ("too_large", RunError)],
)
def test_what_asking_again_does_not_mend_is_asked_once(
    server: FineTuningProvider, tmp_path: Path, where: str, kind: str, expected: type[NipRunError]
) -> None:
    server.change(**{where: [kind] * 9})
    assert isinstance(refused(server, tmp_path), expected)
    asked = [entry for entry in server.recorded_requests() if entry["method"] == "POST"]
    assert len(asked) == (1 if where == "uploads" else 2)


@pytest.mark.full
def test_attempts_are_bounded(server: FineTuningProvider, tmp_path: Path) -> None:
    server.change(creates=["error"] * 20)
    failure = refused(server, tmp_path)
    assert "after 6 attempts" in str(failure)
    assert (
        len([e for e in server.recorded_requests() if (e["method"], e["path"]) == ("POST", "/v1/fine_tuning/jobs")])
        == 6
    )


def test_a_dataset_that_is_not_there_is_an_error_before_any_call(server: FineTuningProvider, tmp_path: Path) -> None:
    job = make_job(tmp_path, dataset=tmp_path / "gone.jsonl")
    with pytest.raises(RunError, match=r"gone\.jsonl"):
        make_backend(server).submit(job, [], fail_on_record)
    assert server.recorded_requests() == []


# Keys


def test_no_other_server_gets_a_key_unless_the_spec_names_it(
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


def test_the_key_that_the_spec_names_is_sent(
    server: FineTuningProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-theirs")
    submit_job(server, make_job(tmp_path), model={"api_key_env": "THEIR_KEY"})
    assert {request["headers"]["authorization"] for request in server.recorded_requests()} == {"Bearer sk-theirs"}


def test_without_the_key_nothing_is_sent(server: FineTuningProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THEIR_KEY", raising=False)
    with pytest.raises(ProviderRefusal, match="THEIR_KEY"):
        make_backend(server, model={"api_key_env": "THEIR_KEY"})
