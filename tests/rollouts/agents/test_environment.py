"""`Environment`: games stepped on arrays are the same as the games of the runner."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import Environment, NestedArrayDict
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Protocol
from runner.models.providers.dummy import DummyModel
from runner.rollouts.agents import AgentNotActiveInChannelError, AgentRuntime, OpenAiWholeAgent
from runner.rollouts.agents.arrays import stacked, timesteps
from runner.rollouts.engine import Engine
from runner.rollouts.plan import Plan
from runner.spec.loader import Spec, load_spec
from tests.reference.adapter import Script, cases, create_agents, load_case_protocol
from tests.support.games import ONE_VERIFIER
from tests.support.specs import spec_file


def load_protocol_spec(folder: Path, protocol: str, **parameters: Any) -> Spec:
    names = load_protocol(protocol).agent_names
    agents: dict[str, Any] = {"prover": None, "verifier": None, **{name: {"model": "m"} for name in names}}
    fixed = load_protocol(protocol).file.fixed
    protocol_parameters = {name: value for name, value in parameters.items() if name not in fixed}
    return load_spec(
        spec_file(
            folder,
            size=4,
            protocol={
                "use": protocol,
                "max_message_rounds": None if "max_message_rounds" in fixed else 6,
                **protocol_parameters,
            },
            prompts=f"prompts/code_validation/{protocol}",
            agents=agents,
        )
    )


def play_steps(agents: Mapping[str, OpenAiWholeAgent], environment: Environment, first: NestedArrayDict) -> list[Any]:
    """Play a batch of games and return its steps, one for each round."""
    steps, arrays = [], first
    for _ in range(environment.protocol_handler.max_message_rounds):
        replies = {name: agent(arrays, environment) for name, agent in agents.items()}
        timestep = environment.add_replies(arrays, replies)
        arrays, is_over, rewards = environment.step(timestep)
        assert is_over.tolist() == (arrays["done"] | arrays["terminated"]).tolist()
        assert rewards is timestep["next", "agents", "reward"]
        steps.append(timestep)
    assert is_over.all()
    return steps


def assert_steps_equal(steps: NestedArrayDict, expected: NestedArrayDict, *path: str) -> None:
    """Check steps against `timesteps`, which has one value of retries and token limits for all channels."""
    for name, value in expected.items():
        if isinstance(value, NestedArrayDict):
            assert_steps_equal(steps[name], value, *path, name)
            continue
        actual = steps[name]
        if name in ("retry_count", "token_limit"):
            assert (actual == actual[..., :1]).all()
            actual = actual[..., 0]
        assert actual.tolist() == value.tolist(), (*path, name)


@pytest.mark.parametrize("name", ONE_VERIFIER)
def test_environment_steps_match_the_games_of_the_runner(tmp_path: Path, name: str) -> None:
    spec = load_protocol_spec(tmp_path, name, randomize_prover_stance=True, verifier_no_guess_reward=-0.125)
    plan = Plan(spec)
    agents = plan.agents()
    environment = Environment(spec.protocol, seed=spec.experiment.seed)
    steps = stacked(play_steps(agents, environment, environment.reset(spec.dataset)))
    engine = Engine(spec.protocol, agents, DummyModel().complete)
    for job in plan.jobs():
        (rollout,) = asyncio.run(engine.play(job))
        expected = timesteps(spec.protocol, rollout.rounds, job.datapoint, seed=job.seed)
        assert_steps_equal(steps[:, job.index], expected)
        rewards = steps["agents", "reward"][:, job.index].sum(axis=0).tolist()
        assert dict(zip(spec.protocol.agent_names, rewards, strict=True)) == dict(rollout.rewards)
    chat = environment.prompt_array_to_list(
        steps["agents", "prompt"][0, 0, spec.protocol.agent_names.index("verifier")]
    )
    if "verifier" in spec.protocol.speakers(0, 0):
        assert [message["role"] for message in chat] == ["system"]


SCRIPTED_CASES = [case for case in cases("rollouts") if "error" not in case["expected"]]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if i % 8 == 0 else pytest.mark.full) for i, case in enumerate(SCRIPTED_CASES)],
    ids=lambda case: f"rollouts-{case['case']}",
)
def test_environment_steps_match_the_games_of_the_original(case: dict[str, Any]) -> None:
    protocol, point, expected = load_case_protocol(case["config"]), case["datapoint"], case["expected"]
    script = Script(case["completions"])
    agents = {
        name: OpenAiWholeAgent(
            agent.hyper_params, AgentRuntime(agent.settings.prompts, script.complete), name, protocol
        )
        for name, agent in create_agents(case["config"]).items()
    }
    environment = Environment(protocol)
    first = environment.reset({name: [value] for name, value in point.items()}, seed=case["seed"])
    steps = stacked(play_steps(agents, environment, first))[:, 0]
    assert script.calls == expected["api_calls"]
    assert steps["padding"].tolist() == expected["padding"]
    for index, row in enumerate(expected["timesteps"]):
        for key in ("raw_message", "decision"):
            assert dict(zip(protocol.agent_names, steps["agents", key][index], strict=True)) == row[key]
        for key in ("retry_count", "token_limit"):
            values = steps["agents", key][index]
            assert [set(channels) for channels in values.tolist()] == [{row[key][n]} for n in protocol.agent_names]
        for next_key, name in (("next_done", "done"), ("next_terminated", "terminated"), ("next_round", "round")):
            assert steps["next", name][index] == row[next_key]
        rewards = steps["agents", "reward"][index]
        assert dict(zip(protocol.agent_names, rewards, strict=True)) == pytest.approx(row["reward"], abs=1e-5)
    for name in ("message_history", "message_agent_id", "raw_message_history"):
        assert steps["next", name][-1].tolist() == expected[name]


# Inputs


def test_environment_accepts_columns_with_labels() -> None:
    protocol = load_protocol("nip", {"randomize_prover_stance": True})
    columns = {"question": ["a", "b"], "solution": ["c", "d"], "y": [0, 1], "tests": [["x"], None]}
    arrays = Environment(protocol, seed=3).reset(columns, prover_stance=[1, 0])
    assert arrays.batch_size == (2,)
    assert arrays["tests"].tolist() == [["x"], None]
    assert arrays["prover_stance"].tolist() == [1, 0]
    assert arrays["y"].tolist() == [0, 1]
    assert (
        Environment(protocol, seed=3).reset(NestedArrayDict(columns, (2,)))["seed"].tolist() == arrays["seed"].tolist()
    )
    assert Environment(protocol, seed=4).reset(columns)["seed"].tolist() != arrays["seed"].tolist()
    assert Environment(protocol).reset(columns, seed=5)["seed"].tolist() == [5, 5]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "needs a label"),
        ({"question": ["a"]}, "needs a label"),
        ({"question": ["a"], "y": [2]}, "0 or 1"),
        ({"question": ["a", "b"], "y": [1]}, "columns must have the same length, but have .*'question': 2"),
        ({"round": ["a"], "y": [1]}, "name of a key of a timestep: round; rename"),
        ({"question": [], "y": []}, "no datapoint"),
        ({"question": ["a"], "y": [1], "prover_stance": [5]}, r"prover_stance must be 0 or 1, not \[5\]"),
        (NestedArrayDict({"question": [["a", "b"]], "y": [[1, 0]]}, (1, 2)), r"one dimension, .*\(1, 2\)"),
    ],
)
def test_invalid_columns_are_refused(columns: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Environment(load_protocol("nip")).reset(columns)


def test_wrong_number_of_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="seed must be one integer, or one for each of the 1 datapoints"):
        Environment(load_protocol("nip")).reset({"question": ["a"], "y": [1]}, seed=[1, 2])


def make_first_turn(protocol: Protocol, **messages: str) -> NestedArrayDict:
    """Return a first turn with these agents' messages in channel 0."""
    arrays = Environment(protocol).reset({"question": ["q"], "y": [1]})
    names, channels = protocol.agent_names, len(protocol.channel_names)
    arrays["agents", "raw_message"] = np.array([[messages.get(name) for name in names]], dtype=object)
    arrays["agents", "message"] = np.array([[[messages.get(n), *[None] * (channels - 1)] for n in names]], dtype=object)
    arrays["agents", "decision"] = np.full((1, len(names)), 2)
    arrays["agents", "retry_count"] = np.zeros((1, len(names), channels), int)
    arrays["agents", "token_limit"] = np.zeros((1, len(names), channels), bool)
    return arrays


