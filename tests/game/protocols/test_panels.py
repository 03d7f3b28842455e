"""Panels of several verifiers: rules, ties, early verdicts, rewards, and the delivery of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.game.prompts.chat import chat_messages
from runner.game.protocols.panel import PanelVote, panel_decision
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import FinishedGame, PendingTurn, Reply, play
from tests.support.games import load_protocol_text, make_agent, play_game

ANSWERS_BY_DECISION = {0: "Decision: reject", 1: "Decision: accept", 2: "What about 0?"}
PANEL_PROTOCOL = """\
name: bench
agents:
  prover: {role: prover, human_name: Expert, stance: reject}
  first: {role: verifier, human_name: Judge_1}
  second: {role: verifier, human_name: Judge_2}
  third: {role: verifier, human_name: Judge_3}
channels:
  main: {members: [prover, first, second, third]}
  bench: {members: [first, second]}
  alone: {members: [third]}
panel: {rule: majority}
cycle:
  - speak: {prover: [main]}
  - speak: {first: [bench], second: [bench], third: [alone]}
parameters: {max_message_rounds: 4}
"""
JUDGES = ("first", "second", "third")


def load_text(text: str) -> Protocol:
    with TemporaryDirectory() as folder:
        return load_protocol_text(Path(folder), text)


def load_panel(rule: str = "majority", **changes: Any) -> Protocol:
    protocol = load_text(PANEL_PROTOCOL.replace("rule: majority", f"rule: {rule}"))
    return replace(protocol, parameters=replace(protocol.parameters, **changes))


def compute_expected_decision(rule: str, decisions: tuple[int, ...]) -> int:
    """Return the decision of a panel by an independent definition of its rule."""
    counts = Counter(decision for decision in decisions if decision != 2)
    if rule == "unanimous":
        return decisions[0] if set(decisions) in ({0}, {1}) else 2
    if rule == "sequential":
        return next((decision for decision in reversed(decisions) if decision != 2), 2)
    return 2 if counts[0] == counts[1] else counts.most_common(1)[0][0]


@pytest.mark.parametrize("rule", ["majority", "unanimous", "sequential"])
def test_each_rule_decides_as_defined_for_all_verdicts(rule: str) -> None:
    protocol = load_panel(rule)
    for decisions in product((0, 1, 2), repeat=3):
        decision_by_judge = dict(zip(JUDGES, decisions, strict=True))

        def text_of_turn(turn: PendingTurn, name: str, decision_by_judge: Mapping[str, int] = decision_by_judge) -> str:
            return ANSWERS_BY_DECISION[decision_by_judge[name]] if name in decision_by_judge else "Look at the bound."

        game = play_game(protocol, text_of_turn)
        expected = compute_expected_decision(rule, decisions)
        assert (game.decision, game.terminated) == (expected, expected == 2), (rule, decisions)
        votes = {judge: vote.decision for round_ in game.rounds for judge, vote in round_.panel.items()}
        assert votes == {judge: decision for judge, decision in decision_by_judge.items() if decision != 2}


def test_mean_rule_decides_by_probabilities_and_omits_unknown_ones() -> None:
    protocol = load_panel("mean")
    tenths = [Fraction(n, 10) for n in range(0, 11, 2)] + [None]
    for values in product(tenths, repeat=3):
        known_values = [value for value in values if value is not None]
        mean = sum(known_values, Fraction()) / len(known_values) if known_values else Fraction(1, 2)
        expected = 2 if mean == Fraction(1, 2) else int(mean > Fraction(1, 2))
        votes = [PanelVote(1, (), None if value is None else float(value)) for value in values]
        assert panel_decision(protocol, votes) == expected, values


def play_with(
    protocol: Protocol, verdicts: Callable[[str, int], int], **settings: Any
) -> tuple[FinishedGame, list[set[str]]]:
    """Play a game, and return it with the speakers of each turn. `verdicts` has each judge's decision in each round."""
    speakers_by_turn = []

    def text_of_turn(turn: PendingTurn, name: str) -> str:
        if name == next(iter(turn.speakers)):
            speakers_by_turn.append(set(turn.speakers))
        return ANSWERS_BY_DECISION[verdicts(name, turn.round)] if name in JUDGES else "Look at the bound."

    return play_game(protocol, text_of_turn, **settings), speakers_by_turn


