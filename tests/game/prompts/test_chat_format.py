"""An alternating chat: of any protocol, for any agent, in any round, it is one that chat templates take."""

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

SYSTEM, LAST = "You play this game.", "This is the last round."

SILENT = """\
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
"""A verifier that speaks to itself twice in a row, two provers whose texts meet, a round of nobody's."""


def make_message(role: str, content: str, name: str | None = None) -> ChatMessage:
    message: ChatMessage = {"role": role, "content": content}
    return message if name is None else {**message, "name": name}


def drawn_protocol(folder: Path, number: int) -> Protocol | None:
    """A protocol drawn by lot; None where it is one that nobody may play."""
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
            own = [channel for channel, of in channels.items() if name in of["members"]]
            if own and rng.random() < 0.5:
                speak[name] = [rng.choice(own)]
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


def chat_of(protocol: Protocol, agent: str, rounds: list[Round], round_: int, seed: int) -> list[ChatMessage]:
    return chat_messages(protocol, agent, rounds, round_=round_, system=SYSTEM, last_round=LAST, seed=seed)


def prompts(protocol: Protocol, agent: str, played: list[Round], seed: int) -> Iterator[tuple[int, list[ChatMessage]]]:
    """What an agent was asked with, each with its round."""
    for round_, of in enumerate(played):
        if agent in of.raw:
            yield round_, chat_of(protocol, agent, played[:round_], round_, seed)


def check(protocol: Protocol, seed: int) -> int:
    """See that every chat of a game is right in both forms; how many there were."""
    played = list(play_game(protocol, make_undecided_speaker(protocol), seed=seed).rounds)
    count = 0
    for agent in protocol.agent_names:
        for instructions in ("system", "user"):
            earlier: list[ChatMessage] = []
            for round_, plain in prompts(protocol, agent, played, seed):
                chat = format_chat(plain, "alternating", instructions=instructions, asks=True)
                told = f"{protocol.name}, {agent} in round {round_}: {chat}"
                roles = [message["role"] for message in chat]
                turns = roles[1:] if roles[0] == "system" else roles
                assert turns == ["user" if i % 2 == 0 else "assistant" for i in range(len(turns))], told
                assert turns[-1] == "user", told
                assert roles[0] == "user" or instructions == "system", told
                assert all(message.keys() == {"role", "content"} for message in chat), told
                at, text = 0, "\n\n".join(message["content"] for message in chat)
                for index, message in enumerate(plain):
                    whole = f"{message['name']}: {message['content']}" if "name" in message else message["content"]
                    if index and message["role"] == "system":
                        whole = INSTRUCTIONS + whole
                    at = text.index(whole, at) + len(whole)
                assert chat[: len(earlier)] == earlier, told
                earlier = [*chat, make_message("assistant", played[round_].raw[agent])]
                count += 1
            last = protocol.max_message_rounds - 1
            end = format_chat(chat_of(protocol, agent, played, last, seed), "alternating", instructions=instructions)
            assert end[: len(earlier)] == earlier, f"{protocol.name}, {agent}: {end}"
    return count


WITHOUT_NOTES = [
    name for name in builtin_names() if not any(agent.scratchpad for agent in load_protocol(name).file.agents.values())
]


@pytest.mark.parametrize("name", WITHOUT_NOTES)
def test_every_chat_of_a_protocol_alternates_and_begins_with_the_earlier_ones(name: str) -> None:
    assert sum(check(load_protocol(name), seed) for seed in range(4)) >= 8


@pytest.mark.parametrize("text", [COUNCIL, DUEL, SILENT], ids=["council", "duel", "silent"])
def test_so_does_every_chat_of_ones_own_protocol(tmp_path: Path, text: str) -> None:
    assert sum(check(load_protocol_text(tmp_path, text), seed) for seed in range(4)) >= 8


@pytest.mark.parametrize("start", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(20, 600, 20))])
def test_and_of_protocols_drawn_by_lot(tmp_path: Path, start: int) -> None:
    drawn = [found for n in range(start, start + 20) if (found := drawn_protocol(tmp_path, n)) is not None]
    assert len(drawn) >= 10
    assert sum(check(protocol, seed) for protocol in drawn for seed in range(2)) > 100


def test_an_openai_chat_is_the_one_that_was_given() -> None:
    chat = [make_message("system", SYSTEM), make_message("user", "No.", "Expert_1")]
    assert format_chat(chat, "openai", instructions="user", asks=True) is chat


def test_an_agent_that_speaks_twice_has_two_turns() -> None:
    chat = [make_message("system", SYSTEM), make_message("assistant", "One."), make_message("assistant", "Two.")]
    one, pause, two = (
        make_message("assistant", "One."),
        make_message("user", NOTHING_NEW),
        make_message("assistant", "Two."),
    )
    assert format_chat(chat, "alternating") == [make_message("user", SYSTEM), one, pause, two]
    assert format_chat(chat[:2], "alternating", asks=True) == [make_message("user", SYSTEM), one, pause]


def test_a_text_without_a_sender_is_not_read_as_part_of_what_stands_before_it() -> None:
    chat = [
        make_message("system", SYSTEM),
        make_message("user", "No.", "Expert_1"),
        make_message("user", "Yes."),
        make_message("system", LAST),
    ]
    assert with_alternating_roles(chat) == [
        make_message("system", SYSTEM),
        make_message("user", f"Expert_1: No.\n\nAnonymous: Yes.\n\n{INSTRUCTIONS}{LAST}"),
    ]
    joined = format_chat([chat[0], chat[2]], "alternating", instructions="user")
    assert joined == [make_message("user", f"{SYSTEM}\n\nAnonymous: Yes.")]
    assert with_alternating_roles([chat[0], chat[2]])[1] == make_message("user", "Yes.")


def test_a_text_that_begins_with_its_sender_has_it_once() -> None:
    own, other = make_message("user", "Expert_1: No.", "Expert_1"), make_message("user", "Expert_1: Yes.", "Expert_2")
    assert with_alternating_roles([make_message("system", SYSTEM), own, other])[1] == make_message(
        "user", "Expert_1: No.\n\nExpert_2: Expert_1: Yes."
    )


def test_what_alternates_stays_as_it_is() -> None:
    chat = with_alternating_roles(
        [make_message("system", SYSTEM), make_message("user", "No.", "A"), make_message("user", "Yes.", "B")]
    )
    assert with_alternating_roles(chat) == chat
    assert all(one["role"] != two["role"] for one, two in pairwise(chat))
