"""Alternating chats of every protocol, agent and round have the form that chat templates require."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from runner.base.errors import SpecError
from runner.base.problems import Place
from runner.game.prompts.chat import ChatMessage, chat_messages
from runner.game.prompts.chat_format import INSTRUCTIONS, NOTHING_NEW, format_chat, with_alternating_roles
from runner.game.protocols.loader import builtin_names, load_protocol, unplayable_parameters
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Round
from tests.support.games import COUNCIL, DUEL, load_protocol_text, make_undecided_speaker, play_game

SYSTEM_TEXT, LAST_ROUND_TEXT = "You play this game.", "This is the last round."

PROTOCOL_WITH_SILENT_ROUNDS = """\
name: silent
agents:
  prover0: {role: prover, human_name: Expert_1, anonymous: true}
  prover1: {role: prover, human_name: Expert_2, anonymous: true}
  verifier: {role: verifier, human_name: Verifier, last_round_message: true}
channels:
  main: {members: [prover0, prover1, verifier]}
  notes: {members: [verifier]}
cycle:
  - speak: {verifier: [notes]}
  - speak: {verifier: [notes]}
  - speak: {prover0: [main], prover1: [main]}
  - speak: {}
  - speak: {verifier: [main]}
parameters: {max_message_rounds: 10}
"""
"""A verifier that speaks to itself twice in a row, two provers that speak at once, and a round without speakers."""


def make_message(role: str, content: str, name: str | None = None) -> ChatMessage:
    message: ChatMessage = {"role": role, "content": content}
    return message if name is None else {**message, "name": name}


def make_random_protocol(folder: Path, number: int) -> Protocol | None:
    """Return a random protocol, or None if it is invalid or unplayable."""
    rng = random.Random(number)
    provers = [f"prover{i}" for i in range(rng.randint(1, 3))]
    names = [*provers, "verifier"]
    agents = {
        name: {"role": "prover", "human_name": f"Expert_{i}", "anonymous": rng.random() < 0.4}
        for i, name in enumerate(provers)
    }
    agents["verifier"] = {"role": "verifier", "human_name": "Verifier", "last_round_message": rng.random() < 0.5}
    channels = {
        f"c{i}": {"members": [n for n in names if rng.random() < 0.7] or ["verifier"]} for i in range(rng.randint(1, 3))
    }
    cycle = []
    for _ in range(rng.randint(1, 4)):
        speak = {}
        for name in names:
            joinable = [channel for channel, channel_spec in channels.items() if name in channel_spec["members"]]
            if joinable and rng.random() < 0.5:
                speak[name] = [rng.choice(joinable)]
        cycle.append({"speak": speak})
    document = {
        "name": "drawn", "agents": agents, "channels": channels, "cycle": cycle,
        "parameters": {"max_message_rounds": rng.randint(2, 9)},
    }  # fmt: skip
    try:
        protocol = load_protocol_text(folder, yaml.safe_dump(document, sort_keys=False))
    except SpecError:
        return None
    return None if list(unplayable_parameters(protocol, Place)) else protocol


def build_chat(protocol: Protocol, agent: str, rounds: list[Round], round_: int, seed: int) -> list[ChatMessage]:
    return chat_messages(
        protocol, agent, rounds, round_=round_, system=SYSTEM_TEXT, last_round=LAST_ROUND_TEXT, seed=seed
    )


def prompts_with_rounds(
    protocol: Protocol, agent: str, rounds: list[Round], seed: int
) -> Iterator[tuple[int, list[ChatMessage]]]:
    """Yield the rounds of the agent, each with its prompt."""
    for round_, round_of_game in enumerate(rounds):
        if agent in round_of_game.raw:
            yield round_, build_chat(protocol, agent, rounds[:round_], round_, seed)


def assert_chats_alternate(protocol: Protocol, seed: int) -> int:
    """Check every chat of a game with both forms of instructions, and return the number of chats."""
    rounds = list(play_game(protocol, make_undecided_speaker(protocol), seed=seed).rounds)
    count = 0
    for agent in protocol.agent_names:
        for instructions in ("system", "user"):
            earlier: list[ChatMessage] = []
            for round_, plain in prompts_with_rounds(protocol, agent, rounds, seed):
                chat = format_chat(plain, "alternating", instructions=instructions, asks=True)
                context = f"{protocol.name}, {agent} in round {round_}: {chat}"
                roles = [message["role"] for message in chat]
                turns = roles[1:] if roles[0] == "system" else roles
                assert turns == ["user" if i % 2 == 0 else "assistant" for i in range(len(turns))], context
                assert turns[-1] == "user", context
                assert roles[0] == "user" or instructions == "system", context
                assert all(message.keys() == {"role", "content"} for message in chat), context
                position, text = 0, "\n\n".join(message["content"] for message in chat)
                for index, message in enumerate(plain):
                    expected_text = (
                        f"{message['name']}: {message['content']}" if "name" in message else message["content"]
                    )
                    if index and message["role"] == "system":
                        expected_text = INSTRUCTIONS + expected_text
                    position = text.index(expected_text, position) + len(expected_text)
                assert chat[: len(earlier)] == earlier, context
                earlier = [*chat, make_message("assistant", rounds[round_].raw[agent])]
                count += 1
            last = protocol.max_message_rounds - 1
            final_chat = format_chat(
                build_chat(protocol, agent, rounds, last, seed), "alternating", instructions=instructions
            )
            assert final_chat[: len(earlier)] == earlier, f"{protocol.name}, {agent}: {final_chat}"
    return count


PROTOCOLS_WITHOUT_NOTES = [
    name for name in builtin_names() if not any(agent.scratchpad for agent in load_protocol(name).file.agents.values())
]


@pytest.mark.parametrize("name", PROTOCOLS_WITHOUT_NOTES)
def test_chats_of_built_in_protocols_alternate_and_extend_earlier_chats(name: str) -> None:
    assert sum(assert_chats_alternate(load_protocol(name), seed) for seed in range(4)) >= 8


@pytest.mark.parametrize("text", [COUNCIL, DUEL, PROTOCOL_WITH_SILENT_ROUNDS], ids=["council", "duel", "silent"])
def test_chats_of_custom_protocols_alternate_and_extend_earlier_chats(tmp_path: Path, text: str) -> None:
    assert sum(assert_chats_alternate(load_protocol_text(tmp_path, text), seed) for seed in range(4)) >= 8


@pytest.mark.parametrize("start", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(20, 600, 20))])
def test_chats_of_random_protocols_alternate_and_extend_earlier_chats(tmp_path: Path, start: int) -> None:
    protocols = [
        protocol for n in range(start, start + 20) if (protocol := make_random_protocol(tmp_path, n)) is not None
    ]
    assert len(protocols) >= 10
    assert sum(assert_chats_alternate(protocol, seed) for protocol in protocols for seed in range(2)) > 100


def test_openai_format_leaves_the_chat_unchanged() -> None:
    chat = [make_message("system", SYSTEM_TEXT), make_message("user", "No.", "Expert_1")]
    assert format_chat(chat, "openai", instructions="user", asks=True) is chat


def test_agent_that_speaks_twice_has_two_turns() -> None:
    chat = [make_message("system", SYSTEM_TEXT), make_message("assistant", "One."), make_message("assistant", "Two.")]
    first, placeholder, second = (
        make_message("assistant", "One."),
        make_message("user", NOTHING_NEW),
        make_message("assistant", "Two."),
    )
    assert format_chat(chat, "alternating") == [make_message("user", SYSTEM_TEXT), first, placeholder, second]
    assert format_chat(chat[:2], "alternating", asks=True) == [make_message("user", SYSTEM_TEXT), first, placeholder]


def test_message_without_a_sender_is_labeled_anonymous_after_another_message() -> None:
    chat = [
        make_message("system", SYSTEM_TEXT),
        make_message("user", "No.", "Expert_1"),
        make_message("user", "Yes."),
        make_message("system", LAST_ROUND_TEXT),
    ]
    assert with_alternating_roles(chat) == [
        make_message("system", SYSTEM_TEXT),
        make_message("user", f"Expert_1: No.\n\nAnonymous: Yes.\n\n{INSTRUCTIONS}{LAST_ROUND_TEXT}"),
    ]
    merged = format_chat([chat[0], chat[2]], "alternating", instructions="user")
    assert merged == [make_message("user", f"{SYSTEM_TEXT}\n\nAnonymous: Yes.")]
    assert with_alternating_roles([chat[0], chat[2]])[1] == make_message("user", "Yes.")


def test_message_that_begins_with_its_senders_name_is_not_prefixed_again() -> None:
    prefixed_with_own_name, prefixed_with_another_name = (
        make_message("user", "Expert_1: No.", "Expert_1"),
        make_message("user", "Expert_1: Yes.", "Expert_2"),
    )
    assert with_alternating_roles(
        [make_message("system", SYSTEM_TEXT), prefixed_with_own_name, prefixed_with_another_name]
    )[1] == make_message("user", "Expert_1: No.\n\nExpert_2: Expert_1: Yes.")


def test_alternating_chat_is_unchanged() -> None:
    chat = with_alternating_roles(
        [make_message("system", SYSTEM_TEXT), make_message("user", "No.", "A"), make_message("user", "Yes.", "B")]
    )
    assert with_alternating_roles(chat) == chat
    assert all(first["role"] != second["role"] for first, second in pairwise(chat))
