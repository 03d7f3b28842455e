"""Runs through a batch API: the same records at half the price, and no batch is paid for twice."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import ProviderRefusal, TransientError
from runner.game.prompts.chat import ChatMessage
from runner.models.interface import Completion, Request, SampleKey, Usage
from runner.models.journal_records import BatchRecord
from runner.models.prices import price_of
from runner.models.providers.openai_batch import METADATA, BatchModel, custom_id
from runner.models.providers.openai_body import chat_completions_body
from runner.models.settings import ModelSettings
from tests.support.fine_tuning_jobs import SHORT_WAITS
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import (
    nip_run_here,
    start_nip_run,
    start_nip_run_silently,
    wait_for_exit,
    wait_for_requests,
    wait_or_kill,
    wait_until,
)
from tests.support.runs import derived_files, journal_records, only_run, run_spec, table
from tests.support.servers.batch_client import BatchProvider, run_batch_provider
from tests.support.specs import spec_file

BATCH = {"m": {"batch": True, "batch_wait": 0.05, "batch_poll": 0.05, "timeout": 2 * HANG_SECONDS}}


def write_batch_spec(folder: Path, provider: BatchProvider, **changes: Any) -> Path:
    return spec_file(folder, provider.base_url, models=BATCH, **{"rollouts": {"concurrency": 64}, **changes})


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with single calls."""
    folder = tmp_path_factory.mktemp("live")
    with run_batch_provider() as provider:
        return run_spec(spec_file(folder, provider.base_url), folder / "results").folder.path


def read_call_samples(run: Path) -> list[tuple[Any, ...]]:
    return [tuple(record["sample"]) for record in journal_records(run) if record["kind"] == "call"]


# Complete runs


@pytest.mark.full
@pytest.mark.parametrize(
    "options", [{"shuffle": True}, *(pytest.param(more, marks=pytest.mark.full) for more in ({}, {"delay": 0.0}))]
)
def test_run_by_batch_writes_the_same_records_as_a_run_with_single_calls(
    tmp_path: Path, live: Path, options: dict[str, Any]
) -> None:
    with run_batch_provider(**options) as provider:
        result = run_spec(write_batch_spec(tmp_path, provider), tmp_path / "results")
        stats = provider.stats()
    assert derived_files(result.folder.path) == derived_files(live)
    assert stats["chat"] == 0
    assert stats["lines"] == len(read_call_samples(live))
    assert stats["lines_twice"] == 0


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("concurrency", [4, 64])
def test_calls_of_one_step_of_all_games_are_sent_in_one_batch(tmp_path: Path, live: Path, concurrency: int) -> None:
    with run_batch_provider() as provider:
        run_spec(write_batch_spec(tmp_path, provider, rollouts={"concurrency": concurrency}), tmp_path / "results")
        sizes = provider.stats()["batch_sizes"]
    steps = Counter(sample[2] for sample in read_call_samples(live))
    assert sizes == [steps[step] for step in sorted(steps)]


@pytest.mark.full
def test_failed_lines_are_retried_in_another_batch(tmp_path: Path, live: Path) -> None:
    with run_batch_provider(failing_lines=0.3, shuffle=True) as provider:
        result = run_spec(write_batch_spec(tmp_path, provider), tmp_path / "results")
        stats = provider.stats()
    assert derived_files(result.folder.path) == derived_files(live)
    assert stats["lines_twice"] > 3
    assert stats["billed"]["answers"] == len(read_call_samples(live))
    errors = [row["error"] for row in table(result.folder.path, "completions") if row["error"]]
    assert len(errors) == stats["lines_twice"]
    assert all("429" in error for error in errors)


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("unlisted", [False, True])
def test_expired_lines_are_retried_and_answered_lines_kept(tmp_path: Path, live: Path, unlisted: bool) -> None:
    with run_batch_provider(expired_lines=0.3, unlisted=unlisted) as provider:
        result = run_spec(write_batch_spec(tmp_path, provider), tmp_path / "results")
        stats = provider.stats()
    assert derived_files(result.folder.path) == derived_files(live)
    assert stats["lines_twice"] > 3
    assert stats["billed"]["answers"] == len(read_call_samples(live))


@pytest.mark.full
def test_duration_of_a_batch_does_not_count_toward_the_retry_time_limit(tmp_path: Path, live: Path) -> None:
    with run_batch_provider(expired_lines=0.3, delay=0.3) as provider:
        path = write_batch_spec(tmp_path, provider, retry={"transient": {"total_seconds": 0.2}})
        result = run_spec(path, tmp_path / "results")
    assert derived_files(result.folder.path) == derived_files(live)


