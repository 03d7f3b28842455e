"""A finished game into what one of its agents is trained on: the chats that its model was asked with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.errors import InvalidResponseError
from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.chat_format import formatted
from runner.game.prompts.supervised import check_replacement
from runner.game.protocols.rounds import Round
from runner.results.finetune.examples import ExampleSource, RlTurn, Supervised
from runner.rollouts.agents.agent import Agent, Observation
from runner.rollouts.rollout import Rollout


def asked_with(agent: Agent, observation: Observation) -> list[ChatMessage]:
    """The chat that the agent's model is asked with at an observation, as its server gets it."""
    return list(agent.model_settings.sent_messages(agent.prompt(observation)))


def how_written(agent: Agent) -> dict[str, Any]:
    """The format that an agent's chats are written in, and whether it is the one they were played in."""
    written = agent.model_settings.resolved_chat_format
    played = agent.hyper_params.models[agent.model_group].resolved_chat_format
    return {"chat_format": written, "as_played": written == played}


def supervised(
    agent: Agent,
    rollout: Rollout,
    *,
    ensure_last_message_is_assistant: bool = True,
    replace_verifier_guess_with_true_label: bool = False,
) -> list[Supervised]:
    """The agent's chats, the earliest first; none where it said nothing. A prover has no guess to be replaced.

    In each, a turn is learnt after exactly the chat that its model was asked with, and each turn is learnt once: in
    one example where the chats continue each other, in several where an earlier part of them changes, as instructions
    that count down do. A turn that is not whole or cannot be parsed is learnt in none, unless the label replaces it.

    Raises:
        ValueError: a guess is to be replaced, and the last message is not ensured to be the agent's.
    """
    check_replacement(
        ensure_last_message_is_assistant=ensure_last_message_is_assistant,
        replaces=replace_verifier_guess_with_true_label,
    )
    turns = _turns(agent, rollout.rounds)
    if not turns:
        return []
    said = {round_: rollout.rounds[round_].raw[agent.agent_name] for round_ in turns}
    learnable = [round_ for round_ in turns if trainable(agent, rollout, round_)]
    if replace_verifier_guess_with_true_label and agent.is_verifier:
        said[turns[-1]] = agent.true_verdict(rollout.job.datapoint.label)
        learnable = [*(round_ for round_ in learnable if round_ != turns[-1]), turns[-1]]
    chats = {round_: _answered(agent, rollout, round_, said[round_]) for round_ in turns}
    if not ensure_last_message_is_assistant:
        chats[turns[-1]] += _after_last_turn(agent, rollout)
    return _examples(chats, learnable)


def _answered(agent: Agent, rollout: Rollout, round_: int, answer: str) -> list[ChatMessage]:
    asked = asked_with(agent, rollout.job.observation(round_, rollout.rounds[:round_]))
    return [*asked, {"role": "assistant", "content": answer}]


def _after_last_turn(agent: Agent, rollout: Rollout) -> list[ChatMessage]:
    """What the agent could see after its last turn, with no instructions: it was not asked again."""
    end = min(len(rollout.rounds), agent.max_message_rounds - 1)
    settings = agent.model_settings
    chat = agent.with_chat_format("openai").final_prompt(rollout.job.observation(end, rollout.rounds))
    seen = [m for index, m in enumerate(chat) if index <= _last_own(chat) or m["role"] != "system"]
    # With all before it: by itself, a format would take its first message for the beginning of a chat.
    shown = formatted(seen, settings.resolved_chat_format, instructions=settings.system_role)
    return list(settings.sent_messages(shown[_last_own(shown) + 1 :]))


def _last_own(chat: Sequence[ChatMessage]) -> int:
    return max(index for index, message in enumerate(chat) if message["role"] == "assistant")


def _examples(chats: Mapping[int, Sequence[ChatMessage]], learnable: Sequence[int]) -> list[Supervised]:
    """From the last turn back: what it continues is learnt with it, and what it does not is learnt by itself."""
    found: list[Supervised] = []
    left = list(learnable)
    while left or not found:
        last = left[-1] if left else max(chats)  # nothing may be learnt: the format says so
        chat = chats[last]
        learnt = [round_ for round_ in left if round_ == last or _continues(chat, chats[round_])]
        left = [round_ for round_ in left if round_ not in learnt]
        rounds = {_last_own(chats[round_]): round_ for round_ in learnt or [last]}
        own = {index for index, message in enumerate(chat) if message["role"] == "assistant"}
        found.append(Supervised(chat, frozenset(own - rounds.keys() if learnt else own), rounds))
    return found[::-1]


def _continues(chat: Sequence[ChatMessage], earlier: Sequence[ChatMessage]) -> bool:
    return len(earlier) < len(chat) and chat[: len(earlier)] == earlier


def rl_turns(agent: Agent, rollout: Rollout, run_id: str) -> Iterator[RlTurn]:
    """Each turn of the agent, with exactly the chat that its model was asked with."""
    name, job, experiment = agent.agent_name, rollout.job, agent.hyper_params
    label = job.datapoint.label
    if label is None:
        raise ValueError("a turn is trained on with its reward, which needs a label")
    for round_ in _turns(agent, rollout.rounds):
        yield RlTurn(
            prompt=asked_with(agent, job.observation(round_, rollout.rounds[:round_])),
            response=rollout.rounds[round_].raw[name],
            reward=rollout.rewards[name],
            ground_truth=label,
            datapoint_id=job.datapoint.id,
            run_id=run_id,
            rollout_id=job.rollout_id,
            agent=name,
            round=round_,
            data_source=experiment.benchmark or experiment.name,
            ability=agent.agent_spec.role,
        )


def source_of(agent: Agent, rollout: Rollout, run_id: str, round_: int) -> ExampleSource:
    """Where an example comes from whose last turn is this agent's in a round."""
    name, job = agent.agent_name, rollout.job
    point, reward = job.datapoint, rollout.rewards[name]
    return ExampleSource(run_id, job.rollout_id, name, round_, reward, point.id, group=point.group)


def trainable(agent: Agent, rollout: Rollout, round_: int) -> bool:
    """Whether a turn is whole and can be parsed: the game went on with an empty message where it could not."""
    played = rollout.rounds[round_]
    if played.token_limits.get(agent.agent_name):
        return False
    try:
        agent.parse(played.raw[agent.agent_name], round_)
    except InvalidResponseError:
        return False
    return True


def _turns(agent: Agent, rounds: Sequence[Round]) -> list[int]:
    return [index for index, played in enumerate(rounds) if agent.agent_name in played.raw]
