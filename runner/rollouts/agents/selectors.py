"""Selectors: choose one of several candidates for an agent's answer (`best_of` in a step of the protocol).

Each judgment of a selector is an ordinary call. Its sample has the name `AGENT.SELECTOR` instead of the agent's,
and the index of the candidate instead of the vote's.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Self

from runner.base.errors import GenerationError, InvalidResponseError, RunError
from runner.base.value_class import value_class
from runner.game.prompts.chat import ChatMessage, chat_messages
from runner.game.prompts.chat_format import format_chat
from runner.game.protocols.answer_parser import verdict_fork
from runner.game.protocols.protocol import Protocol, stance_word
from runner.game.protocols.rounds import Message, Reply, Round, Selection
from runner.game.protocols.schema import BestOf
from runner.models.interface import Choice, Complete, Completion, Request, ResponseHint, SampleKey
from runner.models.logprobs import p_accept
from runner.rollouts.agents.agent import Agent, AgentRuntime, Observation
from runner.rollouts.agents.function_checkers import find_checker
from runner.rollouts.agents.votes import WaitForReplies, gather_replies
from runner.spec.experiment import Experiment

MAX_SCORE = 10
"""The highest score of a critic."""

_NUMBER = {
    "preference": re.compile(r"best[\s*_]*:[\s*_]*#?(\d{1,3})(?!\d|\.\d)", re.IGNORECASE),
    "critic": re.compile(r"score[\s*_]*:[\s*_]*(\d{1,2}(?:\.\d+)?)(?!\d)", re.IGNORECASE),
    "function": re.compile(r"(\d{1,3})\Z"),
}


@value_class(frozen=True)
class Judgment(Observation):
    """The state of a game when a selector judges the candidates, or one of them."""

    speeches: Sequence[Reply] = ()
    index: int = 0
    """The index of the candidate to judge; 0 for a selector that compares all."""


class Selector(Agent):
    """Judges the candidates of one agent, the speaker. It sees what the speaker or, as a judge, the verifier sees."""

    def __init__(
        self, hyper_params: Experiment, settings: AgentRuntime, speaker: str, protocol: Protocol, best_of: BestOf
    ) -> None:
        viewer = protocol.verifier_name if best_of.by == "judge" else speaker
        super().__init__(hyper_params, settings, viewer, protocol)
        self.speaker, self.best_of = speaker, best_of
        self.sample_name = selector_name(speaker, best_of)
        self.model_group = selector_group(hyper_params, protocol, speaker, best_of)
        self.model_settings = hyper_params.models[self.model_group]
        self.is_verifier = self.is_prover = False

    @property
    def compares_all(self) -> bool:
        """Whether one answer compares all candidates; otherwise, each candidate is scored separately."""
        return self.best_of.compares_all

    def with_rule(self, best_of: BestOf) -> Self:
        """Return this selector with the rule of a step, whose number of candidates may differ."""
        if best_of == self.best_of:
            return self
        selector = copy.copy(self)
        selector.best_of = best_of
        return selector

    def judgments(self, observation: Observation, candidates: Sequence[Reply]) -> list[Judgment]:
        """Return an observation for each answer that the selection needs."""
        shared = {field.name: getattr(observation, field.name) for field in fields(Observation)}
        count = 1 if self.compares_all else len(candidates)
        return [Judgment(**shared, speeches=tuple(candidates), index=index) for index in range(count)]

    def example_observation(self, observation: Observation) -> Observation:
        """Return a judgment of empty candidates."""
        return self.judgments(observation, [Reply("", None)] * self.best_of.n)[0]

    def select(self, candidates: Sequence[Reply], answers: Sequence[Reply]) -> Reply:
        """Return the selected candidate, with the selection and the counts of all candidates.

        The first of equally good candidates wins. Candidates without a score lose. If no judgment is usable, the
        selection failed, and the first candidate is delivered.
        """
        scores = [answer.score for answer in answers]
        failed = all(score is None for score in scores)
        if self.compares_all:
            index, scores = int(scores[0] or 0), []
        else:
            index = max(range(len(scores)), key=lambda i: (scores[i] is not None, scores[i] or 0.0, -i))
        return replace(
            candidates[index],
            retry_count=sum(candidate.retry_count for candidate in candidates),
            calls=sum(candidate.calls for candidate in candidates),
            selection=Selection(index, tuple(scores), failed),
        )

    # Prompt

    def prompt(self, observation: Observation) -> list[ChatMessage]:
        """Return the chat before the speaker's turn, with the judged candidate if there is one, and the template."""
        assert isinstance(observation, Judgment)
        if self.best_of.by == "function":
            return [{"role": "user", "content": self._function_input(observation)}]
        settings, round_ = self.model_settings, observation.round
        rounds = observation.rounds if self.compares_all else [*observation.rounds, self._candidate_round(observation)]
        chat = chat_messages(
            self.protocol_handler, self.agent_name, rounds, round_=round_, seed=observation.seed,
            system=self.instructions("", observation, round_),
        )  # fmt: skip
        chat.append({"role": "system", "content": self.instructions(f".{self.best_of.by}", observation, round_)})
        return format_chat(chat, settings.resolved_chat_format, instructions=settings.system_role, asks=True)

    def _variables(self, prover_stance: int, round_: int) -> dict[str, object]:
        variables = super()._variables(prover_stance, round_)
        if self.best_of.by != "judge":
            return variables
        return variables | {"stance": stance_word(self._stance(prover_stance))}

    def _extra_variables(self, observation: Observation) -> Mapping[str, object]:
        candidates = observation.speeches if isinstance(observation, Judgment) else ()
        return {"speech_candidates": [_shown_text(candidate) for candidate in candidates]}

    def _stance(self, prover_stance: int) -> int:
        return self.protocol_handler.stance(self.speaker, prover_stance)

    def _candidate_round(self, judgment: Judgment) -> Round:
        reply = judgment.speeches[judgment.index]
        messages = [Message(channel, self.speaker, text) for channel, text in (reply.messages or {}).items()]
        return Round({self.speaker: reply.raw}, messages)

    def _function_input(self, judgment: Judgment) -> str:
        """Return the arguments of a Python function as JSON: the candidates, and what the speaker knows."""
        hidden = self.hidden_columns
        game = {
            "agent": self.speaker,
            "stance": None
            if self.protocol_handler.lists_answers
            else stance_word(self._stance(judgment.prover_stance)),
            "round": judgment.round,
            "columns": {name: value for name, value in judgment.columns.items() if name not in hidden},
        }
        candidates = [_shown_text(candidate) for candidate in judgment.speeches]
        return json.dumps({"candidates": candidates, "game": game}, default=str)

    def request(self, observation: Observation, messages: Sequence[ChatMessage], sample: SampleKey) -> Request:
        """Return the request for a judgment."""
        format_, by = self.hyper_params.decision_format, self.best_of.by
        hint = ResponseHint(number=("Best:", self.best_of.n) if by == "preference" else ("Score:", MAX_SCORE))
        if by == "judge":
            hint = ResponseHint(accept=format_.accept, reject=format_.reject, must_decide=True)
        return Request(self.model_group, messages, sample, observation.seed, hint)

    # Answer

    def read_answers(self, observation: Observation, vote: int = 0) -> Generator[SampleKey, Completion, Reply]:
        """Parse answers until one has a score, as a generator without I/O; see `Agent.read_answers`."""
        retry, game = self.hyper_params.retry, (observation.datapoint, observation.repeat)
        calls = 0
        while True:
            completion = yield SampleKey(*game, observation.round, self.sample_name, calls, vote)
            calls += 1
            for index, choice in enumerate(completion.choices or (Choice(None, None),)):
                try:
                    score = self._score(observation, completion, choice, index)
                    return Reply(choice.text or "", None, calls=calls, score=score)
                except GenerationError as error:
                    last_error = error
            if calls >= retry.invalid_response.attempts:
                return self._reply_without_score(last_error, calls)

    def _reply_without_score(self, error: GenerationError, calls: int) -> Reply:
        """Return the reply after the last allowed answer, if the retry policy lets the game continue."""
        policy = self.hyper_params.retry.invalid_response.then
        if policy == "fail_run":
            raise RunError(
                f"the run failed because the selector {self.sample_name} gave {calls} unusable answers ({error}); to "
                "continue after such answers, change retry.invalid_response.then from fail_run"
            )
        if policy == "empty_message":
            return Reply("", None, calls=calls)
        raise error.after(calls) from error

    def _score(self, observation: Observation, completion: Completion, choice: Choice, index: int) -> float:
        """Return an answer's score or, for a selector that compares all candidates, the index of the best."""
        text = self.usable_text(choice)
        if self.best_of.by != "judge":
            return self._number(text)
        probability = p_accept(completion, index, verdict_fork(text, self.hyper_params.decision_format))
        if probability.value is None:
            raise InvalidResponseError(f"the answer has no probability of the verdict: {probability.note}")
        stance = self._stance(observation.prover_stance)
        return probability.value if stance else 1 - probability.value

    def _number(self, text: str) -> float:
        """Return the last number that an answer states, as a score or as an index from 0."""
        by = self.best_of.by
        numbers = _NUMBER[by].findall(text)
        if not numbers:
            form = {"preference": "Best: NUMBER", "critic": "Score: NUMBER", "function": "a number"}[by]
            raise InvalidResponseError(f"the answer does not end with {form!r}")
        number, highest = float(numbers[-1]), MAX_SCORE if by == "critic" else self.best_of.n
        if not (0 if by == "critic" else 1) <= number <= highest:
            raise InvalidResponseError(f"the answer states {numbers[-1]}, and the highest number is {highest}")
        return number if by == "critic" else number - 1

    def unusable_reason(self, choice: Choice, round_: int, answer_count: int | None = None) -> str | None:  # noqa: ARG002
        """Return why an answer is unusable; None if it is usable. Log-probabilities are not checked here."""
        try:
            text = self.usable_text(choice)
            if self.best_of.by == "judge":
                return None if verdict_fork(text, self.hyper_params.decision_format) else "the answer has no verdict"
            self._number(text)
        except GenerationError as error:
            return str(error)
        return None

    def undecided_reason(self, choice: Choice, round_: int, answer_count: int | None = None) -> str | None:  # noqa: ARG002
        """Return None, because a selector decides no game."""
        return None


