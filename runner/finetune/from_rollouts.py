"""A finished game into what one of its agents is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.agents.agent import Agent
from runner.errors import InvalidResponseError
from runner.finetune.examples import RlTurn, Source, Supervised
from runner.prompts.supervised import check_replacement
from runner.protocols.game import Round
from runner.rollouts.rollout import Rollout


def supervised(
    agent: Agent,
    rollout: Rollout,
    *,
    ensure_last_message_is_assistant: bool = True,
    replace_verifier_guess_with_true_label: bool = False,
) -> Supervised | None:
    """The agent's whole chat; None where it said nothing. A prover has no guess, so nothing of it is replaced.

    Raises:
        ValueError: a guess is to be replaced, and the last message is not ensured to be the agent's.
    """
    check_replacement(
        ensure_last_message_is_assistant=ensure_last_message_is_assistant,
        replaces=replace_verifier_guess_with_true_label,
    )
    point = rollout.job.datapoint
    replaces = replace_verifier_guess_with_true_label and agent.is_verifier
    messages = agent.fine_tune_example(
        rollout.job.observation(min(len(rollout.rounds), agent.max_message_rounds - 1), rollout.rounds),
        point.label,
        ensure_last_message_is_assistant=ensure_last_message_is_assistant,
        replace_verifier_guess_with_true_label=replaces,
    )
    if messages is None:
        return None
    own = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    turns = _turns(agent, rollout.rounds)
    unlearnable = {index for index, round_ in zip(own, turns, strict=True) if not trainable(agent, rollout, round_)}
    return Supervised(messages, frozenset(unlearnable - {own[-1]} if replaces else unlearnable))


def rl_turns(agent: Agent, rollout: Rollout, run_id: str) -> Iterator[RlTurn]:
    """Each turn of the agent, with exactly the chat that its model was asked with."""
    name, job, experiment = agent.agent_name, rollout.job, agent.hyper_params
    for round_ in _turns(agent, rollout.rounds):
        yield RlTurn(
            prompt=agent.prompt(job.observation(round_, rollout.rounds[:round_])),
            response=rollout.rounds[round_].raw[name],
            reward=rollout.rewards[name],
            ground_truth=job.datapoint.label,
            datapoint_id=job.datapoint.id,
            run_id=run_id,
            rollout_id=job.rollout_id,
            agent=name,
            round=round_,
            data_source=experiment.benchmark or experiment.name,
            ability=agent.agent_spec.role,
        )


def source_of(agent: Agent, rollout: Rollout, run_id: str, round_: int | None = None) -> Source:
    """Where an example of this agent comes from; without a round, its last turn."""
    turns = _turns(agent, rollout.rounds)
    last = turns[-1] if turns else 0
    name, job = agent.agent_name, rollout.job
    at = last if round_ is None else round_
    return Source(run_id, job.rollout_id, name, at, rollout.rewards[name], job.datapoint.id)


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
