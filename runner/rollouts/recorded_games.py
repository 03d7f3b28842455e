"""Rebuilds rollouts from recorded answers, without an event loop, a network or the rendering of prompts.

`runner.runs.finished.reconstruction` uses it to read a finished or unfinished run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

from runner.base.errors import NipRunError
from runner.base.value_class import value_class
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.rounds import PendingTurn, Reply, Round
from runner.models.interface import Request, SampleKey
from runner.models.journal_records import CallRecord, EndedRecord
from runner.rollouts.agents.agent import Agent, Observation
from runner.rollouts.agents.function_checkers import find_checker
from runner.rollouts.agents.selectors import find_selector
from runner.rollouts.agents.votes import combine_votes, is_final
from runner.rollouts.game_script import GAME_FAILURES, GameParts, calls_of, play_game
from runner.rollouts.job import Job
from runner.rollouts.judging import judging_script
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Call, Rollout

Key = TypeVar("Key")


class NotRecordedError(NipRunError):
    """Raised if an answer that a game needs is not recorded, because the game was not finished."""


@value_class(frozen=True)
class AnsweredRequest:
    """A request whose answer is recorded. The messages of the request are rendered on first access."""

    sample: SampleKey
    record: CallRecord | EndedRecord
    """The journal's record of the answer."""
    agent: Agent
    observation: Observation

    @cached_property
    def messages(self) -> Sequence[ChatMessage]:
        """The prompt as the templates render it, before the provider's encoding."""
        return self.agent.prompt(self.observation)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of the answer, if any."""
        return self.agent.answer_schema(self.observation.round, self.observation.answer_count)

    @property
    def created_ms(self) -> float | None:
        """The time when the server created the answer, if known; see `CallRecord.created_ms`."""
        return self.record.created_ms if isinstance(self.record, CallRecord) else None

    @property
    def request(self) -> Request:
        """The request that the run sent."""
        return self.agent.request(self.observation, self.messages, self.sample)


@dataclass
class GameRebuilder:
    """Rebuilds the games of a plan from recorded answers. `find_record` returns the record of a sample, if any."""

    plan: Plan
    find_record: Callable[[SampleKey], CallRecord | EndedRecord | None]
    failed_calls: Callable[[Job], Sequence[Call]] = lambda _: ()
    answered: list[AnsweredRequest] = field(default_factory=list)
    """The requests of the games rebuilt so far. The caller clears this list."""

    def __post_init__(self) -> None:
        plan = self.plan
        self.agents: Mapping[bool, Mapping[str, Agent]] = {
            False: plan.game_agents(),
            True: plan.game_agents(swapped=True) if plan.seats else {},
        }
        """The agents by name: True for games with exchanged models, False for others."""
        self._script = play_game if plan.debates is None else judging_script(plan)

    def rollouts(self, job: Job) -> list[Rollout]:
        """Return the rollout of a game, or all branches of a tree in order.

        Raises:
            NotRecordedError: an answer is missing.
        """
        return sorted(self._rollouts_from(job, (), 0), key=lambda rollout: rollout.job.repeat)

    def _rollouts_from(self, job: Job, rounds: Sequence[Round], branch_start: int) -> list[Rollout]:
        """Rebuild a game after these rounds, and all branches that begin in round `branch_start` or later."""
        branch_rollouts: list[Rollout] = []
        parts = GameParts(self.plan.spec.protocol, self.agents[bool(job.swapped)], job, self.failed_calls)
        script = self._script(parts, rounds)
        try:
            turn = next(script)
            while True:
                if turn.round >= branch_start:
                    branch_rollouts += self._branches_of_turn(job, turn)
                try:
                    replies = self._replies(parts, turn)
                except GAME_FAILURES as failure:
                    turn = script.throw(failure)
                else:
                    turn = script.send(replies)
        except StopIteration as end:
            return [end.value, *branch_rollouts]
        finally:
            script.close()

    def _branches_of_turn(self, job: Job, turn: PendingTurn) -> Iterator[Rollout]:
        """Yield the rollouts of the branches that begin with this turn: one for each answer after the first."""
        tree_shape = self.plan.tree_shape
        for repeat in tree_shape.siblings(job.repeat, turn.round) if tree_shape is not None else ():
            yield from self._rollouts_from(self.plan.job_of_branch(job, repeat), tuple(turn.rounds), turn.round + 1)

    def _replies(self, parts: GameParts, turn: PendingTurn) -> Mapping[str, Reply]:
        rounds = tuple(turn.rounds)  # a copy, because the game extends its list before the requests are rendered
        observation = parts.job.observation(turn.round, rounds)
        if len(turn.speakers) == 1:
            (name,) = turn.speakers
            return {name: self._reply(parts, parts.agents[name], observation)}
        speakers = [name for name in parts.protocol.agent_names if name in turn.speakers]
        return _all_or_first_failure(
            {name: partial(self._reply, parts, parts.agents[name], observation) for name in speakers}
        )

    def _reply(self, parts: GameParts, agent: Agent, observation: Observation) -> Reply:
        reply = self._unlabelled_reply(parts, agent, observation)
        checker = find_checker(parts.agents, agent.agent_name, reply)
        if checker is None or reply.statement is None:
            return reply
        texts = checker.observations(observation, reply.statement)
        return checker.with_labels(reply, self._votes(parts, checker, texts))

    def _unlabelled_reply(self, parts: GameParts, agent: Agent, observation: Observation) -> Reply:
        selector = find_selector(parts.agents, parts.protocol, agent.agent_name, observation.round)
        if selector is not None:
            candidates = self._votes(parts, agent, [observation] * selector.best_of.n)
            return selector.select(
                candidates, self._votes(parts, selector, selector.judgments(observation, candidates))
            )
        first, votes = self._vote(parts, agent, observation, 0), agent.votes_in(observation.round)
        if votes == 1 or is_final(first, votes, must_decide=agent.must_decide_in(observation.round)):
            return first
        later_votes = _all_or_first_failure(
            {vote: partial(self._vote, parts, agent, observation, vote) for vote in range(1, votes)}
        )
        return combine_votes([first, *later_votes.values()])

    def _votes(self, parts: GameParts, agent: Agent, observations: Sequence[Observation]) -> list[Reply]:
        """Return the recorded replies of one agent to several observations, by vote."""
        readers = {
            vote: partial(self._vote, parts, agent, observed, vote) for vote, observed in enumerate(observations)
        }
        return list(_all_or_first_failure(readers).values())

    def _vote(self, parts: GameParts, agent: Agent, observation: Observation, vote: int) -> Reply:
        """Return one vote's reply, from the recorded answers to its attempts.

        Raises:
            NotRecordedError: an answer is missing.
        """
        reader = agent.read_answers(observation, vote)
        sample = next(reader)
        while True:
            record = self.find_record(sample)
            if record is None:
                raise NotRecordedError
            self.answered.append(AnsweredRequest(sample, record, agent, observation))
            if isinstance(record, EndedRecord):
                raise record.as_error()
            parts.calls.extend(calls_of(sample, record.completion, agent))
            try:
                sample = reader.send(record.completion)
            except StopIteration as end:
                reply: Reply = end.value
                return reply


def _all_or_first_failure(readers: Mapping[Key, Callable[[], Reply]]) -> dict[Key, Reply]:
    """Return the reply of each reader. If a reader fails, call the others too, and then raise the first error."""
    replies: dict[Key, Reply] = {}
    failure: NipRunError | None = None
    for key, read in readers.items():
        try:
            replies[key] = read()
        except GAME_FAILURES as error:
            if failure is None:
                failure = error
    if failure is not None:
        raise failure
    return replies
