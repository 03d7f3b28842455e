"""Several verifiers decide as a panel: its rules, ties, early verdicts, rewards, and who hears a verdict."""

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

WORDS = {0: "Decision: reject", 1: "Decision: accept", 2: "What about 0?"}
PANEL = """\
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


def load(text: str) -> Protocol:
    with TemporaryDirectory() as folder:
        return load_protocol_text(Path(folder), text)


def panel(rule: str = "majority", **changes: Any) -> Protocol:
    protocol = load(PANEL.replace("rule: majority", f"rule: {rule}"))
    return replace(protocol, parameters=replace(protocol.parameters, **changes))


def expected_decision(rule: str, decisions: tuple[int, ...]) -> int:
    """The decision of a panel by an independent definition of its rule."""
    counts = Counter(decision for decision in decisions if decision != 2)
    if rule == "unanimous":
        return decisions[0] if set(decisions) in ({0}, {1}) else 2
    if rule == "sequential":
        return next((decision for decision in reversed(decisions) if decision != 2), 2)
    return 2 if counts[0] == counts[1] else counts.most_common(1)[0][0]


@pytest.mark.parametrize("rule", ["majority", "unanimous", "sequential"])
def test_each_rule_decides_as_defined_for_all_verdicts(rule: str) -> None:
    protocol = panel(rule)
    for decisions in product((0, 1, 2), repeat=3):
        said = dict(zip(JUDGES, decisions, strict=True))

        def says(turn: PendingTurn, name: str, said: Mapping[str, int] = said) -> str:
            return WORDS[said[name]] if name in said else "Look at the bound."

        game = play_game(protocol, says)
        expected = expected_decision(rule, decisions)
        assert (game.decision, game.terminated) == (expected, expected == 2), (rule, decisions)
        votes = {judge: vote.decision for round_ in game.rounds for judge, vote in round_.panel.items()}
        assert votes == {judge: decision for judge, decision in said.items() if decision != 2}


def test_the_mean_decides_by_probabilities_and_omits_unknown_ones() -> None:
    protocol = panel("mean")
    tenths = [Fraction(n, 10) for n in range(0, 11, 2)] + [None]
    for values in product(tenths, repeat=3):
        known = [value for value in values if value is not None]
        mean = sum(known, Fraction()) / len(known) if known else Fraction(1, 2)
        expected = 2 if mean == Fraction(1, 2) else int(mean > Fraction(1, 2))
        votes = [PanelVote(1, (), None if value is None else float(value)) for value in values]
        assert panel_decision(protocol, votes) == expected, values


def play_with(
    protocol: Protocol, verdicts: Callable[[str, int], int], **facts: Any
) -> tuple[FinishedGame, list[set[str]]]:
    """Play a game, and return it with the speakers of each turn. `verdicts` has each judge's decision in each round."""
    asked = []

    def says(turn: PendingTurn, name: str) -> str:
        if name == next(iter(turn.speakers)):
            asked.append(set(turn.speakers))
        return WORDS[verdicts(name, turn.round)] if name in JUDGES else "Look at the bound."

    return play_game(protocol, says, **facts), asked


def test_a_judge_that_has_decided_is_not_asked_again_and_the_game_ends_with_the_last_verdict() -> None:
    game, asked = play_with(panel(), lambda name, round_: 1 if name == "first" or round_ == 3 else 2)
    assert asked == [{"prover"}, {*JUDGES}, {"prover"}, {"second", "third"}]
    assert [set(round_.panel) for round_ in game.rounds] == [set(), {"first"}, set(), {"second", "third"}]
    early, asked = play_with(panel(), lambda *_: 0)
    assert (len(early.rounds), early.decision, asked[-1]) == (2, 0, {*JUDGES})


def test_verdicts_before_the_first_round_that_counts_are_ignored_and_nobody_hears_them() -> None:
    game, asked = play_with(panel(min_message_rounds=4), lambda _, round_: int(round_ == 3))
    assert asked[3] == {*JUDGES}
    assert not game.rounds[1].panel
    assert not game.rounds[1].messages
    assert {vote.decision for vote in game.rounds[3].panel.values()} == {1}


def test_the_text_of_a_verdict_is_heard_in_the_channels_of_the_judge_only() -> None:
    game, _ = play_with(panel("sequential", max_message_rounds=4), lambda *_: 1)
    assert [set(round_.raw) for round_ in game.rounds] == [{"prover"}, {"first"}, {"second"}, {"third"}]
    protocol = panel("sequential")
    heard = {
        name: [message.get("name") for message in chat_messages(protocol, name, game.rounds, round_=4, system="")][1:]
        for name in protocol.agent_names
    }
    assert heard["second"] == ["Expert", "Judge_1", None]  # the last one is its own
    assert heard["first"] == ["Expert", None, "Judge_2"]
    assert heard["third"] == ["Expert", None]
    assert heard["prover"] == [None]


