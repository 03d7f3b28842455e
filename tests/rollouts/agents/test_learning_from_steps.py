"""`build_fine_tune_dataset` on timesteps: single steps, padding, silent rounds, and the timesteps of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner import Environment
from runner.documents.dataclass_schema import from_plain
from runner.game.prompts.templates import PromptSet, template_names
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import FinishedGame, PendingTurn
from runner.rollouts.agents import AgentRuntime, Observation, OpenAiWholeAgent
from runner.rollouts.agents.arrays import HISTORIES, NestedArrayDict, arrays_from_rounds, timesteps
from runner.runs.finished.reconstruction import Reconstructor, saved_plan
from runner.spec.datasets.loader import Datapoint
from runner.spec.experiment import Experiment
from tests.support.games import load_protocol_text, make_undecided_speaker, play_game
from tests.support.runs import run_spec
from tests.support.specs import spec_file

LAST_ROUND_MESSAGE = "LAST ROUND"
POINT = Datapoint("p", 1, {"question": "Is it?", "solution": "It is."})

PROTOCOL_WITH_SILENT_ROUNDS = """\
name: pauses
agents:
  prover: {role: prover, human_name: Prover, last_round_message: true}
  verifier: {role: verifier, human_name: Verifier, last_round_message: true}
channels:
  main: {members: [prover, verifier]}
cycle:
  - speak: {verifier: [main]}
  - speak: {}
  - speak: {prover: [main]}
  - speak: {}
parameters: {max_message_rounds: 7}
"""


def make_agents(protocol: Protocol) -> dict[str, OpenAiWholeAgent]:
    names = protocol.agent_names
    experiment = from_plain(
        Experiment,
        {
            "name": "t", "dataset": {"path": "none"}, "protocol": {"use": "own.yaml"}, "prompts": "none",
            "models": {"m": {"provider": "dummy"}}, "agents": {name: {"model": "m"} for name in names},
        },
    )  # fmt: skip
    prompts = PromptSet(
        {name: LAST_ROUND_MESSAGE if "." in name else "S {{ question }}" for name in template_names(protocol)}
    )
    return {name: OpenAiWholeAgent(experiment, AgentRuntime(prompts), name, protocol) for name in names}


def play_until_decision(protocol: Protocol, round_: int) -> FinishedGame:
    def text_of_turn(turn: PendingTurn, name: str) -> str:
        return "Decision: reject" if turn.round == round_ else make_undecided_speaker(protocol)(turn, name)

    return play_game(protocol, text_of_turn)


def build_chats(agent: OpenAiWholeAgent, steps: NestedArrayDict, **options: bool) -> list[list[str]]:
    return [[m["content"] for m in row["messages"]] for row in agent.build_fine_tune_dataset(steps, **options)]


@pytest.mark.parametrize("decision_round", [0, 4, 99])
def test_each_timestep_gives_an_example_of_the_game_up_to_it(tmp_path: Path, decision_round: int) -> None:
    protocol = load_protocol_text(tmp_path, PROTOCOL_WITH_SILENT_ROUNDS)
    game = play_until_decision(protocol, decision_round)
    steps = timesteps(protocol, game.rounds, POINT)
    for agent in make_agents(protocol).values():
        for index in range(protocol.max_message_rounds):
            rounds = game.rounds[: index + 1]
            observation = Observation(min(len(rounds), 6), rounds, POINT.columns)
            expected = agent.fine_tune_example(observation, None, ensure_last_message_is_assistant=False)
            step = steps[index : index + 1]
            # In a silent round, histories alone do not show padding.
            is_padding_visible = protocol.speakers(len(game.rounds), 0) if index >= len(game.rounds) else True
            for variant in (step, _without_optional_keys(step)) if is_padding_visible else (step,):
                (example,) = agent.build_fine_tune_dataset(variant, ensure_last_message_is_assistant=False)
                assert example["messages"] == expected, index


def _without_optional_keys(step: NestedArrayDict) -> NestedArrayDict:
    """Return the step with only the keys that the original's documentation requires."""
    keys = ("round", *HISTORIES, "question", "seed", "prover_stance", "y")
    next_values = {name: step["next", name] for name in HISTORIES}
    return NestedArrayDict({**{name: step[name] for name in keys}, "next": next_values}, step.batch_size)


