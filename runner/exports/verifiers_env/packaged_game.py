"""The game of a package as data, and the function that plays it with any model.

The module is part of each package, which has no other code of its own that plays games. It must import neither specs
nor plans, whose modules are many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import orjson

from runner.base.errors import RunError
from runner.documents.dataclass_schema import from_plain
from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.templates import PromptSet
from runner.game.protocols.protocol import Protocol, verdict_word
from runner.game.protocols.rounds import PendingTurn, Reply
from runner.game.protocols.schema import Parameters, ProtocolFile
from runner.models.answers import choices_of, make_body, model_of, usage_of
from runner.models.interface import Completion, Request, Usage
from runner.results.game_measurements import measure_game
from runner.results.metric_definitions import METRICS
from runner.rollouts.agents.agent import Agent, AgentRuntime
from runner.rollouts.agents.selectors import respond
from runner.rollouts.game_script import GAME_FAILURES, GameParts, calls_of, play_game
from runner.rollouts.job import Job
from runner.rollouts.rollout import Rollout
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.experiment import Experiment

Send = Callable[[str, bytes], Awaitable[bytes]]
"""Sends the body of a request, without the model's name, as a seat. Returns the body of the server's answer."""

OpenSeats = Callable[[list[str]], Awaitable[None]]
"""Called with the seats that speak in a turn, before they speak."""


@dataclass(frozen=True)
class SeatResult:
    """The result of a game for one seat: the reward, or None if it is unknown, metrics, and facts about the game."""

    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class PackagedGame:
    """The rules, prompts and settings of a spec's games."""

    file: ProtocolFile
    parameters: Parameters
    experiment: Experiment
    """The settings of agents, verdicts and retries. It names no server and no file."""
    prompts: Mapping[str, str]
    declares_verifier_first: bool = True
    exchanges_stances: bool = False
    """This field and the one before it are those of `Protocol`."""
    swapped_seats: tuple[str, ...] = ()
    """The two seats that exchange their players in games with swapped seats; empty if there are none."""

    @classmethod
    def read(cls, content: bytes) -> PackagedGame:
        """Return the game that a package has as JSON."""
        return from_plain(cls, orjson.loads(content))

    @cached_property
    def protocol(self) -> Protocol:
        return Protocol(self.file, self.parameters, self.declares_verifier_first, self.exchanges_stances)

    @cached_property
    def _agents(self) -> Mapping[bool, Mapping[str, Agent]]:
        """The agents by seat, without and with swapped seats."""
        runtime, agents = AgentRuntime(PromptSet(self.prompts)), dict(self.experiment.agents)
        if self.swapped_seats:
            first, second = self.swapped_seats
            agents[first], agents[second] = agents[second], agents[first]
        experiments = {False: self.experiment, True: replace(self.experiment, agents=agents)}
        return {
            key: {name: Agent(experiment, runtime, name, self.protocol) for name in self.protocol.agent_names}
            for key, experiment in experiments.items()
        }

    @property
    def frozen_agents(self) -> list[str]:
        """The entries of the spec's `agents` that are never trained."""
        return [name for name, agent in self.experiment.agents.items() if agent.freeze]

    def player(self, seat: str, job: Job) -> str:
        """Return the entry of the spec's `agents` that plays a seat in a game. Two seats may exchange their players."""
        if job.swapped and seat in self.swapped_seats:
            return self.swapped_seats[1 - self.swapped_seats.index(seat)]
        return seat

    def first_prompts(self, job: Job) -> dict[str, list[ChatMessage]]:
        """Return the chats of the agents that speak first in a game.

        Raises:
            RunError: a template cannot be rendered.
        """
        agents = self._agents[bool(job.swapped)]
        script = play_game(GameParts(self.protocol, agents, job, lambda _: ()))
        turn = next(script)
        script.close()
        observation = job.observation(turn.round, turn.rounds)
        return {name: agents[name].prompt(observation) for name in turn.speakers}

    async def play(self, job: Job, open_seats: OpenSeats, send: Send) -> Rollout:
        """Play one game, and return its rollout. An error of `send` ends the game, and is raised."""
        parts = GameParts(self.protocol, self._agents[bool(job.swapped)], job, lambda _: ())
        script = play_game(parts)
        try:
            turn = next(script)
            while True:
                speakers = [name for name in self.protocol.agent_names if name in turn.speakers]
                await open_seats(speakers)
                try:
                    replies = await _collect_replies(parts, turn, speakers, send)
                except GAME_FAILURES as failure:
                    turn = script.throw(failure)
                else:
                    turn = script.send(replies)
        except StopIteration as end:
            rollout: Rollout = end.value
            return rollout
        finally:
            script.close()

    def results(self, rollout: Rollout) -> dict[str, SeatResult]:
        """Return the results of a game by seat. Each seat has the metrics of the whole game, too."""
        facts = {
            "rollout_id": rollout.job.rollout_id, "outcome": rollout.outcome.value, "error": rollout.error,
            "decision": verdict_word(rollout.decision),
        }  # fmt: skip
        metrics: dict[str | None, dict[str, float]] = {}
        for agent, name, values in measure_game(self.protocol, rollout).added:
            if values and name in METRICS:
                metrics.setdefault(agent, {})[name] = fmean(values)
        return {
            name: SeatResult(
                rollout.rewards.get(name), {**metrics.get(None, {}), **metrics.get(name, {})}, {"seat": name, **facts}
            )
            for name in self.protocol.agent_names
        }


async def _collect_replies(parts: GameParts, turn: PendingTurn, speakers: list[str], send: Send) -> dict[str, Reply]:
    """Return the replies of a turn's speakers, who all speak at the same time."""
    observation = parts.job.observation(turn.round, turn.rounds)

    async def complete(request: Request) -> Completion:
        agent = parts.agents[request.sample.agent]
        settings = agent.model_settings
        messages = list(settings.sent_messages(request.messages))
        content = await send(agent.agent_name, orjson.dumps({"messages": messages, **settings.request_parameters}))
        completion = _read_completion(content)
        parts.calls.extend(calls_of(request.sample, completion, agent))
        return completion

    replies = (respond(parts.agents, parts.protocol, name, observation, complete) for name in speakers)
    results = await asyncio.gather(*replies, return_exceptions=True)
    collected: dict[str, Reply] = {}
    for name, result in zip(speakers, results, strict=True):
        if isinstance(result, BaseException):
            raise result
        collected[name] = result
    return collected


def _read_completion(content: bytes) -> Completion:
    """Return a server's answer as a completion.

    Raises:
        RunError: the answer has no choices.
    """
    data = orjson.loads(content)
    choices = choices_of(data) if isinstance(data, dict) else ()
    if not choices:
        raise RunError(f"the server's answer has no choices: {content[:200]!r}; check the model and its server")
    usage = usage_of(data)
    body = make_body(content, data, has_usage=usage is not None)
    return Completion(choices, model_of(data) or "", usage or Usage(), body=body)


def list_jobs(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Return the games of a package's rows in the order of the plan, each with its datapoint."""
    jobs = [{"datapoint": line["datapoint"], **game} for line in lines for game in line["games"]]
    return sorted(jobs, key=lambda job: job["index"])


def read_job(data: Mapping[str, Any]) -> Job:
    """Return a game to play from its data in `list_jobs`."""
    fields = {name: value for name, value in data.items() if name != "datapoint"}
    return Job(datapoint=from_plain(Datapoint, data["datapoint"]), **fields)
