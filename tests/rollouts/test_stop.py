"""The switch that stops a run ends sleeps, makes checks raise, and calls callbacks."""

from __future__ import annotations

import asyncio

import pytest

from runner.base.errors import Stopped
from runner.rollouts.stop_switch import StopSwitch
from tests.support.hang_guard import HANG_SECONDS


def test_check_raises_only_after_a_stop() -> None:
    stop = StopSwitch()
    stop.check()
    is_stopping_before = stop.is_stopping
    stop.stop()
    stop.stop()
    assert (is_stopping_before, stop.is_stopping) == (False, True)
    with pytest.raises(Stopped):
        stop.check()


def test_sleep_ends_on_time_or_at_a_stop() -> None:
    async def sleep_and_stop() -> None:
        stop = StopSwitch()
        await stop.sleep_unless_stopped(0.0)
        sleeping = asyncio.create_task(stop.sleep_unless_stopped(3600))
        await asyncio.sleep(0)
        stop.stop()
        with pytest.raises(Stopped):
            await asyncio.wait_for(sleeping, HANG_SECONDS)
        with pytest.raises(Stopped):
            await stop.sleep_unless_stopped(3600)

    asyncio.run(sleep_and_stop())


def test_stop_calls_the_registered_callbacks() -> None:
    async def stop_and_wait() -> None:
        stop, event = StopSwitch(), asyncio.Event()
        stop.call_on_stop(event.set)
        assert not event.is_set()
        stop.stop()
        await asyncio.wait_for(event.wait(), HANG_SECONDS)

    asyncio.run(stop_and_wait())


def test_child_switch_stops_alone_or_with_its_parent() -> None:
    stop = StopSwitch()
    first_child, second_child = stop.create_child(), stop.create_child()
    first_child.stop()
    assert (first_child.is_stopping, second_child.is_stopping, stop.is_stopping) == (True, False, False)
    first_child.stop_all()  # a refusal after the child has stopped has no effect on its parent
    assert (second_child.is_stopping, stop.is_stopping) == (False, False)
    second_child.stop_all()
    assert (second_child.is_stopping, stop.is_stopping, stop.create_child().is_stopping) == (True, True, True)
