"""Cases of the original implementation, from any folder of the same format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.base.errors import NipRunError
from runner.base.hashing import hash_parity
from runner.game.protocols.rewards import Payoff, payoff
from runner.game.protocols.rounds import Message, Round, episode_rewards
from runner.results.metric_computation import Metrics
from runner.rollouts.agents.arrays import NestedArrayDict, arrays_from_rounds, timesteps
from runner.rollouts.agents.observations import observation_of
from runner.rollouts.job import Job
from runner.rollouts.rollout import Outcome, Rollout
from runner.spec.datasets.loader import Datapoint
from runner.spec.training_settings import GuessReplacement, SelectionSettings
from runner.training.dataset_building import (
    probabilities,
    replaced_proportion,
    sample_size,
    select_by_reward,
    select_rollouts,
)
from tests.reference.adapter import (
    FILES,
    KINDS,
    cases,
    cases_folder,
    create_agents,
    find_unused_cases,
    list_class_names,
    load_case_protocol,
    play_scripted_game,
)


def each(name: str, kind: str | None = None) -> pytest.MarkDecorator:
    assert name in FILES
    assert kind in KINDS.get(name, (None,))
    selected = [case for case in cases(name) if kind is None or case["kind"] == kind]
    return pytest.mark.parametrize("case", selected, ids=[f"{name}-{case['case']}" for case in selected])


def test_every_case_of_the_folder_has_a_test() -> None:
    assert find_unused_cases(cases_folder()) == []


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("stats_of_others.json", {}, "stats_of_others.json: no test knows it"),
        ("stats.txt", {}, "stats.txt: no test knows it"),
        ("ei_selection.json", {"kind": "tournament"}, "ei_selection.json: kind 'tournament'"),
        ("stats.json", {"defects": ["is-blue"]}, "stats.json: defect 'is-blue'"),
    ],
)
def test_unused_case_is_reported(tmp_path: Path, name: str, row: dict[str, Any], message: str) -> None:
    (tmp_path / "rewards.json").write_text(json.dumps({"cases": [{}]}), "utf-8")
    (tmp_path / "README.md").touch()
    assert find_unused_cases(tmp_path) == []
    (tmp_path / name).write_text(json.dumps({"cases": [row]}), "utf-8")
    assert find_unused_cases(tmp_path) == [message]


def test_folder_without_cases_is_reported(tmp_path: Path) -> None:
    assert find_unused_cases(tmp_path) == [f"{tmp_path}: no file of cases"]


@each("prover_stance")
def test_stance_is_the_parity_of_the_solution_hash(case: dict[str, Any]) -> None:
    assert hash_parity(case["solution"]) == case["expected"]


@pytest.mark.full
@each("protocol_tables")
def test_protocol_tables_equal_those_of_the_original(case: dict[str, Any]) -> None:
    protocol, expected = load_case_protocol(case["config"]), case["expected"]
    rounds = range(expected["max_message_rounds"])
    assert list(protocol.agent_names) == expected["agent_names"]
    assert list(protocol.prover_names) == expected["prover_names"]
    assert [protocol.verifier_name] == expected["verifier_names"]
    assert list(protocol.channel_names) == expected["message_channel_names"]
    visibility = [[a, c] for a in protocol.agent_names for c in protocol.visible_channels(a)]
    assert sorted(visibility) == sorted(expected["agent_channel_visibility"])
    assert protocol.max_message_rounds == expected["max_message_rounds"]
    assert protocol.min_message_rounds == expected["min_message_rounds"]
    assert protocol.max_verifier_questions == expected["max_verifier_questions"]
    assert ("randomize_prover_stance" not in protocol.file.fixed) == expected["prover_stance_can_be_randomized"]

    def pairs(speakers: Any) -> list[list[str]]:
        return sorted([a, c] for a, channels in speakers.items() for c in channels)

    for seed, table in expected["active_by_seed"].items():
        assert [pairs(protocol.speakers(r, int(seed))) for r in rounds] == [sorted(row) for row in table]
    assert [pairs(protocol.can_be_active(r)) for r in rounds] == [sorted(row) for row in expected["can_be_active"]]
    for seed, table in expected["verifier_can_guess_by_seed"].items():
        assert [protocol.may_decide(r, int(seed)) for r in rounds] == table
    assert {a: protocol.reward_mid_point(a) for a in protocol.agent_names} == expected["reward_mid_point_estimate"]
    for agent, row in expected["agents"].items():
        spec = protocol.agent_spec(agent)
        assert spec.human_name == row["human_name"]
        assert (dict(spec.headers) or None) == row["response_channel_headers"]
        assert list(protocol.channel_order(agent)) == row["channel_order"]
        assert spec.anonymous == row["anonymous"]
        assert spec.last_round_message == row["has_last_round_system_message"]
        assert protocol.default_stance(agent) == row["default_stance"]
        assert list(protocol.visible_channels(agent)) == row["visible_channels"]
        assert protocol.first_active_round(agent) == row["first_active_round"]
        assert row["use_raw_message_for_self_prompt"]


@each("parse")
def test_answers_are_parsed_as_in_the_original(case: dict[str, Any]) -> None:
    agent, expected = create_agents(case["config"])[case["agent"]], case["expected"]
    if "error" in expected:
        with pytest.raises(NipRunError) as caught:
            agent.parse(case["text"], case["round"])
        assert expected["error"] in list_class_names(caught.value)
        return
    parsed = agent.parse(case["text"], case["round"])
    assert parsed.decision == expected["decision"]
    if expected["messages"] is None:
        assert parsed.messages is None
    else:
        assert parsed.messages == {c: text for c, text in expected["messages"].items() if text is not None}


@pytest.mark.full
@each("rewards")
def test_rounds_end_and_are_rewarded_as_in_the_original(case: dict[str, Any]) -> None:
    protocol, state, expected = load_case_protocol(case["config"]), case["state"], case["expected"]
    result = payoff(
        protocol,
        round_=state["round"],
        seed=state["seed"],
        label=state["y"],
        decision=state["decision"]["verifier"],
        stances=protocol.prover_stances(state["prover_stance"]),
        before=Payoff(state["done"], state["terminated"]),
    )
    assert (state["done"] or result.decided) == expected["done"]
    assert result.terminated == expected["terminated"]
    assert {a: already_done or result.decided for a, already_done in state["agent_done"].items()} == expected[
        "agent_done"
    ]
    assert result.rewards == pytest.approx(expected["reward"], abs=1e-5)


@pytest.mark.sample(6)
@each("prompts")
def test_chats_equal_those_of_the_original(case: dict[str, Any]) -> None:
    agent, expected = create_agents(case["config"])[case["agent"]], case["expected"]
    data = NestedArrayDict(
        {
            "round": case["round"],
            "seed": case["seed"],
            "prover_stance": case["prover_stance"],
            "question": case["question"],
            "solution": case["solution"],
            "message_history": np.array(case["message_history"], dtype=object),
            "message_agent_id": np.array(case["message_agent_id"]),
            "raw_message_history": np.array(case["raw_message_history"], dtype=object),
        },
        (),
    ).reshape(1)

    def build_chat() -> Any:
        observation = observation_of(agent.protocol_handler, data, 0)
        if not case["ensure_last_message_is_assistant"] and not case["replace_last_message_with_true_label"]:
            return agent.prompt(observation)
        example = agent.fine_tune_example(
            observation,
            case["y"],
            ensure_last_message_is_assistant=case["ensure_last_message_is_assistant"],
            replace_verifier_guess_with_true_label=case["replace_last_message_with_true_label"],
        )
        assert example is not None, "AgentNotActiveInChannelError"
        return example

    if "error" in expected:
        with pytest.raises((NipRunError, ValueError, AssertionError)) as caught:
            build_chat()
        assert expected["error"] in [*list_class_names(caught.value), *str(caught.value).split()]
    else:
        assert build_chat() == expected["chat_messages"]


@pytest.mark.full
@each("rollouts")
def test_scripted_games_are_played_as_in_the_original(case: dict[str, Any]) -> None:
    protocol, expected = load_case_protocol(case["config"]), case["expected"]
    if "error" in expected:
        with pytest.raises(NipRunError) as caught:
            play_scripted_game(case, case["config"])
        assert expected["error"] in list_class_names(caught.value)
        if "error_num_retries" in expected:
            assert caught.value.num_retries == expected["error_num_retries"]  # type: ignore[attr-defined]
        return
    played, script, prompts = play_scripted_game(case, case["config"])
    rounds = played.rounds
    assert len(script.calls) == expected["num_api_calls"]
    assert script.calls == expected["api_calls"]
    assert len(rounds) == expected["num_steps"]
    arrays = arrays_from_rounds(protocol, rounds)
    for name in ("message_history", "message_agent_id", "raw_message_history"):
        assert arrays[name].tolist() == expected[name]
    steps = timesteps(protocol, rounds)
    assert steps["padding"].tolist() == expected["padding"]
    for index, row in enumerate(expected["timesteps"]):
        step = steps[index]
        names, channels = protocol.agent_names, protocol.channel_names
        assert (step["round"], step["padding"], step["done"], step["terminated"]) == (
            row["round"], row["padding"], row["done"], row["terminated"],
        )  # fmt: skip
        following = step["next"]
        assert (following["done"], following["terminated"], following["round"]) == (
            row["next_done"], row["next_terminated"], row["next_round"],
        )  # fmt: skip
        for key in ("raw_message", "decision", "retry_count", "token_limit"):
            assert dict(zip(names, step["agents", key].tolist(), strict=True)) == row[key], key
        assert dict(zip(names, step["agents", "reward"].tolist(), strict=True)) == pytest.approx(
            row["reward"], abs=1e-5
        )
        sent = {a: dict(zip(channels, step["agents", "message"][i].tolist(), strict=True)) for i, a in enumerate(names)}
        assert sent == row["message"]
    assert played.decided == expected["done"]
    assert played.terminated == expected["terminated"]
    assert episode_rewards(protocol, rounds) == pytest.approx(expected["episode_reward"], abs=1e-5)
    raw = expected["raw_transcript"]["transcript"]
    assert [dict(r.raw) for r in rounds if r.raw] == [row for row in raw if row]
    assert [format_processed_round(protocol, r) for r in rounds if r.raw] == expected["processed_transcript"][
        "transcript"
    ]
    assert [chats for chats in prompts if chats] == [row for row in expected["prompts"] if row]


def format_processed_round(protocol: Any, round_: Any) -> dict[str, str]:
    row = {f"{m.agent}@{m.channel}": m.text for m in round_.messages}
    verifier = protocol.verifier_name
    if round_.decision != 2 and verifier in round_.raw:
        row[f"{verifier}.decision"] = "Accept" if round_.decision == 1 else "Reject"
    return row


@each("fine_tune_sft")
def test_supervised_datasets_equal_those_of_the_original(case: dict[str, Any]) -> None:
    agent, expected = create_agents(case["config"])[case["agent"]], case["expected"]
    rows = case["rollouts"]

    def column(name: str) -> Any:
        values = np.empty(len(rows), dtype=object)
        values[:] = [row[name] for row in rows]
        return values

    data = NestedArrayDict(
        {
            **{name: column(name) for name in ("question", "solution", "y", "seed", "prover_stance")},
            "message_history": np.array([r["message_history"] for r in rows], dtype=object),
            "message_agent_id": np.array([r["message_agent_id"] for r in rows]),
            "raw_message_history": np.array([r["raw_message_history"] for r in rows], dtype=object),
        },
        (len(rows),),
    )
    flags = (case["ensure_last_message_is_assistant"], case["replace_verifier_guess_with_true_label"])
    if "error" in expected:
        with pytest.raises((NipRunError, ValueError)) as caught:
            agent.build_fine_tune_dataset(data, *flags)
        assert expected["error"] in list_class_names(caught.value)
        return
    assert agent.build_fine_tune_dataset(data, *flags) == expected["dataset"]


@pytest.mark.full
@each("timesteps_sft")
def test_timesteps_give_the_examples_of_the_original(case: dict[str, Any]) -> None:
    agents, point, step = create_agents(case["config"]), case["datapoint"], case["timestep"]
    data = NestedArrayDict(
        {
            **{name: point[name] for name in ("question", "solution", "y", "prover_stance")},
            "seed": case["seed"],
            "round": step["round"],
            "next": _build_histories(step["next"]),
            **_build_histories(step),
        },
        (),
    )
    assert case["expected"]
    for key, expected in case["expected"].items():
        name, _, flags = key.partition("/")
        assert agents[name].build_fine_tune_dataset(data, *(flag == "1" for flag in flags)) == expected, key


def _build_histories(rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "message_history": np.array(rows["message_history"], dtype=object),
        "message_agent_id": np.array(rows["message_agent_id"]),
        "raw_message_history": np.array(rows["raw_message_history"], dtype=object),
    }


@each("stats")
def test_statistics_equal_those_of_the_original(case: dict[str, Any]) -> None:
    protocol = load_case_protocol(case["config"])
    for variant, prefix in (("train", ""), ("test", "test_")):
        metrics = Metrics(protocol)
        for index, row in enumerate(case["rollouts"]):
            rounds = _build_rounds(protocol, row["rollout"])
            point = row["datapoint"]
            datapoint = Datapoint(str(point["id"]), point["y"], {"solution": point["solution"]})
            outcome = Outcome.DECIDED if row["rollout"]["done"] else Outcome.NO_DECISION
            job = Job(index, str(index), datapoint, 0, row["seed"])
            rewards = episode_rewards(protocol, rounds)
            metrics.add(Rollout(job, rounds, rounds[-1].decision, outcome, point["prover_stance"], rewards))
        statistics, expected = metrics.original_statistics(prefix), case["expected"][variant]
        assert statistics.keys() == expected.keys()
        differences = {
            name: (statistics[name], expected[name])
            for name in expected
            if not nan_equal(statistics[name], expected[name])
        }
        assert not differences


def _build_rounds(protocol: Any, rollout: dict[str, Any]) -> list[Round]:
    """Build rounds from the case's arrays, because nip-run parses the answers of its script differently."""
    return [
        Round(
            messages=[
                Message(channel, protocol.verifier_name, text)
                for channel, text in zip(protocol.channel_names, texts, strict=True)
                if text is not None
            ],
            decision=step["decision"][protocol.verifier_name],
            rewards=step["reward"],
            retry_counts=step["retry_count"],
            token_limits=step["token_limit"],
        )
        for step, texts in zip(rollout["timesteps"], rollout["message_history"], strict=True)
        if not step["padding"]
    ]