def test_agent_that_is_silent_or_out_of_turn_is_named() -> None:
    protocol = load_protocol("nip")
    environment = Environment(protocol)
    assert environment.step(make_first_turn(protocol, verifier="Why?")).arrays["message_history"][0, 0, 0] == "Why?"
    with pytest.raises(ValueError, match="game 0: verifier must speak in round 0"):
        environment.step(make_first_turn(protocol))
    with pytest.raises(AgentNotActiveInChannelError, match="prover does not speak in 'main' in round 0"):
        environment.step(make_first_turn(protocol, verifier="Why?", prover="So."))
    with pytest.raises(ValueError, match=r"no message, raw_message, decision, .* with add_replies"):
        environment.step(environment.reset({"y": [1]}))
    with pytest.raises(TypeError, match="protocol_handler is 'nip', not a Protocol"):
        Environment("nip")  # type: ignore[arg-type]
    arrays = make_first_turn(protocol, verifier="Why?")
    arrays["round"] = np.array([-1])
    with pytest.raises(ValueError, match="no round -1"):
        environment.step(arrays)


def test_add_replies_copies_arrays_and_names_missing_replies() -> None:
    protocol = load_protocol("nip")
    environment = Environment(protocol)
    arrays, reply = environment.reset({"y": [1]}), NestedArrayDict({"raw_message": ["Why?"]})
    timestep = environment.add_replies(arrays, dict.fromkeys(protocol.agent_names, reply))
    assert timestep["agents", "raw_message"].tolist() == [["Why?", "Why?"]]
    assert ("agents", "raw_message") not in arrays
    with pytest.raises(ValueError, match=r"^no reply of prover, verifier; pass a mapping from each agent's name"):
        environment.add_replies(arrays, {})
    with pytest.raises(ValueError, match=r"^no reply of verifier; no agent 'verifer'; did you mean 'verifier'"):
        environment.add_replies(arrays, {"prover": reply, "verifer": reply})


def test_agent_refuses_an_object_that_is_no_environment(tmp_path: Path) -> None:
    spec = load_protocol_spec(tmp_path, "nip")
    agent = OpenAiWholeAgent(spec.experiment, AgentRuntime(spec.prompts), "verifier", spec.protocol)
    environment = Environment(spec.protocol)
    arrays = environment.reset(spec.dataset)
    assert agent(arrays)["prompt"].shape[1] == 1
    assert agent(arrays, environment)["prompt"].shape[1] == environment.max_prompt_messages
    with pytest.raises(TypeError, match=r"environment is Protocol.*, not an Environment; pass"):
        agent(arrays, spec.protocol)  # type: ignore[arg-type]


def test_environment_steps_any_batch_shape() -> None:
    protocol = load_protocol("nip")
    arrays = make_first_turn(protocol, verifier="Why?").reshape(1, 1)
    step = Environment(protocol).step(arrays)
    assert (step.arrays.batch_size, step.over.shape, step.rewards.shape) == ((1, 1), (1, 1), (1, 1, 2))
    assert arrays["next", "round"].tolist() == step.arrays["round"].tolist() == [[1]]
