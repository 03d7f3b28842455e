"""Signals while games are played and in between."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from runner.execute import Engine
from runner.surroundings import stopping_on_signals, terminated_like_ctrl_c
from tests.games import SEVENTH, protocol_of


def test_after_games_a_signal_is_again_for_whom_it_was_before(tmp_path: Any) -> None:
    async def unasked(_: Any) -> Any:
        raise AssertionError

    async def play() -> None:
        engine = Engine(protocol_of(tmp_path, SEVENTH), {}, unasked)
        with stopping_on_signals(engine):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0.01)
        assert engine.stopping

    before = signal.getsignal(signal.SIGTERM)
    with terminated_like_ctrl_c():
        ours = signal.getsignal(signal.SIGTERM)
        assert ours is not before
        asyncio.run(play())
        assert signal.getsignal(signal.SIGTERM) is ours
    assert signal.getsignal(signal.SIGTERM) is before
