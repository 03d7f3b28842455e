"""Calls in flight at a kill are counted by the next process: what the provider bills is never more than the budget."""

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


def killed_in_flight(folder: Path, provider: BatchProvider, answered: int = 0) -> None:
    """Play, and kill when the provider has as many calls as may be made at once; wait until it has billed them.

    It answers the first few, and the others only once the run is dead.
    """
    before = provider.stats()["chat"]
    provider.change(held_after=provider.requests + answered)
    process = start_nip_run_silently("spec.yaml", "-q", cwd=folder)
    try:
        wait_until(lambda: provider.stats()["open"] == AT_ONCE or process.poll() is not None)
    finally:
        process.kill()
        process.wait()
    provider.change(held_after=None)
    wait_until(lambda: provider.stats()["chat"] == before + answered + AT_ONCE)
    wait_until(lambda: provider.stats()["open"] == 0)


def spent(folder: Path) -> UsageTotals:
    plan = Plan(load_spec(folder / "spec.yaml"))
    return max_spending(plan, RunFolder(only_run(folder / "results")))


def of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in journal_records(only_run(folder / "results")) if record["kind"] == kind]


# Whole runs


@pytest.mark.full
def test_a_run_killed_again_and_again_never_exceeds_its_budget(tmp_path: Path) -> None:
    """By the account of the provider, which bills what it got, though nobody lived to read the answer."""
    with run_batch_provider() as provider:
        spec_file(
            tmp_path, provider.base_url, size=150, models=PRICED, budget={"usd": 1.0},
            rollouts={"concurrency": AT_ONCE},
        )  # fmt: skip
        for _ in range(3):
            killed_in_flight(tmp_path, provider, answered=AT_ONCE)
        for _ in range(2):
            assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 3
        assert 0.3 < provider.billed_usd(IN, OUT) <= 1.0
        assert spent(tmp_path).usd >= provider.billed_usd(IN, OUT)
    assert len(of_kind(tmp_path, "lost")) == 3


@pytest.mark.full
def test_a_budget_set_later_knows_of_calls_in_flight_at_a_kill(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, size=20, rollouts={"concurrency": AT_ONCE})
        killed_in_flight(tmp_path, provider)
        assert provider.stats()["chat"] == AT_ONCE
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", "budget.completions=20")
        assert provider.stats()["chat"] == 20


@pytest.mark.gate
def test_exactly_the_calls_in_flight_are_counted_once_and_said(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, models=PRICED, rollouts={"concurrency": AT_ONCE})
        killed_in_flight(tmp_path, provider)
        before = spent(tmp_path)
        assert before.completions == AT_ONCE
        assert before.usd >= provider.billed_usd(IN, OUT)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told = f"{AT_ONCE} calls were in flight when the run was interrupted; ${before.usd:.4f} is counted"
        assert told in done.stderr
        (lost,) = of_kind(tmp_path, "lost")
        assert lost["charged"] == [before.usd, before.tokens, before.completions]
        assert spent(tmp_path).completions == provider.stats()["chat"]
        # And only once: nothing was in flight at the end of the second process.
        done = nip_run_here("spec.yaml", "rollouts.per_datapoint=2", cwd=tmp_path)
        assert "in flight" not in done.stderr
        assert spent(tmp_path).completions == provider.stats()["chat"]


@pytest.mark.full
def test_a_budget_used_up_by_calls_in_flight_at_a_kill_says_so(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, rollouts={"concurrency": AT_ONCE})
        killed_in_flight(tmp_path, provider)
        done = nip_run_here("spec.yaml", "-q", f"budget.completions={AT_ONCE}", cwd=tmp_path)
        assert provider.stats()["chat"] == AT_ONCE
    assert done.returncode == 3
    assert f"note: {AT_ONCE} calls were in flight when the run was interrupted; " in done.stderr
    assert "tokens are counted" in done.stderr  # nobody knows the price


@pytest.mark.full
def test_kills_at_any_moment_count_every_call_and_none_twice(tmp_path: Path) -> None:
    """What is counted is every call that the provider got, and at most those besides that were about to be sent."""
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
            assert spent(tmp_path).usd >= provider.billed_usd(IN, OUT)
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        billed, asked = provider.billed_usd(IN, OUT), provider.stats()["chat"]
    counted = len(of_kind(tmp_path, "call")) + len(of_kind(tmp_path, "failure"))
    counted += sum(record["charged"][2] for record in of_kind(tmp_path, "lost"))
    assert kills >= 4
    assert asked <= counted <= asked + kills * AT_ONCE
    assert spent(tmp_path).usd >= billed


@pytest.mark.full
def test_calls_that_a_second_ctrl_c_gives_up_are_counted(tmp_path: Path) -> None:
    with run_batch_provider(held_after=0) as provider:
        spec_file(tmp_path, provider.base_url, rollouts={"concurrency": AT_ONCE})
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: provider.stats()["open"] == AT_ONCE)
        interrupt(process)
        process.send_signal(signal.SIGINT)
        assert wait_for_exit(process)[0] == 130
    assert spent(tmp_path).completions == AT_ONCE


