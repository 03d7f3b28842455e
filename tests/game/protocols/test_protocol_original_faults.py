"""Faults of the original (second table of the reference cases' README) are fixed, and all games follow the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.game.prompts.chat import chat_messages
from runner.game.protocols.answer_parser import parse_answer
from runner.game.protocols.loader import builtin_names, load_protocol
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rewards import Payoff, payoff, reaches
from runner.game.protocols.rounds import Message, Reply, Round, play
from runner.models.interface import Choice, Completion, Request
from runner.rollouts.agents.arrays import NestedArrayDict, arrays_from_rounds
from runner.rollouts.agents.whole_agent import Observation
from tests.support.games import (
    DUEL,
    LENIENT,
    ONE_VERIFIER,
    STRICT,
    list_speakers,
    load_protocol_text,
    make_agent,
    make_undecided_speaker,
    play_game,
)


@pytest.mark.parametrize("verdict", [0, 1])
def test_both_provers_of_mnip_are_paid_for_their_shared_stance(verdict: int) -> None:
    protocol = load_protocol("mnip", {"randomize_prover_stance": True})
    for stance in (0, 1):
        rewards = payoff(
            protocol,
            round_=0,
            seed=0,
            label=1,
            decision=verdict,
            stances=protocol.prover_stances(stance),
            before=Payoff(),
        ).rewards
        assert rewards["prover0"] == rewards["prover1"] == float(verdict == stance)
    fixed = load_protocol("mnip")
    rewards_of_fixed_stance = payoff(
        fixed, round_=0, seed=0, label=1, decision=verdict, stances=fixed.prover_stances(0), before=Payoff()
    ).rewards
    assert rewards_of_fixed_stance["prover0"] == rewards_of_fixed_stance["prover1"] == float(verdict == 1)


def always_say(text: str, *_: object) -> str:
    return text


@pytest.mark.parametrize(("force", "label", "verdict"), [("zero", 1, 0), ("one", 0, 1), ("y", 0, 0), ("y", 1, 1)])
def test_forced_guess_is_the_decision_and_is_scored(force: str, label: int, verdict: int) -> None:
    protocol = load_protocol("nip", {"force_guess": force})
    for text in ("Decision: accept", "Decision: reject", "no verdict"):
        game = play_game(protocol, partial(always_say, text), label=label)
        assert game.decision == verdict
        assert game.rounds[-1].decision == verdict
        assert game.rounds[-1].rewards == {
            "verifier": 1.0 if verdict == label else -1.0, "prover": float(verdict == 1),
        }  # fmt: skip


def test_chat_history_continues_after_a_silent_round() -> None:
    protocol = load_protocol("nip", {"max_message_rounds": 6})
    rounds = [
        Round(raw={"verifier": "q0"}, messages=[Message("main", "verifier", "q0")]),
        Round(),
        Round(raw={"verifier": "Decision: accept"}),
        Round(raw={"prover": "p3"}, messages=[Message("main", "prover", "p3")]),
    ]
    chat = chat_messages(protocol, "verifier", rounds, round_=4, system="s")
    assert [m["content"] for m in chat] == ["s", "q0", "Decision: accept", "p3"]


def test_text_of_a_prover_is_always_a_message() -> None:
    for text in ("Decision: reject", "decision: perhaps", "Decision: accept"):
        parsed = parse_answer(load_protocol("nip"), "prover", 1, text, STRICT)
        assert parsed == parse_answer(load_protocol("nip"), "prover", 1, text, LENIENT)
        assert (parsed.decision, parsed.messages) == (Decision.NONE, {"main": text})


def test_headers_are_found_after_letters_that_change_length_in_lower_case() -> None:
    text = "İİİİİ aside QUESTION FOR EXPERT_1: İs it?\nquestion for Expert_2: İt ends so İ"
    parsed = parse_answer(load_protocol("debate"), "verifier", 0, text, STRICT)
    assert parsed.messages == {
        "prover0_channel": "QUESTION FOR EXPERT_1: İs it?",
        "prover1_channel": "question for Expert_2: İt ends so İ",
    }


def test_header_with_a_letter_that_changes_length_in_lower_case_is_found(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, DUEL.replace("To one:", "İlk:"))
    parsed = parse_answer(protocol, "verifier", 0, "x İlk: a\nTO TWO: b", STRICT)
    assert parsed.messages == {"one": "İlk: a", "two": "TO TWO: b"}


def test_empty_message_fills_only_the_channels_of_the_speaker(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, DUEL)
    calls = []

    async def complete_with_nonsense(request: Request) -> Completion:
        calls.append(request)
        return Completion((Choice(f"nonsense {len(calls)}", "stop"),), "scripted")

    agent = make_agent(protocol, "verifier", attempts=3)
    reply = asyncio.run(agent.respond(Observation(0, (), {}), complete_with_nonsense))
    assert reply == Reply("nonsense 3", {"one": "", "two": ""}, Decision.NONE, retry_count=3, calls=3)
    assert len(calls) == 3


def test_mnip_respects_its_round_limits() -> None:
    protocol = load_protocol("mnip", {"max_message_rounds": 3, "min_message_rounds": 3})
    assert len(play_game(protocol, make_undecided_speaker(protocol)).rounds) == 3
    decided_game = play_game(
        protocol,
        lambda turn, name: "Decision: accept" if name == "verifier" else make_undecided_speaker(protocol)(turn, name),
    )
    assert (len(decided_game.rounds), decided_game.decided) == (3, True)


PARAMETER_VARIANTS: tuple[dict[str, object], ...] = (
    {},
    {"verifier_first": False},
    {"sequential": True},
    {"max_message_rounds": 5},
)
FIXED_PARAMETERS = [
    ("adp", {"sequential": True}, "sequential at False"),
    ("adp", {"max_message_rounds": 5}, "max_message_rounds at 2"),
    ("merlin_arthur", {"sequential": True}, "sequential at False"),
    ("merlin_arthur", {"max_message_rounds": 5}, "max_message_rounds at 2"),
    ("nip", {"sequential": True}, "sequential at False"),
    ("solo_verifier", {"verifier_first": False}, "verifier_first at True"),
    ("solo_verifier", {"sequential": True}, "sequential at False"),
    ("solo_verifier", {"max_message_rounds": 5}, "max_message_rounds at 2"),
]
"""The variants that a protocol refuses, each with the fixed value in the error message."""
ALLOWED_PARAMETERS = [
    (name, parameters)
    for name in builtin_names()
    for parameters in PARAMETER_VARIANTS
    if (name, parameters) not in [fixed[:2] for fixed in FIXED_PARAMETERS]
]


@pytest.mark.parametrize(("name", "parameters", "fixed_value"), FIXED_PARAMETERS)
def test_parameter_that_the_protocol_fixes_is_refused(
    name: str, parameters: dict[str, object], fixed_value: str
) -> None:
    (parameter,) = parameters
    with pytest.raises(SpecError) as caught:
        load_protocol(name, parameters)
    assert [(problem.key, problem.message) for problem in caught.value.problems] == [
        (f"protocol.{parameter}", f"{name} fixes {fixed_value}; remove protocol.{parameter}")
    ]


@pytest.mark.parametrize(("name", "parameters"), ALLOWED_PARAMETERS)
def test_number_of_questions_is_the_number_of_verifier_rounds(name: str, parameters: dict[str, object]) -> None:
    protocol = load_protocol(name, parameters)
    has_active_verifier = [
        any(judge in protocol.can_be_active(i) for judge in protocol.verifier_names)
        for i in range(protocol.max_message_rounds)
    ]
    assert protocol.max_verifier_questions == sum(has_active_verifier)
    for round_ in range(protocol.max_message_rounds):
        assert protocol.questions_left(round_) == sum(has_active_verifier[round_:])


@pytest.mark.parametrize("name", builtin_names())
def test_finished_game_has_one_round_entry_up_to_the_last_speaker(name: str) -> None:
    protocol = load_protocol(name)
    game = play_game(protocol, make_undecided_speaker(protocol), seed=1)
    speakers = list_speakers(protocol, protocol.max_message_rounds, seed=1)
    assert [set(r.raw) for r in game.rounds] == speakers[: max(i for i, names in enumerate(speakers) if names) + 1]
    assert all(len(r.messages) == sum(map(len, protocol.speakers(i, 1).values())) for i, r in enumerate(game.rounds))


def test_interrupted_game_continues_with_its_next_round() -> None:
    protocol = load_protocol("debate", {"sequential": True})
    full_game = play_game(protocol, make_undecided_speaker(protocol), seed=3)
    game = play(protocol, seed=3, label=1, prover_stance=1, rounds=full_game.rounds[:5])
    assert next(game).round == 5


@pytest.mark.parametrize("name", ONE_VERIFIER)
def test_negative_round_is_refused(name: str) -> None:
    protocol = load_protocol(name)
    agent = make_agent(protocol, "verifier", attempts=1)
    calls: list[Callable[[], object]] = [
        lambda: protocol.speakers(-1, 0),
        lambda: protocol.can_be_active(-1),
        lambda: protocol.may_decide(-1),
        lambda: protocol.questions_left(-1),
        lambda: payoff(protocol, round_=-1, seed=0, label=1, decision=1, stances={}, before=Payoff()),
        lambda: agent.parse("Decision: accept", -1),
        lambda: agent.prompt(Observation(-1, (), {})),
        lambda: agent(NestedArrayDict({"round": -1, **arrays_from_rounds(protocol, ())}, ())),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="no round -1; rounds count from 0"):
            call()


@pytest.mark.parametrize(
    ("handler", "error", "message"),
    [
        ("nip", TypeError, "protocol_handler is 'nip', not a Protocol; pass spec.protocol of the loaded spec"),
        (Protocol, TypeError, "protocol_handler is <class .*Protocol'>, not a Protocol"),
        (load_protocol("adp"), ValueError, "protocol_handler is the protocol 'adp', .*: the spec plays 'nip'. Pass"),
        (
            load_protocol("debate"),
            ValueError,
            "'debate', .*: the spec plays 'nip'; the protocol has no agent 'prover'. Pass",
        ),
        (
            load_protocol("nip"),
            ValueError,
            "'nip', .*: the spec sets max_message_rounds: 6, but the protocol has 8. Pass",
        ),
    ],
)
def test_protocol_handler_that_differs_from_the_spec_is_refused(
    handler: Any, error: type[Exception], message: str
) -> None:
    nip = load_protocol("nip", {"max_message_rounds": 6})
    assert make_agent(nip, "verifier", 1, max_message_rounds=6).protocol_handler is nip
    with pytest.raises(error, match=message):
        make_agent(nip, "verifier", 1, max_message_rounds=6, handler=handler)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("verifer", "^no agent 'verifer'; did you mean 'verifier'\\?$"),
        ("judge", "^no agent 'judge'; the spec's agents are prover, verifier$"),
    ],
)
def test_unknown_agent_is_reported_before_a_wrong_protocol(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_agent(load_protocol("nip"), name, 1, handler=load_protocol("debate"))


def test_rewards_that_differ_in_their_last_bits_are_a_tie() -> None:
    for reward, midpoint in ((0.7 + 0.1, 0.8), (0.3 * 3, 0.9), (0.3 - 0.1 - 0.2, 0.0), (-1.1 - 2.2, -3.3)):
        assert reward < midpoint
        assert reaches(reward, midpoint)
    assert reaches(0.5 - 0.9e-9, 0.5)
    assert not reaches(0.5 - 1.1e-9, 0.5)
    assert not reaches(-1e-8, 0.0)
