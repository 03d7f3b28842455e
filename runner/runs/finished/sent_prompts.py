"""The chats that one agent's model got in a rollout, exactly as they were sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.base.text import comma_join, did_you_mean
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.tree_shape import TreeShape
from runner.models.interface import Request, SampleKey
from runner.models.journal_records import RequestRecord, messages_hash
from runner.models.request_body import request_body
from runner.models.settings import ModelSettings
from runner.rollouts.agents.agent import Agent
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_games import AnsweredRequest
from runner.rollouts.rollout import Rollout
from runner.runs.finished.reconstruction import Reconstructor


@dataclass(frozen=True)
class SentPrompt:
    """What was sent for one agent's turn. All attempts of a turn get the same chat."""

    round: int
    attempts: int
    body: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"round": self.round, "attempts": self.attempts, "body": self.body}


def sent_prompts(reconstructor: Reconstructor, rollout: Rollout, agent: str, only: int | None) -> list[SentPrompt]:
    """The chats of an agent in a rollout; `only`: that of this round.

    Each is made from the run's folder, and compared with the hash that the journal has of what was sent.

    Raises:
        UsageError: there is no such agent, or it was not asked in this round.
        RunError: the folder's files do not give what was sent.
    """
    agents = reconstructor.plan.agents(swapped=rollout.job.swapped)
    if agent not in agents:
        hint = did_you_mean(agent, agents) or f"; there are {comma_join(agents)}"
        raise UsageError(f"this run has no agent {agent!r}{hint}")
    found = list(_sent(reconstructor, rollout, agents[agent]))
    asked = [one.round for one in found]
    if only is not None and only not in asked:
        rounds = comma_join(map(str, asked)) or "none"
        raise UsageError(f"{agent} was asked in these rounds of rollout {rollout.job.rollout_id}: {rounds}; not {only}")
    return [one for one in found if only in (None, one.round)]


Chats = Mapping[tuple[int, str], Sequence[ChatMessage]]
"""What was sent, by round and agent."""


def sent_chats(plan: Plan, rollouts: Sequence[Rollout], answered: Sequence[AnsweredRequest]) -> list[Chats]:
    """Of each of a job's rollouts the chat of each turn as it was sent, from what was asked as it was played again.

    Raises:
        RunError: the folder's files do not give what was sent.
    """
    chats: dict[SampleKey, Sequence[ChatMessage]] = {}
    for request in answered:
        if request.sample.attempt == request.sample.vote == 0:
            chats[request.sample] = _checked(request.agent.model_settings, request, request.asked)
    if plan.shape is None:
        of_job = {(sample.round, sample.agent): chat for sample, chat in chats.items()}
        return [of_job for _ in rollouts]
    return [_of_branch(plan, rollout, chats) for rollout in rollouts]


def _of_branch(plan: Plan, rollout: Rollout, chats: Mapping[SampleKey, Sequence[ChatMessage]]) -> Chats:
    job, found = rollout.job, {}
    for round_ in range(len(rollout.rounds) + 1):
        repeat = _asked_as(plan.shape, job.number, round_)
        for agent in plan.spec.protocol.agent_names:
            chat = chats.get(SampleKey(job.datapoint.id, repeat, round_, agent, 0))
            if chat is not None:
                found[round_, agent] = chat
    return found


def _checked(
    settings: ModelSettings, request: Request | AnsweredRequest, asked: RequestRecord
) -> Sequence[ChatMessage]:
    """A request's chat as it was sent."""
    sent = settings.sent_messages(request.messages)
    # Before format 2 a journal had the hash of the messages as they are before the wire.
    if asked.messages != messages_hash(sent) and asked.messages != messages_hash(request.messages):
        raise RunError(
            f"round {request.sample.round}: the files of this run's folder do not give the chat that "
            f"{request.sample.agent} was sent; were they edited?"
        )
    return sent


def _sent(reconstructor: Reconstructor, rollout: Rollout, agent: Agent) -> Iterator[SentPrompt]:
    for round_, messages, key in _chats(reconstructor, rollout, agent):
        attempts = 1
        while reconstructor.asked(key._replace(attempt=attempts)) is not None:
            attempts += 1
        yield SentPrompt(round_, attempts, json.loads(request_body(agent.model_settings, messages)))


def _chats(
    reconstructor: Reconstructor, rollout: Rollout, agent: Agent
) -> Iterator[tuple[int, Sequence[ChatMessage], SampleKey]]:
    """Of each round in which an agent was asked: its chat as templates give it, and the key of its first attempt."""
    job, settings = rollout.job, agent.model_settings
    for round_ in range(len(rollout.rounds) + 1):
        repeat = _asked_as(reconstructor.plan.shape, job.number, round_)
        key = SampleKey(job.datapoint.id, repeat, round_, agent.agent_name, 0)
        asked = reconstructor.asked(key)
        if asked is None:
            continue
        messages = agent.prompt(job.observation(round_, rollout.rounds[:round_]))
        _checked(settings, Request(agent.model_group, messages, key), asked)
        yield round_, messages, key


def _asked_as(shape: TreeShape | None, repeat: int, round_: int) -> int:
    """The repeat under which a branch's answer of a round was asked for: that of the node after it."""
    if shape is None:
        return repeat
    return shape.repeat(shape.tree(repeat), shape.path(repeat)[: round_ + 1])
