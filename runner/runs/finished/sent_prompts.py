"""Renders the chats that were sent to models in a rollout, and verifies them with the hashes in the journal.

The journal has only a hash of each chat, so `show` and the pages render the text again from the run's folder.
"""

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
    """The request body that was sent for one agent's turn. All attempts of a turn have the same body."""

    round: int
    attempts: int
    body: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"round": self.round, "attempts": self.attempts, "body": self.body}


def sent_prompts(reconstructor: Reconstructor, rollout: Rollout, agent: str, round_: int | None) -> list[SentPrompt]:
    """Return the prompts of an agent in a rollout, or only the prompt of the round `round_`.

    Each prompt is rendered from the run's folder and compared with the hash of the sent chat in the journal.

    Raises:
        UsageError: there is no such agent, or the agent was not called in this round.
        RunError: the rendered chat differs from the sent one.
    """
    agents = reconstructor.plan.agents(swapped=rollout.job.swapped)
    if agent not in agents:
        hint = did_you_mean(agent, agents) or f"; there are {comma_join(agents)}"
        raise UsageError(f"this run has no agent {agent!r}{hint}")
    prompts = list(_prompts(reconstructor, rollout, agents[agent]))
    rounds_called = [prompt.round for prompt in prompts]
    if round_ is not None and round_ not in rounds_called:
        rounds = comma_join(map(str, rounds_called)) or "none"
        raise UsageError(
            f"{agent} was not called in round {round_} of rollout {rollout.job.rollout_id}; choose one of its "
            f"rounds: {rounds}"
        )
    return [prompt for prompt in prompts if round_ in (None, prompt.round)]


Chats = Mapping[tuple[int, str], Sequence[ChatMessage]]
"""The sent chats of a rollout, by round and agent."""


def sent_chats(plan: Plan, rollouts: Sequence[Rollout], answered: Sequence[AnsweredRequest]) -> list[Chats]:
    """Return the sent chats of each rollout of a job, which is a game or a tree, from the job's answered requests.

    Raises:
        RunError: a rendered chat differs from the sent one.
    """
    chats: dict[SampleKey, Sequence[ChatMessage]] = {}
    for request in answered:
        if request.sample.attempt == request.sample.vote == 0:
            chats[request.sample] = _verified_chat(request.agent.model_settings, request, request.record.request)
    if plan.tree_shape is None:
        job_chats = {(sample.round, sample.agent): chat for sample, chat in chats.items()}
        return [job_chats for _ in rollouts]
    return [_chats_of_branch(plan, rollout, chats) for rollout in rollouts]


def _chats_of_branch(plan: Plan, rollout: Rollout, chats: Mapping[SampleKey, Sequence[ChatMessage]]) -> Chats:
    job, branch_chats = rollout.job, {}
    for round_ in range(len(rollout.rounds) + 1):
        repeat = _recorded_repeat(plan.tree_shape, job.number, round_)
        for agent in plan.spec.protocol.agent_names:
            chat = chats.get(SampleKey(job.datapoint.id, repeat, round_, agent, 0))
            if chat is not None:
                branch_chats[round_, agent] = chat
    return branch_chats


def _verified_chat(
    settings: ModelSettings, request: Request | AnsweredRequest, recorded_request: RequestRecord
) -> Sequence[ChatMessage]:
    """Compare a request's chat with the recorded hash, and return the chat as it was sent.

    Raises:
        RunError: the chat differs from the sent one.
    """
    sent_messages = settings.sent_messages(request.messages)
    # Journals before format 2 have the hash of the messages before they were encoded for the provider.
    sent_hash = recorded_request.messages
    schema = request.schema
    if messages_hash(sent_messages, schema) != sent_hash and messages_hash(request.messages, schema) != sent_hash:
        raise RunError(
            f"round {request.sample.round}: the files in this run's folder do not reproduce the chat that was sent to "
            f"{request.sample.agent}; restore spec.yaml and inputs/ if they were edited"
        )
    return sent_messages


def _prompts(reconstructor: Reconstructor, rollout: Rollout, agent: Agent) -> Iterator[SentPrompt]:
    """Yield the prompt of each round where the agent was called."""
    job, settings = rollout.job, agent.model_settings
    for round_ in range(len(rollout.rounds) + 1):
        repeat = _recorded_repeat(reconstructor.plan.tree_shape, job.number, round_)
        key = SampleKey(job.datapoint.id, repeat, round_, agent.agent_name, 0)
        recorded_request = reconstructor.request_record(key)
        if recorded_request is None:
            continue
        observation = job.observation(round_, rollout.rounds[:round_])
        messages, schema = agent.prompt(observation), agent.answer_schema(round_, observation.answer_count)
        _verified_chat(settings, Request(agent.model_group, messages, key, schema=schema), recorded_request)
        attempts = 1
        while reconstructor.request_record(key._replace(attempt=attempts)) is not None:
            attempts += 1
        yield SentPrompt(round_, attempts, json.loads(request_body(settings, messages, schema)))


def _recorded_repeat(shape: TreeShape | None, repeat: int, round_: int) -> int:
    """Return the repeat number in the sample key of a branch's answer in a round.

    Branches of a tree share answers. The number is that of the tree's node that the answer leads to.
    """
    if shape is None:
        return repeat
    return shape.repeat(shape.tree(repeat), shape.path(repeat)[: round_ + 1])
