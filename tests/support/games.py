"""Protocols for tests, and games that are played by a function instead of models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.documents.dataclass_schema import from_plain
from runner.game.prompts.templates import PromptSet
from runner.game.protocols.answer_parser import DecisionFormat, parse_answer
from runner.game.protocols.loader import builtin_names, load_protocol
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import FinishedGame, PendingTurn, Reply, play
from runner.game.protocols.statements import Statement
from runner.rollouts.agents.whole_agent import AgentRuntime, OpenAiWholeAgent
from runner.spec.experiment import Experiment
from tests.support.paths import ROOT

ABOUT_CODE = [name for name in builtin_names() if (ROOT / "prompts" / "code_validation" / name).is_dir()]
"""The built-in protocols with prompts about programs."""

ONE_VERIFIER = [name for name in ABOUT_CODE if load_protocol(name).file.panel is None]
"""The built-in protocols without a panel."""

STATED = {"answer": "\nAnswer: 7", "claims": "\nClaim 1: a\nClaim 2: b", "estimates": "\nClaim 1: 60%\nClaim 2: 0.4"}
"""Texts that state what a step of a protocol requires."""

STRICT = DecisionFormat()
LENIENT = DecisionFormat(lenient=True)

COUNCIL = """\
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


def load_protocol_text(folder: Path, text: str, **parameters: object) -> Protocol:
    (folder / "own.yaml").write_text(text)
    return load_protocol("own.yaml", parameters, folder=folder)


def play_game(
    protocol: Protocol,
    says: Callable[[PendingTurn, str], str],
    *,
    seed: int = 0,
    label: int = 1,
    prover_stance: int = 1,
) -> FinishedGame:
    """Play a game. `says` returns the text of each speaker."""
    game = play(protocol, seed=seed, label=label, prover_stance=prover_stance)
    try:
        turn = next(game)
        while True:
            replies = {}
            for name in turn.speakers:
                text = says(turn, name)
                parsed = parse_answer(protocol, name, turn.round, text, STRICT)
                statement = Statement(parsed.texts) if parsed.texts else None
                replies[name] = Reply(
                    text, parsed.messages, parsed.decision, statement=statement, estimates=parsed.estimates
                )
            turn = game.send(replies)
    except StopIteration as end:
        game_result: FinishedGame = end.value
        return game_result


def make_undecided_speaker(protocol: Protocol) -> Callable[[PendingTurn, str], str]:
    def speak(turn: PendingTurn, name: str) -> str:
        headers = protocol.agent_spec(name).headers
        channels = turn.speakers[name]
        text = f"{name} in round {turn.round}"
        if protocol.agent_spec(name).stance == "open":
            text = f"Answer: A\n{text}"
        text += STATED.get(protocol.step(turn.round).states or "", "")
        return text if len(channels) == 1 else "\n".join(f"{headers[c]} {text}" for c in channels)

    return speak


def list_speakers(protocol: Protocol, rounds: int, seed: int = 0) -> list[set[str]]:
    return [set(protocol.speakers(i, seed)) for i in range(rounds)]


def make_agent(
    protocol: Protocol, name: str, attempts: int, *, handler: Any = None, **parameters: object
) -> OpenAiWholeAgent:
    """Build an agent of a spec that plays a protocol with these parameters.

    The agent gets `handler` instead of `protocol` if it is given.
    """
    experiment = from_plain(
        Experiment,
        {
            "name": "t",
            "dataset": {"path": "none"},
            "protocol": {"use": protocol.name, **parameters},
            "prompts": "none",
            "models": {"m": {"provider": "dummy"}},
            "agents": {agent: {"model": "m"} for agent in protocol.agent_names},
            "retry": {"invalid_response": {"attempts": attempts, "then": "empty_message"}},
        },
    )
    prompts = PromptSet(dict.fromkeys(protocol.agent_names, "s"))
    return OpenAiWholeAgent(experiment, AgentRuntime(prompts), name, protocol if handler is None else handler)
