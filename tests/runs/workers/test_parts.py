"""What workers and the writer are made of, by itself."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runner.base import errors
from runner.base.errors import JournalError, MalformedError, NipRunError, ProviderRefusal, RunError
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import add_number, encode, encode_unnumbered
from runner.models.journal_index import JournalIndex
from runner.models.journal_records import OtherRecord, log_header, read_records
from runner.results.game_measurements import GameMeasurement
from runner.results.tables import Rows
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.reorder_buffer import MAX_CHARACTERS_IN_MEMORY, PlanOrderBuffer
from runner.runs.execution.accounting import RolloutCounts
from runner.runs.execution.game_outputs import RolloutOutput, WorkerGame, WorkerRollout
from runner.runs.workers import messages
from runner.runs.workers.leases import (
    MAX_DEATHS_ALONE,
    SUSPECT_DEATHS,
    LeaseBook,
    LeasedGame,
    game_key_of_job,
    game_key_of_sample,
)
from runner.runs.workers.remote_errors import RemoteError
from runner.runs.workers.worker_deaths import MAX_DEATHS, MAX_EARLY_DEATHS, WorkerDeathCounter
from runner.runs.workers.writer_state import WorkerSlot
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.loader import load_spec
from tests.support.runs import run_spec
from tests.support.specs import spec_file

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, NipRunError)]


def job(index: int, name: str = "") -> Job:
    point = Datapoint(name or f"p{index}", 1, {"question": "?"})
    return Job(index, f"r{index}", point, 0, 0)


def unpickled(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


NOT_OF_WORDS = (errors.SpecError, errors.QueryError, errors.MergeError)
"""Those that no worker has."""


@pytest.mark.parametrize("kind", [one for one in ERRORS if one not in NOT_OF_WORDS])
def test_every_error_comes_out_of_another_process_as_it_went_in(kind: type[NipRunError]) -> None:
    error = kind("the words")
    error.add_note("a note")
    again = unpickled(RemoteError.from_exception(error)).to_exception()
    assert type(again) is kind
    assert again.lines() == error.lines()
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
def test_what_the_system_refused_is_told_apart_in_another_process_too(error: BaseException) -> None:
    again = unpickled(RemoteError.from_exception(error)).to_exception()
    assert (type(again), again.args) == (type(error), error.args)


def test_a_refusal_keeps_what_it_says_to_change_and_what_one_call_would_be() -> None:
    error = ProviderRefusal("no", of_one_call=MalformedError("bad", status=400), changes={"models.m.model": None})
    again = unpickled(RemoteError.from_exception(error)).to_exception()
    assert dict(again.changes) == {"models.m.model": None}
    assert (str(again.of_one_call), again.of_one_call.status) == ("bad", 400)
    again = unpickled(RemoteError.from_exception(ProviderRefusal("no"))).to_exception()
    assert dict(again.changes) == {}


def test_an_error_that_is_not_known_is_told_with_where_it_came_from() -> None:
    nothing: dict[str, int] = {}
    try:
        nothing["missing"]
    except KeyError as error:
        again = unpickled(RemoteError.from_exception(error)).to_exception()
    assert str(again) == "KeyError: 'missing'"
    assert "test_parts.py" in again.__notes__[0]


def test_a_finished_game_comes_back_equal(tmp_path: Path) -> None:
    from runner.results.folder import RunFolder
    from runner.runs.finished.reconstruction import Reconstructor, saved_plan

    result = run_spec(spec_file(tmp_path, size=3), tmp_path / "results")
    folder = RunFolder(result.path)
    reconstructor = Reconstructor(folder, saved_plan(folder))
    rollouts = list(reconstructor.rollouts())
    reconstructor.close()
    sent = [messages.GameFinished(rollout.job.index, [rollout]) for rollout in rollouts]
    assert len(sent) == 3
    assert unpickled(sent) == sent


@pytest.mark.parametrize(
    "changes",
    [{}, {"rollouts.per_datapoint": 3}, {"stances": "both", "rollouts.per_datapoint": 2},
     {"rollouts.num_responses_per_timestep": 2, "protocol.max_message_rounds": 2}],
)  # fmt: skip
def test_each_game_has_records_of_its_own(tmp_path: Path, changes: dict[str, object]) -> None:
    plan = Plan(load_spec(spec_file(tmp_path, size=3), [f"{key}={value}" for key, value in changes.items()]))
    games: dict[object, list[Job]] = {}
    for one in plan.jobs():
        games.setdefault(game_key_of_job(plan, one), []).append(one)
        branches = 1 if plan.tree_shape is None else plan.tree_shape.branches
        for branch in (plan.job_of_branch(one, one.repeat + more) for more in range(branches)):
            assert game_key_of_sample(plan, branch.datapoint.id, branch.number) == game_key_of_job(plan, one)
    assert all(len(jobs) == 1 for jobs in games.values())
    assert len(games) == plan.size


# The journal


@pytest.mark.parametrize("durable", [True, False])
def test_records_of_many_go_out_in_one_write_and_are_found_where_they_stand(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "journal.jsonl"

    def record(number: int, text: str = "x") -> dict[str, object]:
        return {"kind": "other", "sample": [f"p{number}", 0, 0, "a", 0], "text": text}

    async def write() -> None:
        journal = Journal(path, first=log_header("identity", "run"), run="identity", durable=durable)
        groups = [[record(0)], [record(1), record(2, "a\nb")], [record(3)]]
        offsets = await journal.append_all(list(map(encode_unnumbered, groups)))
        await journal.append(record(4))
        more = await journal.append_all([encode_unnumbered([record(5)])])
        for places, group in zip([*offsets, *more], [*groups, [record(5)]], strict=True):
            assert [journal.record(place)["sample"] for place in places] == [one["sample"] for one in group]
        await journal.close()

    asyncio.run(write())
    entries = list(read_records(path, "identity"))
    samples = [entry.record.sample for entry in entries[1:] if isinstance(entry.record, OtherRecord)]
    assert [one.datapoint for one in samples if one is not None] == [f"p{number}" for number in range(6)]
    assert len(JournalIndex(lambda _: {}, entries)) == 0


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "call", "text": 'a "seq":0 and a \0', "other": {"seq": 0}},
        {"kind": "call", "answer": b'{"content": "\\u0000", "seq": 0}', "zone": 1},
        {"a": 1, "zz": [1, {"seq": "x"}]},
    ],
)
def test_a_line_that_gets_its_number_later_is_the_line_that_one_process_writes(record: dict[str, object]) -> None:
    more, last = encode_unnumbered([record, record])
    assert add_number(17, more, 5) == encode(17, {**record, "more": True}, 5)
    assert add_number(18, last, 5) == encode(18, record, 5)


def test_what_was_made_of_a_game_waits_on_disk_where_memory_does_not_hold_it(tmp_path: Path) -> None:
    def made(number: int, size: int) -> WorkerGame:
        rows = [Rows(b"x" * size, 1), Rows(b"", 0), Rows(b"", 0)]
        counted = RolloutCounts("decided", True, 0, 5, (number, 0, 0), ())
        one = RolloutOutput(rows, GameMeasurement("decided", "g", (), None), [], None)
        return WorkerGame([WorkerRollout(one, counted, (1, 1))])

    games = [made(number, MAX_CHARACTERS_IN_MEMORY // 2 + 1) for number in range(4)]
    passed: list[object] = []
    with closing(PlanOrderBuffer(passed.append, 10, tmp_path)) as ordered:
        for number in (3, 2, 1, 0):
            ordered.put(number, games[number])
    assert passed == games


def test_a_write_that_fails_is_told_to_all_of_a_batch(tmp_path: Path) -> None:
    class Full:
        def write(self, fd: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def fsync(self, fd: int) -> None: ...
        def truncate(self, fd: int, length: int) -> None: ...

    async def write() -> None:
        journal = Journal(tmp_path / "journal.jsonl", disk=Full())
        with pytest.raises(JournalError, match="No space left"):
            await journal.append_all([encode_unnumbered([{"kind": "a"}]), encode_unnumbered([{"kind": "b"}])])
        with pytest.raises(JournalError, match="No space left"):
            await journal.append_all([encode_unnumbered([{"kind": "c"}])])
        await journal.close()

    asyncio.run(write())


# Leases


def test_games_are_leased_in_order_as_far_as_there_is_room_and_those_that_come_back_first() -> None:
    room = [3]
    book = LeaseBook(iter([job(index) for index in range(5)]), lambda index: index < room[0], 2, by_datapoint=False)
    given = [book.next_game_for(number % 2) for number in range(4)]
    assert [one and one.job.index for one in given] == [0, 1, 2, None]
    assert given[0] is not None
    assert given[1] is not None
    book.return_game(given[1])
    book.return_game(given[0])
    room[0] = 5
    assert [one.job.index for one in iter(lambda: book.next_game_for(1), None)] == [0, 1, 3, 4]
    assert book.is_empty


def test_all_games_of_a_datapoint_go_to_one_place_where_they_share_calls() -> None:
    jobs = [job(index, f"p{index % 7}") for index in range(70)]
    book = LeaseBook(iter(jobs), lambda _: True, 3, by_datapoint=True)
    given = {place: [one.job for one in iter(lambda: book.next_game_for(place), None)] for place in range(3)}  # noqa: B023
    places = {place: {one.datapoint.id for one in found} for place, found in given.items()}
    assert sum(map(len, given.values())) == 70
    assert sum(map(len, places.values())) == 7
    assert all([one.index for one in found] == sorted(one.index for one in found) for found in given.values())


def test_a_game_whose_workers_die_is_played_alone_and_then_ends_the_run_by_name() -> None:
    book, deaths = LeaseBook(iter([job(0), job(1)]), lambda _: True, 1, by_datapoint=False), WorkerDeathCounter(2)
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
    ("was_ready", "most", "words"),
    [(False, MAX_EARLY_DEATHS, "before they were ready for a game"), (True, MAX_DEATHS, "no game was finished")],
)
def test_workers_that_die_again_and_again_end_the_run(was_ready: bool, most: int, words: str) -> None:
    deaths = WorkerDeathCounter(2)
    for _ in range(most - 1):
        deaths.count(WorkerSlot(0), "ended with exit code 1: no memory", was_ready=was_ready)
    with pytest.raises(RunError, match=f"{words}.*no memory"):
        deaths.count(WorkerSlot(0), "ended with exit code 1: no memory", was_ready=was_ready)
    assert LeasedGame(job(0)).is_suspect is False
