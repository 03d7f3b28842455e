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
from runner.training.selection import probabilities, replaced_proportion, sample_size, select_by_reward, select_rollouts
from tests.reference.adapter import (
    FILES,
    KINDS,
    agents_of,
    cases,
    cases_folder,
    find_unused_cases,
    list_class_names,
    play_scripted_game,
    protocol_of,
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
    protocol, want = protocol_of(case["config"]), case["expected"]
    rounds = range(want["max_message_rounds"])
    assert list(protocol.agent_names) == want["agent_names"]
    assert list(protocol.prover_names) == want["prover_names"]
    assert [protocol.verifier_name] == want["verifier_names"]
    assert list(protocol.channel_names) == want["message_channel_names"]
    visibility = [[a, c] for a in protocol.agent_names for c in protocol.visible_channels(a)]
    assert sorted(visibility) == sorted(want["agent_channel_visibility"])
    assert protocol.max_message_rounds == want["max_message_rounds"]
    assert protocol.min_message_rounds == want["min_message_rounds"]
    assert protocol.max_verifier_questions == want["max_verifier_questions"]
    assert ("randomize_prover_stance" not in protocol.file.fixed) == want["prover_stance_can_be_randomized"]

    def pairs(speakers: Any) -> list[list[str]]:
        return sorted([a, c] for a, channels in speakers.items() for c in channels)

    for seed, table in want["active_by_seed"].items():
        assert [pairs(protocol.speakers(r, int(seed))) for r in rounds] == [sorted(row) for row in table]
    assert [pairs(protocol.can_be_active(r)) for r in rounds] == [sorted(row) for row in want["can_be_active"]]
    for seed, table in want["verifier_can_guess_by_seed"].items():
        assert [protocol.may_decide(r, int(seed)) for r in rounds] == table
    assert {a: protocol.reward_mid_point(a) for a in protocol.agent_names} == want["reward_mid_point_estimate"]
    for agent, row in want["agents"].items():
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
    agent, want = agents_of(case["config"])[case["agent"]], case["expected"]
    if "error" in want:
        with pytest.raises(NipRunError) as caught:
            agent.parse(case["text"], case["round"])
        assert want["error"] in list_class_names(caught.value)
        return
    parsed = agent.parse(case["text"], case["round"])
    assert parsed.decision == want["decision"]
    if want["messages"] is None:
        assert parsed.messages is None
    else:
        assert parsed.messages == {c: text for c, text in want["messages"].items() if text is not None}


@pytest.mark.full
@each("rewards")
def test_rounds_end_and_are_rewarded_as_in_the_original(case: dict[str, Any]) -> None:
    protocol, state, want = protocol_of(case["config"]), case["state"], case["expected"]
    pay = payoff(
        protocol,
        round_=state["round"],
        seed=state["seed"],
        label=state["y"],
        prover_stance=state["prover_stance"],
        decision=state["decision"]["verifier"],
        before=Payoff(state["done"], state["terminated"]),
    )
    assert (state["done"] or pay.decided) == want["done"]
    assert pay.terminated == want["terminated"]
    assert {a: was or pay.decided for a, was in state["agent_done"].items()} == want["agent_done"]
    assert pay.rewards == pytest.approx(want["reward"], abs=1e-5)


@pytest.mark.sample(6)
@each("prompts")
def test_chats_equal_those_of_the_original(case: dict[str, Any]) -> None:
    agent, want = agents_of(case["config"])[case["agent"]], case["expected"]
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

    if "error" in want:
        with pytest.raises((NipRunError, ValueError, AssertionError)) as caught:
            build_chat()
        assert want["error"] in [*list_class_names(caught.value), *str(caught.value).split()]
    else:
        assert build_chat() == want["chat_messages"]


@pytest.mark.full
@each("rollouts")
def test_scripted_games_are_played_as_in_the_original(case: dict[str, Any]) -> None:
    protocol, want = protocol_of(case["config"]), case["expected"]
    if "error" in want:
        with pytest.raises(NipRunError) as caught:
            play_scripted_game(case, case["config"])
        assert want["error"] in list_class_names(caught.value)
        if "error_num_retries" in want:
            assert caught.value.num_retries == want["error_num_retries"]  # type: ignore[attr-defined]
        return
    played, script, prompts = play_scripted_game(case, case["config"])
    rounds = played.rounds
    assert len(script.calls) == want["num_api_calls"]
    assert script.calls == want["api_calls"]
    assert len(rounds) == want["num_steps"]
    arrays = arrays_from_rounds(protocol, rounds)
    for name in ("message_history", "message_agent_id", "raw_message_history"):
        assert arrays[name].tolist() == want[name]
    steps = timesteps(protocol, rounds)
    assert steps["padding"].tolist() == want["padding"]
    for index, row in enumerate(want["timesteps"]):
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
    assert played.decided == want["done"]
    assert played.terminated == want["terminated"]
    assert episode_rewards(protocol, rounds) == pytest.approx(want["episode_reward"], abs=1e-5)
    raw = want["raw_transcript"]["transcript"]
    assert [dict(r.raw) for r in rounds if r.raw] == [row for row in raw if row]
    assert [format_processed_round(protocol, r) for r in rounds if r.raw] == want["processed_transcript"]["transcript"]
    assert [chats for chats in prompts if chats] == [row for row in want["prompts"] if row]


def format_processed_round(protocol: Any, round_: Any) -> dict[str, str]:
    row = {f"{m.agent}@{m.channel}": m.text for m in round_.messages}
    verifier = protocol.verifier_name
    if round_.decision != 2 and verifier in round_.raw:
        row[f"{verifier}.decision"] = "Accept" if round_.decision == 1 else "Reject"
    return row


@each("fine_tune_sft")
def test_supervised_datasets_equal_those_of_the_original(case: dict[str, Any]) -> None:
    agent, want = agents_of(case["config"])[case["agent"]], case["expected"]
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
    if "error" in want:
        with pytest.raises((NipRunError, ValueError)) as caught:
            agent.build_fine_tune_dataset(data, *flags)
        assert want["error"] in list_class_names(caught.value)
        return
    assert agent.build_fine_tune_dataset(data, *flags) == want["dataset"]


@pytest.mark.full
@each("timesteps_sft")
def test_timesteps_give_the_examples_of_the_original(case: dict[str, Any]) -> None:
    agents, point, step = agents_of(case["config"]), case["datapoint"], case["timestep"]
    data = NestedArrayDict(
        {
            **{name: point[name] for name in ("question", "solution", "y", "prover_stance")},
            "seed": case["seed"],
            "round": step["round"],
            "next": _histories(step["next"]),
            **_histories(step),
        },
        (),
    )
    assert case["expected"]
    for key, want in case["expected"].items():
        name, _, flags = key.partition("/")
        assert agents[name].build_fine_tune_dataset(data, *(flag == "1" for flag in flags)) == want, key


def _histories(rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "message_history": np.array(rows["message_history"], dtype=object),
        "message_agent_id": np.array(rows["message_agent_id"]),
        "raw_message_history": np.array(rows["raw_message_history"], dtype=object),
    }


@each("stats")
def test_statistics_equal_those_of_the_original(case: dict[str, Any]) -> None:
    protocol = protocol_of(case["config"])
    for naming, prefix in (("train", ""), ("test", "test_")):
        metrics = Metrics(protocol)
        for index, row in enumerate(case["rollouts"]):
            rounds = _rounds_of_arrays(protocol, row["rollout"])
            point = row["datapoint"]
            datapoint = Datapoint(str(point["id"]), point["y"], {"solution": point["solution"]})
            outcome = Outcome.DECIDED if row["rollout"]["done"] else Outcome.NO_DECISION
            job = Job(index, str(index), datapoint, 0, row["seed"])
            rewards = episode_rewards(protocol, rounds)
            metrics.add(Rollout(job, rounds, rounds[-1].decision, outcome, point["prover_stance"], rewards))
        got, want = metrics.original_statistics(prefix), case["expected"][naming]
        assert got.keys() == want.keys()
        wrong = {name: (got[name], want[name]) for name in want if not nan_equal(got[name], want[name])}
        assert not wrong


def _rounds_of_arrays(protocol: Any, rollout: dict[str, Any]) -> list[Round]:
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


def nan_equal(got: float | None, want: float | None) -> bool:
    if want is None:
        return got is None or math.isnan(got)
    return got is not None and math.isclose(got, want, rel_tol=1e-5, abs_tol=1e-5)


def selection_of(flat: dict[str, Any]) -> SelectionSettings:
    names = {name.removeprefix("weighting_").removeprefix("rollout_selection_"): v for name, v in flat.items()}
    return SelectionSettings(**{{"use_replacement": "replacement"}.get(k, k): v for k, v in names.items()})


def replacement_of(flat: dict[str, Any]) -> GuessReplacement:
    return GuessReplacement(**{k.removeprefix("verifier_guess_replacement_"): v for k, v in flat.items()})


@each("ei_selection", kind="select_rollouts")
def test_rollouts_are_selected_as_in_the_original(case: dict[str, Any]) -> None:
    settings, want = selection_of(case["pure_text_ei"]), case["expected"]
    rewards = [float(np.asarray(row, np.float32).sum()) for row in case["rewards"]]
    if "selected" in want:
        assert select_by_reward(rewards, settings, seed=0) == want["selected"]
        return
    assert sample_size(len(rewards), settings) == want["sample_size"]
    chances = [None if math.isnan(chance) else chance for chance in probabilities(rewards, settings).tolist()]
    assert chances == pytest.approx(want["probabilities"], abs=1e-5)
    if "error" in want:
        with pytest.raises(ValueError):
            select_by_reward(rewards, settings, seed=0)
        return
    drawn = select_by_reward(rewards, settings, seed=0)
    assert len(drawn) == want["sample_size"]
    assert settings.replacement == want["replace"]
    assert settings.replacement or len(set(drawn)) == len(drawn)
    assert all(chances[index] for index in drawn)


@each("ei_selection", kind="guess_replacement_proportion")
def test_guess_replacement_is_annealed_as_in_the_original(case: dict[str, Any]) -> None:
    settings, want = replacement_of(case["text_rl"]), case["expected"]
    if isinstance(want, dict):
        with pytest.raises(ValueError):
            replaced_proportion(settings, 0)
    else:
        assert [replaced_proportion(settings, i) for i in case["iterations"]] == pytest.approx(want)


@each("ei_selection", kind="fine_tune_stage")
def test_selected_rollouts_of_each_model_group_equal_those_of_the_original(case: dict[str, Any]) -> None:
    settings = selection_of(case["pure_text_ei"])
    replaced = replaced_proportion(replacement_of(case["text_rl"]), case["iteration"])
    protocol = protocol_of(case["config"])
    for row in case["expected"].values():
        for agent, want in row["agents"].items():
            rewards = [rollout[agent] for rollout in case["rewards"]]
            share = replaced if agent == protocol.verifier_name else 0.0
            for seed in (0, 1):
                got = select_rollouts(rewards, settings, replaced=share, seed=seed)
                assert len(got.guess_replaced) == want.get("num_guess_replaced", 0)
                assert not set(got.guess_replaced) & set(got.as_played)
                rest = [i for i in range(len(rewards)) if i not in got.guess_replaced]
                assert list(got.as_played) == [i for i in rest if rewards[i] >= settings.reward_threshold]
                if "num_selected" in want:
                    assert list(got.as_played) == want.get("selected", want.get("selected_sorted"))