def nan_equal(value: float | None, expected: float | None) -> bool:
    if expected is None:
        return value is None or math.isnan(value)
    return value is not None and math.isclose(value, expected, rel_tol=1e-5, abs_tol=1e-5)


def build_selection(flat: dict[str, Any]) -> SelectionSettings:
    names = {name.removeprefix("weighting_").removeprefix("rollout_selection_"): v for name, v in flat.items()}
    return SelectionSettings(**{{"use_replacement": "replacement"}.get(k, k): v for k, v in names.items()})


def build_replacement(flat: dict[str, Any]) -> GuessReplacement:
    return GuessReplacement(**{k.removeprefix("verifier_guess_replacement_"): v for k, v in flat.items()})


@each("ei_selection", kind="select_rollouts")
def test_rollouts_are_selected_as_in_the_original(case: dict[str, Any]) -> None:
    settings, expected = build_selection(case["pure_text_ei"]), case["expected"]
    rewards = [float(np.asarray(row, np.float32).sum()) for row in case["rewards"]]
    if "selected" in expected:
        assert select_by_reward(rewards, settings, seed=0) == expected["selected"]
        return
    assert sample_size(len(rewards), settings) == expected["sample_size"]
    chances = [None if math.isnan(chance) else chance for chance in probabilities(rewards, settings).tolist()]
    assert chances == pytest.approx(expected["probabilities"], abs=1e-5)
    if "error" in expected:
        with pytest.raises(ValueError):
            select_by_reward(rewards, settings, seed=0)
        return
    selected = select_by_reward(rewards, settings, seed=0)
    assert len(selected) == expected["sample_size"]
    assert settings.replacement == expected["replace"]
    assert settings.replacement or len(set(selected)) == len(selected)
    assert all(chances[index] for index in selected)