def test_private_notes_of_a_judge_stay_private_when_others_hear_its_verdict() -> None:
    text = PANEL.replace("human_name: Judge_1", 'human_name: Judge_1, scratchpad: "Statement:"')
    parsed = make_agent(load(text), "first", attempts=1).parse("I doubt it.\nStatement: Fine. Decision: accept", 1)
    assert (parsed.decision, parsed.messages) == (1, {"bench": "Fine. Decision: accept"})
    with pytest.raises(SpecError, match="a panel decides to accept or reject, not between listed answers"):
        load(PANEL.replace("name: bench", "name: bench\nanswers: listed").replace("stance: reject", "stance: open"))


def test_judges_are_rewarded_for_their_own_verdicts_and_provers_for_the_panels() -> None:
    decisions = {"first": 0, "second": 0, "third": 1}
    game, _ = play_with(panel(), lambda name, _: decisions[name], label=1)
    assert game.decision == 0
    assert dict(game.rounds[-1].rewards) == {"prover": 1.0, "first": -1.0, "second": -1.0, "third": 1.0}
    shared, _ = play_with(panel(shared_reward=True), lambda name, _: decisions[name], label=1)
    assert shared.rounds[-1].rewards["prover"] == -1.0
    unknown, _ = play_with(panel(), lambda name, _: decisions[name], label=None)
    assert dict(unknown.rounds[-1].rewards) == {"prover": 1.0}


def test_a_question_and_a_missing_verdict_have_their_rewards() -> None:
    protocol = panel(verifier_no_guess_reward=-0.25, verifier_terminated_penalty=-2.0)
    game, _ = play_with(protocol, lambda name, _: 1 if name == "first" else 2, label=1)
    assert [round_.rewards["second"] for round_ in game.rounds] == [0, -0.25, 0, -2.0]
    assert [round_.rewards["first"] for round_ in game.rounds] == [0, 1.0, 0, 0]
    assert game.decision == 1


@pytest.mark.parametrize(("force", "label", "decision"), [("zero", 1, 0), ("one", 0, 1), ("y", 0, 0), ("y", 1, 1)])
@pytest.mark.parametrize("rule", ["majority", "mean", "unanimous", "sequential"])
def test_a_forced_guess_replaces_the_verdict_of_each_judge(rule: str, force: str, label: int, decision: int) -> None:
    game, _ = play_with(panel(rule, force_guess=force), lambda *_: 2, label=label)
    votes = [vote.decision for round_ in game.rounds for vote in round_.panel.values()]
    assert (game.decision, votes) == (decision, [decision] * 3)


def test_a_game_continues_after_recorded_rounds_as_it_was_played() -> None:
    protocol = panel()
    whole, _ = play_with(protocol, lambda name, round_: 1 if name == "first" or round_ == 3 else 2)
    for end in range(len(whole.rounds)):
        game = continue_game(protocol, whole, end)
        assert [(r.raw, r.panel, r.rewards) for r in game.rounds] == [(r.raw, r.panel, r.rewards) for r in whole.rounds]
        assert game.decision == whole.decision


def continue_game(protocol: Protocol, whole: FinishedGame, end: int) -> FinishedGame:
    """Play a game from one of its rounds, with the same answers as before."""
    game = play(protocol, seed=0, label=1, prover_stance=1, rounds=whole.rounds[:end])
    turn = next(game)
    while True:
        played, replies = whole.rounds[turn.round], {}
        assert set(turn.speakers) == set(played.raw)
        for name, text in played.raw.items():
            decision = played.panel[name].decision if name in played.panel else Decision.NONE
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
def test_a_wrong_panel_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        load(PANEL.replace(old, new))
    assert message in "\n".join(map(str, error.value.problems))


def test_a_panel_of_one_is_an_error_with_its_line() -> None:
    lone = PANEL.replace("role: verifier, human_name: Judge_1", "role: prover, human_name: Judge_1")
    lone = lone.replace("role: verifier, human_name: Judge_2", "role: prover, human_name: Judge_2")
    with pytest.raises(SpecError) as error:
        load(lone)
    (problem,) = error.value.problems
    assert str(problem.place).endswith(":11:1")
    assert problem.message.startswith("a panel needs several verifiers; here third is one")


def test_the_single_verifier_of_a_panel_does_not_exist() -> None:
    with pytest.raises(ValueError, match="bench has a panel of judges; use verifier_names"):
        _ = panel().verifier_name
