"""What went wrong in a run's games: how often, an example, and what to do. Most of it ends no run.

Failures that cut a rollout off are always told; what may be chance, from a share of the calls or rollouts on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from runner.base.errors import GenerationError, MalformedError
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.text import in_one_line
from runner.models.interface import Choice
from runner.models.logprobs import BOUND, OPEN
from runner.models.settings import MOST_TOP_LOGPROBS
from runner.results.folder import RunFolder
from runner.results.manifest import is_allowed_loss
from runner.rollouts.confidence import UNREADABLE
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Call, Outcome, Rollout

CALLS_SHARE = 0.05
"""Repeats, cut answers and empty messages are told from this share of the calls, or messages, on."""

UNDECIDED_SHARE = 0.2
"""Undecided rollouts are told from this share of the rollouts on."""

EXAMPLE_LENGTH = 120

FILE = "troubles.json"

UNPARSABLE, REFUSED, EMPTY = "unparsable answers", "refusals", "answers without content"

NOT_RIGHT = "which accuracy counts as not right"


@dataclass(frozen=True)
class GameProblem:
    """One thing that went wrong, `count` times `of` so many."""

    kind: str
    count: int
    of: int
    message: str
    example: str = ""
    advice: str = ""
    show: str = ""
    """What to give `nip-run show RUN` besides, to see it."""

    def __str__(self) -> str:
        return "; ".join(part for part in (self.message, self.example, self.advice) if part)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def troubles_of(folder: RunFolder) -> list[GameProblem]:
    """The troubles of a run that was played to its end; earlier versions kept none.

    Raises:
        RunError: the file is damaged.
    """
    file = folder.path / FILE
    return [GameProblem(**row) for row in read_json(file)["troubles"]] if file.is_file() else []


def keep_troubles(folder: RunFolder, troubles: Sequence[GameProblem]) -> None:
    """Write them beside the metrics, whose bytes stay those of earlier versions; where there are none, no file."""
    file = folder.path / FILE
    if troubles:
        data = {"troubles": [trouble.to_json() for trouble in troubles]}
        atomic_write(file, json.dumps(data, indent=2).encode())
    else:
        file.unlink(missing_ok=True)


@dataclass
class _Count:
    """How often something happened, with the rollout and the call of the first time."""

    number: int = 0
    rollout: Rollout | None = None
    call: Call | None = None

    def add(self, rollout: Rollout, call: Call | None = None) -> None:
        self.number += 1
        if self.rollout is None:
            self.rollout, self.call = rollout, call


@dataclass
class GameProblems:
    """Counts what goes wrong in rollouts, which come in the order of the plan."""

    plan: Plan
    _rollouts: int = 0
    _answers: int = 0
    _messages: int = 0
    _ended: dict[Outcome, _Count] = field(default_factory=dict)
    _malformed: _Count = field(default_factory=_Count)
    """Those whose request is refused as malformed, and will be again."""
    _repeats: dict[str, _Count] = field(default_factory=dict)
    """By what was wrong with the answer before."""
    _cut: _Count = field(default_factory=_Count)
    _left_empty: _Count = field(default_factory=_Count)
    _without_content: _Count = field(default_factory=_Count)
    _estimated: _Count = field(default_factory=_Count)
    """Calls whose usage is estimated."""

    _unsure: dict[str, _Count] = field(default_factory=dict)
    """By why the confidence of a verdict is not known, or a bound."""

    def __post_init__(self) -> None:
        self._attempts = self.plan.spec.experiment.retry.invalid_response.attempts

    def add(self, rollout: Rollout) -> None:
        """Count one rollout; those without trouble take next to no time."""
        self._rollouts += 1
        if rollout.outcome != Outcome.DECIDED:
            is_malformed = (rollout.error or "").startswith(MalformedError.__name__)
            ended = self._malformed if is_malformed else self._ended.setdefault(rollout.outcome, _Count())
            ended.add(rollout)
        for note in (rollout.confidence_note or "").split("; "):
            if note:
                self._unsure.setdefault(note, _Count()).add(rollout)
        before: Call | None = None
        for call in rollout.calls:
            if call.latency_ms is None:  # no answer came
                continue
            self._answers += 1
            if call.usage_estimated:
                self._estimated.add(rollout, call)
            if call.attempt and before is not None and _fault(before) != EMPTY:  # those are told whole
                self._repeats.setdefault(_fault(before), _Count()).add(rollout, before)
            if _fault(call) == EMPTY:
                self._without_content.add(rollout, call)
            elif call.finish_reason == "length":
                self._cut.add(rollout, call)
            before = call
        for played in rollout.rounds:
            self._messages += sum(map(played.counts, played.raw))
            spoke = {message.agent for message in played.messages}
            decided = played.raw.keys() - spoke
            for agent, bad in played.retry_counts.items():
                if bad >= self._attempts and agent not in decided:
                    self._left_empty.add(rollout)

    def smooth(self, rollout: Rollout) -> tuple[int, int] | None:
        """The answers and messages of a rollout in which nothing went wrong; None where something did."""
        if rollout.outcome != Outcome.DECIDED or rollout.confidence_note:
            return None
        answers = 0
        for call in rollout.calls:
            if call.latency_ms is None:
                continue
            answers += 1
            if call.attempt or call.usage_estimated or call.finish_reason == "length" or _fault(call) == EMPTY:
                return None
        if any(bad for played in rollout.rounds for bad in played.retry_counts.values()):
            return None
        return answers, sum([played.counts(agent) for played in rollout.rounds for agent in played.raw])

    def add_smooth(self, answers: int, messages: int) -> None:
        """Count a rollout of which `smooth` said so."""
        self._rollouts += 1
        self._answers += answers
        self._messages += messages

    def found(self) -> list[GameProblem]:
        """All troubles, the worst first."""
        return [
            *self._lost(),
            *self._cut_off(),
            *self._undecided(),
            *self._empty(),
            *self._repeated(),
            *self._emptied(),
            *self._short(),
            *self._without_confidence(),
            *self._without_usage(),
        ]

    def _lost(self) -> Iterator[GameProblem]:
        unanswered = self._ended.get(Outcome.TRANSPORT_FAILED, _Count())
        share = self.plan.spec.experiment.rollouts.max_transport_failed
        lost = unanswered.number + self._malformed.number
        again = "the same command asks for them again"
        if lost < self._rollouts and is_allowed_loss(lost, self._rollouts, share):
            again = f"rollouts.max_transport_failed ({share:g}) allows that"
        for count, advice in ((unanswered, again), (self._malformed, "")):
            if count.rollout is not None:
                message = f"{self._of_rollouts(count)} failed in transport, the first with {count.rollout.error}"
                yield self._of_all("transport_failed", count, message, advice=advice)

    def lost_example(self) -> str:
        """A rollout that failed in transport, and why."""
        counts = (self._ended.get(Outcome.TRANSPORT_FAILED), self._malformed)
        rollout = next(count.rollout for count in counts if count is not None and count.rollout is not None)
        return f"{_named(rollout)}: {rollout.error}"

    def _cut_off(self) -> Iterator[GameProblem]:
        """What ended games without a verdict."""
        for outcome, why, advice in (
            (Outcome.INVALID_RESPONSE, "ended because no answer could be used", ""),
            (Outcome.REFUSED, "ended in a refusal", ""),
            (
                Outcome.CONTEXT_EXCEEDED,
                "ended because a prompt is longer than the model's context",
                "play fewer or shorter rounds, or use a model with a longer context",
            ),
        ):
            count = self._ended.get(outcome, _Count())
            if count.rollout is not None:
                message = f"{self._of_rollouts(count)} {why}, {NOT_RIGHT}"
                example = f"{_named(count.rollout)}: {count.rollout.error}"
                yield self._of_all(outcome.value, count, message, example=example, advice=advice)

    def _undecided(self) -> Iterator[GameProblem]:
        count = self._ended.get(Outcome.NO_DECISION, _Count())
        if count.rollout is None or count.number < UNDECIDED_SHARE * self._rollouts:
            return
        verifier, format_ = self.plan.spec.protocol.verifier_name, self.plan.spec.experiment.decision_format
        said = [played.raw[verifier] for played in count.rollout.rounds if verifier in played.raw]
        if said and not said[-1].strip():
            advice = self._about_content(verifier, count.rollout)
        else:
            advice = (
                f"a verdict is an answer that holds {format_.accept!r} or {format_.reject!r}: see that the template "
                f"of {verifier} asks for that, in the last round too"
            )
        yield self._of_all(
            Outcome.NO_DECISION.value,
            count,
            f"{self._of_rollouts(count)} ended undecided, {NOT_RIGHT}",
            example=f"{_named(count.rollout)}: {verifier} said last {_start(said[-1])}" if said else "",
            advice=advice,
            show="--undecided",
        )

    def _empty(self) -> Iterator[GameProblem]:
        count = self._without_content
        if count.rollout is None or count.call is None or count.number < CALLS_SHARE * self._answers:
            return
        call = count.call
        yield GameProblem(
            "no_content",
            count.number,
            self._answers,
            f"{count.number} of {self._answers} calls gave {EMPTY}",
            f"{call.agent} in round {call.round} of {_named(count.rollout)}: the answer has no content "
            f"(finish_reason {call.finish_reason!r})",
            self._about_content(call.agent, count.rollout),
            count.rollout.job.rollout_id,
        )

    def _without_usage(self) -> Iterator[GameProblem]:
        count = self._estimated
        if count.rollout is None or count.call is None:
            return
        call = count.call
        yield GameProblem(
            "estimated_usage",
            count.number,
            self._answers,
            f"the token usage of {count.number} of {self._answers} calls is estimated from their text, because the "
            "server reported none, or one that cannot be true",
            f"{call.agent} in round {call.round} of {_named(count.rollout)}",
            "their bill may differ; a budget counts each at its worst case",
            count.rollout.job.rollout_id,
        )

    def _about_content(self, agent: str, rollout: Rollout) -> str:
        """What to do where an agent's model says nothing in a rollout."""
        group = self.plan.groups(swapped=rollout.job.swapped)[agent]
        key = self.plan.spec.experiment.models[group].limit_key
        return (
            f"raise models.{group}.{key}, which reasoning tokens use up too; lower models.{group}.reasoning_effort; or "
            "take another model"
        )

    def _repeated(self) -> Iterator[GameProblem]:
        for fault, count in self._repeats.items():
            if count.number >= CALLS_SHARE * self._answers:
                message = f"{count.number} of {self._answers} calls were repeats of {fault}"
                yield GameProblem("repeats", count.number, self._answers, message, *self._bad_answer(count))

    def _emptied(self) -> Iterator[GameProblem]:
        count = self._left_empty
        if count.rollout is not None and count.number >= CALLS_SHARE * self._messages:
            why = f"none of {self._attempts} answers could" if self._attempts > 1 else "the answer could not"
            message = f"{count.number} of {self._messages} messages were left empty, since {why} be used"
            advice = (
                "retry.invalid_response says how often an answer is asked for, and what becomes of the message then"
            )
            yield GameProblem(
                "empty_messages",
                count.number,
                self._messages,
                message,
                advice=advice,
                show=count.rollout.job.rollout_id,
            )

    def _short(self) -> Iterator[GameProblem]:
        count = self._cut
        if count.rollout is None or count.call is None or count.number < CALLS_SHARE * self._answers:
            return
        agent = count.call.agent
        group = self.plan.groups(swapped=count.rollout.job.swapped)[agent]
        yield GameProblem(
            "cut",
            count.number,
            self._answers,
            f"{count.number} of {self._answers} answers were cut at the token limit",
            f"{agent} in round {count.call.round} of {_named(count.rollout)}",
            f"raise models.{group}.max_completion_tokens (or max_tokens), or lower agents.{agent}.max_response_words",
            count.rollout.job.rollout_id,
        )

    def _without_confidence(self) -> Iterator[GameProblem]:
        """Each of them is told: what is not known is in no metric of confidence."""
        for note, count in self._unsure.items():
            is_bound = note.endswith(BOUND)
            what = "have a bounded confidence" if is_bound else "lack a confidence"
            yield self._of_all(
                "confidence_bounded" if is_bound else "confidence_unknown",
                count,
                f"{self._of_rollouts(count)} {what} ({note})",
                advice=self._about_confidence(note),
            )

    def _about_confidence(self, note: str) -> str:
        """What to do where the confidence of verdicts is not known."""
        verifier = self.plan.spec.protocol.verifier_name
        if note == UNREADABLE:
            marker = self.plan.spec.experiment.decision_format.confidence
            return f"see that the template of {verifier} asks for {marker!r} and a number from 0 to 1"
        if note.endswith((BOUND, OPEN)):
            group = self.plan.spec.experiment.agents[verifier].model
            told = self.plan.spec.experiment.models[group].top_logprobs or 0
            return f"raise models.{group}.top_logprobs" if told < MOST_TOP_LOGPROBS else ""
        return ""

    def _of_rollouts(self, count: _Count) -> str:
        return f"{count.number} of {self._rollouts} rollouts"

    def _of_all(
        self, kind: str, count: _Count, message: str, *, example: str = "", advice: str = "", show: str = ""
    ) -> GameProblem:
        assert count.rollout is not None
        return GameProblem(
            kind, count.number, self._rollouts, message, example, advice, show or count.rollout.job.rollout_id
        )

    def _bad_answer(self, count: _Count) -> tuple[str, str, str]:
        """The first bad answer and why it could not be used; what to do; what to look at."""
        rollout, call = count.rollout, count.call
        assert rollout is not None
        assert call is not None
        why = call.error or f"finish_reason {call.finish_reason!r}"
        if _fault(call) == UNPARSABLE:
            try:
                agents = self.plan.agents(swapped=rollout.job.swapped)
                agents[call.agent].read(Choice(call.raw_message, call.finish_reason), call.round)
            except GenerationError as error:
                why = str(error)
        said = "" if call.raw_message is None else f" said {_start(call.raw_message)}"
        example = f"{call.agent} in round {call.round} of {_named(rollout)}{said}: {why}"
        return example, f"make the template of {call.agent} ask for the format that is parsed", rollout.job.rollout_id


def _fault(call: Call) -> str:
    """What is wrong with an answer that was asked for again."""
    if call.finish_reason == "content_filter" or call.error is not None:
        return REFUSED
    return UNPARSABLE if (call.raw_message or "").strip() else EMPTY


def _named(rollout: Rollout) -> str:
    return f"rollout {rollout.job.rollout_id} ({in_one_line(rollout.job.datapoint.id)})"


def _start(text: str) -> str:
    """The start of what was said, in one line."""
    line = in_one_line(text.strip())
    return f"'{line}'" if len(line) <= EXAMPLE_LENGTH else f"'{line[:EXAMPLE_LENGTH]}...'"
