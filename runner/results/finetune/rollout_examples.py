"""Build training examples from an agent's part of a finished game: the chats sent to its model, and its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from runner.base.errors import InvalidResponseError, UsageError
from runner.game.prompts.chat import ChatMessage
from runner.game.prompts.chat_format import format_chat
from runner.game.prompts.supervised import check_replacement
from runner.game.protocols.rounds import Round
from runner.results.finetune.examples import ExampleSource, RlTurn, SupervisedExample
from runner.rollouts.agents.agent import Agent, Observation
from runner.rollouts.rollout import Rollout


def prompt_messages(agent: Agent, observation: Observation) -> list[ChatMessage]:
    """Return the chat that is sent to the agent's model at an observation, in the chat format of its server."""
    return list(agent.model_settings.sent_messages(agent.prompt(observation)))


def describe_chat_format(agent: Agent) -> dict[str, object]:
    """Return the chat format of an agent's examples, and whether the games were played in that format."""
    chat_format = agent.model_settings.resolved_chat_format
    played_format = agent.hyper_params.models[agent.model_group].resolved_chat_format
    return {"chat_format": chat_format, "as_played": chat_format == played_format}


def supervised_examples(
    agent: Agent,
    rollout: Rollout,
    *,
    ensure_last_message_is_assistant: bool = True,
    replace_verifier_guess_with_true_label: bool = False,
) -> list[SupervisedExample]:
    """Return the agent's chats, the earliest first; empty if the agent never answered.

    In an example, each turn to learn follows exactly the chat that the model was sent, and no turn is learned in two
    examples. Chats that continue each other become one example. If earlier messages change during a game, such as
    instructions with a countdown, there are several examples. An answer that is truncated or cannot be parsed is not
    learned, unless it is the verifier's last answer and the true label replaces it.

    Raises:
        ValueError: the true label cannot replace the last answer, since a later message may follow.
    """
    check_replacement(
        ensure_last_message_is_assistant=ensure_last_message_is_assistant,
        replaces=replace_verifier_guess_with_true_label,
    )
    turns = _answered_rounds(agent, rollout.rounds)
    if not turns:
        return []
    answers = {round_: agent.learned_text(rollout.rounds[round_].raw[agent.agent_name]) for round_ in turns}
    learnable = [round_ for round_ in turns if is_trainable(agent, rollout, round_)]
    if replace_verifier_guess_with_true_label and agent.is_verifier:
        answers[turns[-1]] = _true_verdict(agent, rollout, turns[-1])
        learnable = [*(round_ for round_ in learnable if round_ != turns[-1]), turns[-1]]
    chats = {round_: _chat_with_answer(agent, rollout, round_, answers[round_]) for round_ in turns}
    if not ensure_last_message_is_assistant:
        chats[turns[-1]] += _messages_after_last_turn(agent, rollout)
    return _group_turns(chats, learnable)


def _true_verdict(agent: Agent, rollout: Rollout, round_: int) -> str:
    """Return the text of the right verdict on a game."""
    if agent.protocol_handler.lists_answers:
        return agent.true_answer_verdict(rollout.job.observation(round_, ()))
    return agent.true_verdict(rollout.label)


def _chat_with_answer(agent: Agent, rollout: Rollout, round_: int, answer: str) -> list[ChatMessage]:
    prompt = prompt_messages(agent, rollout.job.observation(round_, rollout.rounds[:round_]))
    return [*prompt, {"role": "assistant", "content": answer}]


def _messages_after_last_turn(agent: Agent, rollout: Rollout) -> list[ChatMessage]:
    """Return the messages that the agent could see after its last turn, without the instructions for another call."""
    end = min(len(rollout.rounds), agent.max_message_rounds - 1)
    settings = agent.model_settings
    chat = agent.with_chat_format("openai").final_prompt(rollout.job.observation(end, rollout.rounds))
    last_turn = _last_assistant_index(chat)
    visible = [message for index, message in enumerate(chat) if index <= last_turn or message["role"] != "system"]
    # Format the complete chat, since otherwise the first message after the turn would be formatted as a chat's start.
    formatted_chat = format_chat(visible, settings.resolved_chat_format, instructions=settings.system_role)
    return list(settings.sent_messages(formatted_chat[_last_assistant_index(formatted_chat) + 1 :]))


def _last_assistant_index(chat: Sequence[ChatMessage]) -> int:
    return max(index for index, message in enumerate(chat) if message["role"] == "assistant")


def _group_turns(chats: Mapping[int, Sequence[ChatMessage]], learnable: Sequence[int]) -> list[SupervisedExample]:
    """Return an example for each group of turns whose chats continue each other, the earliest first.

    `chats` has for each round the chat that ends with the agent's answer.
    """
    examples: list[SupervisedExample] = []
    remaining = list(learnable)
    while remaining or not examples:
        last = remaining[-1] if remaining else max(chats)  # formats report the example even without a turn to learn
        chat = chats[last]
        learned = [round_ for round_ in remaining if round_ == last or _is_continuation(chat, chats[round_])]
        remaining = [round_ for round_ in remaining if round_ not in learned]
        rounds = {_last_assistant_index(chats[round_]): round_ for round_ in learned or [last]}
        assistant_turns = {index for index, message in enumerate(chat) if message["role"] == "assistant"}
        unlearnable = assistant_turns - rounds.keys() if learned else assistant_turns
        examples.append(SupervisedExample(chat, frozenset(unlearnable), rounds))
    return examples[::-1]


def _is_continuation(chat: Sequence[ChatMessage], earlier: Sequence[ChatMessage]) -> bool:
    return len(earlier) < len(chat) and chat[: len(earlier)] == earlier


def rl_turns(agent: Agent, rollout: Rollout, run_id: str) -> Iterator[RlTurn]:
    """Yield each turn of the agent, with exactly the chat that its model was sent."""
    name, job, experiment = agent.agent_name, rollout.job, agent.hyper_params
    label = rollout.label
    if job.datapoint.answers is not None:
        raise UsageError("verl files have labels 0 and 1, which listed answers do not have; use another format")
    if label is None:
        raise ValueError(
            f"reinforcement learning needs rewards, but datapoint {job.datapoint.id!r} has no label; use a run of a "
            "dataset with labels"
        )
    for round_ in _answered_rounds(agent, rollout.rounds):
        yield RlTurn(
            prompt=prompt_messages(agent, job.observation(round_, rollout.rounds[:round_])),
            response=agent.learned_text(rollout.rounds[round_].raw[name]),
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


def example_source(agent: Agent, rollout: Rollout, run_id: str, round_: int) -> ExampleSource:
    """Return the source of an example that ends with this agent's turn in a round."""
    name, job = agent.agent_name, rollout.job
    point, reward = job.datapoint, rollout.rewards[name]
    return ExampleSource(run_id, job.rollout_id, name, round_, reward, point.id, group=point.group)


def is_trainable(agent: Agent, rollout: Rollout, round_: int) -> bool:
    """Return whether an answer may be learned: it is not truncated, and can be parsed."""
    played_round = rollout.rounds[round_]
    if played_round.token_limits.get(agent.agent_name):
        return False
    if played_round.retry_counts.get(agent.agent_name) == 0:
        return True  # the game parsed the answer
    try:
        agent.parse(played_round.raw[agent.agent_name], round_, rollout.job.datapoint.answer_count)
    except InvalidResponseError:
        return False
    return True


def _answered_rounds(agent: Agent, rounds: Sequence[Round]) -> list[int]:
    return [index for index, played_round in enumerate(rounds) if agent.agent_name in played_round.raw]
