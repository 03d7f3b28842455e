"""Protocols as data: what a file must not say, games of one's own in YAML alone, and the rules that all games keep."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runner.agents import AgentRuntime, OpenAiWholeAgent, Position
from runner.documents.fields import build
from runner.errors import (
    AgentNotActiveInChannelError,
    InvalidDecisionError,
    NotAllActiveChannelsInResponseError,
    Place,
    SpecError,
)
from runner.models.base import Choice, Completion, Request
from runner.prompts.chat import chat_messages
from runner.prompts.templates import PromptSet
from runner.protocols.game import Message, Played, Reply, Round, Turn, episode_rewards, play
from runner.protocols.load import builtin_names, load_protocol, unplayable
from runner.protocols.parse import DecisionFormat, parse_answer
from runner.protocols.protocol import Decision, Protocol
from runner.protocols.rewards import payoff
from runner.spec.experiment import Experiment

ROOT = Path(__file__).resolve().parents[1]
STRICT = DecisionFormat()
LENIENT = DecisionFormat(lenient=True)

SEVENTH = """\
name: council
description: Three provers confer in a room of their own before the first of them answers the verifier.
agents:
  speaker: {role: prover, human_name: Speaker}
  second: {role: prover, human_name: Second}
  third: {role: prover, human_name: Third, stance: reject}
  verifier: {role: verifier, human_name: Verifier}
channels:
  main: {members: [speaker, verifier]}
  back_room: {members: [speaker, second, third]}
cycle:
  - speak: {verifier: [main]}
  - speak: {speaker: [back_room], second: [back_room], third: [back_room]}
  - speak: {speaker: [main]}
parameters: {max_message_rounds: 11, sequential: true}
"""

DUEL = """\
name: duel
agents:
  prover: {role: prover, human_name: Expert}
  verifier: {role: verifier, human_name: Verifier, headers: {one: "To one:", two: "To two:"}}
channels:
  one: {members: [prover, verifier]}
  two: {members: [prover, verifier]}
  three: {members: [prover, verifier]}
cycle:
  - speak: {verifier: [one, two]}
  - speak: {prover: [three]}
