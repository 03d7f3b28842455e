"""Where the original is at fault (the second table of the reference cases' README), and the rules all games keep."""

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
def test_both_provers_of_mnip_are_paid_for_their_one_stance(verdict: int) -> None:
    protocol = load_protocol("mnip", {"randomize_prover_stance": True})
    for stance in (0, 1):
        paid = payoff(
            protocol, round_=0, seed=0, label=1, prover_stance=stance, decision=verdict, before=Payoff()
        ).rewards
        assert paid["prover0"] == paid["prover1"] == float(verdict == stance)
    fixed = payoff(
        load_protocol("mnip"), round_=0, seed=0, label=1, prover_stance=0, decision=verdict, before=Payoff()
    ).rewards
    assert fixed["prover0"] == fixed["prover1"] == float(verdict == 1)


def always(text: str, *_: object) -> str:
    return text


@pytest.mark.parametrize(("force", "label", "verdict"), [("zero", 1, 0), ("one", 0, 1), ("y", 0, 0), ("y", 1, 1)])
def test_a_forced_decision_is_the_decision_and_is_scored(force: str, label: int, verdict: int) -> None:
    protocol = load_protocol("nip", {"force_guess": force})
    for said in ("Decision: accept", "Decision: reject", "no verdict"):
        played = play_game(protocol, partial(always, said), label=label)
        assert played.decision == verdict
        assert played.rounds[-1].decision == verdict
        assert played.rounds[-1].rewards == {
            "verifier": 1.0 if verdict == label else -1.0, "prover": float(verdict == 1),
        }  # fmt: skip


def test_a_history_goes_on_after_a_silent_round() -> None:
    protocol = load_protocol("nip", {"max_message_rounds": 6})
    rounds = [
        Round(raw={"verifier": "q0"}, messages=[Message("main", "verifier", "q0")]),
        Round(),
        Round(raw={"verifier": "Decision: accept"}),
        Round(raw={"prover": "p3"}, messages=[Message("main", "prover", "p3")]),
    ]
    chat = chat_messages(protocol, "verifier", rounds, round_=4, system="s")
    assert [m["content"] for m in chat] == ["s", "q0", "Decision: accept", "p3"]


def test_a_provers_text_is_a_message_whatever_it_says() -> None:
    for text in ("Decision: reject", "decision: perhaps", "Decision: accept"):
        parsed = parse_answer(load_protocol("nip"), "prover", 1, text, STRICT)
        assert parsed == parse_answer(load_protocol("nip"), "prover", 1, text, LENIENT)
        assert (parsed.decision, parsed.messages) == (Decision.NONE, {"main": text})


def test_offsets_are_those_of_the_text_itself() -> None:
    text = "İİİİİ aside QUESTION FOR EXPERT_1: İs it?\nquestion for Expert_2: İt ends so İ"
    parsed = parse_answer(load_protocol("debate"), "verifier", 0, text, STRICT)
    assert parsed.messages == {
        "prover0_channel": "QUESTION FOR EXPERT_1: İs it?",
        "prover1_channel": "question for Expert_2: İt ends so İ",
    }


def test_a_header_with_a_letter_that_grows_is_found(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, DUEL.replace("To one:", "İlk:"))
    parsed = parse_answer(protocol, "verifier", 0, "x İlk: a\nTO TWO: b", STRICT)
    assert parsed.messages == {"one": "İlk: a", "two": "TO TWO: b"}


def test_an_empty_message_fills_only_the_channels_of_the_speaker(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, DUEL)
    calls = []

    async def nonsense(request: Request) -> Completion:
        calls.append(request)
        return Completion((Choice(f"nonsense {len(calls)}", "stop"),), "scripted")

    agent = make_agent(protocol, "verifier", attempts=3)
    reply = asyncio.run(agent.respond(Observation(0, (), {}), nonsense))
    assert reply == Reply("nonsense 3", {"one": "", "two": ""}, Decision.NONE, retry_count=3, calls=3)
    assert len(calls) == 3


def test_mnip_keeps_its_own_round_limits() -> None:
    protocol = load_protocol("mnip", {"max_message_rounds": 3, "min_message_rounds": 3})
    assert len(play_game(protocol, make_undecided_speaker(protocol)).rounds) == 3
    decides = play_game(
        protocol,
        lambda turn, name: "Decision: accept" if name == "verifier" else make_undecided_speaker(protocol)(turn, name),
    )
    assert (len(decides.rounds), decides.decided) == (3, True)


