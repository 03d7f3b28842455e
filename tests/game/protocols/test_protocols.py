"""Protocol files: mistakes are reported, and custom protocols need only YAML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.base.errors import SpecError
from runner.base.problems import Place
from runner.game.prompts.chat import chat_messages
from runner.game.protocols.loader import load_protocol, unplayable_parameters
from runner.game.protocols.rounds import PendingTurn, episode_rewards
from tests.support.games import COUNCIL, DUEL, list_speakers, load_protocol_text, play_game
from tests.support.paths import ROOT


def make_place(key: str) -> Place:
    return Place(key)


def test_whole_number_may_be_written_with_a_decimal_point_or_an_exponent() -> None:
    protocol = load_protocol("nip", {"max_message_rounds": 1e1, "min_message_rounds": 3.0})
    assert (repr(protocol.max_message_rounds), repr(protocol.min_message_rounds)) == ("10", "3")


# Mistakes in a protocol file


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        ("name: council", "name: Council", ["1:1: name: 'Council' does not have the form: lower-case letters, "]),
        ("role: verifier", "role: prover", ["3:1: agents: exactly one agent must be the verifier; here none is"]),
        ("role: prover, human_name: Second", "role: verifier, human_name: Second", [
            ("3:1: agents: exactly one agent must be the verifier; here second, verifier are; add "
             "panel: {rule: majority}, or remove some")]),
        ("members: [speaker, verifier]", "members: [speaker, verifer]", [
            "9:29: channels.main.members.1: no agent 'verifer'; did you mean 'verifier'?",
            ("12:13: cycle.0.speak.verifier: verifier speaks in 'main', but is not a member; "
            "add it to channels.main.members")]),
        ("verifier: [main]", "verifer: [main]", [
            "12:13: cycle.0.speak.verifer: no agent 'verifer'; did you mean 'verifier'?"]),
        ("verifier: [main]", "verifier: [back_room]", [
            ("12:13: cycle.0.speak.verifier: verifier speaks in 'back_room', but is not a member; "
            "add it to channels.back_room.members")]),
        ("verifier: [main]", "verifier: [mian]", [
            "12:13: cycle.0.speak.verifier: no channel 'mian'; did you mean 'main'?"]),
        ("verifier: [main]", "verifier: []", [
            "12:13: cycle.0.speak.verifier: a speaker needs at least one channel; add one"]),
        ("speaker: [main]}", "speaker: [main, back_room]}", [
            ("4:3: agents.speaker.headers: speaker speaks in 2 channels at once and has no header for 'back_room'; "
            "add one"),
            "4:3: agents.speaker.headers: speaker speaks in 2 channels at once and has no header for 'main'; add one"]),
        ("human_name: Speaker", "human_name: Speaker, headers: {mian: 'X:'}", [
            "4:48: agents.speaker.headers: no channel 'mian'; did you mean 'main'?"]),
        ("human_name: Speaker", "human_name: Speaker, headers: {main: 'X:', back_room: ' '}", [
            "4:48: agents.speaker.headers: a header is blank; write the text that starts the message"]),
        ("human_name: Speaker", "human_name: Speaker, headers: {main: 'X:', back_room: 'x:'}", [
            "4:48: agents.speaker.headers: "]),
        ("human_name: Speaker", "human_name: Speaker, channel_order: [mian]", [
            "4:48: agents.speaker.channel_order: no channel 'mian'; did you mean 'main'?"]),
        ("human_name: Speaker", "human_name: Speaker, channel_order: [main, [back_room, main]]", [
            "4:48: agents.speaker.channel_order: a channel is listed twice; remove one"]),
        ("human_name: Speaker", "human_name: The Speaker", [
            "4:27: agents.speaker.human_name: 'The Speaker' does not have the form: 1 to 64 letters, "]),
        ("name: council", "name: council\nfixed: [max_rounds]", [
            "2:9: fixed.0: no parameter 'max_rounds'; did you mean 'max_message_rounds'?"]),
        ("stance: reject", "stance: maybe", ["6:44: agents.third.stance: 'maybe' is not one of accept, reject"]),
        ("sequential: true", "sequental: true", [
            "15:38: parameters.sequental: unknown key; did you mean 'sequential'?"]),
        ("name: council", "extends: debat", ["1:1: extends: no file 'debat' in"]),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_mistake_in_a_protocol_file_is_reported_at_its_position(
    tmp_path: Path, old: str, new: str, messages: list[str]
) -> None:
    assert old in COUNCIL
    with pytest.raises(SpecError) as caught:
        load_protocol_text(tmp_path, COUNCIL.replace(old, new, 1))
    problem_texts = [str(p).replace(f"{tmp_path / 'own.yaml'}:", "") for p in caught.value.problems]
    assert [text[: len(expected)] for text, expected in zip(problem_texts, messages, strict=True)] == messages


def test_header_that_is_part_of_another_is_refused(tmp_path: Path) -> None:
    text = DUEL.replace('one: "To one:", two: "To two:"', 'one: "To one", two: "To one or two:"')
    with pytest.raises(SpecError, match="one header is part of another"):
        load_protocol_text(tmp_path, text)


def test_missing_agents_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="missing key"):
        load_protocol_text(tmp_path, "name: x\n")


def test_error_for_missing_human_names_suggests_distinct_names(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_protocol_text(tmp_path, re.sub(r", human_name: \w+", "", COUNCIL))
    messages = {problem.key: problem.message for problem in caught.value.problems}
    assert {key: re.findall(r"human_name: (\w+)", message) for key, message in messages.items()} == {
        "agents.speaker": ["Expert_1"],
        "agents.second": ["Expert_2"],
        "agents.third": ["Expert_3"],
        "agents.verifier": ["Verifier"],
    }


def test_misspelled_parameter_suggests_the_nearest_name() -> None:
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
def test_game_in_which_no_decision_can_count_is_unplayable(name: str, parameters: dict[str, object]) -> None:
    assert list(unplayable_parameters(load_protocol(name, parameters), make_place))
    assert not list(unplayable_parameters(load_protocol(name), make_place))


def test_protocol_whose_verifier_may_never_decide_is_unplayable(tmp_path: Path) -> None:
    protocol = load_protocol_text(
        tmp_path, COUNCIL.replace("speak: {verifier: [main]}", "speak: {verifier: [main]}\n    may_decide: false")
    )
    assert [p.key for p in unplayable_parameters(protocol, make_place)] == ["protocol"]


def test_no_protocol_has_its_own_python_code() -> None:
    source = "".join(p.read_text() for p in (ROOT / "runner" / "game" / "protocols").glob("*.py"))
    for name in ("merlin", "arthur", "debate.", "mnip", "solo_verifier"):
        assert f'"{name}' not in source.lower()


# A custom protocol


def test_custom_protocol_is_played_from_yaml_alone(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, COUNCIL)
    assert list_speakers(protocol, 6) == [
        {"verifier"}, {"speaker"}, {"second"}, {"third"}, {"speaker"}, {"verifier"},
    ]  # fmt: skip
    assert protocol.speakers(1, 0) == {"speaker": ("back_room",)}
    assert protocol.speakers(4, 0) == {"speaker": ("main",)}

    def text_of_turn(turn: PendingTurn, name: str) -> str:
        return "Decision: accept" if (name, turn.round) == ("verifier", 10) else f"{name} {turn.round}"

    game = play_game(protocol, text_of_turn)
    assert game.decided
    assert len(game.rounds) == 11
    assert episode_rewards(protocol, game.rounds) == {"speaker": 1.0, "second": 1.0, "third": 0.0, "verifier": 1.0}


def test_verifier_never_sees_a_channel_it_is_not_a_member_of(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, COUNCIL)
    game = play_game(protocol, lambda turn, name: f"{turn.speakers[name][0]} {name} {turn.round}")
    for round_ in range(11):
        chat = chat_messages(protocol, "verifier", game.rounds[:round_], round_=round_, system="s")
        assert "back_room" not in str(chat)
    contents = [m["content"] for m in chat_messages(protocol, "verifier", game.rounds[:10], round_=10, system="s")]
    assert contents == ["s", "main verifier 0", "main speaker 4", "main verifier 5", "main speaker 9"]


def test_members_of_a_channel_see_its_messages_and_no_others(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, COUNCIL)
    game = play_game(protocol, lambda turn, name: f"{turn.speakers[name][0]} {name} {turn.round}")
    chat = chat_messages(protocol, "third", game.rounds[:8], round_=8, system="s")
    assert [(m["role"], m.get("name"), m["content"]) for m in chat] == [
        ("system", None, "s"),
        ("user", "Speaker", "back_room speaker 1"),
        ("user", "Second", "back_room second 2"),
        ("assistant", None, "back_room third 3"),
        ("user", "Speaker", "back_room speaker 6"),
        ("user", "Second", "back_room second 7"),
    ]
    speaker = chat_messages(protocol, "speaker", game.rounds[:6], round_=6, system="s")
    assert [m["content"] for m in speaker] == [
        "s", "main verifier 0", "back_room speaker 1", "back_room second 2", "back_room third 3", "main speaker 4",
        "main verifier 5",
    ]  # fmt: skip


def test_messages_in_one_channel_and_round_have_a_fixed_order(tmp_path: Path) -> None:
    protocol = load_protocol_text(tmp_path, COUNCIL, sequential=False)
    game = play_game(protocol, lambda turn, name: f"{name} {turn.round}")
    chat = chat_messages(protocol, "speaker", game.rounds[:2], round_=2, system="s")
    assert [m["content"] for m in chat] == ["s", "verifier 0", "speaker 1", "second 1", "third 1"]


@pytest.mark.parametrize("name", ["debate", "debate.yaml"])
def test_protocol_extends_a_built_in_protocol(tmp_path: Path, name: str) -> None:
    text = f"name: short_debate\nextends: {name}\nparameters: {{max_message_rounds: 3}}\nfixed: []\n"
    protocol = load_protocol_text(tmp_path, text)
    assert protocol.name == "short_debate"
    assert protocol.max_message_rounds == 3
    assert protocol.agent_names == load_protocol("debate").agent_names
    assert "randomize_prover_stance" not in protocol.file.fixed


def test_file_in_the_same_folder_takes_precedence_in_extends(tmp_path: Path) -> None:
    (tmp_path / "debate.yaml").write_text(COUNCIL)
    assert load_protocol_text(tmp_path, "name: mine\nextends: debate.yaml\n").agent_names[0] == "speaker"
