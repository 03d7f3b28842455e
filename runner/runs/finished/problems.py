"""Counts the problems in a run's games, and reports each with an example and advice. Most problems do not end the run.

Failures that end a rollout early are always reported. Problems that may be chance are reported only if their share of
the calls or rollouts is large enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from runner.base.errors import GenerationError, MalformedError
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.text import in_one_line
from runner.models.interface import Choice
from runner.models.logprobs import BOUND, OPEN
from runner.models.settings import MAX_TOP_LOGPROBS
from runner.results.folder import RunFolder
from runner.results.manifest import is_allowed_loss
from runner.rollouts.rollout import UNREADABLE, Call, Outcome, Rollout

if TYPE_CHECKING:
    from runner.rollouts.plan import Plan

CALLS_SHARE = 0.05
"""Repeats, truncated answers and empty messages are reported from this share of the calls or messages on."""

UNDECIDED_SHARE = 0.2
"""Undecided rollouts are reported from this share of the rollouts on."""

EXAMPLE_LENGTH = 120
"""The maximum number of characters of a quoted answer."""

FILE = "troubles.json"
"""The file with the problems in a run's folder."""

UNPARSABLE, REFUSED, EMPTY = "unparsable answers", "refusals", "answers without content"

NOT_RIGHT = "and accuracy counts them as not correct"


@dataclass(frozen=True)
class GameProblem:
    """A kind of problem that occurred in `count` of `of` calls, messages or rollouts."""

    kind: str
    count: int
    of: int
    message: str
    example: str = ""
    advice: str = ""
    show: str = ""
    """The argument of `nip-run show RUN` that shows an example."""

    def __str__(self) -> str:
        return "; ".join(part for part in (self.message, self.example, self.advice) if part)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load_problems(folder: RunFolder) -> list[GameProblem]:
    """Read the problems of a finished run. The list is empty for runs of earlier versions, which stored no problems.

    Raises:
        RunError: the file is damaged.
    """
    file = folder.path / FILE
    return [GameProblem(**row) for row in read_json(file)["troubles"]] if file.is_file() else []


def store_problems(folder: RunFolder, problems: Sequence[GameProblem]) -> None:
    """Write the problems to a file of their own, or delete the file if there are none.

    They are not in `metrics.json`, so that its content stays the same as in earlier versions. The key is `troubles`.
    """
    file = folder.path / FILE
    if problems:
        data = {"troubles": [problem.to_json() for problem in problems]}
        atomic_write(file, json.dumps(data, indent=2).encode())
    else:
        file.unlink(missing_ok=True)


@dataclass
class _Count:
    """The number of occurrences of a problem, with the rollout and the call of the first one."""

    number: int = 0
    rollout: Rollout | None = None
    call: Call | None = None

    def add(self, rollout: Rollout, call: Call | None = None) -> None:
        self.number += 1
        if self.rollout is None:
            self.rollout, self.call = rollout, call