def test_batch_that_fails_validation_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    with run_batch_provider(invalid_batches=100) as provider:
        write_batch_spec(tmp_path, provider)
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert provider.stats()["batches"] == 1
    assert done.returncode == 4, done.stderr
    assert "This line is not parseable" in done.stderr
    assert "batch_0" in done.stderr


@pytest.mark.full
def test_rerun_after_a_failed_batch_sends_its_lines_again(tmp_path: Path, live: Path) -> None:
    with run_batch_provider(invalid_batches=1) as provider:
        path = write_batch_spec(tmp_path, provider)
        with pytest.raises(ProviderRefusal):
            run_spec(path, tmp_path / "results")
        result = run_spec(path, tmp_path / "results")
    assert derived_files(result.folder.path) == derived_files(live)


def test_line_with_a_permanent_error_stops_the_run(tmp_path: Path) -> None:
    with run_batch_provider(failing_lines=0.3, failing_status=401) as provider:
        write_batch_spec(tmp_path, provider)
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
    assert done.returncode == 4, done.stderr


@pytest.mark.full
def test_rerun_sends_only_the_refused_lines_again(tmp_path: Path) -> None:
    with run_batch_provider(failing_lines=0.3, failing_status=401) as provider:
        path = write_batch_spec(
            tmp_path, provider, protocol={"use": "solo_verifier", "max_message_rounds": None},
            prompts="prompts/code_validation/solo_verifier", agents={"prover": None},
        )  # fmt: skip
        with pytest.raises(ProviderRefusal, match="answered 401"):
            run_spec(path, tmp_path / "results")
        first = provider.stats()
        result = run_spec(path, tmp_path / "results")
        stats = provider.stats()
    assert result.manifest.status == "done"
    refused = first["lines"] - first["billed"]["answers"]
    assert 0 < refused == stats["lines_twice"] < first["lines"]
    assert stats["lines"] == first["lines"] + refused
    assert result.manifest.failed_calls == 0


@pytest.mark.full
def test_output_file_with_a_truncated_line_does_not_hang_the_run(tmp_path: Path, live: Path) -> None:
    with run_batch_provider(broken_outputs=1) as provider:
        write_batch_spec(tmp_path, provider)
        assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)) == 0
    assert derived_files(only_run(tmp_path / "results")) == derived_files(live)


@pytest.mark.gate
def test_batch_with_a_lost_create_response_is_not_paid_for_twice(tmp_path: Path, live: Path) -> None:
    with run_batch_provider(batch_creates=["after_drop"]) as provider:
        result = run_spec(write_batch_spec(tmp_path, provider), tmp_path / "results")
        stats = provider.stats()
    assert derived_files(result.folder.path) == derived_files(live)
    assert stats["lines"] == len(read_call_samples(live))
    assert stats["lines_twice"] == 0


def test_calls_to_an_unreachable_batch_server_become_transport_failures(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        path = write_batch_spec(tmp_path, provider, size=2, retry={"transient": {"attempts": 2}})
    result = run_spec(path, tmp_path / "results")  # the server is gone
    assert result.metrics["outcomes"]["transport_failed"] == 2


@pytest.mark.full
def test_run_can_be_resumed_by_batch_after_single_calls(tmp_path: Path) -> None:
    """Batch settings are not part of a rollout's identity, so the run resumes with or without them."""
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url)
        with pytest.raises(Exception, match="budget"):
            run_spec(path, tmp_path / "results", "budget.completions=20")
        run_spec(
            path, tmp_path / "results", "models.m.batch=true", "models.m.batch_wait=0.05", "models.m.batch_poll=0.05"
        )
        stats = provider.stats()
    assert stats["chat"] == 20
    assert stats["billed"]["answers"] == len(read_call_samples(only_run(tmp_path / "results")))


# Killed and resumed runs