def test_decided_judges_are_not_called_again_and_the_last_verdict_ends_the_game() -> None:
    game, speakers_by_turn = play_with(load_panel(), lambda name, round_: 1 if name == "first" or round_ == 3 else 2)
    assert speakers_by_turn == [{"prover"}, {*JUDGES}, {"prover"}, {"second", "third"}]
    assert [set(round_.panel) for round_ in game.rounds] == [set(), {"first"}, set(), {"second", "third"}]
    early_game, speakers_by_turn = play_with(load_panel(), lambda *_: 0)
    assert (len(early_game.rounds), early_game.decision, speakers_by_turn[-1]) == (2, 0, {*JUDGES})


def test_verdicts_before_min_message_rounds_are_ignored_and_not_delivered() -> None:
    game, speakers_by_turn = play_with(load_panel(min_message_rounds=4), lambda _, round_: int(round_ == 3))
    assert speakers_by_turn[3] == {*JUDGES}
    assert not game.rounds[1].panel
    assert not game.rounds[1].messages
    assert {vote.decision for vote in game.rounds[3].panel.values()} == {1}


def test_verdict_text_is_delivered_only_in_the_judges_channels() -> None:
    game, _ = play_with(load_panel("sequential", max_message_rounds=4), lambda *_: 1)
    assert [set(round_.raw) for round_ in game.rounds] == [{"prover"}, {"first"}, {"second"}, {"third"}]
    protocol = load_panel("sequential")
    senders_seen_by = {
        name: [message.get("name") for message in chat_messages(protocol, name, game.rounds, round_=4, system="")][1:]
        for name in protocol.agent_names
    }
    assert senders_seen_by["second"] == ["Expert", "Judge_1", None]  # the last message is its own
    assert senders_seen_by["first"] == ["Expert", None, "Judge_2"]
    assert senders_seen_by["third"] == ["Expert", None]
    assert senders_seen_by["prover"] == [None]


def test_private_notes_of_a_judge_are_not_delivered_with_its_verdict() -> None:
    text = PANEL_PROTOCOL.replace("human_name: Judge_1", 'human_name: Judge_1, scratchpad: "Statement:"')
    agent = make_agent(load_text(text), "first", attempts=1)
    parsed = agent.parse("I doubt it.\nStatement: Fine. Decision: accept", 1)
    assert (parsed.decision, parsed.messages) == (1, {"bench": "Fine. Decision: accept"})
    assert [agent.parse(agent.true_verdict(label), 1).decision for label in (0, 1)] == [0, 1]  # as training data
    with pytest.raises(SpecError, match="a panel decides to accept or reject, not between listed answers"):
        load_text(
            PANEL_PROTOCOL.replace("name: bench", "name: bench\nanswers: listed").replace(
                "stance: reject", "stance: open"
            )
        )


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("Aloud: Decision: accept\nAside: It lies.", {"main": "Aloud: Decision: accept", "bench": "Aside: It lies."}),
        ("Aside: It lies.\nDecision: accept", {"bench": "Aside: It lies.\nDecision: accept"}),
        ("Decision: accept", {"main": "Decision: accept", "bench": "Decision: accept"}),
    ],
)
def test_verdict_with_headers_is_delivered_only_in_their_channels(text: str, messages: Mapping[str, str]) -> None:
    headers = "human_name: Judge_1, headers: {main: 'Aloud:', bench: 'Aside:'}"
    protocol = load_text(
        PANEL_PROTOCOL.replace("human_name: Judge_1", headers).replace("first: [bench]", "first: [main, bench]")
    )
    parsed = make_agent(protocol, "first", attempts=1).parse(text, 1)
    assert (parsed.decision, parsed.messages) == (1, messages)


