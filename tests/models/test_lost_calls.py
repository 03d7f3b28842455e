"""Calls in flight at a kill are charged by the next process, so that the bill never exceeds the budget."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import BudgetExhausted, CallError, ContextExceededError, RunError, TransientError
from runner.base.storage.journal import Journal
from runner.models.interface import Choice, Completion, SampleKey
from runner.models.journal_records import (
    CallRecord,
    EndedRecord,
    FailureRecord,
    LostRecord,
    RequestRecord,
    read_records,
)
from runner.models.layers.lost_calls import AbandonedCalls, InFlightFile
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import max_spending
from runner.spec.loader import load_spec
from tests.support.processes import (
    interrupt,
    nip_run_here,
    start_nip_run,
    start_nip_run_silently,
    wait_for_exit,
    wait_for_requests,
    wait_until,
)
from tests.support.runs import journal_records, only_run, run_spec, table
from tests.support.servers.batch_client import BatchProvider, run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.training import training_spec

IN, OUT = 10.0, 40.0
PRICED = {"m": {"price": {"input": IN, "output": OUT}, "max_completion_tokens": 60}}
AT_ONCE = 8


def run_and_kill_in_flight(folder: Path, provider: BatchProvider, answered: int = 0) -> None:
    """Start a run, kill it when the provider has AT_ONCE open calls, and wait until the provider has billed them.

    The provider answers the first `answered` calls, and the others once the run is dead.
    """
    chats_before = provider.stats()["chat"]
    provider.change(held_after=provider.requests + answered)
    process = start_nip_run_silently("spec.yaml", "-q", cwd=folder)
    try:
        wait_until(lambda: provider.stats()["open"] == AT_ONCE or process.poll() is not None)
    finally:
        process.kill()
        process.wait()
    provider.change(held_after=None)
    wait_until(lambda: provider.stats()["chat"] == chats_before + answered + AT_ONCE)
    wait_until(lambda: provider.stats()["open"] == 0)


def read_spending(folder: Path) -> UsageTotals:
    plan = Plan(load_spec(folder / "spec.yaml"))
    return max_spending(plan, RunFolder(only_run(folder / "results")))


def read_records_of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in journal_records(only_run(folder / "results")) if record["kind"] == kind]


# Complete runs


@pytest.mark.full
def test_repeatedly_killed_run_never_exceeds_its_budget(tmp_path: Path) -> None:
    """The provider bills every call that it received, even if the run died before the answer."""
    with run_batch_provider() as provider:
        spec_file(
            tmp_path, provider.base_url, size=150, models=PRICED, budget={"usd": 1.0},
            rollouts={"concurrency": AT_ONCE},
        )  # fmt: skip
        for _ in range(3):
            run_and_kill_in_flight(tmp_path, provider, answered=AT_ONCE)
        for _ in range(2):
            assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 3
        assert 0.3 < provider.billed_usd(IN, OUT) <= 1.0
        assert read_spending(tmp_path).usd >= provider.billed_usd(IN, OUT)
    assert len(read_records_of_kind(tmp_path, "lost")) == 3


@pytest.mark.full
def test_budget_set_after_a_kill_includes_the_calls_in_flight(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, size=20, rollouts={"concurrency": AT_ONCE})
        run_and_kill_in_flight(tmp_path, provider)
        assert provider.stats()["chat"] == AT_ONCE
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", "budget.completions=20")
        assert provider.stats()["chat"] == 20


@pytest.mark.gate
def test_calls_in_flight_are_counted_once_and_reported(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, models=PRICED, rollouts={"concurrency": AT_ONCE})
        run_and_kill_in_flight(tmp_path, provider)
        before = read_spending(tmp_path)
        assert before.completions == AT_ONCE
        assert before.usd >= provider.billed_usd(IN, OUT)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        message = f"{AT_ONCE} calls were in flight when the run was interrupted; ${before.usd:.4f} is counted"
        assert message in done.stderr
        (lost,) = read_records_of_kind(tmp_path, "lost")
        assert lost["charged"] == [before.usd, before.tokens, before.completions]
        assert read_spending(tmp_path).completions == provider.stats()["chat"]
        # The third process counts nothing: the second one left nothing in flight.
        done = nip_run_here("spec.yaml", "rollouts.per_datapoint=2", cwd=tmp_path)
        assert "in flight" not in done.stderr
        assert read_spending(tmp_path).completions == provider.stats()["chat"]


@pytest.mark.full
def test_exhausted_budget_message_names_the_calls_in_flight_at_a_kill(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, rollouts={"concurrency": AT_ONCE})
        run_and_kill_in_flight(tmp_path, provider)
        done = nip_run_here("spec.yaml", "-q", f"budget.completions={AT_ONCE}", cwd=tmp_path)
        assert provider.stats()["chat"] == AT_ONCE
    assert done.returncode == 3
    assert f"note: {AT_ONCE} calls were in flight when the run was interrupted; " in done.stderr
    assert "tokens are counted" in done.stderr  # the model has no price


@pytest.mark.full
def test_kills_at_random_times_count_every_call_once(tmp_path: Path) -> None:
    """Every received call is counted; for each kill, up to AT_ONCE unsent calls may be counted, too."""
    rng, kills = random.Random(5), 0
    with run_batch_provider(latency=0.01, faults={"server_error": 0.1, "drop": 0.1}) as provider:
        spec_file(
            tmp_path, provider.base_url, size=100, models=PRICED, rollouts={"concurrency": AT_ONCE},
        )  # fmt: skip
        for _ in range(5):
            goal = provider.stats()["chat"] + rng.randrange(1, 40)
            process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
            wait_for_requests(provider, "chat", goal, process)
            process.kill()
            kills += process.wait() != 0
            wait_until(lambda: provider.stats()["open"] == 0)
            assert read_spending(tmp_path).usd >= provider.billed_usd(IN, OUT)
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        billed, received = provider.billed_usd(IN, OUT), provider.stats()["chat"]
    counted = len(read_records_of_kind(tmp_path, "call")) + len(read_records_of_kind(tmp_path, "failure"))
    counted += sum(record["charged"][2] for record in read_records_of_kind(tmp_path, "lost"))
    assert kills >= 4
    assert received <= counted <= received + kills * AT_ONCE
    assert read_spending(tmp_path).usd >= billed


@pytest.mark.full
def test_calls_abandoned_by_a_second_ctrl_c_are_counted(tmp_path: Path) -> None:
    with run_batch_provider(held_after=0) as provider:
        spec_file(tmp_path, provider.base_url, rollouts={"concurrency": AT_ONCE})
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: provider.stats()["open"] == AT_ONCE)
        interrupt(process)
        process.send_signal(signal.SIGINT)
        assert wait_for_exit(process)[0] == 130
    assert read_spending(tmp_path).completions == AT_ONCE


@pytest.mark.full
def test_finished_run_leaves_no_calls_in_flight(tmp_path: Path) -> None:
    with run_batch_provider(faults={"server_error": 0.1, "drop": 0.1, "rate_limit": 0.1}) as provider:
        result = run_spec(spec_file(tmp_path, provider.base_url), tmp_path / "results")
        with pytest.raises(BudgetExhausted):
            run_spec(tmp_path / "spec.yaml", tmp_path / "bound", "budget.completions=20")
    assert not result.folder.in_flight.exists()
    assert not RunFolder(only_run(tmp_path / "bound")).in_flight.exists()
    assert not [note for note in result.notes if "in flight" in note]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["unauthorized", "insufficient_quota", "unknown_model"])
def test_refused_calls_are_not_counted(tmp_path: Path, kind: str) -> None:
    """Repeated runs with a wrong key use up no budget."""
    with run_chat_server(kind=kind, latency=[0.0, 0.1]) as server:
        spec_file(tmp_path, server.base_url, models=PRICED, budget={"usd": 1.0})
        for _ in range(2):
            done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
            assert done.returncode == 4
            assert "in flight" not in done.stderr
    assert read_spending(tmp_path) == UsageTotals()


@pytest.mark.full
def test_rediscovered_batch_is_not_counted_as_lost(tmp_path: Path) -> None:
    batch = {"m": {**PRICED["m"], "batch": True, "batch_wait": 0.05, "batch_poll": 0.05}}
    with run_batch_provider(delay=60.0) as provider:
        spec_file(tmp_path, provider.base_url, models=batch)
        process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
        wait_until(lambda: provider.stats()["looks"] >= 1)
        process.kill()
        process.wait()
        assert read_spending(tmp_path) == UsageTotals()
        provider.change(delay=0.0)
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        assert read_spending(tmp_path).usd == pytest.approx(provider.billed_usd(IN, OUT))
    assert read_records_of_kind(tmp_path, "lost") == []


@pytest.mark.full
def test_run_with_lost_calls_can_be_replayed_and_exported(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.5) as provider:
        spec_file(tmp_path, provider.base_url, rollouts={"concurrency": AT_ONCE})
        run_and_kill_in_flight(tmp_path, provider)
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        run = only_run(tmp_path / "results")
        assert len(read_records_of_kind(tmp_path, "lost")) == 1
        done = nip_run_here("export", run.name, "--format", "trl", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        done = nip_run_here("spec.yaml", "-q", "--replay", run.name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (replay,) = (path for path in (tmp_path / "results" / "runs").iterdir() if path != run)
    assert read_messages(replay) == read_messages(run)


def read_messages(run: Path) -> list[dict[str, Any]]:
    """Return the messages of a run without its run id."""
    return [{**row, "run_id": None} for row in table(run, "messages")]


@pytest.mark.full
def test_lost_calls_of_a_training_run_are_counted(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        live = {"provider": "openai", "model": "tiny", "base_url": provider.base_url}
        by_hand = {"backend": "files"}  # no server serves the models of the dummy trainer
        training_spec(
            tmp_path,
            models={"p": live, "v": live},
            rollouts={"concurrency": AT_ONCE},
            training={"trainers": {"p": by_hand, "v": by_hand}},
        )
        run_and_kill_in_flight(tmp_path, provider)
        for _ in range(2):
            done = nip_run_here("spec.yaml", "-q", "budget.completions=20", cwd=tmp_path)
            assert done.returncode == 3, done.stderr
            assert provider.stats()["chat"] == 20


def test_call_is_not_sent_if_it_cannot_be_written_to_the_in_flight_file(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url)
        folder = RunFolder(tmp_path / "results" / "runs" / Plan(load_spec(path)).run_id)
        folder.path.mkdir(parents=True)
        folder.in_flight.mkdir()
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert provider.stats()["chat"] == 0
        assert done.returncode == 1
        assert str(folder.in_flight.relative_to(tmp_path)) in done.stderr
        assert "bug in nip-run" not in done.stderr


# Unit tests


CALL_COST = UsageTotals(0.25, 100, 1)


def make_sample(index: int) -> SampleKey:
    return SampleKey(f"p{index}", 0, 0, "verifier", 0)


REQUEST_RECORD = RequestRecord("p", "m")


def make_answer(index: int) -> CallRecord:
    return CallRecord(make_sample(index), REQUEST_RECORD, Completion((Choice("x", "stop"),), "tiny"))


JournalRecord = CallRecord | EndedRecord | FailureRecord | LostRecord


def read_abandoned_calls(folder: Path, records: Iterable[JournalRecord]) -> AbandonedCalls:
    """Read the in-flight file and apply these journal records to it."""
    path = folder / "journal.jsonl"

    async def write() -> None:
        journal = Journal(path, durable=False)
        for record in records:
            await journal.append(record.to_json())
        await journal.close()

    asyncio.run(write())
    abandoned_calls = AbandonedCalls(folder / "in_flight")
    for _, sequence, record in read_records(path):
        abandoned_calls.apply_record(sequence, record)
    return abandoned_calls


@pytest.fixture
def in_flight(tmp_path: Path) -> InFlightFile:
    return InFlightFile(tmp_path / "in_flight")


def test_in_flight_file_is_readable_after_every_change(tmp_path: Path, in_flight: InFlightFile) -> None:
    rng, open_calls = random.Random(1), set[int]()
    for index in range(300):
        in_flight.add_call(make_sample(index), CALL_COST, 0)
        open_calls.add(index)
        for finished in [number for number in open_calls if rng.random() < 0.1]:
            in_flight.discard_call(make_sample(finished))
            open_calls.discard(finished)
        max_cost = AbandonedCalls(tmp_path / "in_flight").max_cost
        assert (max_cost.completions, max_cost.tokens) == (len(open_calls), 100 * len(open_calls))
    assert (tmp_path / "in_flight").stat().st_size < 3_000  # free slots are used again


def test_call_recorded_in_the_journal_is_not_counted_from_the_in_flight_file(
    tmp_path: Path, in_flight: InFlightFile
) -> None:
    for index in range(3):
        in_flight.add_call(make_sample(index), CALL_COST, 0)
    # Sample 2 is recorded but not settled, as after a kill between the two writes.
    in_flight.settle_call(make_sample(0))
    assert read_abandoned_calls(tmp_path, [make_answer(0), make_answer(2)]).max_cost == CALL_COST


def test_failure_record_of_an_earlier_attempt_does_not_settle_a_later_one(
    tmp_path: Path, in_flight: InFlightFile
) -> None:
    failed = FailureRecord(make_sample(0), 1, "cut", 0.1)
    in_flight.add_call(make_sample(0), CALL_COST, 1)
    assert read_abandoned_calls(tmp_path, [failed]).max_cost == CALL_COST
    # The journal now has a second failure, which settles the call.
    assert read_abandoned_calls(tmp_path, [failed]).max_cost == UsageTotals()


@pytest.mark.parametrize("other_first", [True, False])
def test_second_attempt_is_counted_in_any_slot(tmp_path: Path, in_flight: InFlightFile, other_first: bool) -> None:
    first = [0, 1] if other_first else [1, 0]
    for index in first:
        in_flight.add_call(make_sample(index), CALL_COST, 0)
    for index in first:
        in_flight.settle_call(make_sample(index))
    in_flight.add_call(make_sample(0), CALL_COST, 2)
    failed = [FailureRecord(make_sample(index), 1, "cut", 0.1) for index in first]
    assert read_abandoned_calls(tmp_path, failed).max_cost == CALL_COST


@pytest.mark.parametrize("error", [ContextExceededError("too long", status=400), TransientError("cut")])
def test_ended_record_settles_its_call(tmp_path: Path, in_flight: InFlightFile, error: CallError) -> None:
    in_flight.add_call(make_sample(0), CALL_COST, 0)
    assert (
        read_abandoned_calls(tmp_path, [EndedRecord.from_error(make_sample(0), REQUEST_RECORD, error)]).max_cost
        == UsageTotals()
    )


def test_kill_between_the_lost_record_and_the_file_removal_counts_calls_once(
    tmp_path: Path, in_flight: InFlightFile
) -> None:
    """The journal may be shorter than at the time of the calls: its unwritten records are lost, too."""
    for index in range(3):
        in_flight.add_call(make_sample(index), CALL_COST, 7)
    lost = AbandonedCalls(tmp_path / "in_flight").to_record()
    assert lost.charged == UsageTotals(0.75, 300, 3)
    assert read_abandoned_calls(tmp_path, [make_answer(8), lost]).max_cost == UsageTotals()
    other_file = InFlightFile(tmp_path / "other")
    other_file.add_call(make_sample(0), CALL_COST, 0)
    (tmp_path / "other").replace(tmp_path / "in_flight")
    assert read_abandoned_calls(tmp_path, []).max_cost == CALL_COST


def test_truncated_in_flight_file_is_read_up_to_its_end(tmp_path: Path, in_flight: InFlightFile) -> None:
    for index in range(3):
        in_flight.add_call(make_sample(index), CALL_COST, 0)
    data = (tmp_path / "in_flight").read_bytes()
    for length in range(len(data)):
        (tmp_path / "in_flight").write_bytes(data[:length])
        assert AbandonedCalls(tmp_path / "in_flight").max_cost.completions <= 3
    (tmp_path / "in_flight").unlink()
    assert AbandonedCalls(tmp_path / "in_flight").max_cost == UsageTotals()


def test_in_flight_file_is_removed_with_its_last_call(tmp_path: Path) -> None:
    for settled in (True, False):
        calls = InFlightFile(tmp_path / "in_flight")
        calls.add_call(make_sample(0), CALL_COST, 0)
        if settled:
            calls.settle_call(make_sample(0))
        calls.settle_call(make_sample(1))  # never sent, like a call answered from the cache
        calls.close()
        assert (tmp_path / "in_flight").exists() is not settled
    with pytest.raises(RunError, match="cannot write"):  # the remaining call must be counted first
        InFlightFile(tmp_path / "in_flight").add_call(make_sample(0), CALL_COST, 0)


def test_in_flight_file_of_another_process_is_not_removed(tmp_path: Path) -> None:
    """A results folder was moved, and another process writes to its old place."""
    calls = InFlightFile(tmp_path / "in_flight")
    calls.add_call(make_sample(0), CALL_COST, 0)
    calls.settle_call(make_sample(0))
    (tmp_path / "in_flight").rename(tmp_path / "moved")
    (tmp_path / "in_flight").write_bytes(b"another process")
    calls.close()
    assert (tmp_path / "in_flight").read_bytes() == b"another process"
