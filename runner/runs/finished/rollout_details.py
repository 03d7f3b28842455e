"""One rollout with all that its run's folder has of it: every answer and failed call, and who heard what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.game.protocols.protocol import Decision, Protocol, stance_word
from runner.game.protocols.rounds import Round
from runner.models.interface import Choice
from runner.models.journal_records import FailureRecord
from runner.models.prices import PriceBasis
from runner.rollouts.agents.agent import Agent
from runner.rollouts.rollout import Call, Rollout


@dataclass(frozen=True)
class RecordedAnswer:
    """One answer of a model. `why_unusable` is None for what was played."""

    attempt: int
    text: str | None
    finish_reason: str | None
    reasoning: str | None
    why_unusable: str | None

    @property
    def is_cut(self) -> bool:
        """Whether the token limit ended it."""
        return self.finish_reason == "length"

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "raw": self.text,
            "finish_reason": self.finish_reason,
            "reasoning": self.reasoning,
            "unusable": self.why_unusable,
        }


@dataclass(frozen=True)
class RolloutDetails:
    """A rollout, and what else its run's folder has of it."""

    rollout: Rollout
    protocol: Protocol
    agents: Mapping[str, Agent]
    failures: Sequence[FailureRecord]
    price_basis: PriceBasis = field(default_factory=PriceBasis)

    def rounds(self, only: int | None) -> Iterator[tuple[int, Round | None]]:
        """The rounds by number, that which a failure cut off as None; `only`: this one alone."""
        played = self.rollout.rounds
        cut = {call.round for call in self.rollout.calls} | {one.sample.round for one in self.failures}
        for number in range(len(played) + 1):
            if only in (None, number) and (number < len(played) or number in cut):
                yield number, played[number] if number < len(played) else None

    def speakers(self, number: int, played: Round | None) -> list[str]:
        """Who was asked in a round, in the protocol's order."""
        asked = {call.agent for call in self.rollout.calls if call.round == number}
        asked |= {one.sample.agent for one in self.failures if one.sample.round == number}
        return [name for name in self.protocol.agent_names if name in asked or (played and name in played.raw)]

    def answers(self, number: int, agent: str) -> list[RecordedAnswer]:
        """An agent's answers in a round: those that could not be used, and the one that was played."""
        found = []
        for call in self.rollout.calls:
            if call.round == number and call.agent == agent and call.is_answer:
                found.append(self.answer(call))
                if found[-1].why_unusable is None:
                    break  # further choices of the same call were never looked at
        return found

    def answer(self, call: Call) -> RecordedAnswer:
        """One answer as it was read."""
        choice = Choice(call.raw_message, call.finish_reason, call.error)
        why = self.agents[call.agent].why_unusable(choice, call.round)
        return RecordedAnswer(call.attempt, call.raw_message, call.finish_reason, call.reasoning, why)

    def failed(self, number: int, agent: str) -> list[FailureRecord]:
        """The calls for an agent's answer in a round that failed."""
        return [one for one in self.failures if (one.sample.round, one.sample.agent) == (number, agent)]

    def hearers(self, channel: str, agent: str) -> list[str]:
        """The other members of a channel."""
        names = self.protocol.agent_names
        return [name for name in names if name != agent and channel in self.protocol.visible_channels(name)]

    def to_json(self, only: int | None = None) -> dict[str, Any]:
        rollout, job = self.rollout, self.rollout.job
        return {
            "rollout_id": job.rollout_id,
            "datapoint": {"id": job.datapoint.id, "label": job.datapoint.label, **job.datapoint.columns},
            "repeat": job.repeat,
            "stance": rollout.stance,
            "swapped": job.swapped,
            "stances_exchanged": job.stances_exchanged,
            "outcome": rollout.outcome,
            "decision": int(rollout.decision),
            "correct": rollout.correct,
            "confidence_stated": rollout.confidence_stated,
            "confidence_logprob": rollout.confidence_logprob,
            "confidence_note": rollout.confidence_note,
            "rewards": dict(rollout.rewards),
            "error": rollout.error,
            "votes": None if rollout.votes is None else list(rollout.votes),
            "verdicts": None if rollout.verdicts is None else [one.to_json() for one in rollout.verdicts],
            "transcript": [self._round_json(number, played) for number, played in self.rounds(only)],
        }

    def _round_json(self, number: int, played: Round | None) -> dict[str, Any]:
        of_round = Round() if played is None else played
        speakers = self.speakers(number, played)
        return {
            "round": number,
            "raw": dict(of_round.raw),
            "messages": [{"channel": m.channel, "agent": m.agent, "content": m.text} for m in of_round.messages],
            "decision": int(of_round.decision),
            "rewards": dict(of_round.rewards),
            "cut_off": played is None,
            "answers": {name: [answer.to_json() for answer in self.answers(number, name)] for name in speakers},
            "failed_calls": {
                name: [{"error": one.error, "wait": one.wait if one.wait >= 0 else None} for one in failed]
                for name in speakers
                if (failed := self.failed(number, name))
            },
        }


def verdict_word(decision: int) -> str:
    return "none" if decision == Decision.NONE else stance_word(decision)


def correct_word(correct: bool | None, decision: int) -> str:
    """`right`, `wrong`, or `-` where there is no verdict."""
    return "-" if decision == Decision.NONE or correct is None else "right" if correct else "wrong"
