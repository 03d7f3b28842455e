"""Rollouts are delivered in plan order; waiting rollouts are stored in memory and on disk."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.base.errors import RunError
from runner.game.protocols.rounds import Message, Round
from runner.rollouts.job import Job
from runner.rollouts.reorder_buffer import FinishedJob, PlanOrderBuffer
from runner.rollouts.rollout import Call, Outcome, Rollout
from runner.spec.datasets.loader import Datapoint

POINT = Datapoint("p", 1, {"question": "q"})


def make_rollouts(index: int, length: int, size: int = 1) -> list[Rollout]:
    """Return the `size` rollouts of a job, whose answers contain NUL, non-BMP characters and lone surrogates."""
    rng = random.Random(index)
    result = []
    for repeat in range(size):
        characters = "".join(rng.choices(("a", "\0", "é", "\ud800", "\U0001f600"), k=5))
        text = characters * (length // 5)
        round_ = Round({"a": text}, [Message("main", "a", text[1:])], 1, {"a": 0.5}, {"a": 0}, {"a": False})
        job = Job(index, f"{index}/{repeat}", POINT, repeat, index)
        call = Call(0, "a", 0, "m", "stop", text, 1, 2, 0, 1.25, None)
        result.append(Rollout(job, (round_,), 1, Outcome.DECIDED, None, {"a": 0.5}, [call], None))
    return result


def make_plan_order_buffer(folder: Path, window: int = 100) -> tuple[PlanOrderBuffer, list[Rollout]]:
    passed: list[Rollout] = []

    def sink(finished: FinishedJob) -> None:
        assert isinstance(finished, Sequence)
        passed.extend(finished)

    return PlanOrderBuffer(sink, window, folder), passed


@pytest.mark.sample(1)
@pytest.mark.parametrize("length", [0, 5, 1_000_000])
def test_jobs_are_delivered_unchanged_and_in_plan_order(tmp_path: Path, length: int) -> None:
    ordered, passed = make_plan_order_buffer(tmp_path)
    order = list(range(24))
    random.Random(1).shuffle(order)
    for index in order:
        ordered.put(index, make_rollouts(index, length, size=1 + index % 2))
    ordered.close()
    assert passed == [rollout for index in range(24) for rollout in make_rollouts(index, length, size=1 + index % 2)]
    assert all(rollout.job.datapoint is POINT and rollout.outcome is Outcome.DECIDED for rollout in passed)
    assert list(tmp_path.iterdir()) == []


def test_jobs_that_wait_for_a_slow_job_do_not_fill_memory(tmp_path: Path) -> None:
    job_indexes: list[int] = []

    def sink(finished: FinishedJob) -> None:
        assert isinstance(finished, Sequence)
        job_indexes.append(finished[0].job.index)

    ordered = PlanOrderBuffer(sink, 1000, tmp_path)
    tracemalloc.start()
    try:
        for index in range(1, 301):
            text = str(index) * 100_000
            call = Call(0, "a", 0, "m", "stop", text)
            job = Job(index, str(index), POINT, 0, 0)
            ordered.put(index, [Rollout(job, (Round({"a": text}),), 1, Outcome.DECIDED, None, {}, [call])])
        ordered.put(0, make_rollouts(0, 5))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        ordered.close()
    assert job_indexes == list(range(301))
    assert peak < 20 << 20


def test_buffer_file_is_reused_from_its_start(tmp_path: Path) -> None:
    ordered, passed = make_plan_order_buffer(tmp_path)
    for first in (0, 12):
        for index in (*range(first + 1, first + 12), first):
            ordered.put(index, make_rollouts(index, 1_000_000))
    ordered.close()
    assert [rollout.job.index for rollout in passed] == list(range(24))


def test_job_may_start_only_within_the_window(tmp_path: Path) -> None:
    ordered, _ = make_plan_order_buffer(tmp_path, window=2)
    assert [ordered.has_room(index) for index in range(4)] == [True, True, False, False]
    ordered.put(1, make_rollouts(1, 1))
    assert not ordered.has_room(2)
    ordered.put(0, make_rollouts(0, 1))
    assert [ordered.has_room(index) for index in range(2, 5)] == [True, True, False]


def test_error_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    ordered, _ = make_plan_order_buffer(tmp_path / "gone")
    ordered.put(1, make_rollouts(1, 8 << 20))
    with pytest.raises(RunError, match=r"cannot store finished rollouts in .*gone.* are in the journal"):
        ordered.put(2, make_rollouts(2, 100))
    ordered.close()
