"""Methods of an agent for its client and for single games and chats, as in the contract's section 6."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from runner.base.errors import ProviderRefusal, RunError, TransientError, UsageError
from runner.rollouts import agents
from runner.rollouts.agents import AgentNotActiveInChannelError, AgentRuntime, InvalidDecisionError, OpenAiWholeAgent
from runner.spec.loader import Spec, load_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

POINT: dict[str, Any] = {"question": "Return x.", "solution": "def f(x): return x"}
CHAT: Any = [{"role": "system", "content": "S"}, {"role": "user", "name": "Expert", "content": "It is."}]


def load_changed_spec(folder: Path, base_url: str | None = None, **changes: Any) -> Spec:
    return load_spec(spec_file(folder, base_url, **changes))


def make_agent(spec: Spec, name: str = "verifier") -> OpenAiWholeAgent:
    return OpenAiWholeAgent(spec.experiment, AgentRuntime(spec.prompts), name, spec.protocol)


def make_histories(*texts: str) -> dict[str, Any]:
    """Return histories of nip; verifier and prover send these texts in turn."""
    raws = np.full((6, 2), None, dtype=object)
    message, senders = np.full((6, 1), None, dtype=object), np.full((6, 1), -1)
    for index, text in enumerate(texts):
        sender = 1 - index % 2
        message[index, 0], senders[index, 0], raws[index, sender] = text, sender, text
    return {"message_history": message, "message_agent_id": senders, "raw_message_history": raws}


def test_agent_client_is_the_official_openai_client(tmp_path: Path) -> None:
    with run_chat_server(text="Decision: accept", record=2) as server:
        agent = make_agent(load_changed_spec(tmp_path, server.base_url))
        completion = agent.client.chat.completions.create(model=agent.model_name, messages=CHAT)
        assert completion.choices[0].message.content == "Decision: accept"
        assert isinstance(agent.client, openai.OpenAI)
        assert agent.client is agent.client
        assert agent.client.max_retries == 0
        copied = pickle.loads(pickle.dumps(agent))
        assert copied._client is None
        assert copied.client.base_url == agent.client.base_url
        copied.client.close()
        agent.client.close()
        (request,) = server.recorded_requests()
    assert "openai-organization" not in {name.lower() for name in request["headers"]}


def test_provider_without_a_server_has_no_client(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"models\.m: provider dummy has no synchronous client"):
        _ = make_agent(load_changed_spec(tmp_path)).client
    openai_group = {"provider": "openai", "model": "x"}
    with pytest.raises(ProviderRefusal, match="OPENAI_API_KEY is empty"):
        _ = make_agent(load_changed_spec(tmp_path, models={"m": openai_group})).client


@pytest.mark.full
def test_generation_call_retries_and_raises_as_in_a_run(tmp_path: Path) -> None:
    with run_chat_server(text="Decision: accept", faults={"rate_limit": 1.0}, max_faults=2) as server:
        agent = make_agent(load_changed_spec(tmp_path, server.base_url))
        assert agent._make_generation_api_call(CHAT) == ("Decision: accept", "stop")
        assert server.requests > 1
    with run_chat_server(kind="null_content") as server:
        agent = make_agent(load_changed_spec(tmp_path, server.base_url))
        assert agent._make_generation_api_call(CHAT)[0] is None
    with run_chat_server(kind="unauthorized") as server, pytest.raises(ProviderRefusal):
        make_agent(load_changed_spec(tmp_path, server.base_url))._make_generation_api_call(CHAT)
    spec = load_changed_spec(tmp_path, "http://127.0.0.1:9/v1", retry={"transient": {"attempts": 1}})
    with pytest.raises(TransientError):
        make_agent(spec)._make_generation_api_call(CHAT)


def test_dummy_response_is_valid_and_deterministic(tmp_path: Path) -> None:
    debate: dict[str, Any] = {
        "protocol": {"use": "debate"}, "prompts": "prompts/code_validation/debate",
        "agents": {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
    }  # fmt: skip
    agent = make_agent(load_changed_spec(tmp_path, **debate))
    texts = {agent._generate_dummy_response([{"role": "user", "content": str(i)}]) for i in range(40)}
    assert len(texts) > 2
    parsed = [agent.parse(text, 2) for text in texts]
    assert {response.decision for response in parsed} == {0, 1, 2}
    assert agent._generate_dummy_response(CHAT) == make_agent(
        load_changed_spec(tmp_path, **debate)
    )._generate_dummy_response(CHAT)
    assert agent._make_generation_api_call(CHAT) == (agent._generate_dummy_response(CHAT), "stop")


def test_turn_is_generated_with_retries_from_earlier_messages(tmp_path: Path) -> None:
    with run_chat_server(text="Is it sorted?", record=9) as server:
        agent = make_agent(load_changed_spec(tmp_path, server.base_url))
        history = make_histories("Why?", "So.", "LATER", "LATER")
        turn = agent._generate_next_message_and_decision(**history, round_id=2, seed=0, prover_stance=1, **POINT)
        assert "LATER" not in server.recorded_requests()[0]["body"]
    assert (turn.raw_message, turn.next_messages, turn.decision) == ("Is it sorted?", {"main": "Is it sorted?"}, 2)
    assert (turn.retry_count, turn.token_limit) == (0, False)
    assert list(turn.prompt) == agent._build_chat_messages_prompt(
        **history, round_id=2, prover_stance=1, seed=0, **POINT
    )
    with run_chat_server(kind="bad_decision") as server:
        retry = {"invalid_response": {"attempts": 3, "then": "abort_rollout"}}
        agent = make_agent(load_changed_spec(tmp_path, server.base_url, retry=retry))
        with pytest.raises(InvalidDecisionError):
            agent._generate_next_message_and_decision(**make_histories(), round_id=0, seed=0, prover_stance=1, **POINT)
        assert server.requests == 3


def test_chat_contains_no_later_messages(tmp_path: Path) -> None:
    agent, texts = make_agent(load_changed_spec(tmp_path)), [f"text {i}" for i in range(6)]
    for round_ in range(0, 6, 2):
        full = agent._build_chat_messages_prompt(**make_histories(*texts), round_id=round_, **POINT)
        assert full == agent._build_chat_messages_prompt(**make_histories(*texts[:round_]), round_id=round_, **POINT)
        assert [m["content"] for m in full[1:]] == texts[:round_]
        example = agent._build_chat_messages_prompt(
            **make_histories(*texts), round_id=round_, ensure_last_message_is_assistant=True, **POINT
        )
        assert [m["content"] for m in example[1:]] == texts[: round_ + 1]
    chat_with_label = agent._build_chat_messages_prompt(
        **make_histories(*texts), round_id=2, y=0, ensure_last_message_is_assistant=True,
        replace_last_message_with_true_label=True, **POINT,
    )  # fmt: skip
    assert [m["content"] for m in chat_with_label[1:]] == ["text 0", "text 1", "Decision: reject"]


def test_invalid_turns_and_rounds_are_refused(tmp_path: Path) -> None:
    spec = load_changed_spec(tmp_path)
    verifier, prover = make_agent(spec), make_agent(spec, "prover")
    with pytest.raises(AgentNotActiveInChannelError, match="prover has sent no message up to round 0"):
        prover._build_chat_messages_prompt(
            **make_histories("Why?"), round_id=0, ensure_last_message_is_assistant=True, **POINT
        )
    with pytest.raises(AgentNotActiveInChannelError, match="prover does not speak in round 0"):
        prover._generate_next_message_and_decision(**make_histories(), round_id=0, **POINT)
    for agent in (verifier, prover):
        with pytest.raises(ValueError, match="ensure_last_message_is_assistant=True"):
            agent._build_chat_messages_prompt(
                **make_histories(), round_id=0, y=1, replace_last_message_with_true_label=True, **POINT
            )
    for round_ in (-1, 6):
        for method in (verifier._build_chat_messages_prompt, verifier._generate_next_message_and_decision):
            with pytest.raises(ValueError, match=f"no round {round_}; rounds count from 0 to 5"):
                method(**make_histories(), round_id=round_, **POINT)


def test_model_group_and_template_objects_have_attributes_and_pickle(tmp_path: Path) -> None:
    agent = make_agent(load_changed_spec(tmp_path, models={"m": {"model": "tuned", "base_model": "base"}}))
    for group in (agent.shared_model_group, pickle.loads(pickle.dumps(agent.shared_model_group))):
        assert (group, group.model_name, group.base_model_name) == ("m", "tuned", "base")
    agent.set_state({**agent.get_state_dict(), "model_name": "next"})
    assert agent.shared_model_group.model_name == "next"
    template = pickle.loads(pickle.dumps(agent.system_prompt_template))
    chat = agent._build_chat_messages_prompt(**make_histories(), round_id=0, **POINT)
    variables = agent._variables(1, 0)
    assert template.render(**{**POINT, **variables}) == chat[0]["content"]
    assert "{{" in str(template)
    with pytest.raises(RunError, match=r"template 'verifier' fails: .* is undefined"):
        template.render()


def test_every_error_of_the_contract_can_be_imported_from_agents() -> None:
    for name in (
        "GenerationError", "ContentFilterError", "ContentIsNoneError", "UnknownFinishReasonError",
        "InvalidResponseError", "InvalidDecisionError", "NotAllActiveChannelsInResponseError",
        "AgentNotActiveInChannelError",
    ):  # fmt: skip
        assert issubclass(getattr(agents, name), Exception)
