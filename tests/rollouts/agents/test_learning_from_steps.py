"""`build_fine_tune_dataset` on the timesteps of games: any step, padding, silent rounds, a run's own."""

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

LAST = "LAST ROUND"
POINT = Datapoint("p", 1, {"question": "Is it?", "solution": "It is."})

SILENT = """\
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


def agents_of(protocol: Protocol) -> dict[str, OpenAiWholeAgent]:
    names = protocol.agent_names
    experiment = from_plain(
        Experiment,
        {
            "name": "t", "dataset": {"path": "none"}, "protocol": {"use": "own.yaml"}, "prompts": "none",
            "models": {"m": {"provider": "dummy"}}, "agents": {name: {"model": "m"} for name in names},
        },
    )  # fmt: skip
    prompts = PromptSet({name: LAST if "." in name else "S {{ question }}" for name in template_names(protocol)})
    return {name: OpenAiWholeAgent(experiment, AgentRuntime(prompts), name, protocol) for name in names}


def decided_in(protocol: Protocol, round_: int) -> FinishedGame:
    def says(turn: PendingTurn, name: str) -> str:
        return "Decision: reject" if turn.round == round_ else make_undecided_speaker(protocol)(turn, name)

    return play_game(protocol, says)


def chats(agent: OpenAiWholeAgent, steps: NestedArrayDict, **options: bool) -> list[list[str]]:
    return [[m["content"] for m in row["messages"]] for row in agent.build_fine_tune_dataset(steps, **options)]


@pytest.mark.parametrize("decides", [0, 4, 99])
def test_each_step_of_a_game_is_learnt_up_to_its_end(tmp_path: Path, decides: int) -> None:
    protocol = load_protocol_text(tmp_path, SILENT)
    game = decided_in(protocol, decides)
    steps = timesteps(protocol, game.rounds, POINT)
    for agent in agents_of(protocol).values():
        for index in range(protocol.max_message_rounds):
            rounds = game.rounds[: index + 1]
            behind = Observation(min(len(rounds), 6), rounds, POINT.columns)
            want = agent.fine_tune_example(behind, None, ensure_last_message_is_assistant=False)
            step = steps[index : index + 1]
            # Of padding in a silent round, histories alone do not say that it is padding.
            tells = protocol.speakers(len(game.rounds), 0) if index >= len(game.rounds) else True
            for one in (step, _bare(step)) if tells else (step,):
                (example,) = agent.build_fine_tune_dataset(one, ensure_last_message_is_assistant=False)
                assert example["messages"] == want, index


def _bare(step: NestedArrayDict) -> NestedArrayDict:
    """A step with no more than the original's page asks for."""
    keys = ("round", *HISTORIES, "question", "seed", "prover_stance", "y")
    after = {name: step["next", name] for name in HISTORIES}
    return NestedArrayDict({**{name: step[name] for name in keys}, "next": after}, step.batch_size)


def test_the_label_stands_for_the_guess_and_not_for_the_question_before_it(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, SILENT)
    verifier = agents_of(protocol)["verifier"]
    steps = timesteps(protocol, decided_in(protocol, 4).rounds, POINT)
    (chat,) = chats(verifier, steps[-1:], replace_verifier_guess_with_true_label=True)
    assert chat == ["S Is it?", "verifier in round 0", "prover in round 2", "Decision: accept"]
    assert chats(verifier, steps[4:5], replace_verifier_guess_with_true_label=True) == [chat]


def test_silent_rounds_keep_the_last_rounds_message(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, SILENT)
    game, prover = play_game(protocol, make_undecided_speaker(protocol)), agents_of(protocol)["prover"]
    whole = ["S Is it?", "verifier in round 0", "prover in round 2", "verifier in round 4", LAST, "prover in round 6"]
    final = {name: history[None] for name, history in arrays_from_rounds(protocol, game.rounds).items()}
    finished_history = NestedArrayDict({**final, "question": ["Is it?"]}, (1,))
    assert chats(prover, finished_history) == [whole]
    steps = timesteps(protocol, game.rounds, POINT)
    assert chats(prover, steps[-1:]) == [whole]
    # Before round 6, the last, only the message for it is new: round 5 is silent.
    for step in (steps[5:6], _bare(steps[5:6])):
        assert chats(prover, step, ensure_last_message_is_assistant=False) == [whole[:-1]]
    for step in (steps[4:5], _bare(steps[4:5])):
        assert chats(prover, step, ensure_last_message_is_assistant=False) == [whole[:-2]]


def test_a_round_that_a_game_does_not_have_is_refused(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, SILENT)
    agent, steps = agents_of(protocol)["verifier"], timesteps(protocol, decided_in(protocol, 4).rounds, POINT)
    for round_ in (-1, 7):
        for use in (agent.build_fine_tune_dataset, agent.forward):
            step = steps[1:2]
            step["round"] = np.array([round_])
            with pytest.raises(ValueError, match=f"no round {round_}; rounds count from 0 to 6 in 'pauses'"):
                use(step)


def test_a_step_of_a_game_by_hand_is_one_to_learn_from(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, SILENT)
    agents, environment = agents_of(protocol), Environment(protocol)
    arrays = environment.reset([POINT])
    replies = {name: agent(arrays, environment) for name, agent in agents.items()}
    arrays = environment.add_replies(arrays, replies)
    environment.step(arrays)
    said = arrays["agents", "raw_message"][0, 1]
    assert chats(agents["verifier"], arrays) == [["S Is it?", said]]
    assert chats(agents["prover"], arrays) == []


def test_the_timesteps_of_a_run_give_the_examples_of_its_files(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=4), tmp_path / "results")
    steps, plan = result.timesteps(prompts=True), saved_plan(result.folder)
    reconstructor = Reconstructor(result.folder, plan)
    rollouts = list(reconstructor.rollouts())
    reconstructor.close()
    assert steps["datapoint_id"][:, 0].tolist() == [rollout.job.datapoint.id for rollout in rollouts]
    for agent in plan.agents().values():
        want = []
        first = agent.protocol_handler.first_active_round(agent.agent_name) or 0
        index = next(i for i, rollout in enumerate(rollouts) if len(rollout.rounds) > first)
        asked = steps["agents", "prompt"][index, first, agent.agent_id]
        before = rollouts[index].job.observation(first, rollouts[index].rounds[:first])
        assert Environment(agent.protocol_handler).prompt_array_to_list(asked) == agent.prompt(before)
        for rollout in rollouts:
            behind = min(len(rollout.rounds), agent.max_message_rounds - 1)
            example = agent.fine_tune_example(rollout.job.observation(behind, rollout.rounds), None)
            want += [] if example is None else [{"messages": example}]
        assert agent.build_fine_tune_dataset(steps[:, -1]) == want


def test_a_column_that_arrays_have_no_place_for_is_named(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, SILENT)
    with pytest.raises(ValueError, match="name of a key of a timestep: done, next; rename"):
        timesteps(protocol, (), Datapoint("p", 1, {"next": "a", "done": "b"}))