@pytest.mark.full
def test_a_run_that_ends_by_itself_leaves_nothing_in_flight(tmp_path: Path) -> None:
    with run_batch_provider(faults={"server_error": 0.1, "drop": 0.1, "rate_limit": 0.1}) as provider:
        result = run_spec(spec_file(tmp_path, provider.base_url), tmp_path / "results")
        with pytest.raises(BudgetExhausted):
            run_spec(tmp_path / "spec.yaml", tmp_path / "bound", "budget.completions=20")
    assert not result.folder.in_flight.exists()
    assert not RunFolder(only_run(tmp_path / "bound")).in_flight.exists()
    assert not [note for note in result.notes if "in flight" in note]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["unauthorized", "insufficient_quota", "unknown_model"])
def test_calls_that_the_provider_refused_are_not_counted(tmp_path: Path, kind: str) -> None:
    """A wrong key, tried again and again, eats up no budget."""
    with run_chat_server(kind=kind, latency=[0.0, 0.1]) as server:
        spec_file(tmp_path, server.base_url, models=PRICED, budget={"usd": 1.0})
        for _ in range(2):
            done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
            assert done.returncode == 4
            assert "in flight" not in done.stderr
    assert spent(tmp_path) == UsageTotals()


@pytest.mark.full
def test_a_batch_that_is_found_again_is_not_counted_as_lost(tmp_path: Path) -> None:
    batch = {"m": {**PRICED["m"], "batch": True, "batch_wait": 0.05, "batch_poll": 0.05}}
    with run_batch_provider(delay=60.0) as provider:
        spec_file(tmp_path, provider.base_url, models=batch)
        process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
        wait_until(lambda: provider.stats()["looks"] >= 1)
        process.kill()
        process.wait()
        assert spent(tmp_path) == UsageTotals()
        provider.change(delay=0.0)
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        assert spent(tmp_path).usd == pytest.approx(provider.billed_usd(IN, OUT))
    assert of_kind(tmp_path, "lost") == []