@each("ei_selection", kind="guess_replacement_proportion")
def test_guess_replacement_is_annealed_as_in_the_original(case: dict[str, Any]) -> None:
    settings, expected = build_replacement(case["text_rl"]), case["expected"]
    if isinstance(expected, dict):
        with pytest.raises(ValueError):
            replaced_proportion(settings, 0)
    else:
        assert [replaced_proportion(settings, i) for i in case["iterations"]] == pytest.approx(expected)


@each("ei_selection", kind="fine_tune_stage")
def test_selected_rollouts_of_each_model_group_equal_those_of_the_original(case: dict[str, Any]) -> None:
    settings = build_selection(case["pure_text_ei"])
    replaced = replaced_proportion(build_replacement(case["text_rl"]), case["iteration"])
    protocol = load_case_protocol(case["config"])
    for row in case["expected"].values():
        for agent, expected in row["agents"].items():
            rewards = [rollout[agent] for rollout in case["rewards"]]
            share = replaced if agent == protocol.verifier_name else 0.0
            for seed in (0, 1):
                selected = select_rollouts(rewards, settings, replaced=share, seed=seed)
                assert len(selected.guess_replaced) == expected.get("num_guess_replaced", 0)
                assert not set(selected.guess_replaced) & set(selected.as_played)
                remaining = [i for i in range(len(rewards)) if i not in selected.guess_replaced]
                assert list(selected.as_played) == [i for i in remaining if rewards[i] >= settings.reward_threshold]
                if "num_selected" in expected:
                    assert list(selected.as_played) == expected.get("selected", expected.get("selected_sorted"))