@pytest.mark.gate
def test_run_killed_after_sending_its_batch_finds_it_again(tmp_path: Path, live: Path) -> None:
    with run_batch_provider(delay=3600.0) as provider:
        path = write_batch_spec(tmp_path, provider)
        process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
        wait_until(lambda: provider.stats()["looks"] >= 1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert provider.stats()["batches"] == 1
        provider.change(delay=0.05)
        result = run_spec(path, tmp_path / "results")
        stats = provider.stats()
    assert derived_files(result.folder.path) == derived_files(live)
    assert stats["lines_twice"] == 0
    assert stats["lines"] == len(read_call_samples(live))


@pytest.mark.full
def test_run_killed_at_every_batch_pays_for_no_line_twice(tmp_path: Path, live: Path) -> None:
    with run_batch_provider(delay=0.3) as provider:
        path = write_batch_spec(tmp_path, provider)
        for count in (1, 2, 3):
            process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
            wait_for_requests(provider, "batches", count, process)
            process.kill()
            process.wait()
        result = run_spec(path, tmp_path / "results")
        stats = provider.stats()
    assert derived_files(result.folder.path) == derived_files(live)
    assert stats["lines_twice"] == 0
    assert stats["billed"]["answers"] == len(read_call_samples(live))


@pytest.mark.full
def test_rerun_after_ctrl_c_finds_the_pending_batch(tmp_path: Path, live: Path) -> None:
    with run_batch_provider(delay=3600.0) as provider:
        path = write_batch_spec(tmp_path, provider)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: provider.stats()["looks"] >= 1)
        process.send_signal(signal.SIGINT)
        assert wait_for_exit(process)[0] == 130
        provider.change(delay=0.0)
        result = run_spec(path, tmp_path / "results")
        assert provider.stats()["lines_twice"] == 0
    assert derived_files(result.folder.path) == derived_files(live)


@pytest.mark.full
def test_batch_forgotten_by_the_provider_does_not_hang_the_run(tmp_path: Path) -> None:
    with run_batch_provider(delay=3600.0) as provider:
        write_batch_spec(tmp_path, provider)
        process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
        wait_until(lambda: provider.stats()["looks"] >= 1)
        process.kill()
        process.wait()
        provider.change(forgotten=True)
        assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)) is not None


# Unit tests


def make_settings(provider: BatchProvider) -> ModelSettings:
    return ModelSettings(
        model="tiny", base_url=provider.base_url, batch=True, batch_wait=0.05, batch_poll=0.05, timeout=2 * HANG_SECONDS
    )


def make_request(index: int) -> Request:
    chat: Sequence[ChatMessage] = ({"role": "system", "content": "s"}, {"role": "user", "content": f"Question {index}"})
    return Request("m", chat, SampleKey(f"p{index}", 0, 0, "prover", 0))


def complete_all(
    provider: BatchProvider, count: int, earlier: list[BatchRecord] | None = None, tries: int = 1
) -> tuple[list[Completion | BaseException], list[BatchRecord]]:
    """Send `count` concurrent requests, each up to `tries` times; return the outcomes and the records noted."""
    notes: list[BatchRecord] = []

    async def note(record: BatchRecord) -> None:
        notes.append(record)

    async def run_calls() -> list[Completion | BaseException]:
        model = BatchModel(make_settings(provider), "m", note, earlier or (), waits=SHORT_WAITS)

        async def complete(index: int) -> Completion:
            for _ in range(tries - 1):
                with suppress(TransientError):
                    return await model.complete(make_request(index))
            return await model.complete(make_request(index))

        try:
            outcomes = asyncio.gather(*map(complete, range(count)), return_exceptions=True)
            return await asyncio.wait_for(outcomes, HANG_SECONDS)
        finally:
            await model.close()

    return asyncio.run(run_calls()), notes


def make_custom_ids(provider: BatchProvider, count: int) -> list[str]:
    batch_settings = make_settings(provider)
    return [
        custom_id(make_request(i), chat_completions_body(batch_settings, make_request(i).messages))
        for i in range(count)
    ]