@dataclass
class GameProblems:
    """Counts the problems in rollouts, which arrive in the order of the plan."""

    plan: Plan
    _rollouts: int = 0
    _answers: int = 0
    _messages: int = 0
    _ended: dict[Outcome, _Count] = field(default_factory=dict)
    """Rollouts without a verdict, by outcome."""
    _malformed: _Count = field(default_factory=_Count)
    """Rollouts that ended because a server refused a request as malformed, which would happen again."""
    _repeats: dict[str, _Count] = field(default_factory=dict)
    """Repeated calls, by the fault of the previous answer."""
    _truncated: _Count = field(default_factory=_Count)
    """Answers that were truncated at the token limit."""
    _left_empty: _Count = field(default_factory=_Count)
    """Messages that were left empty because no answer was usable."""
    _without_content: _Count = field(default_factory=_Count)
    """Answers without content."""
    _estimated: _Count = field(default_factory=_Count)
    """Calls whose token usage is estimated."""

    _unsure: dict[str, _Count] = field(default_factory=dict)
    """Rollouts whose verdict has an unknown or bounded confidence, by the reason."""

    def __post_init__(self) -> None:
        self._attempts = self.plan.spec.experiment.retry.invalid_response.attempts

    def add(self, rollout: Rollout) -> None:
        """Count one rollout."""
        self._rollouts += 1
        if rollout.outcome != Outcome.DECIDED:
            is_malformed = (rollout.error or "").startswith(MalformedError.__name__)
            ended = self._malformed if is_malformed else self._ended.setdefault(rollout.outcome, _Count())
            ended.add(rollout)
        for note in (rollout.confidence_note or "").split("; "):
            if note:
                self._unsure.setdefault(note, _Count()).add(rollout)
        previous: Call | None = None
        for call in rollout.calls:
            if call.latency_ms is None:  # the call failed without an answer
                continue
            self._answers += 1
            if call.usage_estimated:
                self._estimated.add(rollout, call)
            if call.attempt and previous is not None and _fault(previous) != EMPTY:  # counted in `_without_content`
                self._repeats.setdefault(_fault(previous), _Count()).add(rollout, previous)
            if _fault(call) == EMPTY:
                self._without_content.add(rollout, call)
            elif call.finish_reason == "length":
                self._truncated.add(rollout, call)
            previous = call
        for played in rollout.rounds:
            self._messages += sum(map(played.counts, played.raw))
            speakers = {message.agent for message in played.messages}
            decided = played.raw.keys() - speakers
            for agent, retry_count in played.retry_counts.items():
                if retry_count >= self._attempts and agent not in decided:
                    self._left_empty.add(rollout)

    def problem_free_counts(self, rollout: Rollout) -> tuple[int, int] | None:
        """Return the numbers of answers and messages of a rollout without any problem; None if it has a problem."""
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

    def add_problem_free(self, answers: int, messages: int) -> None:
        """Count a rollout without problems, given as the result of `problem_free_counts`."""
        self._rollouts += 1
        self._answers += answers
        self._messages += messages

    def all_problems(self) -> list[GameProblem]:
        """Return all problems, the most serious first."""
        return [
            *self._lost(),
            *self._ended_early(),
            *self._undecided(),
            *self._empty_answers(),
            *self._repeated_calls(),
            *self._empty_messages(),
            *self._truncated_answers(),
            *self._unknown_confidence(),
            *self._estimated_usage(),
        ]

    def _lost(self) -> Iterator[GameProblem]:
        """Yield the problems of rollouts that failed in transport."""
        unanswered = self._ended.get(Outcome.TRANSPORT_FAILED, _Count())
        share = self.plan.spec.experiment.rollouts.max_transport_failed
        lost = unanswered.number + self._malformed.number
        retry_advice = "run the same command again to play these rollouts again"
        if lost < self._rollouts and is_allowed_loss(lost, self._rollouts, share):
            retry_advice = f"rollouts.max_transport_failed ({share:g}) allows this loss"
        for count, advice in ((unanswered, retry_advice), (self._malformed, "")):
            if count.rollout is not None:
                message = f"{self._rollout_count(count)} failed in transport; the first error: {count.rollout.error}"
                yield self._rollout_problem("transport_failed", count, message, advice=advice)

    def lost_example(self) -> str:
        """Describe the first rollout that failed in transport, with its error."""
        counts = (self._ended.get(Outcome.TRANSPORT_FAILED), self._malformed)
        rollout = next(count.rollout for count in counts if count is not None and count.rollout is not None)
        return f"{_describe_rollout(rollout)}: {rollout.error}"

    def _ended_early(self) -> Iterator[GameProblem]:
        """Yield the problems that ended games early, without a verdict."""
        for outcome, reason, advice in (
            (Outcome.INVALID_RESPONSE, "ended because no answer was usable", ""),
            (Outcome.REFUSED, "ended in a refusal", ""),
            (
                Outcome.CONTEXT_EXCEEDED,
                "ended because a prompt is longer than the model's context",
                "play fewer or shorter rounds, or use a model with a longer context",
            ),
        ):
            count = self._ended.get(outcome, _Count())
            if count.rollout is not None:
                message = f"{self._rollout_count(count)} {reason}, {NOT_RIGHT}"
                example = f"{_describe_rollout(count.rollout)}: {count.rollout.error}"
                yield self._rollout_problem(outcome.value, count, message, example=example, advice=advice)

    def _undecided(self) -> Iterator[GameProblem]:
        """Yield a problem if a large share of the rollouts ended undecided."""
        count = self._ended.get(Outcome.NO_DECISION, _Count())
        if count.rollout is None or count.number < UNDECIDED_SHARE * self._rollouts:
            return
        verifier, format_ = self.plan.spec.protocol.verifier_name, self.plan.spec.experiment.decision_format
        answers = [played.raw[verifier] for played in count.rollout.rounds if verifier in played.raw]
        if answers and not answers[-1].strip():
            advice = self._advice_on_empty_answers(verifier, count.rollout)
        else:
            advice = (
                f"a verdict is an answer with {format_.accept!r} or {format_.reject!r}: check that the template of "
                f"{verifier} asks for one of them, also in the last round"
            )
        yield self._rollout_problem(
            Outcome.NO_DECISION.value,
            count,
            f"{self._rollout_count(count)} ended undecided, {NOT_RIGHT}",
            example=f"{_describe_rollout(count.rollout)}: the last answer of {verifier} is {_quote_start(answers[-1])}"
            if answers
            else "",
            advice=advice,
            show="--undecided",
        )

    def _empty_answers(self) -> Iterator[GameProblem]:
        count = self._without_content
        if count.rollout is None or count.call is None or count.number < CALLS_SHARE * self._answers:
            return
        yield self._call_problem(
            "no_content",
            count,
            f"{count.number} of {self._answers} calls returned {EMPTY}",
            self._advice_on_empty_answers(count.call.agent, count.rollout),
            fault=f": the answer has no content (finish_reason {count.call.finish_reason!r})",
        )

    def _estimated_usage(self) -> Iterator[GameProblem]:
        count = self._estimated
        if count.number:
            yield self._call_problem(
                "estimated_usage",
                count,
                f"the token usage of {count.number} of {self._answers} calls is estimated from their text, because the "
                "server reported no usage or an impossible one",
                "the provider's bill may differ; a budget counts each of these calls at its maximum cost",
            )

    def _advice_on_empty_answers(self, agent: str, rollout: Rollout) -> str:
        """Return advice about an agent whose model returned no content in a rollout."""
        group = self.plan.groups(swapped=rollout.job.swapped)[agent]
        key = self.plan.spec.experiment.models[group].limit_key
        return (
            f"raise models.{group}.{key}, which reasoning tokens also use up; lower models.{group}.reasoning_effort; "
            "or use another model"
        )

    def _repeated_calls(self) -> Iterator[GameProblem]:
        for fault, count in self._repeats.items():
            if count.number >= CALLS_SHARE * self._answers:
                message = f"{count.number} of {self._answers} calls were repeated because of {fault}"
                yield GameProblem("repeats", count.number, self._answers, message, *self._describe_bad_answer(count))

    def _empty_messages(self) -> Iterator[GameProblem]:
        """Yield a problem if many messages were left empty because no answer was usable."""
        count = self._left_empty
        if count.rollout is not None and count.number >= CALLS_SHARE * self._messages:
            reason = f"none of {self._attempts} answers was" if self._attempts > 1 else "the answer was not"
            message = f"{count.number} of {self._messages} messages were left empty because {reason} usable"
            advice = "retry.invalid_response sets how often an answer is requested, and what happens after the last try"
            yield GameProblem(
                "empty_messages",
                count.number,
                self._messages,
                message,
                advice=advice,
                show=count.rollout.job.rollout_id,
            )

    def _truncated_answers(self) -> Iterator[GameProblem]:
        count = self._truncated
        if count.rollout is None or count.call is None or count.number < CALLS_SHARE * self._answers:
            return
        agent = count.call.agent
        group = self.plan.groups(swapped=count.rollout.job.swapped)[agent]
        yield self._call_problem(
            "cut",
            count,
            f"{count.number} of {self._answers} answers were truncated at the token limit",
            f"raise models.{group}.max_completion_tokens (or max_tokens), or lower agents.{agent}.max_response_words",
        )

    def _unknown_confidence(self) -> Iterator[GameProblem]:
        """Yield a problem for every reason, however rare, because metrics of confidence leave out unknown values."""
        for note, count in self._unsure.items():
            is_bound = note.endswith(BOUND)
            finding = "have a bounded confidence" if is_bound else "lack a confidence"
            yield self._rollout_problem(
                "confidence_bounded" if is_bound else "confidence_unknown",
                count,
                f"{self._rollout_count(count)} {finding} ({note})",
                advice=self._advice_on_confidence(note),
            )

    def _advice_on_confidence(self, note: str) -> str:
        """Return advice for verdicts with unknown confidence."""
        verifier = self.plan.spec.protocol.verifier_name
        if note == UNREADABLE:
            marker = self.plan.spec.experiment.decision_format.confidence
            return f"check that the template of {verifier} asks for {marker!r} and a number from 0 to 1"
        if note.endswith((BOUND, OPEN)):
            group = self.plan.spec.experiment.agents[verifier].model
            top_logprobs = self.plan.spec.experiment.models[group].top_logprobs or 0
            return f"raise models.{group}.top_logprobs" if top_logprobs < MAX_TOP_LOGPROBS else ""
        return ""

    def _rollout_count(self, count: _Count) -> str:
        return f"{count.number} of {self._rollouts} rollouts"

    def _rollout_problem(
        self, kind: str, count: _Count, message: str, *, example: str = "", advice: str = "", show: str = ""
    ) -> GameProblem:
        assert count.rollout is not None
        return GameProblem(
            kind, count.number, self._rollouts, message, example, advice, show or count.rollout.job.rollout_id
        )

    def _call_problem(self, kind: str, count: _Count, message: str, advice: str, *, fault: str = "") -> GameProblem:
        rollout, call = count.rollout, count.call
        assert rollout is not None
        assert call is not None
        example = f"{call.agent} in round {call.round} of {_describe_rollout(rollout)}{fault}"
        return GameProblem(kind, count.number, self._answers, message, example, advice, rollout.job.rollout_id)

    def _describe_bad_answer(self, count: _Count) -> tuple[str, str, str]:
        """Return an example, advice and the rollout id for the first unusable answer of a count."""
        rollout, call = count.rollout, count.call
        assert rollout is not None
        assert call is not None
        reason = call.error or f"finish_reason {call.finish_reason!r}"
        if _fault(call) == UNPARSABLE:
            try:
                agents = self.plan.agents(swapped=rollout.job.swapped)
                agents[call.agent].read(Choice(call.raw_message, call.finish_reason), call.round)
            except GenerationError as error:
                reason = str(error)
        quote = "" if call.raw_message is None else f" answered {_quote_start(call.raw_message)}"
        example = f"{call.agent} in round {call.round} of {_describe_rollout(rollout)}{quote}: {reason}"
        return (
            example,
            f"change the template of {call.agent} so that it asks for the format that the protocol parses",
            rollout.job.rollout_id,
        )


def _fault(call: Call) -> str:
    """Return the kind of fault of an unusable answer."""
    if call.finish_reason == "content_filter" or call.error is not None:
        return REFUSED
    return UNPARSABLE if (call.raw_message or "").strip() else EMPTY


def _describe_rollout(rollout: Rollout) -> str:
    return f"rollout {rollout.job.rollout_id} ({in_one_line(rollout.job.datapoint.id)})"


def _quote_start(text: str) -> str:
    """Return the start of an answer in one line and in quotes."""
    line = in_one_line(text.strip())
    return f"'{line}'" if len(line) <= EXAMPLE_LENGTH else f"'{line[:EXAMPLE_LENGTH]}...'"