def test_judges_are_paid_for_their_own_verdicts_and_provers_for_the_panels() -> None:
    decisions = {"first": 0, "second": 0, "third": 1}
    game, _ = play_with(load_panel(), lambda name, _: decisions[name], label=1)
    assert game.decision == 0
    assert dict(game.rounds[-1].rewards) == {"prover": 1.0, "first": -1.0, "second": -1.0, "third": 1.0}
    game_with_shared_reward, _ = play_with(load_panel(shared_reward=True), lambda name, _: decisions[name], label=1)
    assert game_with_shared_reward.rounds[-1].rewards["prover"] == -1.0
    game_without_label, _ = play_with(load_panel(), lambda name, _: decisions[name], label=None)
    assert dict(game_without_label.rounds[-1].rewards) == {"prover": 1.0}


def test_questions_and_missing_verdicts_have_their_own_rewards() -> None:
    protocol = load_panel(verifier_no_guess_reward=-0.25, verifier_terminated_penalty=-2.0)
    game, _ = play_with(protocol, lambda name, _: 1 if name == "first" else 2, label=1)
    assert [round_.rewards["second"] for round_ in game.rounds] == [0, -0.25, 0, -2.0]
    assert [round_.rewards["first"] for round_ in game.rounds] == [0, 1.0, 0, 0]
    assert game.decision == 1


@pytest.mark.parametrize(("force", "label", "decision"), [("zero", 1, 0), ("one", 0, 1), ("y", 0, 0), ("y", 1, 1)])
@pytest.mark.parametrize("rule", ["majority", "mean", "unanimous", "sequential"])
def test_forced_guess_replaces_the_verdict_of_each_judge(rule: str, force: str, label: int, decision: int) -> None:
    game, _ = play_with(load_panel(rule, force_guess=force), lambda *_: 2, label=label)
    votes = [vote.decision for round_ in game.rounds for vote in round_.panel.values()]
    assert (game.decision, votes) == (decision, [decision] * 3)


def test_game_continued_from_recorded_rounds_is_the_same() -> None:
    protocol = load_panel()
    full_game, _ = play_with(protocol, lambda name, round_: 1 if name == "first" or round_ == 3 else 2)
    for end in range(len(full_game.rounds)):
        game = continue_game(protocol, full_game, end)
        assert [(r.raw, r.panel, r.rewards) for r in game.rounds] == [
            (r.raw, r.panel, r.rewards) for r in full_game.rounds
        ]
        assert game.decision == full_game.decision


def continue_game(protocol: Protocol, full_game: FinishedGame, end: int) -> FinishedGame:
    """Play a game from one of its rounds, with the same answers as before."""
    game = play(protocol, seed=0, label=1, prover_stance=1, rounds=full_game.rounds[:end])
    turn = next(game)
    while True:
        recorded_round, replies = full_game.rounds[turn.round], {}
        assert set(turn.speakers) == set(recorded_round.raw)
        for name, text in recorded_round.raw.items():
            decision = recorded_round.panel[name].decision if name in recorded_round.panel else Decision.NONE
            messages = dict.fromkeys(turn.speakers[name], text) if decision == Decision.NONE else None
            replies[name] = Reply(text, messages, decision)
        try:
            turn = game.send(replies)
        except StopIteration as stop:
            finished: FinishedGame = stop.value
            return finished


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("panel: {rule: majority}\n", "", "exactly one agent must be the verifier; here first, second, third are"),
        ("rule: majority", "rule: most", "panel.rule: 'most' is not one of majority, mean, unanimous, sequential"),
        ("rule: majority", "rules: majority", "panel"),
    ],
)
def test_invalid_panel_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        load_text(PANEL_PROTOCOL.replace(old, new))
    assert message in "\n".join(map(str, error.value.problems))


def test_panel_with_one_judge_is_an_error_with_its_line() -> None:
    single_judge = PANEL_PROTOCOL.replace("role: verifier, human_name: Judge_1", "role: prover, human_name: Judge_1")
    single_judge = single_judge.replace("role: verifier, human_name: Judge_2", "role: prover, human_name: Judge_2")
    with pytest.raises(SpecError) as error:
        load_text(single_judge)
    (problem,) = error.value.problems
    assert str(problem.place).endswith(":11:1")
    assert problem.message.startswith("a panel needs several verifiers; here third is one")


def test_verifier_name_of_a_panel_raises_an_error() -> None:
    with pytest.raises(ValueError, match="bench has a panel of judges; use verifier_names"):
        _ = load_panel().verifier_name