"""


def protocol_of(folder: Path, text: str, **parameters: object) -> Protocol:
    (folder / "own.yaml").write_text(text)
    return load_protocol("own.yaml", parameters, folder=folder)


def finished(
    protocol: Protocol,
    says: Callable[[Turn, str], str],
    *,
    seed: int = 0,
    label: int = 1,
    prover_stance: int = 1,
) -> Played:
    """A whole game in which each speaker says what `says` has it say."""
    game = play(protocol, seed=seed, label=label, prover_stance=prover_stance)
    replies: Mapping[str, Reply] | None = None
    while True:
        try:
            turn = game.send(replies)  # type: ignore[arg-type] - None starts it
        except StopIteration as end:
            return end.value
        replies = {}
        for name in turn.speakers:
            text = says(turn, name)
            parsed = parse_answer(protocol, name, turn.round, text, STRICT)
            replies[name] = Reply(text, parsed.messages, parsed.decision)


def here(key: str) -> Place:
    return Place(key)


def undecided(protocol: Protocol) -> Callable[[Turn, str], str]:
    def says(turn: Turn, name: str) -> str:
        headers = protocol.seat(name).headers
        channels = turn.speakers[name]
        own = f"{name} in round {turn.round}"
        return own if len(channels) == 1 else "\n".join(f"{headers[c]} {own}" for c in channels)

    return says


def who_speaks(protocol: Protocol, rounds: int, seed: int = 0) -> list[set[str]]:
    return [set(protocol.speakers(i, seed)) for i in range(rounds)]


# What a protocol file must not say


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        ("name: council", "name: Council", ["1:1: name: 'Council' does not have the form ^[a-z][a-z0-9_]*$"]),
        ("role: verifier", "role: prover", ["3:1: agents: exactly one agent must be the verifier; here none is"]),
        ("role: prover, human_name: Second", "role: verifier, human_name: Second", [
            "3:1: agents: exactly one agent must be the verifier; here second, verifier is"]),
        ("members: [speaker, verifier]", "members: [speaker, verifer]", [
            "9:29: channels.main.members.1: no agent 'verifer'; did you mean 'verifier'?",
            "12:13: cycle.0.speak.verifier: verifier speaks in 'main', where it is no member"]),
        ("verifier: [main]", "verifer: [main]", [
            "12:13: cycle.0.speak.verifer: no agent 'verifer'; did you mean 'verifier'?"]),
        ("verifier: [main]", "verifier: [back_room]", [
            "12:13: cycle.0.speak.verifier: verifier speaks in 'back_room', where it is no member"]),
        ("verifier: [main]", "verifier: [mian]", [
            "12:13: cycle.0.speak.verifier: no channel 'mian'; did you mean 'main'?"]),
        ("verifier: [main]", "verifier: []", ["12:13: cycle.0.speak.verifier: a speaker needs at least one channel"]),
        ("speaker: [main]}", "speaker: [main, back_room]}", [
            "4:3: agents.speaker.headers: speaker speaks in 2 channels at once and has no header for 'back_room'",
            "4:3: agents.speaker.headers: speaker speaks in 2 channels at once and has no header for 'main'"]),
        ("human_name: Speaker", "human_name: Speaker, headers: {mian: 'X:'}", [
            "4:48: agents.speaker.headers: no channel 'mian'; did you mean 'main'?"]),
        ("human_name: Speaker", "human_name: Speaker, headers: {main: 'X:', back_room: 'x:'}", [
            "4:48: agents.speaker.headers: "]),
        ("human_name: Speaker", "human_name: Speaker, channel_order: [mian]", [
            "4:48: agents.speaker.channel_order: no channel 'mian'; did you mean 'main'?"]),
        ("human_name: Speaker", "human_name: Speaker, channel_order: [main, [back_room, main]]", [
            "4:48: agents.speaker.channel_order: a channel is named twice"]),
        ("human_name: Speaker", "human_name: The Speaker", [
            "4:27: agents.speaker.human_name: 'The Speaker' does not have the form ^[A-Za-z0-9_-]{1,64}$"]),
        ("name: council", "name: council\nfixed: [max_rounds]", [
            "2:9: fixed.0: no parameter 'max_rounds'; did you mean 'max_message_rounds'?"]),
        ("stance: reject", "stance: maybe", ["6:44: agents.third.stance: 'maybe' is none of accept, reject"]),
        ("sequential: true", "sequental: true", [
            "15:38: parameters.sequental: unknown key; did you mean 'sequential'?"]),
        ("name: council", "extends: debat", ["1:1: extends: no file 'debat' in"]),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_a_mistake_in_a_protocol_file_is_said_at_its_place(tmp_path, old, new, messages):
    assert old in SEVENTH
    with pytest.raises(SpecError) as caught:
        protocol_of(tmp_path, SEVENTH.replace(old, new, 1))
    found = [str(p).replace(f"{tmp_path / 'own.yaml'}:", "") for p in caught.value.problems]
    assert [text[: len(wanted)] for text, wanted in zip(found, messages, strict=True)] == messages


def test_a_header_that_is_the_start_of_another_is_refused_or_told_apart(tmp_path):
    text = DUEL.replace('one: "To one:", two: "To two:"', 'one: "To one", two: "To one or two:"')
    try:
        protocol = protocol_of(tmp_path, text)
    except SpecError:
        return
    parsed = parse_answer(protocol, "verifier", 0, "To one or two: b\nTo one a", STRICT)
    assert parsed.messages == {"one": "To one a", "two": "To one or two: b"}


def test_a_missing_agents_section_is_refused(tmp_path):
    with pytest.raises(SpecError, match="missing key"):
        protocol_of(tmp_path, "name: x\n")


def test_a_misspelt_parameter_gets_the_nearest_one():
    with pytest.raises(SpecError, match="no such parameter; did you mean 'max_message_rounds'"):
        load_protocol("nip", {"max_message_round": 3})


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("nip", {"min_message_rounds": 9}),
        ("nip", {"min_message_rounds": 8, "max_message_rounds": 8}),
        ("nip", {"max_message_rounds": 1, "verifier_first": False}),
        ("debate", {"max_message_rounds": 2, "verifier_first": False, "sequential": True}),
    ],
)
def test_a_game_in_which_no_decision_can_count_is_unplayable(name, parameters):
    assert list(unplayable(load_protocol(name, parameters), lambda _: here))
    assert not list(unplayable(load_protocol(name), lambda _: here))


def test_a_verifier_that_may_never_decide_is_unplayable(tmp_path):
    protocol = protocol_of(
        tmp_path, SEVENTH.replace("speak: {verifier: [main]}", "speak: {verifier: [main]}\n    may_decide: false")
    )
    assert [p.key for p in unplayable(protocol, lambda _: here)] == ["protocol"]


def test_no_protocol_has_python_code_of_its_own():
    source = "".join(p.read_text() for p in (ROOT / "runner" / "protocols").glob("*.py"))
    for name in ("merlin", "arthur", "debate.", "mnip", "solo_verifier"):
        assert f'"{name}' not in source.lower()


# A seventh protocol, in YAML alone


def test_a_seventh_protocol_is_played_from_yaml_alone(tmp_path):
    protocol = protocol_of(tmp_path, SEVENTH)
    assert who_speaks(protocol, 6) == [
        {"verifier"}, {"speaker"}, {"second"}, {"third"}, {"speaker"}, {"verifier"},
    ]  # fmt: skip
    assert protocol.speakers(1, 0) == {"speaker": ("back_room",)}
    assert protocol.speakers(4, 0) == {"speaker": ("main",)}

    def says(turn: Turn, name: str) -> str:
        return "Decision: accept" if (name, turn.round) == ("verifier", 10) else f"{name} {turn.round}"

    played = finished(protocol, says)
    assert played.decided
    assert len(played.rounds) == 11
    assert episode_rewards(protocol, played.rounds) == {"speaker": 1.0, "second": 1.0, "third": 0.0, "verifier": 1.0}


def test_the_verifier_never_sees_the_room_it_is_no_member_of(tmp_path):
    protocol = protocol_of(tmp_path, SEVENTH)
    played = finished(protocol, lambda turn, name: f"{turn.speakers[name][0]} {name} {turn.round}")
    for round_ in range(11):
        chat = chat_messages(protocol, "verifier", played.rounds[:round_], round_=round_, system="s")
        assert "back_room" not in str(chat)
    seen = [m["content"] for m in chat_messages(protocol, "verifier", played.rounds[:10], round_=10, system="s")]
    assert seen == ["s", "main verifier 0", "main speaker 4", "main verifier 5", "main speaker 9"]


def test_those_in_the_room_see_it_and_not_what_is_said_outside(tmp_path):
    protocol = protocol_of(tmp_path, SEVENTH)
    played = finished(protocol, lambda turn, name: f"{turn.speakers[name][0]} {name} {turn.round}")
    chat = chat_messages(protocol, "third", played.rounds[:8], round_=8, system="s")
    assert [(m["role"], m.get("name"), m["content"]) for m in chat] == [
        ("system", None, "s"),
        ("user", "Speaker", "back_room speaker 1"),
        ("user", "Second", "back_room second 2"),
        ("assistant", None, "back_room third 3"),
        ("user", "Speaker", "back_room speaker 6"),
        ("user", "Second", "back_room second 7"),
    ]
    speaker = chat_messages(protocol, "speaker", played.rounds[:6], round_=6, system="s")
    assert [m["content"] for m in speaker] == [
        "s", "main verifier 0", "back_room speaker 1", "back_room second 2", "back_room third 3", "main speaker 4",
        "main verifier 5",
    ]  # fmt: skip


def test_several_messages_in_one_channel_and_round_keep_an_order(tmp_path):
    protocol = protocol_of(tmp_path, SEVENTH, sequential=False)
    played = finished(protocol, lambda turn, name: f"{name} {turn.round}")
    chat = chat_messages(protocol, "speaker", played.rounds[:2], round_=2, system="s")
    assert [m["content"] for m in chat] == ["s", "verifier 0", "speaker 1", "second 1", "third 1"]


@pytest.mark.parametrize("name", ["debate", "debate.yaml"])
def test_a_protocol_extends_a_built_in_one(tmp_path, name):
    text = f"name: short_debate\nextends: {name}\nparameters: {{max_message_rounds: 3}}\nfixed: []\n"
    protocol = protocol_of(tmp_path, text)
    assert protocol.name == "short_debate"
    assert protocol.max_message_rounds == 3
    assert protocol.agent_names == load_protocol("debate").agent_names
    assert protocol.prover_stance_can_be_randomized


def test_a_protocol_extends_a_file_beside_it_first(tmp_path):
    (tmp_path / "debate.yaml").write_text(SEVENTH)
    assert protocol_of(tmp_path, "name: mine\nextends: debate.yaml\n").agent_names[0] == "speaker"


# Turn order


def test_the_verifier_or_the_provers_begin():
    v, p = {"verifier"}, {"prover0", "prover1"}
    assert who_speaks(load_protocol("debate"), 4) == [v, p, v, p]
    assert who_speaks(load_protocol("debate", {"verifier_first": False}), 4) == [p, v, p, v]


def test_sequential_provers_take_turns_in_either_order():
    v, a, b = {"verifier"}, {"prover0"}, {"prover1"}
    assert who_speaks(load_protocol("debate", {"sequential": True}), 6) == [v, a, b, v, a, b]
    backwards = load_protocol("debate", {"sequential": True, "prover0_first": False, "verifier_first": False})
    assert who_speaks(backwards, 6) == [b, a, v, b, a, v]


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 2**62, 2**63 - 1])
def test_merlin_and_arthur_are_drawn_by_the_parity_of_the_seed(seed):
    assert set(load_protocol("merlin_arthur").speakers(0, seed)) == {"prover1" if seed % 2 else "prover0"}
    assert set(load_protocol("merlin_arthur").speakers(1, seed)) == {"verifier"}


def test_nobody_knows_which_of_merlin_and_arthur_spoke():
    protocol = load_protocol("merlin_arthur")
    for seed in (0, 1):
        played = finished(
            protocol, lambda turn, name: "the case" if name != "verifier" else "Decision: accept", seed=seed
        )
        chat = chat_messages(protocol, "verifier", played.rounds[:1], round_=1, system="s", seed=seed)
        assert chat == [{"role": "system", "content": "s"}, {"role": "user", "content": "the case"}]


# Channel order


def _orders(seeds: range) -> list[tuple[str, ...]]:
    protocol = load_protocol("debate", {"randomize_channel_order": True})
    return [protocol.channel_order("verifier", seed) for seed in seeds]


def test_channel_order_is_shuffled_by_the_seed():
    counts = {order: _orders(range(400)).count(order) for order in set(_orders(range(400)))}
    assert len(counts) == 2
    assert min(counts.values()) > 150


def test_channel_order_is_the_files_own_without_shuffling():
    protocol = load_protocol("debate")
    assert {protocol.channel_order("verifier", seed) for seed in range(50)} == {("prover0_channel", "prover1_channel")}
    assert {protocol.channel_order("prover0", seed) for seed in range(50)} == {("prover1_channel", "prover0_channel")}


def test_shuffling_keeps_an_order_that_is_no_set():
    protocol = load_protocol("debate", {"randomize_channel_order": True})
    assert {protocol.channel_order("prover0", seed) for seed in range(50)} == {("prover1_channel", "prover0_channel")}


def test_shuffled_channels_change_the_order_of_the_chat():
    protocol = load_protocol("debate", {"randomize_channel_order": True})
    said = Round(
        raw={"prover0": "zero", "prover1": "one"},
        messages=[Message("prover0_channel", "prover0", "zero"), Message("prover1_channel", "prover1", "one")],
    )
    orders = {
        tuple(m["content"] for m in chat_messages(protocol, "verifier", [said], round_=1, system="s", seed=seed))
        for seed in range(30)
    }
    assert orders == {("s", "zero", "one"), ("s", "one", "zero")}


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_channel_order_is_the_same_in_every_process(hash_seed):
    code = "from tests.test_protocols import _orders; print(_orders(range(40)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == str(_orders(range(40)))


# Decisions and rewards


def test_a_solo_verifier_without_a_verdict_is_terminated_with_its_penalty():
    protocol = load_protocol("solo_verifier", {"verifier_terminated_penalty": -0.25})
    played = finished(protocol, undecided(protocol))
    assert (played.terminated, played.decided, len(played.rounds)) == (True, False, 2)
    assert played.decision == Decision.NONE
    assert played.rounds[1].raw == {}
    assert episode_rewards(protocol, played.rounds) == {"verifier": -0.25}


def test_a_solo_verifier_decides_in_one_round():
    played = finished(load_protocol("solo_verifier"), lambda *_: "Decision: reject", label=1)
    assert (played.decision, len(played.rounds), played.rounds[0].rewards) == (0, 1, {"verifier": -1.0})


def test_a_round_with_a_verdict_sends_no_message():
    played = finished(load_protocol("debate"), lambda *_: "Well. DECISION: ACCEPT")
    assert played.rounds[0].messages == []
    assert played.rounds[0].raw == {"verifier": "Well. DECISION: ACCEPT"}


def test_a_verdict_that_comes_too_early_is_ignored_and_earns_the_no_guess_reward():
    protocol = load_protocol("nip", {"min_message_rounds": 3, "verifier_no_guess_reward": 0.125})
    played = finished(protocol, lambda turn, name: "Decision: accept" if name == "verifier" else "x")
    assert played.decided
    assert [r.rewards["verifier"] for r in played.rounds] == [0.125, 0.0, 1.0]
    assert played.rounds[0].messages == []


@pytest.mark.parametrize("stance", [0, 1])
def test_a_random_stance_moves_the_provers_reward(stance):
    protocol = load_protocol("nip", {"randomize_prover_stance": True})
    assert protocol.stance("prover", stance) == stance
    played = finished(
        protocol, lambda *_: f"Decision: {'accept' if stance else 'reject'}", prover_stance=stance, label=1 - stance
    )
    assert played.rounds[-1].rewards == {"prover": 1.0, "verifier": -1.0}


@pytest.mark.parametrize("name", ["debate", "merlin_arthur", "solo_verifier"])
def test_a_stance_that_is_fixed_cannot_be_randomised(name):
    with pytest.raises(SpecError, match="fixes randomize_prover_stance"):
        load_protocol(name, {"randomize_prover_stance": True})


def test_shared_rewards_are_the_verifiers():
    protocol = load_protocol("debate", {"shared_reward": True})
    played = finished(protocol, lambda *_: "Decision: reject", label=1)
    assert played.rounds[0].rewards == {"prover0": -1.0, "prover1": -1.0, "verifier": -1.0}


@pytest.mark.parametrize("name", builtin_names())
def test_an_undecided_game_lasts_all_its_rounds_and_no_longer(name):
    protocol = load_protocol(name)
    played = finished(protocol, undecided(protocol))
    assert played.terminated
    assert len(played.rounds) == protocol.max_message_rounds


# Parsing


def test_an_agent_that_does_not_speak_cannot_have_spoken():
    protocol = load_protocol("nip")
    for agent, round_ in (("prover", 0), ("verifier", 1), ("verifier", 8), ("nobody", 0)):
        with pytest.raises(AgentNotActiveInChannelError):
            parse_answer(protocol, agent, round_, "text", STRICT)


def test_an_announced_decision_must_be_one_of_the_two():
    with pytest.raises(InvalidDecisionError):
        parse_answer(load_protocol("nip"), "verifier", 0, "decision: maybe", STRICT)


def test_every_channel_needs_its_header():
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
def test_the_lenient_format_forgives_marks_and_spacing_but_not_two_verdicts(text, decision):
    protocol = load_protocol("nip")
    if decision is None:
        with pytest.raises(InvalidDecisionError):
            parse_answer(protocol, "verifier", 0, text, LENIENT)
    else:
        assert parse_answer(protocol, "verifier", 0, text, LENIENT).decision == decision


# Where the original is at fault (the second table of the reference cases' README)


@pytest.mark.parametrize("verdict", [0, 1])
def test_both_provers_of_mnip_are_paid_for_their_one_stance(verdict):
    protocol = load_protocol("mnip", {"randomize_prover_stance": True})
    for stance in (0, 1):
        paid = payoff(protocol, round_=0, seed=0, label=1, prover_stance=stance, decision=verdict).rewards
        assert paid["prover0"] == paid["prover1"] == float(verdict == stance)
    fixed = payoff(load_protocol("mnip"), round_=0, seed=0, label=1, prover_stance=0, decision=verdict).rewards
    assert fixed["prover0"] == fixed["prover1"] == float(verdict == 1)


@pytest.mark.parametrize(("force", "label", "verdict"), [("zero", 1, 0), ("one", 0, 1), ("y", 0, 0), ("y", 1, 1)])
def test_a_forced_decision_is_the_decision_and_is_scored(force, label, verdict):
    protocol = load_protocol("nip", {"force_guess": force})
    for said in ("Decision: accept", "Decision: reject", "no verdict"):
        played = finished(protocol, lambda turn, name, said=said: said, label=label)
        assert played.decision == verdict
        assert played.rounds[-1].decision == verdict
        assert played.rounds[-1].rewards == {
            "verifier": 1.0 if verdict == label else -1.0, "prover": float(verdict == 1),
        }  # fmt: skip


def test_a_history_goes_on_after_a_silent_round():
    protocol = load_protocol("nip", {"max_message_rounds": 6})
    rounds = [
        Round(raw={"verifier": "q0"}, messages=[Message("main", "verifier", "q0")]),
        Round(),
        Round(raw={"verifier": "Decision: accept"}),
        Round(raw={"prover": "p3"}, messages=[Message("main", "prover", "p3")]),
    ]
    chat = chat_messages(protocol, "verifier", rounds, round_=4, system="s")
    assert [m["content"] for m in chat] == ["s", "q0", "Decision: accept", "p3"]


def test_a_provers_text_is_a_message_whatever_it_says():
    for text in ("Decision: reject", "decision: perhaps", "Decision: accept"):
        parsed = parse_answer(load_protocol("nip"), "prover", 1, text, STRICT)
        assert parsed == parse_answer(load_protocol("nip"), "prover", 1, text, LENIENT)
        assert (parsed.decision, parsed.messages) == (Decision.NONE, {"main": text})


def test_offsets_are_those_of_the_text_itself():
    text = "İİİİİ aside QUESTION FOR EXPERT_1: İs it?\nquestion for Expert_2: İt ends so İ"
    parsed = parse_answer(load_protocol("debate"), "verifier", 0, text, STRICT)
    assert parsed.messages == {
        "prover0_channel": "QUESTION FOR EXPERT_1: İs it?",
        "prover1_channel": "question for Expert_2: İt ends so İ",
    }


def test_a_header_with_a_letter_that_grows_is_found(tmp_path):
    protocol = protocol_of(tmp_path, DUEL.replace("To one:", "İlk:"))
    parsed = parse_answer(protocol, "verifier", 0, "x İlk: a\nTO TWO: b", STRICT)
    assert parsed.messages == {"one": "İlk: a", "two": "TO TWO: b"}


def _agent(protocol: Protocol, name: str, attempts: int) -> OpenAiWholeAgent:
    experiment = build(
        Experiment,
        {
            "name": "t",
            "dataset": {"path": "none"},
            "protocol": {"use": protocol.name},
            "prompts": "none",
            "models": {"m": {"provider": "dummy"}},
            "agents": {agent: {"model": "m"} for agent in protocol.agent_names},
            "retry": {"invalid_response": {"attempts": attempts, "then": "empty_message"}},
        },
    )
    prompts = PromptSet(dict.fromkeys(protocol.agent_names, "s"))
    return OpenAiWholeAgent(experiment, AgentRuntime(prompts), name, protocol)


def test_an_empty_message_fills_only_the_channels_in_which_the_agent_speaks(tmp_path):
    protocol = protocol_of(tmp_path, DUEL)
    calls = []

    async def nonsense(request: Request) -> Completion:
        calls.append(request)
        return Completion((Choice(f"nonsense {len(calls)}", "stop"),), "scripted")

    agent = _agent(protocol, "verifier", attempts=3)
    reply = asyncio.run(agent.respond(Position(0, (), {}), nonsense))
    assert reply == Reply("nonsense 3", {"one": "", "two": ""}, Decision.NONE, retry_count=3)
    assert len(calls) == 3


def test_mnip_keeps_its_own_round_limits():
    protocol = load_protocol("mnip", {"max_message_rounds": 3, "min_message_rounds": 3})
    assert len(finished(protocol, undecided(protocol)).rounds) == 3
    decides = finished(
        protocol, lambda turn, name: "Decision: accept" if name == "verifier" else undecided(protocol)(turn, name)
    )
    assert (len(decides.rounds), decides.decided) == (3, True)


VARIANTS = ({}, {"verifier_first": False}, {"sequential": True}, {"max_message_rounds": 5})
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
def test_a_parameter_that_the_protocol_fixes_is_refused_by_its_name(name, parameters, fixes):
    (parameter,) = parameters
    with pytest.raises(SpecError) as caught:
        load_protocol(name, parameters)
    assert [(problem.key, problem.message) for problem in caught.value.problems] == [
        (f"protocol.{parameter}", f"{name} fixes {fixes}; leave it out")
    ]


@pytest.mark.parametrize(("name", "parameters"), ALLOWED)
def test_the_number_of_questions_is_the_number_of_rounds_in_which_the_verifier_speaks(name, parameters):
    protocol = load_protocol(name, parameters)
    speaks = ["verifier" in protocol.can_be_active(i) for i in range(protocol.max_message_rounds)]
    assert protocol.max_verifier_questions == sum(speaks)
    for round_ in range(protocol.max_message_rounds):
        assert protocol.questions_left(round_) == sum(speaks[round_:])


@pytest.mark.parametrize("name", builtin_names())
def test_a_finished_game_has_one_entry_a_round_and_the_last_is_not_missing(name):
    protocol = load_protocol(name)
    played = finished(protocol, undecided(protocol), seed=1)
    assert [set(r.raw) for r in played.rounds] == who_speaks(protocol, protocol.max_message_rounds, seed=1)
    assert all(len(r.messages) == sum(map(len, protocol.speakers(i, 1).values())) for i, r in enumerate(played.rounds))


def test_a_game_that_was_begun_goes_on_as_it_would_have():
    protocol = load_protocol("debate", {"sequential": True})
    whole = finished(protocol, undecided(protocol), seed=3)
    game = play(protocol, seed=3, label=1, prover_stance=1, rounds=whole.rounds[:5])
    assert next(game).round == 5