def selector_name(speaker: str, best_of: BestOf) -> str:
    """Return the name of a selector in samples and tables."""
    return f"{speaker}.{best_of.by}"


def selector_group(experiment: Experiment, protocol: Protocol, speaker: str, best_of: BestOf) -> str:
    """Return the model group that a selector calls. A Python function calls none, but its calls need a group."""
    settings = experiment.agents[speaker]
    if best_of.by == "judge":
        return experiment.agents[protocol.verifier_name].model
    return settings.model if settings.selector is None or best_of.by == "function" else settings.selector


def find_selector(agents: Mapping[str, Agent], protocol: Protocol, speaker: str, round_: int) -> Selector | None:
    """Return the selector of an agent's answer in a round; None if the agent answers once."""
    best_of = protocol.step(round_).best_of
    selector = None if best_of is None else agents.get(selector_name(speaker, best_of))
    return selector.with_rule(best_of) if isinstance(selector, Selector) and best_of is not None else None


def _shown_text(reply: Reply) -> str:
    return "\n\n".join((reply.messages or {}).values())


async def respond(
    agents: Mapping[str, Agent],
    protocol: Protocol,
    speaker: str,
    observation: Observation,
    complete: Complete,
    *,
    wait_for_replies: WaitForReplies | None = None,
) -> Reply:
    """Return an agent's reply in a game: its only answer or, with `best_of`, the selected candidate.

    If a function labels what the reply states, the statement has these labels.

    Raises:
        GenerationError, CallError, ProviderRefusal: see `Agent.respond`.
    """
    agent, selector = agents[speaker], find_selector(agents, protocol, speaker, observation.round)
    if selector is None:
        reply = await agent.respond(observation, complete, wait_for_replies=wait_for_replies)
    else:
        observations = [observation] * selector.best_of.n
        candidates = await _ask_all(agent, observations, complete, wait_for_replies)
        answers = await _ask_all(selector, selector.judgments(observation, candidates), complete, wait_for_replies)
        reply = selector.select(candidates, answers)
    checker = find_checker(agents, speaker, reply)
    if checker is None or reply.statement is None:
        return reply
    texts = checker.observations(observation, reply.statement)
    return checker.with_labels(reply, await _ask_all(checker, texts, complete, wait_for_replies))


async def _ask_all(
    agent: Agent, observations: Sequence[Observation], complete: Complete, wait_for_replies: WaitForReplies | None
) -> list[Reply]:
    """Request a reply to each observation, all at the same time."""
    requests = (
        agent.respond_once(observation, complete, agent.prompt(observation), vote)
        for vote, observation in enumerate(observations)
    )
    return await gather_replies(requests, wait_for_replies)
