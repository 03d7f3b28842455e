"""Protocols of one's own, and whole games played by a function that says what everyone says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.documents.dataclass_schema import from_plain
from runner.game.prompts.templates import PromptSet
from runner.game.protocols.answer_parser import DecisionFormat, parse_answer
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import FinishedGame, PendingTurn, Reply, play
from runner.rollouts.agents.whole_agent import AgentRuntime, OpenAiWholeAgent
from runner.spec.experiment import Experiment

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
    says: Callable[[PendingTurn, str], str],
    *,
    seed: int = 0,
    label: int = 1,
    prover_stance: int = 1,
) -> FinishedGame:
    """A whole game in which each speaker says what `says` has it say."""
    game = play(protocol, seed=seed, label=label, prover_stance=prover_stance)
    try:
        turn = next(game)
        while True:
            replies = {}
            for name in turn.speakers:
                text = says(turn, name)
                parsed = parse_answer(protocol, name, turn.round, text, STRICT)
                replies[name] = Reply(text, parsed.messages, parsed.decision)
            turn = game.send(replies)
    except StopIteration as end:
        played: FinishedGame = end.value
        return played


def undecided(protocol: Protocol) -> Callable[[PendingTurn, str], str]:
    def says(turn: PendingTurn, name: str) -> str:
        headers = protocol.agent_spec(name).headers
        channels = turn.speakers[name]
        own = f"{name} in round {turn.round}"
        return own if len(channels) == 1 else "\n".join(f"{headers[c]} {own}" for c in channels)

    return says


def who_speaks(protocol: Protocol, rounds: int, seed: int = 0) -> list[set[str]]:
    return [set(protocol.speakers(i, seed)) for i in range(rounds)]


def bare_agent(
    protocol: Protocol, name: str, attempts: int, *, handler: Any = None, **said: object
) -> OpenAiWholeAgent:
    """An agent of a spec that plays this protocol with what is `said` of it; it is given this one, or a `handler`."""
    experiment = from_plain(
        Experiment,
        {
            "name": "t",
            "dataset": {"path": "none"},
            "protocol": {"use": protocol.name, **said},
            "prompts": "none",
            "models": {"m": {"provider": "dummy"}},
            "agents": {agent: {"model": "m"} for agent in protocol.agent_names},
            "retry": {"invalid_response": {"attempts": attempts, "then": "empty_message"}},
        },
    )
    prompts = PromptSet(dict.fromkeys(protocol.agent_names, "s"))
    return OpenAiWholeAgent(experiment, AgentRuntime(prompts), name, protocol if handler is None else handler)
