"""Collects everything about one rollout for `show`, pages and exports: all answers, failed calls and channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runner.base.batches import group_pairs
from runner.base.value_class import value_class
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Round
from runner.models.interface import Choice
from runner.rollouts.answer_record import decision_fields
from runner.rollouts.transcript import shown_columns, shown_label, statements_json, votes_json

if TYPE_CHECKING:
    from runner.models.journal_records import FailureRecord
    from runner.models.prices import Pricing
    from runner.rollouts.agents.agent import Agent
    from runner.rollouts.rollout import Call, Rollout


@value_class(frozen=True)
class RecordedAnswer:
    """One answer of a model. `unusable_reason` is None if the answer was usable."""

    attempt: int
    text: str | None
    finish_reason: str | None
    reasoning: str | None
    unusable_reason: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "raw": self.text,
            "finish_reason": self.finish_reason,
            "reasoning": self.reasoning,
            "unusable": self.unusable_reason,
        }


@value_class(frozen=True)
class RolloutDetails:
    """A rollout and the records of its failed calls."""

    rollout: Rollout
    protocol: Protocol
    agents: Mapping[str, Agent]
    failures: Sequence[FailureRecord]
    prices: Mapping[str, Pricing | None]
    """The price of each agent's calls; None if it is unknown."""

    @cached_property
    def turns(self) -> Mapping[tuple[int, str], Sequence[Call]]:
        """The calls by round and agent; empty for a turn whose calls all failed."""
        turns = group_pairs(((call.round, call.agent), call) for call in self.rollout.calls)
        for failure in self.failures:
            turns.setdefault((failure.sample.round, failure.sample.agent), [])
        return turns

    def rounds(self, only_round: int | None) -> Iterator[tuple[int, Round | None]]:
        """Yield the number and content of each round, or only of the round `only_round`.

        The content of a round that an error ended is None.
        """
        finished_rounds = self.rollout.rounds
        called_rounds = {number for number, _ in self.turns}
        for number in range(len(finished_rounds) + 1):
            if only_round in (None, number) and (number < len(finished_rounds) or number in called_rounds):
                yield number, finished_rounds[number] if number < len(finished_rounds) else None

    def ignores_verdict(self, number: int) -> bool:
        """Return whether a verdict in this round is too early to count."""
        return number < self.protocol.min_message_rounds - 1

    def speakers(self, number: int, played: Round | None) -> list[str]:
        """Return the agents that were called in a round, in the protocol's order."""
        raw = played.raw if played else {}
        return [name for name in self.protocol.agent_names if (number, name) in self.turns or name in raw]

    def answers(self, number: int, agent: str) -> list[RecordedAnswer]:
        """Return an agent's answers in a round: the unusable ones, then the one that the game used, if any.

        If the answer was selected from several candidates, the other candidates are left out.
        """
        answers = []
        rounds = self.rollout.rounds
        selection = rounds[number].selections.get(agent) if number < len(rounds) else None
        for call in self.turns.get((number, agent), ()):
            if selection is not None and call.vote != selection.index:
                continue
            if call.is_answer:
                answers.append(self.answer(call))
                if answers[-1].unusable_reason is None:
                    break  # the game ignored further choices of the same call
        return answers

    def answer(self, call: Call) -> RecordedAnswer:
        """Return the recorded answer of a call."""
        reason = self.unusable_reason(call)
        return RecordedAnswer(call.attempt, call.raw_message, call.finish_reason, call.reasoning, reason)

    def unusable_reason(self, call: Call) -> str | None:
        """Return why the answer of a call is unusable; None if it is usable."""
        if self._is_known_usable(call):
            return None
        choice = Choice(call.raw_message, call.finish_reason, call.error)
        count = self.rollout.job.datapoint.answer_count
        return self.agents[call.agent].unusable_reason(choice, call.round, count)

    def _is_known_usable(self, call: Call) -> bool:
        """Return whether an answer is certainly usable: it is the only one of its turn, and the game used it."""
        rounds, agent = self.rollout.rounds, call.agent
        if call.round >= len(rounds) or len(self.turns[call.round, agent]) > 1:
            return False
        round_ = rounds[call.round]
        return (
            round_.counts(agent) and round_.retry_counts.get(agent) == 0 and round_.raw.get(agent) == call.raw_message
        )

    def failed_calls(self, number: int, agent: str) -> list[FailureRecord]:
        """Return the failed calls of an agent in a round."""
        return [failure for failure in self.failures if (failure.sample.round, failure.sample.agent) == (number, agent)]

    def listeners(self, channel: str, agent: str) -> list[str]:
        """Return the agents that see a channel, without `agent`."""
        names = self.protocol.agent_names
        return [name for name in names if name != agent and channel in self.protocol.visible_channels(name)]

    def to_json(self, only_round: int | None = None) -> dict[str, Any]:
        rollout, job = self.rollout, self.rollout.job
        return {
            "rollout_id": job.rollout_id,
            "datapoint": {"id": job.datapoint.id, "label": shown_label(rollout), **shown_columns(rollout)},
            "repeat": job.repeat,
            "stance": rollout.stance,
            "swapped": job.swapped,
            "stances_exchanged": job.stances_exchanged,
            "outcome": rollout.outcome,
            **decision_fields(rollout.decision, lists_answers=rollout.answers is not None),
            **({} if rollout.answers is None else rollout.answers.columns()),
            "correct": rollout.correct,
            "confidence_stated": rollout.confidence_stated,
            "confidence_logprob": rollout.confidence_logprob,
            "confidence_note": rollout.confidence_note,
            "rewards": dict(rollout.rewards),
            "error": rollout.error,
            "votes": votes_json(rollout),
            "verdicts": None if rollout.verdicts is None else [verdict.to_json() for verdict in rollout.verdicts],
            **({} if rollout.panel is None else {"panel": [judge.to_json() for judge in rollout.panel]}),
            **({} if (stated := statements_json(rollout)) is None else {"statements": stated}),
            "transcript": [self._round_json(number, played) for number, played in self.rounds(only_round)],
        }

    def _round_json(self, number: int, played: Round | None) -> dict[str, object]:
        """Return one round for `to_json`. `played` is None for a last round that an error ended."""
        content = Round() if played is None else played
        speakers = self.speakers(number, played)
        return {
            "round": number,
            "raw": dict(content.raw),
            "messages": [
                {"channel": message.channel, "agent": message.agent, "content": message.text}
                for message in content.messages
            ],
            **decision_fields(content.decision, lists_answers=self.protocol.lists_answers),
            "rewards": dict(content.rewards),
            "cut_off": played is None,
            "answers": {name: [answer.to_json() for answer in self.answers(number, name)] for name in speakers},
            "failed_calls": {
                name: [
                    {"error": failure.error, "wait": failure.wait if failure.wait >= 0 else None}
                    for failure in failures
                ]
                for name in speakers
                if (failures := self.failed_calls(number, name))
            },
        }