VARIANTS: tuple[dict[str, object], ...] = (
    {},
    {"verifier_first": False},
    {"sequential": True},
    {"max_message_rounds": 5},
)
FIXED = [
    ("adp", {"sequential": True}, "sequential at False"),
    ("adp", {"max_message_rounds": 5}, "max_message_rounds at 2"),
    ("merlin_arthur", {"sequential": True}, "sequential at False"),
    ("merlin_arthur", {"max_message_rounds": 5}, "max_message_rounds at 2"),
    ("nip", {"sequential": True}, "sequential at False"),
    ("solo_verifier", {"verifier_first": False}, "verifier_first at True"),
    ("solo_verifier", {"sequential": True}, "sequential at False"),
    ("solo_verifier", {"max_message_rounds": 5}, "max_message_rounds at 2"),
]
"""Those of the variants that a protocol refuses, and what it says that it fixes."""
ALLOWED = [
    (name, parameters)
    for name in builtin_names()
    for parameters in VARIANTS
    if (name, parameters) not in [fixed[:2] for fixed in FIXED]
]


@pytest.mark.parametrize(("name", "parameters", "fixes"), FIXED)
def test_a_parameter_that_the_protocol_fixes_is_refused_by_its_name(
    name: str, parameters: dict[str, object], fixes: str
) -> None:
    (parameter,) = parameters
    with pytest.raises(SpecError) as caught:
        load_protocol(name, parameters)
    assert [(problem.key, problem.message) for problem in caught.value.problems] == [
        (f"protocol.{parameter}", f"{name} fixes {fixes}; remove protocol.{parameter}")
    ]


@pytest.mark.parametrize(("name", "parameters"), ALLOWED)
def test_there_are_as_many_questions_as_rounds_of_the_verifier(name: str, parameters: dict[str, object]) -> None:
    protocol = load_protocol(name, parameters)
    speaks = [
        any(judge in protocol.can_be_active(i) for judge in protocol.verifier_names)
        for i in range(protocol.max_message_rounds)
    ]
    assert protocol.max_verifier_questions == sum(speaks)
    for round_ in range(protocol.max_message_rounds):
        assert protocol.questions_left(round_) == sum(speaks[round_:])


@pytest.mark.parametrize("name", builtin_names())
def test_a_finished_game_has_one_entry_a_round_with_the_last(name: str) -> None:
    protocol = load_protocol(name)
    played = play_game(protocol, make_undecided_speaker(protocol), seed=1)
    speakers = list_speakers(protocol, protocol.max_message_rounds, seed=1)
    assert [set(r.raw) for r in played.rounds] == speakers[: max(i for i, who in enumerate(speakers) if who) + 1]
    assert all(len(r.messages) == sum(map(len, protocol.speakers(i, 1).values())) for i, r in enumerate(played.rounds))


def test_a_game_that_was_begun_goes_on_as_it_would_have() -> None:
    protocol = load_protocol("debate", {"sequential": True})
    whole = play_game(protocol, make_undecided_speaker(protocol), seed=3)
    game = play(protocol, seed=3, label=1, prover_stance=1, rounds=whole.rounds[:5])
    assert next(game).round == 5


@pytest.mark.parametrize("name", ONE_VERIFIER)
def test_there_is_no_round_before_the_first(name: str) -> None:
    protocol = load_protocol(name)
    agent = make_agent(protocol, "verifier", attempts=1)
    before: list[Callable[[], object]] = [
        lambda: protocol.speakers(-1, 0),
        lambda: protocol.can_be_active(-1),
        lambda: protocol.may_decide(-1),
        lambda: protocol.questions_left(-1),
        lambda: payoff(protocol, round_=-1, seed=0, label=1, prover_stance=1, decision=1, before=Payoff()),
        lambda: agent.parse("Decision: accept", -1),
        lambda: agent.prompt(Observation(-1, (), {})),
        lambda: agent(NestedArrayDict({"round": -1, **arrays_from_rounds(protocol, ())}, ())),
    ]
    for asks in before:
        with pytest.raises(ValueError, match="no round -1; rounds count from 0"):
            asks()


@pytest.mark.parametrize(
    ("handler", "error", "said"),
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
def test_a_protocol_that_is_not_the_specs_is_named(handler: Any, error: type[Exception], said: str) -> None:
    nip = load_protocol("nip", {"max_message_rounds": 6})
    assert make_agent(nip, "verifier", 1, max_message_rounds=6).protocol_handler is nip
    with pytest.raises(error, match=said):
        make_agent(nip, "verifier", 1, max_message_rounds=6, handler=handler)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("verifer", "^no agent 'verifer'; did you mean 'verifier'\\?$"),
        ("judge", "^no agent 'judge'; the spec's agents are prover, verifier$"),
    ],
)
def test_an_agent_that_the_spec_does_not_have_is_named_before_its_protocol(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_agent(load_protocol("nip"), name, 1, handler=load_protocol("debate"))


def test_rewards_that_differ_in_their_last_bits_are_a_tie() -> None:
    for reward, midpoint in ((0.7 + 0.1, 0.8), (0.3 * 3, 0.9), (0.3 - 0.1 - 0.2, 0.0), (-1.1 - 2.2, -3.3)):
        assert reward < midpoint
        assert reaches(reward, midpoint)
    assert reaches(0.5 - 0.9e-9, 0.5)
    assert not reaches(0.5 - 1.1e-9, 0.5)
    assert not reaches(-1e-8, 0.0)
