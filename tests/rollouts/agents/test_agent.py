"""`OpenAiWholeAgent` has the interface of the contract's section 6, on arrays of any batch shape."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import NestedArrayDict
from runner.base.errors import ProviderRefusal
from runner.rollouts.agents import (
    AgentNotActiveInChannelError,
    AgentRuntime,
    ContentFilterError,
    InvalidDecisionError,
    OpenAiWholeAgent,
)
from runner.spec.loader import Spec, load_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

SHAPES = [(), (3,), (2, 2)]
DEBATE: dict[str, Any] = {
    "protocol": {"use": "debate", "max_message_rounds": 5},
    "prompts": "prompts/code_validation/debate",
    "agents": {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
}


def load_changed_spec(folder: Path, base_url: str | None = None, **changes: Any) -> Spec:
    return load_spec(spec_file(folder, base_url, **changes))


def make_agent(spec: Spec, name: str = "verifier") -> OpenAiWholeAgent:
    return OpenAiWholeAgent(spec.experiment, AgentRuntime(spec.prompts), name, spec.protocol)


def make_game_arrays(
    spec: Spec, shape: tuple[int, ...], round_: int = 0, messages: tuple[tuple[str, str], ...] = ()
) -> NestedArrayDict:
    """Return a batch of equal game states. `messages` has an (agent, text) pair for each round, sent in channel 0."""
    protocol = spec.protocol
    rounds, channels, agents = protocol.max_message_rounds, protocol.channel_names, protocol.agent_names
    history = np.full((*shape, rounds, len(channels)), None, dtype=object)
    senders = np.full((*shape, rounds, len(channels)), -1)
    raws = np.full((*shape, rounds, len(agents)), None, dtype=object)
    for index, (name, text) in enumerate(messages):
        history[..., index, 0], senders[..., index, 0] = text, agents.index(name)
        raws[..., index, agents.index(name)] = text
    size = int(np.prod(shape, dtype=int))
    questions = np.array([f"Return x + {i}." for i in range(size)], dtype=object).reshape(shape)
    return NestedArrayDict(
        {
            "round": np.full(shape, round_), "seed": np.arange(size).reshape(shape),
            "prover_stance": np.ones(shape, int), "message_history": history, "message_agent_id": senders,
            "raw_message_history": raws, "question": questions, "y": np.ones(shape, int),
            "solution": np.full(shape, "def f(x): return x", dtype=object),
        },
        shape,
    )  # fmt: skip


# Attributes


def test_agent_attributes_describe_the_agent_and_its_model(tmp_path: Path) -> None:
    spec = load_changed_spec(
        tmp_path, models={"m": {"provider": "dummy", "model": "tuned", "base_model": "base"}}, **DEBATE
    )
    verifier, prover = make_agent(spec), make_agent(spec, "prover1")
    assert (verifier.is_verifier, verifier.is_prover) == (True, False)
    assert (prover.is_verifier, prover.is_prover) == (False, True)
    assert [make_agent(spec, name).agent_id for name in spec.protocol.agent_names] == [0, 1, 2]
    assert (verifier.model_name, verifier.base_model_name, verifier.shared_model_group) == ("tuned", "base", "m")
    assert verifier.max_message_rounds == 5
    assert verifier.protocol_handler is spec.protocol
    assert verifier.agent_params.max_response_words == 150
    assert verifier.agent_spec.human_name == "Verifier"
    assert verifier.required_pretrained_models == ()
    assert "{{" in verifier.system_prompt_template


def test_agent_lists_its_visible_channels(tmp_path: Path) -> None:
    spec = load_changed_spec(tmp_path, **{**DEBATE, "protocol": {"use": "mnip", "max_message_rounds": 5},
                                "prompts": "prompts/code_validation/mnip"})  # fmt: skip
    prover = make_agent(spec, "prover1")
    assert prover.visible_message_channel_names == ("prover1_channel",)
    assert prover.visible_message_channel_mask.tolist() == [False, True]
    assert prover.visible_message_channel_indices.tolist() == [1]
    assert prover.num_visible_message_channels == 1
    assert make_agent(spec).num_visible_message_channels == 2


def test_agent_keys_are_those_of_the_contract(tmp_path: Path) -> None:
    agent = make_agent(load_changed_spec(tmp_path))
    assert set(agent.out_keys) == {"message", "raw_message", "prompt", "decision", "retry_count", "token_limit"}
    assert {
        "round", "seed", "message_history", "message_agent_id", "raw_message_history", "prover_stance", "question",
        "solution",
    } == set(agent.in_keys)  # fmt: skip
    assert "y" not in agent.in_keys
    assert tuple(agent.in_keys) == (*agent.env_level_in_keys, *agent.agent_level_in_keys)
    assert tuple(agent.out_keys) == (*agent.env_level_out_keys, *agent.agent_level_out_keys)


def test_errors_have_the_names_and_hierarchy_of_the_contract() -> None:
    import runner.base.errors as errors

    for name in ("ContentFilterError", "ContentIsNoneError", "UnknownFinishReasonError", "InvalidResponseError"):
        assert issubclass(getattr(errors, name), errors.GenerationError)
    for name in ("InvalidDecisionError", "NotAllActiveChannelsInResponseError"):
        assert issubclass(getattr(errors, name), errors.InvalidResponseError)
    assert not issubclass(AgentNotActiveInChannelError, errors.GenerationError)


# Answers


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("on_server", [False, True])
def test_forward_gives_every_key_in_the_shape_of_the_batch(
    tmp_path: Path, shape: tuple[int, ...], on_server: bool
) -> None:
    with run_chat_server(decide=0.0) as server:
        spec = load_changed_spec(tmp_path, server.base_url if on_server else None)
        agent = make_agent(spec)
        out = agent(make_game_arrays(spec, shape), None)
    assert out.batch_size == shape
    assert set(out.keys()) == set(agent.out_keys)
    assert out["message"].shape == (*shape, 1)
    assert out["raw_message"].shape == shape
    assert out["decision"].shape == shape
    assert out["retry_count"].shape == out["token_limit"].shape == (*shape, 1)
    assert out["prompt"].shape == (*shape, 1, 3)
    assert not out["retry_count"].any()
    if on_server:
        assert (out["decision"] == 2).all()
        assert (out["message"][..., 0] == out["raw_message"]).all()
    for raw in out["raw_message"].reshape(-1):
        assert isinstance(raw, str)


def test_batch_element_gets_the_same_answer_as_a_single_game(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec = load_changed_spec(tmp_path, server.base_url)
        agent, data = make_agent(spec), make_game_arrays(spec, (2, 2))
        batch_result = agent.forward(data, None)
        for index in np.ndindex(2, 2):
            single_result = agent.forward(data[index], None)
            assert single_result["raw_message"].item() == batch_result["raw_message"][index]
            assert single_result["prompt"].tolist() == batch_result["prompt"][index].tolist()


def test_inactive_agent_sends_no_message_and_makes_no_request(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec = load_changed_spec(tmp_path, server.base_url)
        out = make_agent(spec, "prover").forward(make_game_arrays(spec, (3,)), None)
        assert server.requests == 0
    assert out["decision"].tolist() == [2, 2, 2]
    assert out["message"].tolist() == [[None]] * 3
    assert out["raw_message"].tolist() == [None] * 3


def test_the_history_reaches_the_model_and_the_label_does_not(tmp_path: Path) -> None:
    with run_chat_server(record=9) as server:
        spec = load_changed_spec(tmp_path, server.base_url)
        messages = (("verifier", "Is it sorted?"), ("prover", "It is."))
        make_agent(spec).forward(make_game_arrays(spec, (), 2, messages), None)
        (request,) = server.recorded_requests()
    assert "Is it sorted?" in request["body"]
    assert '"content":"Expert: It is."' in request["body"]
    assert '"y"' not in request["body"]
    assert "label" not in request["body"]


def test_decision_is_not_delivered_as_a_message(tmp_path: Path) -> None:
    with run_chat_server(text="Sure.\n\nDecision: reject") as server:
        spec = load_changed_spec(tmp_path, server.base_url)
        out = make_agent(spec).forward(make_game_arrays(spec, ()), None)
    assert (out["decision"].item(), out["message"].tolist()) == (0, [None])
    assert out["raw_message"].item() == "Sure.\n\nDecision: reject"


def test_each_channel_has_its_own_message(tmp_path: Path) -> None:
    with run_chat_server(decide=0.0) as server:
        spec = load_changed_spec(tmp_path, server.base_url, **DEBATE)
        out = make_agent(spec).forward(make_game_arrays(spec, (3,)), None)
    assert out["message"].shape == (3, 2)
    for first, second in out["message"]:
        assert first.startswith("Question for Expert_1:")
        assert second.startswith("Question for Expert_2:")


@pytest.mark.full
def test_retries_and_token_limits_are_reported_for_active_channels(tmp_path: Path) -> None:
    with run_chat_server(kind="bad_decision") as server:
        spec = load_changed_spec(tmp_path, server.base_url, retry={"invalid_response": {"attempts": 3}})
        out = make_agent(spec).forward(make_game_arrays(spec, ()), None)
    assert (out["retry_count"].tolist(), out["decision"].item(), out["message"].tolist()) == ([3], 2, [""])
    with run_chat_server(kind="length") as server:
        spec = load_changed_spec(tmp_path, server.base_url)
        out = make_agent(spec, "prover").forward(make_game_arrays(spec, (), 1, (("verifier", "?"),)), None)
    assert out["token_limit"].tolist() == [True]


@pytest.mark.full
def test_failures_raise_the_errors_of_the_contract(tmp_path: Path) -> None:
    for kind, then, expected in (
        ("content_filter", "abort_rollout", ContentFilterError),
        ("bad_decision", "abort_rollout", InvalidDecisionError),
        ("unauthorized", "abort_rollout", ProviderRefusal),
    ):
        with run_chat_server(kind=kind) as server:
            spec = load_changed_spec(
                tmp_path, server.base_url, retry={"invalid_response": {"attempts": 1, "then": then}}
            )
            with pytest.raises(expected):
                make_agent(spec).forward(make_game_arrays(spec, ()), None)


def test_forward_works_inside_a_running_event_loop(tmp_path: Path) -> None:
    spec = load_changed_spec(tmp_path)

    async def cell() -> NestedArrayDict:
        return make_agent(spec).forward(make_game_arrays(spec, (2,)), None)

    assert asyncio.run(cell()).batch_size == (2,)


# Pickling, state and datasets


def test_pickled_agent_has_no_client_and_gives_the_same_answers(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec = load_changed_spec(tmp_path, server.base_url)
        agent = make_agent(spec)
        result = agent.forward(make_game_arrays(spec, ()), None)
        copied = pickle.loads(pickle.dumps(agent))
        assert copied._client is None
        assert copied.forward(make_game_arrays(spec, ()), None)["raw_message"].item() == result["raw_message"].item()
    assert (copied.agent_name, copied.model_name) == (agent.agent_name, agent.model_name)


def test_forward_can_be_called_repeatedly(tmp_path: Path) -> None:
    """Each call has its own event loop, so a client must not be reused in the next call."""
    with run_chat_server() as server:
        spec = load_changed_spec(tmp_path, server.base_url)
        agent = make_agent(spec)
        answers = {agent.forward(make_game_arrays(spec, ()), None)["raw_message"].item() for _ in range(3)}
        assert server.requests == 3
    assert len(answers) == 1


def test_state_of_an_agent_can_be_set(tmp_path: Path) -> None:
    spec = load_changed_spec(tmp_path, models={"m": {"provider": "dummy", "model": "one"}})
    agent = make_agent(spec)
    assert agent.get_state_dict()["model_name"] == "one"
    agent.set_state({**agent.get_state_dict(), "model_name": "one-tuned", "base_model_name": "one"})
    assert (agent.model_name, agent.base_model_name) == ("one-tuned", "one")
    with pytest.raises(KeyError):
        agent.set_state({})


@pytest.mark.parametrize("shape", SHAPES)
def test_each_game_of_a_batch_gives_an_example_that_ends_with_the_assistant(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    spec = load_changed_spec(tmp_path)
    messages = (("verifier", "Is it sorted?"), ("prover", "It is."), ("verifier", "Are you sure?"), ("prover", "Yes."))
    examples = make_agent(spec).build_fine_tune_dataset(make_game_arrays(spec, shape, 4, messages))
    assert len(examples) == int(np.prod(shape, dtype=int))
    for example in examples:
        assert [m["role"] for m in example["messages"]] == ["system", "assistant", "user", "assistant"]
    full_examples = make_agent(spec).build_fine_tune_dataset(
        make_game_arrays(spec, shape, 4, messages), ensure_last_message_is_assistant=False
    )
    assert all(example["messages"][-1]["content"] == "Yes." for example in full_examples)


def test_true_label_can_replace_the_guess_in_examples(tmp_path: Path) -> None:
    spec = load_changed_spec(tmp_path)
    data = make_game_arrays(spec, (2,), 1, (("verifier", "Decision: reject"),))
    for example in make_agent(spec).build_fine_tune_dataset(data, replace_verifier_guess_with_true_label=True):
        assert example["messages"][-1] == {"role": "assistant", "content": "Decision: accept"}
    for name in ("verifier", "prover"):
        for games in (data, data[:0]):
            with pytest.raises(ValueError, match="set ensure_last_message_is_assistant=True"):
                make_agent(spec, name).build_fine_tune_dataset(games, False, True)


def test_agent_without_messages_gives_no_example(tmp_path: Path) -> None:
    spec = load_changed_spec(tmp_path)
    data = make_game_arrays(spec, (2,), 1, (("verifier", "Decision: reject"),))
    assert make_agent(spec, "prover").build_fine_tune_dataset(data) == []