def test_true_label_replaces_only_the_guess(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, PROTOCOL_WITH_SILENT_ROUNDS)
    verifier = make_agents(protocol)["verifier"]
    steps = timesteps(protocol, play_until_decision(protocol, 4).rounds, POINT)
    (chat,) = build_chats(verifier, steps[-1:], replace_verifier_guess_with_true_label=True)
    assert chat == ["S Is it?", "verifier in round 0", "prover in round 2", "Decision: accept"]
    assert build_chats(verifier, steps[4:5], replace_verifier_guess_with_true_label=True) == [chat]


def test_silent_rounds_keep_the_last_rounds_message(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, PROTOCOL_WITH_SILENT_ROUNDS)
    game, prover = play_game(protocol, make_undecided_speaker(protocol)), make_agents(protocol)["prover"]
    full_chat = [
        "S Is it?",
        "verifier in round 0",
        "prover in round 2",
        "verifier in round 4",
        LAST_ROUND_MESSAGE,
        "prover in round 6",
    ]
    final = {name: history[None] for name, history in arrays_from_rounds(protocol, game.rounds).items()}
    finished_history = NestedArrayDict({**final, "question": ["Is it?"]}, (1,))
    assert build_chats(prover, finished_history) == [full_chat]
    steps = timesteps(protocol, game.rounds, POINT)
    assert build_chats(prover, steps[-1:]) == [full_chat]
    # Before round 6, the last round, only its message is new, because round 5 is silent.
    for step in (steps[5:6], _without_optional_keys(steps[5:6])):
        assert build_chats(prover, step, ensure_last_message_is_assistant=False) == [full_chat[:-1]]
    for step in (steps[4:5], _without_optional_keys(steps[4:5])):
        assert build_chats(prover, step, ensure_last_message_is_assistant=False) == [full_chat[:-2]]


def test_round_outside_the_game_is_refused(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, PROTOCOL_WITH_SILENT_ROUNDS)
    agent, steps = (
        make_agents(protocol)["verifier"],
        timesteps(protocol, play_until_decision(protocol, 4).rounds, POINT),
    )
    for round_ in (-1, 7):
        for use in (agent.build_fine_tune_dataset, agent.forward):
            step = steps[1:2]
            step["round"] = np.array([round_])
            with pytest.raises(ValueError, match=f"no round {round_}; rounds count from 0 to 6 in 'pauses'"):
                use(step)


def test_timestep_of_a_manually_played_game_gives_an_example(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, PROTOCOL_WITH_SILENT_ROUNDS)
    agents, environment = make_agents(protocol), Environment(protocol)
    arrays = environment.reset([POINT])
    replies = {name: agent(arrays, environment) for name, agent in agents.items()}
    arrays = environment.add_replies(arrays, replies)
    environment.step(arrays)
    message = arrays["agents", "raw_message"][0, 1]
    assert build_chats(agents["verifier"], arrays) == [["S Is it?", message]]
    assert build_chats(agents["prover"], arrays) == []


def test_timesteps_of_a_run_give_the_examples_of_its_files(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=4), tmp_path / "results")
    steps, plan = result.timesteps(prompts=True), saved_plan(result.folder)
    reconstructor = Reconstructor(result.folder, plan)
    rollouts = list(reconstructor.rollouts())
    reconstructor.close()
    assert steps["datapoint_id"][:, 0].tolist() == [rollout.job.datapoint.id for rollout in rollouts]
    for agent in plan.agents().values():
        expected = []
        first = agent.protocol_handler.first_active_round(agent.agent_name) or 0
        index = next(i for i, rollout in enumerate(rollouts) if len(rollout.rounds) > first)
        prompt_array = steps["agents", "prompt"][index, first, agent.agent_id]
        observation = rollouts[index].job.observation(first, rollouts[index].rounds[:first])
        assert Environment(agent.protocol_handler).prompt_array_to_list(prompt_array) == agent.prompt(observation)
        for rollout in rollouts:
            last_round = min(len(rollout.rounds), agent.max_message_rounds - 1)
            example = agent.fine_tune_example(rollout.job.observation(last_round, rollout.rounds), None)
            expected += [] if example is None else [{"messages": example}]
        assert agent.build_fine_tune_dataset(steps[:, -1]) == expected


def test_column_with_a_reserved_name_is_refused(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, PROTOCOL_WITH_SILENT_ROUNDS)
    with pytest.raises(ValueError, match="name of a key of a timestep: done, next; rename"):
        timesteps(protocol, (), Datapoint("p", 1, {"next": "a", "done": "b"}))
