"""The game of `games.py` as an environment of verifiers: two agents, and one trace each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from games import next_messages

GAMES: list[list[list[dict[str, str]]]] = []


class Game(vf.TaskData):
    starts: list[list[dict[str, str]]]


class GameTask(vf.Task[Game]):
    pass


class Games(vf.Taskset[GameTask]):
    def load(self) -> Iterator[GameTask]:
        for starts in GAMES:
            yield GameTask(Game(starts=starts), self.config.task)


class PlayersConfig(vf.EnvConfig):
    verifier: vf.AgentConfig = vf.AgentConfig(harness={"id": "verifiers_harness"}, runtime=vf.SubprocessConfig())
    prover: vf.AgentConfig = vf.AgentConfig(harness={"id": "verifiers_harness"}, runtime=vf.SubprocessConfig())


class Players(vf.Env[PlayersConfig]):
    async def run(self, task: GameTask, agents: Any) -> None:
        texts: list[str] = []
        async with agents.verifier.interaction(task) as verifier, agents.prover.interaction(task) as prover:
            for turn in range(len(task.data.starts)):
                player = verifier if turn % 2 == 0 else prover
                answer = await player.turn(json.dumps(next_messages(task.data.starts, texts)))
                texts.append(answer.last_reply)


__all__ = ["Games", "Players"]