def test_batch_intent_is_noted_before_sending_and_its_id_after(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        outcomes, notes = complete_all(provider, 5)
        expected_names = make_custom_ids(provider, 5)
    assert all(isinstance(completion, Completion) for completion in outcomes)
    assert [note.batch for note in notes] == [None, "batch_0"]
    assert notes[0].intent == notes[1].intent
    assert notes[0].lines == notes[1].lines == tuple(expected_names)


def test_each_call_gets_its_own_answer_in_any_line_order(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        ordered, _ = complete_all(provider, 40)
        provider.change(shuffle=True)
        shuffled, _ = complete_all(provider, 40)
    texts = [[c.choices[0].text for c in outcomes if isinstance(c, Completion)] for outcomes in (ordered, shuffled)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 30


def test_batch_without_a_noted_id_is_found_by_its_metadata(tmp_path: Path) -> None:
    """After a kill between the creation and the note, the journal has only the intent."""
    with run_batch_provider() as provider:
        _, notes = complete_all(provider, 6)
        outcomes, new_notes = complete_all(provider, 6, earlier=notes[:1])
        stats = provider.stats()
    assert all(isinstance(completion, Completion) for completion in outcomes)
    assert new_notes == []
    assert stats["batches"] == 1
    assert stats["lists"] == 1


@pytest.mark.parametrize(
    "faults",
    [
        # A lost response, a refusal and a lost response; only then a listing contains the batch.
        {"batch_creates": ["after_drop", "busy", "after_error"], "batch_hidden": 6},
        {"batch_creates": ["after_error", "error", "busy"], "batch_hidden": 6},
        {"batch_creates": ["after_html"], "batch_hidden": 3},
        {"batch_creates": ["busy", "after_empty"]},
        {"batch_creates": ["after_drop"], "batch_lists": ["empty", "list", "html", "error", "drop", "unfinished"]},
        {"batch_creates": ["error", "after_drop"], "batch_lists": ["error"] * 5},
    ],
)
def test_one_batch_is_created_despite_lost_responses(tmp_path: Path, faults: dict[str, Any]) -> None:
    with run_batch_provider(**faults) as provider:
        outcomes, notes = complete_all(provider, 4, tries=6)
        stats = provider.stats()
    assert all(isinstance(completion, Completion) for completion in outcomes)
    assert stats["batch_sizes"] == [4]
    assert [note.batch for note in notes if note.batch is not None] == ["batch_0"]


def test_batch_missing_in_listings_at_a_kill_is_found_before_its_lines_are_resent(tmp_path: Path) -> None:
    with run_batch_provider(batch_creates=["after_drop"], batch_hidden=10) as provider:
        _, notes = complete_all(provider, 3)  # the process ends before it finds its batch
        outcomes, new_notes = complete_all(provider, 3, earlier=notes)
        stats = provider.stats()
    assert [note.batch for note in (*notes, *new_notes)] == [None]
    assert all(isinstance(completion, Completion) for completion in outcomes)
    assert stats["batch_sizes"] == [3]


def test_unsent_intent_is_sent_again(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        intent = BatchRecord("m", "never-sent", tuple(make_custom_ids(provider, 3)))
        outcomes, notes = complete_all(provider, 3, earlier=[intent])
        assert provider.stats()["batches"] == 1
    assert all(isinstance(completion, Completion) for completion in outcomes)
    assert len(notes) == 2


def test_call_is_answered_after_its_earlier_batch_was_declared_lost(tmp_path: Path) -> None:
    """A later step requests a line of a batch that an earlier search did not find."""
    with run_batch_provider() as provider:
        lost_record = BatchRecord("m", "i", tuple(make_custom_ids(provider, 3)[2:]), "batch_gone")
        notes: list[BatchRecord] = []

        async def note(record: BatchRecord) -> None:
            notes.append(record)

        async def run_calls() -> Completion:
            model = BatchModel(make_settings(provider), "m", note, [lost_record])
            try:
                await asyncio.wait_for(model.complete(make_request(0)), HANG_SECONDS)
                return await asyncio.wait_for(model.complete(make_request(2)), HANG_SECONDS)
            finally:
                await model.close()

        assert isinstance(asyncio.run(run_calls()), Completion)


def test_batches_of_another_group_are_ignored(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        foreign_record = BatchRecord("other", "i", tuple(make_custom_ids(provider, 3)), "batch_9")
        outcomes, _ = complete_all(provider, 3, earlier=[foreign_record])
        assert provider.stats()["lists"] == 0
    assert all(isinstance(completion, Completion) for completion in outcomes)


def test_line_without_an_answer_is_a_transient_failure_of_its_call(tmp_path: Path) -> None:
    with run_batch_provider(failing_lines=0.4, failing_status=500) as provider:
        outcomes, _ = complete_all(provider, 30)
    failed = [error for error in outcomes if isinstance(error, BaseException)]
    assert 3 < len(failed) < 27
    assert {type(error) for error in failed} == {TransientError}


def test_metadata_of_a_batch_contains_the_intent(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        _, notes = complete_all(provider, 2)
        import urllib.request

        with urllib.request.urlopen(provider.base_url + "/batches", timeout=HANG_SECONDS) as response:
            (batch,) = json.loads(response.read())["data"]
    assert batch["metadata"] == {METADATA: notes[0].intent}


@pytest.mark.parametrize("model", ["gpt-4o-mini", "gpt-4o-2024-08-06"])
def test_listed_price_is_halved_for_a_batch(model: str) -> None:
    single, batch = price_of(ModelSettings(model=model)), price_of(ModelSettings(model=model, batch=True))
    assert single is not None
    assert batch is not None
    assert batch.cost_of(Usage(1000, 500)) == pytest.approx(single.cost_of(Usage(1000, 500)) / 2)
