"""The switch that stops a run: who sleeps wakes, who asks is told, who waits for something else looks again."""

from __future__ import annotations

import asyncio

import pytest

from runner.rollouts.stop_switch import Stopped, StopSwitch
from tests.support.hang_guard import HANG_SECONDS


def test_a_check_passes_until_the_stop_and_raises_ever_after() -> None:
    stop = StopSwitch()
    stop.check()
    before = stop.is_stopping
    stop.stop()
    stop.stop()
    assert (before, stop.is_stopping) == (False, True)
    with pytest.raises(Stopped):
        stop.check()


def test_a_sleep_ends_in_time_and_wakes_at_a_stop() -> None:
    async def go() -> None:
        stop = StopSwitch()
        await stop.sleep_unless_stopped(0.0)
        sleeping = asyncio.create_task(stop.sleep_unless_stopped(3600))
        await asyncio.sleep(0)
        stop.stop()
        with pytest.raises(Stopped):
            await asyncio.wait_for(sleeping, HANG_SECONDS)
        with pytest.raises(Stopped):
            await stop.sleep_unless_stopped(3600)

    asyncio.run(go())


def test_a_stop_sets_the_events_that_others_wait_for() -> None:
    async def go() -> None:
        stop, moved = StopSwitch(), asyncio.Event()
        stop.call_on_stop(moved.set)
        assert not moved.is_set()
        stop.stop()
        await asyncio.wait_for(moved.wait(), HANG_SECONDS)

    asyncio.run(go())


def test_a_branch_stops_alone_and_with_what_it_is_a_branch_of() -> None:
    stop = StopSwitch()
    decided, other = stop.create_child(), stop.create_child()
    decided.stop()
    assert (decided.is_stopping, other.is_stopping, stop.is_stopping) == (True, False, False)
    decided.stop_all()  # a refusal that came to a run which had stopped for itself
    assert (other.is_stopping, stop.is_stopping) == (False, False)
    other.stop_all()
    assert (other.is_stopping, stop.is_stopping, stop.create_child().is_stopping) == (True, True, True)
