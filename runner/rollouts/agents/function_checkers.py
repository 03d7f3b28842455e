"""Labels of answers and sub-claims by a Python function (`dataset.checker` of the spec with `by: function`).

Each label is the result of an ordinary call, whose sample has the name `AGENT.checker` instead of the agent's, and the
index of the sub-claim instead of the vote's. So the journal has the labels, and reading a run executes no function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import fields, replace

from runner.base.errors import InvalidResponseError
from runner.base.value_class import value_class
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Reply
from runner.game.protocols.statements import Statement
from runner.models.interface import Choice, Completion, Request, ResponseHint, SampleKey
from runner.rollouts.agents.agent import Agent, AgentRuntime, Observation
from runner.spec.experiment import Experiment


@value_class(frozen=True)
class CheckedText(Observation):
    """The state of a game when a checker labels an answer or a sub-claim."""

    text: str = ""


class FunctionChecker(Agent):
    """Labels what one prover states. It sees the datapoint and the stated text, and calls no model."""

    def __init__(self, hyper_params: Experiment, settings: AgentRuntime, speaker: str, protocol: Protocol) -> None:
        super().__init__(hyper_params, settings, speaker, protocol)
        self.is_verifier = self.is_prover = False

    def observations(self, observation: Observation, statement: Statement) -> list[CheckedText]:
        """Return an observation for each text to label."""
        shared = {field.name: getattr(observation, field.name) for field in fields(Observation)}
        return [CheckedText(**shared, text=text) for text in statement.texts]

    def example_observation(self, observation: Observation) -> Observation:
        """Return an observation of an empty text."""
        return self.observations(observation, Statement(("",)))[0]

    def prompt(self, observation: Observation) -> list[ChatMessage]:
        """Return the arguments of the function as JSON in a chat message."""
        assert isinstance(observation, CheckedText)
        arguments = {"text": observation.text, "columns": dict(observation.columns)}
        return [{"role": "user", "content": json.dumps(arguments, default=str)}]

    def request(self, observation: Observation, messages: Sequence[ChatMessage], sample: SampleKey) -> Request:
        """Return the request for a label."""
        return Request(self.model_group, messages, sample, observation.seed, ResponseHint(number=("Label:", 1)))

    def read_answers(self, observation: Observation, vote: int = 0) -> Generator[SampleKey, Completion, Reply]:
        """Read the label, which is the reply's score, as a generator without I/O; see `Agent.read_answers`."""
        game = observation.datapoint, observation.repeat
        completion = yield SampleKey(*game, observation.round, checker_name(self.agent_name), 0, vote)
        return Reply("", None, score=_read_label(completion.choices[0]))

    def with_labels(self, reply: Reply, labels: Sequence[Reply]) -> Reply:
        """Return a reply whose statement has these labels."""
        assert reply.statement is not None
        statement = replace(reply.statement, labels=tuple(int(label.score or 0) for label in labels))
        return replace(reply, statement=statement)

    def unusable_reason(self, choice: Choice, round_: int, answer_count: int | None = None) -> str | None:  # noqa: ARG002
        """Return None, because a function's result is usable or the call fails."""
        return None


def _read_label(choice: Choice) -> int:
    match = re.search(r"Label: ([01])\Z", choice.text or "")
    if match is None:
        raise InvalidResponseError(f"a checker's answer ends with 'Label: 0' or 'Label: 1', not {choice.text!r}")
    return int(match[1])


def checker_name(speaker: str) -> str:
    """Return the name, in samples and tables, of the checker that labels what an agent states."""
    return f"{speaker}.checker"


def find_checker(agents: Mapping[str, Agent], speaker: str, reply: Reply) -> FunctionChecker | None:
    """Return the checker that labels what a reply states; None if no function labels it."""
    checker = agents.get(checker_name(speaker)) if reply.statement is not None else None
    return checker if isinstance(checker, FunctionChecker) else None
