"""Answers are parsed into messages and verdicts, and verdicts determine the rewards."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import (
    AgentNotActiveInChannelError,
    InvalidDecisionError,
    NotAllActiveChannelsInResponseError,
    SpecError,
)
from runner.game.protocols.answer_parser import DecisionFormat, parse_answer, verdict_of
from runner.game.protocols.loader import builtin_names, load_protocol
from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import episode_rewards
from tests.support.games import LENIENT, STRICT, load_protocol_text, make_undecided_speaker, play_game

# Decisions and rewards


def test_undecided_solo_verifier_is_terminated_in_its_first_round() -> None:
    protocol = load_protocol("solo_verifier", {"verifier_terminated_penalty": -0.25})
    game = play_game(protocol, make_undecided_speaker(protocol))
    assert (game.terminated, game.decided, len(game.rounds)) == (True, False, 1)
    assert game.decision == Decision.NONE
    assert game.rounds[0].rewards == {"verifier": -0.25}
    assert episode_rewards(protocol, game.rounds) == {"verifier": -0.25}


def test_solo_verifier_decides_in_one_round() -> None:
    game = play_game(load_protocol("solo_verifier"), lambda *_: "Decision: reject", label=1)
    assert (game.decision, len(game.rounds), game.rounds[0].rewards) == (0, 1, {"verifier": -1.0})


def test_round_with_a_verdict_sends_no_message() -> None:
    game = play_game(load_protocol("debate"), lambda *_: "Well. DECISION: ACCEPT")
    assert game.rounds[0].messages == []
    assert game.rounds[0].raw == {"verifier": "Well. DECISION: ACCEPT"}


def test_early_verdict_is_ignored_and_earns_the_no_guess_reward() -> None:
    protocol = load_protocol("nip", {"min_message_rounds": 3, "verifier_no_guess_reward": 0.125})
    game = play_game(protocol, lambda turn, name: "Decision: accept" if name == "verifier" else "x")
    assert game.decided
    assert [r.rewards["verifier"] for r in game.rounds] == [0.125, 0.0, 1.0]
    assert game.rounds[0].messages == []


@pytest.mark.parametrize("stance", [0, 1])
def test_random_stance_changes_the_provers_reward(stance: int) -> None:
    protocol = load_protocol("nip", {"randomize_prover_stance": True})
    assert protocol.stance("prover", stance) == stance
    game = play_game(
        protocol, lambda *_: f"Decision: {'accept' if stance else 'reject'}", prover_stance=stance, label=1 - stance
    )
    assert game.rounds[-1].rewards == {"prover": 1.0, "verifier": -1.0}


@pytest.mark.parametrize("name", ["debate", "merlin_arthur", "solo_verifier"])
def test_fixed_stance_cannot_be_randomized(name: str) -> None:
    with pytest.raises(SpecError, match="fixes randomize_prover_stance"):
        load_protocol(name, {"randomize_prover_stance": True})


def test_shared_rewards_equal_the_verifiers_reward() -> None:
    protocol = load_protocol("debate", {"shared_reward": True})
    game = play_game(protocol, lambda *_: "Decision: reject", label=1)
    assert game.rounds[0].rewards == {"prover0": -1.0, "prover1": -1.0, "verifier": -1.0}


@pytest.mark.parametrize("name", builtin_names())
def test_undecided_game_ends_in_the_last_round_with_a_speaker(name: str) -> None:
    protocol = load_protocol(name)
    game = play_game(protocol, make_undecided_speaker(protocol))
    assert game.terminated
    assert len(game.rounds) == (1 if name == "solo_verifier" else protocol.max_message_rounds)


# Parsing


def test_answer_of_an_inactive_agent_is_an_error() -> None:
    protocol = load_protocol("nip")
    for agent, round_ in (("prover", 0), ("verifier", 1), ("verifier", 8), ("nobody", 0)):
        with pytest.raises(AgentNotActiveInChannelError):
            parse_answer(protocol, agent, round_, "text", STRICT)


def test_decision_other_than_accept_or_reject_is_an_error() -> None:
    with pytest.raises(InvalidDecisionError):
        parse_answer(load_protocol("nip"), "verifier", 0, "decision: maybe", STRICT)


def test_answer_must_have_the_header_of_every_channel() -> None:
    with pytest.raises(NotAllActiveChannelsInResponseError, match="Question for Expert_2:"):
        parse_answer(load_protocol("debate"), "verifier", 0, "question for expert_1: why?", STRICT)


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("**Decision:** Accept", Decision.ACCEPT),
        ("**Decision: reject**", Decision.REJECT),
        ("decision :  ACCEPT.", Decision.ACCEPT),
        ("`Decision: accept`", Decision.ACCEPT),
        ("My decisions: none yet", Decision.NONE),
        ("Decision: acceptable?", None),
        ("Decision: accept\nDecision: reject", None),
        ("Decision: maybe", None),
        ("I ask: why?", Decision.NONE),
    ],
)
def test_lenient_format_accepts_markup_but_not_two_verdicts(text: str, decision: Decision | None) -> None:
    protocol = load_protocol("nip")
    if decision is None:
        with pytest.raises(InvalidDecisionError):
            parse_answer(protocol, "verifier", 0, text, LENIENT)
    else:
        assert parse_answer(protocol, "verifier", 0, text, LENIENT).decision == decision


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("最终决定: 接受。", Decision.ACCEPT),
        ("我的最终决定：**拒绝**了", Decision.REJECT),
        ("我决定问:为什么？", Decision.NONE),
        ("最终决定:不接受", None),
    ],
)
def test_lenient_format_finds_verdicts_in_scripts_without_spaces(text: str, decision: Decision | None) -> None:
    chinese = DecisionFormat(marker="决定:", accept="决定: 接受", reject="决定: 拒绝", lenient=True)
    assert verdict_of(text, chinese) == decision


MUST_DECIDE = """\
name: own
agents:
  prover: {role: prover, human_name: P}
  judge: {role: verifier, human_name: J}
channels: {main: {members: [prover, judge]}}
cycle:
  - {speak: {%s: [main]}, must_decide: true%s}
  - speak: {judge: [main]}
parameters: {max_message_rounds: 2}
"""


@pytest.mark.parametrize("step_values", [("prover", ""), ("judge", ", may_decide: false")])
def test_must_decide_needs_a_verifier_that_may_decide(tmp_path: Path, step_values: tuple[str, str]) -> None:
    with pytest.raises(SpecError, match="no verifier may decide in this step"):
        load_protocol_text(tmp_path, MUST_DECIDE % step_values)
    assert load_protocol_text(tmp_path, MUST_DECIDE % ("judge", "")).step(0).must_decide
