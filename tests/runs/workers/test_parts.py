"""Parts of worker processes and of the writer: pickled messages, journal, leases."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runner.base import errors
from runner.base.errors import (
    JournalError,
    MalformedError,
    NipRunError,
    ProviderRefusal,
    RunError,
    Stopped,
    TransientError,
)
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import add_number, encode, encode_unnumbered
from runner.models.interface import SampleKey
from runner.models.journal_index import JournalIndex
from runner.models.journal_records import OtherRecord, log_header, read_records
from runner.models.layers.lost_calls import InFlightFile
from runner.models.server_states import Servers
from runner.models.usage_totals import UsageTotals
from runner.results.game_measurements import GameMeasurement
from runner.results.tables import Rows
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.reorder_buffer import MAX_CHARACTERS_IN_MEMORY, PlanOrderBuffer
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.accounting import RolloutCounts
from runner.runs.execution.game_outputs import RolloutOutput, WorkerGame, WorkerRollout
from runner.runs.execution.spending import run_costs
from runner.runs.workers import messages
from runner.runs.workers.leases import (
    MAX_DEATHS_ALONE,
    SUSPECT_DEATHS,
    LeaseBook,
    LeasedGame,
    game_key_of_job,
    game_key_of_sample,
)
from runner.runs.workers.permits import PermitIssuer, WorkerCalls
from runner.runs.workers.remote_errors import RemoteError
from runner.runs.workers.worker_deaths import MAX_DEATHS, MAX_EARLY_DEATHS, WorkerDeathCounter
from runner.runs.workers.writer_state import WorkerSlot
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.loader import load_spec
from tests.support.runs import run_spec
from tests.support.specs import spec_file

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, NipRunError)]


def make_job(index: int, name: str = "") -> Job:
    point = Datapoint(name or f"p{index}", 1, {"question": "?"})
    return Job(index, f"r{index}", point, 0, 0)


def pickle_and_unpickle(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


NOT_RAISED_BY_WORKERS = (errors.SpecError, errors.QueryError, errors.MergeError)
"""Errors that workers do not raise; a message alone does not build them."""


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind not in NOT_RAISED_BY_WORKERS])
def test_every_error_is_unchanged_after_pickling(kind: type[NipRunError]) -> None:
    error = kind("the words")
    error.add_note("a note")
    restored = pickle_and_unpickle(RemoteError.from_exception(error)).to_exception()
    assert type(restored) is kind
    assert restored.lines() == error.lines()
    assert vars(restored) == vars(error)


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
def test_system_errors_keep_their_type_and_arguments_after_pickling(error: BaseException) -> None:
    restored = pickle_and_unpickle(RemoteError.from_exception(error)).to_exception()
    assert (type(restored), restored.args) == (type(error), error.args)


def test_a_pickled_refusal_keeps_its_changes_and_its_single_call_error() -> None:
    error = ProviderRefusal("no", of_one_call=MalformedError("bad", status=400), changes={"models.m.model": None})
    restored = pickle_and_unpickle(RemoteError.from_exception(error)).to_exception()
    assert dict(restored.changes) == {"models.m.model": None}
    assert (str(restored.of_one_call), restored.of_one_call.status) == ("bad", 400)
    restored = pickle_and_unpickle(RemoteError.from_exception(ProviderRefusal("no"))).to_exception()
    assert dict(restored.changes) == {}


def test_an_unknown_error_keeps_its_message_and_origin_after_pickling() -> None:
    empty: dict[str, int] = {}
    try:
        empty["missing"]
    except KeyError as error:
        restored = pickle_and_unpickle(RemoteError.from_exception(error)).to_exception()
    assert str(restored) == "KeyError: 'missing'"
    assert "test_parts.py" in restored.__notes__[0]


def test_a_finished_game_is_equal_after_pickling(tmp_path: Path) -> None:
    from runner.results.folder import RunFolder
    from runner.runs.finished.reconstruction import Reconstructor, saved_plan

    result = run_spec(spec_file(tmp_path, size=3), tmp_path / "results")
    folder = RunFolder(result.path)
    reconstructor = Reconstructor(folder, saved_plan(folder))
    rollouts = list(reconstructor.rollouts())
    reconstructor.close()
    sent = [messages.GameFinished(rollout.job.index, [rollout]) for rollout in rollouts]
    assert len(sent) == 3
    assert pickle_and_unpickle(sent) == sent


@pytest.mark.parametrize(
    "changes",
    [{}, {"rollouts.per_datapoint": 3}, {"stances": "both", "rollouts.per_datapoint": 2},
     {"rollouts.num_responses_per_timestep": 2, "protocol.max_message_rounds": 2}],
)  # fmt: skip
def test_each_game_has_its_own_record_key(tmp_path: Path, changes: dict[str, object]) -> None:
    plan = Plan(load_spec(spec_file(tmp_path, size=3), [f"{key}={value}" for key, value in changes.items()]))
    games: dict[object, list[Job]] = {}
    for job in plan.jobs():
        games.setdefault(game_key_of_job(plan, job), []).append(job)
        branches = 1 if plan.tree_shape is None else plan.tree_shape.branches
        for branch in (plan.job_of_branch(job, job.repeat + offset) for offset in range(branches)):
            assert game_key_of_sample(plan, branch.datapoint.id, branch.number) == game_key_of_job(plan, job)
    assert all(len(jobs) == 1 for jobs in games.values())
    assert len(games) == plan.size


# The journal


@pytest.mark.parametrize("durable", [True, False])
def test_records_of_a_batch_are_read_back_at_their_offsets(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "journal.jsonl"

    def record(number: int, text: str = "x") -> dict[str, object]:
        return {"kind": "other", "sample": [f"p{number}", 0, 0, "a", 0], "text": text}

    async def write() -> None:
        journal = Journal(path, first=log_header("identity", "run"), run="identity", durable=durable)
        groups = [[record(0)], [record(1), record(2, "a\nb")], [record(3)]]
        offsets = await journal.append_all(list(map(encode_unnumbered, groups)))
        await journal.append(record(4))
        more_offsets = await journal.append_all([encode_unnumbered([record(5)])])
        for places, group in zip([*offsets, *more_offsets], [*groups, [record(5)]], strict=True):
            assert [journal.record(place)["sample"] for place in places] == [item["sample"] for item in group]
        await journal.close()

    asyncio.run(write())
    entries = list(read_records(path, "identity"))
    samples = [entry.record.sample for entry in entries[1:] if isinstance(entry.record, OtherRecord)]
    assert [sample.datapoint for sample in samples if sample is not None] == [f"p{number}" for number in range(6)]
    assert len(JournalIndex(lambda _: {}, entries)) == 0


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "call", "text": 'a "seq":0 and a \0', "other": {"seq": 0}},
        {"kind": "call", "answer": b'{"content": "\\u0000", "seq": 0}', "zone": 1},
        {"a": 1, "zz": [1, {"seq": "x"}]},
    ],
)
def test_a_line_numbered_later_equals_the_line_of_a_single_process(record: dict[str, object]) -> None:
    first_line, last_line = encode_unnumbered([record, record])
    assert add_number(17, first_line, 5) == encode(17, {**record, "more": True}, 5)
    assert add_number(18, last_line, 5) == encode(18, record, 5)


def test_game_results_beyond_the_memory_limit_wait_on_disk(tmp_path: Path) -> None:
    def make_game(number: int, size: int) -> WorkerGame:
        rows = [Rows(b"x" * size, 1), Rows(b"", 0), Rows(b"", 0)]
        counts = RolloutCounts("decided", True, 0, 5, (number, 0, 0), ())
        output = RolloutOutput(rows, GameMeasurement("decided", "g", (), None), [], None)
        return WorkerGame([WorkerRollout(output, counts, (1, 1))])

    games = [make_game(number, MAX_CHARACTERS_IN_MEMORY // 2 + 1) for number in range(4)]
    received: list[object] = []
    with closing(PlanOrderBuffer(received.append, 10, tmp_path)) as ordered:
        for number in (3, 2, 1, 0):
            ordered.put(number, games[number])
    assert received == games


def test_a_failed_write_raises_for_its_batch_and_for_every_later_one(tmp_path: Path) -> None:
    class FullDisk:
        def write(self, fd: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def fsync(self, fd: int) -> None: ...
        def truncate(self, fd: int, length: int) -> None: ...

    async def write() -> None:
        journal = Journal(tmp_path / "journal.jsonl", disk=FullDisk())
        with pytest.raises(JournalError, match="No space left"):
            await journal.append_all([encode_unnumbered([{"kind": "a"}]), encode_unnumbered([{"kind": "b"}])])
        with pytest.raises(JournalError, match="No space left"):
            await journal.append_all([encode_unnumbered([{"kind": "c"}])])
        await journal.close()

    asyncio.run(write())


# Leases


def test_games_are_leased_in_order_within_the_limit_and_returned_games_first() -> None:
    limit = [3]
    book = LeaseBook(
        iter([make_job(index) for index in range(5)]), lambda index: index < limit[0], 2, by_datapoint=False
    )
    leased = [book.next_game_for(number % 2) for number in range(4)]
    assert [game and game.job.index for game in leased] == [0, 1, 2, None]
    assert leased[0] is not None
    assert leased[1] is not None
    book.return_game(leased[1])
    book.return_game(leased[0])
    limit[0] = 5
    assert [game.job.index for game in iter(lambda: book.next_game_for(1), None)] == [0, 1, 3, 4]
    assert book.is_empty


def test_all_games_of_a_datapoint_go_to_one_worker_if_they_share_calls() -> None:
    jobs = [make_job(index, f"p{index % 7}") for index in range(70)]
    book = LeaseBook(iter(jobs), lambda _: True, 3, by_datapoint=True)
    jobs_by_slot = {slot: [game.job for game in iter(lambda: book.next_game_for(slot), None)] for slot in range(3)}  # noqa: B023
    datapoints_by_slot = {slot: {job.datapoint.id for job in slot_jobs} for slot, slot_jobs in jobs_by_slot.items()}
    assert sum(map(len, jobs_by_slot.values())) == 70
    assert sum(map(len, datapoints_by_slot.values())) == 7
    assert all(
        [job.index for job in slot_jobs] == sorted(job.index for job in slot_jobs)
        for slot_jobs in jobs_by_slot.values()
    )


def test_a_game_that_kills_its_workers_is_played_alone_and_then_fails_the_run() -> None:
    book, deaths = (
        LeaseBook(iter([make_job(0), make_job(1)]), lambda _: True, 1, by_datapoint=False),
        WorkerDeathCounter(2),
    )
    first, second = book.next_game_for(0), book.next_game_for(0)
    assert first is not None
    assert second is not None
    for _ in range(SUSPECT_DEATHS):
        deaths.count(WorkerSlot(0, leases={0: first}), "was killed by SIGSEGV", was_ready=True)
        deaths.reset()
    book.return_game(first)
    book.return_game(second)
    assert book.next_game_for(0) is second
    assert book.next_game_for(0) is None
    assert book.has_suspect_for(0)
    alone = book.next_suspect_for(0)
    assert alone is first
    with pytest.raises(RunError, match=r"rollout r0 \(p0, repeat 0\).*was killed by SIGSEGV"):
        for _ in range(MAX_DEATHS_ALONE):
            slot = WorkerSlot(0, leases={0: alone}, is_testing_suspect=True)
            deaths.count(slot, "was killed by SIGSEGV", was_ready=True)


@pytest.mark.parametrize(
    ("was_ready", "limit", "message"),
    [(False, MAX_EARLY_DEATHS, "before they were ready for a game"), (True, MAX_DEATHS, "no game was finished")],
)
def test_repeated_worker_deaths_end_the_run(was_ready: bool, limit: int, message: str) -> None:
    deaths = WorkerDeathCounter(2)
    for _ in range(limit - 1):
        deaths.count(WorkerSlot(0), "ended with exit code 1: no memory", was_ready=was_ready)
    with pytest.raises(RunError, match=f"{message}.*no memory"):
        deaths.count(WorkerSlot(0), "ended with exit code 1: no memory", was_ready=was_ready)
    assert LeasedGame(make_job(0)).is_suspect is False


@pytest.mark.parametrize(("error", "in_flight"), [(Stopped(), 0), (TransientError("status 500"), 1)])
def test_a_granted_call_that_was_not_sent_is_not_in_flight(tmp_path: Path, error: NipRunError, in_flight: int) -> None:
    """A worker does not send a granted call if the run stops at that moment. A failed call stays until its record."""
    plan = Plan(load_spec(spec_file(tmp_path, "http://localhost:1/v1", size=1)))

    async def run_call() -> int:
        in_flight_file = InFlightFile(tmp_path / "in_flight")
        with closing(in_flight_file):
            issuer = PermitIssuer(
                costs=run_costs(plan), servers=Servers(2), retry=plan.spec.experiment.retry, budget=None,
                in_flight_file=in_flight_file, stop=StopSwitch(), count_records=lambda: 1,
            )  # fmt: skip
            granted = asyncio.Event()
            calls = WorkerCalls(lambda _: granted.set())
            sample, max_cost = SampleKey("p0", 0, 0, "prover", 0), UsageTotals(1.0, 100, 1)
            issuer.request_permit(calls, messages.PermitRequested(0, "m", None, sample, max_cost))
            await granted.wait()
            assert in_flight_file.count_calls() == 1
            issuer.finish_call(calls, messages.CallEnded(0, None, RemoteError.from_exception(error)))
            await issuer.wait_until_calls_end(calls)
            return in_flight_file.count_calls()

    assert asyncio.run(run_call()) == in_flight