@pytest.mark.full
def test_a_run_that_lost_calls_is_replayed_and_exported_like_any_other(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.5) as provider:
        spec_file(tmp_path, provider.base_url, rollouts={"concurrency": AT_ONCE})
        killed_in_flight(tmp_path, provider)
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        run = only_run(tmp_path / "results")
        assert len(of_kind(tmp_path, "lost")) == 1
        done = nip_run_here("export", run.name, "--format", "trl", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        done = nip_run_here("spec.yaml", "-q", "--replay", run.name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (replay,) = (path for path in (tmp_path / "results" / "runs").iterdir() if path != run)
    assert read_messages(replay) == read_messages(run)


def read_messages(run: Path) -> list[dict[str, Any]]:
    """The messages of a run, whichever run it is."""
    return [{**row, "run_id": None} for row in table(run, "messages")]


@pytest.mark.full
def test_the_games_of_a_training_run_know_of_them_too(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        live = {"provider": "openai", "model": "tiny", "base_url": provider.base_url}
        by_hand = {"backend": "files"}  # the dummy trainer's models are nobody's to serve
        training_spec(
            tmp_path,
            models={"p": live, "v": live},
            rollouts={"concurrency": AT_ONCE},
            training={"trainers": {"p": by_hand, "v": by_hand}},
        )
        killed_in_flight(tmp_path, provider)
        for _ in range(2):
            done = nip_run_here("spec.yaml", "-q", "budget.completions=20", cwd=tmp_path)
            assert done.returncode == 3, done.stderr
            assert provider.stats()["chat"] == 20


def test_a_call_that_could_not_be_counted_is_not_sent(tmp_path: Path) -> None:
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


# The parts


MOST = UsageTotals(0.25, 100, 1)


def sample(index: int) -> SampleKey:
    return SampleKey(f"p{index}", 0, 0, "verifier", 0)


ASKED = RequestRecord("p", "m")


def answer(index: int) -> CallRecord:
    return CallRecord(sample(index), ASKED, Completion((Choice("x", "stop"),), "tiny"))


Written = CallRecord | EndedRecord | FailureRecord | LostRecord


def left_after(folder: Path, records: Iterable[Written]) -> AbandonedCalls:
    """What is left in flight by the file and these records of the journal."""
    path = folder / "journal.jsonl"

    async def write() -> None:
        journal = Journal(path, durable=False)
        for record in records:
            await journal.append(record.to_json())
        await journal.close()

    asyncio.run(write())
    left = AbandonedCalls(folder / "in_flight")
    for _, sequence, record in read_records(path):
        left.apply_record(sequence, record)
    return left


@pytest.fixture
def in_flight(tmp_path: Path) -> InFlightFile:
    return InFlightFile(tmp_path / "in_flight")


def test_what_is_in_flight_can_be_read_at_every_moment(tmp_path: Path, in_flight: InFlightFile) -> None:
    rng, open_ = random.Random(1), set[int]()
    for index in range(300):
        in_flight.add_call(sample(index), MOST, 0)
        open_.add(index)
        for done in [other for other in open_ if rng.random() < 0.1]:
            in_flight.discard_call(sample(done))
            open_.discard(done)
        left = AbandonedCalls(tmp_path / "in_flight").max_cost
        assert (left.completions, left.tokens) == (len(open_), 100 * len(open_))
    assert (tmp_path / "in_flight").stat().st_size < 3_000  # free slots are used again


def test_a_call_answered_in_the_journal_is_not_counted_by_its_slot(tmp_path: Path, in_flight: InFlightFile) -> None:
    for index in range(3):
        in_flight.add_call(sample(index), MOST, 0)
    in_flight.settle_call(sample(0))  # and not sample 2: as after a kill between its record and this
    assert left_after(tmp_path, [answer(0), answer(2)]).max_cost == MOST


def test_the_record_of_an_earlier_attempt_settles_no_attempt_in_flight(tmp_path: Path, in_flight: InFlightFile) -> None:
    failed = FailureRecord(sample(0), 1, "cut", 0.1)
    in_flight.add_call(sample(0), MOST, 1)
    assert left_after(tmp_path, [failed]).max_cost == MOST
    assert left_after(tmp_path, [failed]).max_cost == UsageTotals()  # and now there is one of the second


@pytest.mark.parametrize("other_first", [True, False])
def test_a_second_attempt_is_counted_whichever_slot_the_first_had(
    tmp_path: Path, in_flight: InFlightFile, other_first: bool
) -> None:
    first = [0, 1] if other_first else [1, 0]
    for index in first:
        in_flight.add_call(sample(index), MOST, 0)
    for index in first:
        in_flight.settle_call(sample(index))
    in_flight.add_call(sample(0), MOST, 2)
    failed = [FailureRecord(sample(index), 1, "cut", 0.1) for index in first]
    assert left_after(tmp_path, failed).max_cost == MOST


@pytest.mark.parametrize("error", [ContextExceededError("too long", status=400), TransientError("cut")])
def test_a_call_that_ended_its_game_is_settled_by_that_record(
    tmp_path: Path, in_flight: InFlightFile, error: CallError
) -> None:
    in_flight.add_call(sample(0), MOST, 0)
    assert left_after(tmp_path, [EndedRecord.from_error(sample(0), ASKED, error)]).max_cost == UsageTotals()


def test_a_kill_between_record_and_removal_counts_what_was_lost_once(tmp_path: Path, in_flight: InFlightFile) -> None:
    """The journal may be shorter than it was when the calls were sent: what was on its way to it is lost too."""
    for index in range(3):
        in_flight.add_call(sample(index), MOST, 7)
    lost = AbandonedCalls(tmp_path / "in_flight").to_record()
    assert lost.charged == UsageTotals(0.75, 300, 3)
    assert left_after(tmp_path, [answer(8), lost]).max_cost == UsageTotals()
    other = InFlightFile(tmp_path / "other")
    other.add_call(sample(0), MOST, 0)
    (tmp_path / "other").replace(tmp_path / "in_flight")
    assert left_after(tmp_path, []).max_cost == MOST


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, in_flight: InFlightFile) -> None:
    for index in range(3):
        in_flight.add_call(sample(index), MOST, 0)
    data = (tmp_path / "in_flight").read_bytes()
    for length in range(len(data)):
        (tmp_path / "in_flight").write_bytes(data[:length])
        assert AbandonedCalls(tmp_path / "in_flight").max_cost.completions <= 3
    (tmp_path / "in_flight").unlink()
    assert AbandonedCalls(tmp_path / "in_flight").max_cost == UsageTotals()


def test_the_file_goes_with_the_last_call_and_stays_with_one_that_is_left(tmp_path: Path) -> None:
    for settled in (True, False):
        calls = InFlightFile(tmp_path / "in_flight")
        calls.add_call(sample(0), MOST, 0)
        if settled:
            calls.settle_call(sample(0))
        calls.settle_call(sample(1))  # was never sent, like an answer from the cache
        calls.close()
        assert (tmp_path / "in_flight").exists() is not settled
    with pytest.raises(RunError, match="cannot write"):  # it must be counted before there is another
        InFlightFile(tmp_path / "in_flight").add_call(sample(0), MOST, 0)


def test_the_file_that_took_the_place_of_ours_is_left_as_it_is(tmp_path: Path) -> None:
    """A results folder was moved, and the same command was begun anew in its old place."""
    calls = InFlightFile(tmp_path / "in_flight")
    calls.add_call(sample(0), MOST, 0)
    calls.settle_call(sample(0))
    (tmp_path / "in_flight").rename(tmp_path / "moved")
    (tmp_path / "in_flight").write_bytes(b"another process")
    calls.close()
    assert (tmp_path / "in_flight").read_bytes() == b"another process"
