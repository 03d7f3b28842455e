"""Counts the problems in a run's games, such as refusals, and describes each kind with an example and advice.

A session shows the problems as notes and stores them in a file of the run, which `show` and the pages read. Failures
that end a rollout early are always reported. Problems that can occur by chance are reported only if they affect a large
enough share of the calls, messages or rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runner.base.errors import CheckerError, MalformedError
from runner.base.text import comma_join, in_one_line
from runner.game.protocols.answer_verdicts import decision_line
from runner.game.protocols.protocol import Decision
from runner.models.interface import Choice
from runner.models.layers.answer_form import advise_on_json
from runner.models.logprobs import BOUND, UNBOUNDED
from runner.models.settings import MAX_TOP_LOGPROBS
from runner.results.folder import NO_PROVER_HEARD
from runner.results.manifest import is_allowed_loss
from runner.rollouts.rollout import UNREADABLE, Call, Outcome, Rollout
from runner.runs.finished.stored_problems import GameProblem

if TYPE_CHECKING:
    from runner.rollouts.plan import Plan

MIN_CALLS_SHARE = 0.05
"""The minimum share of calls or messages for a report of repeated calls, truncated answers or empty messages."""

MIN_UNDECIDED_SHARE = 0.2
"""The minimum share of rollouts for a report of undecided rollouts."""

MIN_UNHEARD_SHARE = 0.5
"""The minimum share of decided rollouts for a report of verdicts before any prover spoke. Some such verdicts are fine,
because a verifier may be certain without a prover."""

EXAMPLE_LENGTH = 120
"""The maximum number of characters of a quoted answer."""

UNPARSABLE, REFUSED, EMPTY = "unparsable answers", "refusals", "answers without content"
"""The faults of an unusable answer, as named in messages."""

MALFORMED, UNCHECKED, NO_CONTENT, TRUNCATED = "malformed", "checker_failed", "no_content", "cut"
EMPTY_MESSAGES, ESTIMATED, FAILED_SELECTIONS = "empty_messages", "estimated_usage", "unselected_messages"
"""The kinds of problems, as stored in files, in addition to the outcomes of rollouts without a verdict."""

NO_PROBABILITY = "the answer has no log-probabilities of both verdicts"
"""Why an answer is unusable that can be parsed: only selectors with `by: judge` need more than the text."""

_KINDS_BY_ERROR = {MalformedError.__name__: MALFORMED, CheckerError.__name__: UNCHECKED}
_CHECKER_ADVICE = (
    "after a temporary error, run the same command again; otherwise correct the function, which makes this a new run"
)

COUNTED_AS_WRONG = "and accuracy counts them as not correct"
"""The end of a message about rollouts without a verdict."""


@dataclass
class _Count:
    """The number of occurrences of a problem, with the first affected rollout, and its call if calls are counted."""

    rollout: Rollout
    call: Call | None
    number: int = 0

    @property
    def first_call(self) -> Call:
        assert self.call is not None, "only problems of calls use this property"
        return self.call


@dataclass
class ProblemCounter:
    """Counts the problems in rollouts, which must be added in the order of the plan."""

    plan: Plan
    _rollouts: int = 0
    _decided: int = 0
    _answers: int = 0
    _messages: int = 0
    _counts: dict[str, _Count] = field(default_factory=dict)
    """The problems by kind. The kind of a rollout without a verdict is its outcome, `MALFORMED` or `UNCHECKED`.

    A rollout is `MALFORMED` if a server refused its request as malformed. Playing it again would not help. It is
    `UNCHECKED` if the checker of answers failed.
    """
    _repeats: dict[str, _Count] = field(default_factory=dict)
    """The calls that were repeated because the previous answer was unusable, by the fault of this answer."""
    _unknown_confidences: dict[str, _Count] = field(default_factory=dict)
    """The rollouts whose verdict has no confidence or only a bound on it, by the reason."""

    def __post_init__(self) -> None:
        self._attempts = self.plan.spec.experiment.retry.invalid_response.attempts
        protocol = self.plan.spec.protocol
        self._provers = protocol.prover_names
        prover_rounds = map(protocol.first_active_round, self._provers)
        first = min((round_ for round_ in prover_rounds if round_ is not None), default=protocol.max_message_rounds)
        later_rounds = range(first + 1, protocol.max_message_rounds)
        self._first_informed_round = next(filter(protocol.can_ever_decide, later_rounds), None)
        """The first round in which the verifier can decide after a prover spoke; None if there is no such round."""

    def add(self, rollout: Rollout) -> None:
        """Count one rollout."""
        self._rollouts += 1
        if rollout.outcome != Outcome.DECIDED:
            error = (rollout.error or "").partition(":")[0]
            _count_problem(self._counts, _KINDS_BY_ERROR.get(error, rollout.outcome), rollout)
        else:
            self._decided += 1
            if not self._has_prover_spoken(rollout):
                _count_problem(self._counts, NO_PROVER_HEARD, rollout)
        for note in (rollout.confidence_note or "").split("; "):
            if note:
                _count_problem(self._unknown_confidences, note, rollout)
        self._add_calls(rollout)
        for round_ in rollout.rounds:
            self._messages += sum(map(round_.counts, round_.raw))  # does not count messages of a judged debate
            speakers = {message.agent for message in round_.messages}
            deciders = round_.raw.keys() - speakers
            for agent, retry_count in round_.retry_counts.items():
                if retry_count >= self._attempts and agent not in deciders:
                    _count_problem(self._counts, EMPTY_MESSAGES, rollout)
            for selection in round_.selections.values():
                if selection.failed:
                    _count_problem(self._counts, FAILED_SELECTIONS, rollout)

    def _has_prover_spoken(self, rollout: Rollout) -> bool:
        """Return whether a prover spoke before the round of the verdict, or no prover can speak before a verdict."""
        earlier = rollout.rounds[:-1]
        return self._first_informed_round is None or any(
            name in round_.raw for round_ in earlier for name in self._provers
        )

    def _add_calls(self, rollout: Rollout) -> None:
        """Count a rollout's answers and the problems of its calls."""
        previous: Call | None = None
        for call in rollout.calls:
            if call.latency_ms is None:  # the call failed without an answer
                continue
            self._answers += 1
            if call.usage_estimated:
                _count_problem(self._counts, ESTIMATED, rollout, call)
            if call.attempt and previous is not None and _fault(previous) != EMPTY:  # `NO_CONTENT` counts empty ones
                _count_problem(self._repeats, _fault(previous), rollout, previous)
            if _fault(call) == EMPTY:
                _count_problem(self._counts, NO_CONTENT, rollout, call)
            elif call.finish_reason == "length":
                _count_problem(self._counts, TRUNCATED, rollout, call)
            previous = call

    def problem_free_counts(self, rollout: Rollout) -> tuple[int, int] | None:
        """Return the numbers of answers and messages of a rollout without problems; None if it has a problem."""
        if rollout.outcome != Outcome.DECIDED or rollout.confidence_note or not self._has_prover_spoken(rollout):
            return None
        answers = 0
        for call in rollout.calls:
            if call.latency_ms is None:
                continue
            answers += 1
            if call.attempt or call.usage_estimated or call.finish_reason == "length" or _fault(call) == EMPTY:
                return None
        if any(retries for round_ in rollout.rounds for retries in round_.retry_counts.values()):
            return None
        if any(selection.failed for round_ in rollout.rounds for selection in round_.selections.values()):
            return None
        return answers, sum([round_.counts(agent) for round_ in rollout.rounds for agent in round_.raw])

    def add_rollout_without_problems(self, answers: int, messages: int) -> None:
        """Count a rollout without problems, given its numbers of answers and messages."""
        self._rollouts += 1
        self._decided += 1
        self._answers += answers
        self._messages += messages

    def all_problems(self) -> list[GameProblem]:
        """Return all problems, the most serious first."""
        return [
            *self._lost_rollouts(),
            *self._rollouts_ended_early(),
            *self._undecided_rollouts(),
            *self._verdicts_without_provers(),
            *self._empty_answers(),
            *self._repeated_calls(),
            *self._empty_messages(),
            *self._failed_selections(),
            *self._truncated_answers(),
            *self._unknown_confidence(),
            *self._estimated_usage(),
        ]

    def _lost_rollouts(self) -> Iterator[GameProblem]:
        """Yield the problems of rollouts that failed in transport."""
        max_share = self.plan.spec.experiment.rollouts.max_transport_failed
        counts = self._lost_counts()
        lost = sum(count.number for count in counts.values())
        retry_advice = "run the same command again to play these rollouts again"
        if lost < self._rollouts and is_allowed_loss(lost, self._rollouts, max_share):
            retry_advice = f"rollouts.max_transport_failed ({max_share:g}) allows this loss"
        for kind, count in counts.items():
            reason = "have no label, because the checker failed" if kind == UNCHECKED else "failed in transport"
            first_error = (count.rollout.error or "").rstrip(".")
            message = f"{self._rollout_count(count)} {reason}; the first error: {first_error}"
            advice = {MALFORMED: "", UNCHECKED: _CHECKER_ADVICE}.get(kind, retry_advice)
            yield self._rollout_problem(Outcome.TRANSPORT_FAILED.value, count, message, advice=advice)

    def _lost_counts(self) -> dict[str, _Count]:
        """Return the counts of rollouts that failed in transport, by kind; first those that can be played again."""
        kinds = (Outcome.TRANSPORT_FAILED, UNCHECKED, MALFORMED)
        return {kind: self._counts[kind] for kind in kinds if kind in self._counts}

    def lost_example(self) -> str:
        """Describe the first rollout that failed in transport, with its error."""
        rollout = next(iter(self._lost_counts().values())).rollout
        return f"{_describe_rollout(rollout)}: {rollout.error}"

    def _rollouts_ended_early(self) -> Iterator[GameProblem]:
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
            count = self._counts.get(outcome)
            if count is not None:
                message = f"{self._rollout_count(count)} {reason}, {COUNTED_AS_WRONG}"
                example = f"{_describe_rollout(count.rollout)}: {count.rollout.error}"
                yield self._rollout_problem(outcome.value, count, message, example=example, advice=advice)

    def _undecided_rollouts(self) -> Iterator[GameProblem]:
        """Yield a problem if a large share of the rollouts ended undecided."""
        count = self._counts.get(Outcome.NO_DECISION)
        if count is None or count.number < MIN_UNDECIDED_SHARE * self._rollouts:
            return
        protocol, format_ = self.plan.spec.protocol, self.plan.spec.experiment.decision_format
        silent = [verdict.agent for verdict in count.rollout.panel or () if verdict.verdict.decision == Decision.NONE]
        verifier = (silent or protocol.verifier_names)[0]
        answers = [round_.raw[verifier] for round_ in count.rollout.rounds if verifier in round_.raw]
        if answers and not answers[-1].strip():
            advice = self._advice_on_empty_answers(verifier, count.rollout)
        else:
            verdicts = f"{format_.accept!r} or {format_.reject!r}"
            if protocol.lists_answers:
                answer_count = count.rollout.job.datapoint.answer_count or 0
                form = self.plan.spec.experiment.verdict.form
                verdicts = repr(decision_line(format_.marker, answer_count, form))
            advice = (
                f"a verdict is an answer with {verdicts}: check that the template of {verifier} asks for it, also in "
                "the last round"
            )
        example = ""
        if answers:
            last_answer = _quote_start(answers[-1])
            example = f"{_describe_rollout(count.rollout)}: the last answer of {verifier} is {last_answer}"
        if count.rollout.panel and not silent:
            advice, example = "the judges disagree: use an odd number of judges, or another rule of the panel", ""
        message = f"{self._rollout_count(count)} ended undecided, {COUNTED_AS_WRONG}"
        yield self._rollout_problem(
            Outcome.NO_DECISION.value, count, message, example=example, advice=advice, show="--undecided"
        )

    def _verdicts_without_provers(self) -> Iterator[GameProblem]:
        """Yield a problem if the verifier decided before any prover spoke in a large share of the decided rollouts."""
        count = self._counts.get(NO_PROVER_HEARD)
        if count is None or count.number < MIN_UNHEARD_SHARE * self._decided:
            return
        protocol, settings = self.plan.spec.protocol, []
        assert self._first_informed_round is not None, "_has_prover_spoken counts no other rollout"
        can_rotate = protocol.declares_verifier_first and "verifier_first" not in protocol.file.fixed
        if can_rotate and protocol.parameters.verifier_first:
            settings.append("protocol.verifier_first=false")
        if "min_message_rounds" not in protocol.file.fixed:
            settings.append(f"protocol.min_message_rounds={self._first_informed_round + 1}")
        yield GameProblem(
            NO_PROVER_HEARD,
            count.number,
            self._decided,
            f"in {count.number} of {self._decided} decided games, {comma_join(protocol.verifier_names)} decided before "
            "any prover spoke; these games say nothing about provers",
            advice=f"to let a prover speak before each verdict, set {' or '.join(settings)}" if settings else "",
            show=count.rollout.job.rollout_id,
        )

    def _count_if_frequent(self, kind: str, total: int) -> _Count | None:
        """Return the count of a kind of problem if it affects at least `MIN_CALLS_SHARE` of `total`; otherwise None."""
        count = self._counts.get(kind)
        return None if count is None or count.number < MIN_CALLS_SHARE * total else count

    def _empty_answers(self) -> Iterator[GameProblem]:
        count = self._count_if_frequent(NO_CONTENT, self._answers)
        if count is not None:
            yield self._call_problem(
                NO_CONTENT,
                count,
                f"{count.number} of {self._answers} calls returned {EMPTY}",
                self._advice_on_empty_answers(count.first_call.agent, count.rollout),
                fault=f": the answer has no content (finish_reason {count.first_call.finish_reason!r})",
            )

    def _estimated_usage(self) -> Iterator[GameProblem]:
        count = self._counts.get(ESTIMATED)
        if count is not None:
            yield self._call_problem(
                ESTIMATED,
                count,
                f"the token usage of {count.number} of {self._answers} calls is estimated from their text, because the "
                "server reported no usage or an impossible one",
                "the provider's bill may differ; a budget counts each of these calls at its maximum cost",
            )

    def _advice_on_empty_answers(self, agent: str, rollout: Rollout) -> str:
        """Return advice about an agent whose model returned no content in a rollout."""
        group = self.plan.groups(swapped=rollout.job.swapped)[agent]
        key = self.plan.spec.experiment.models[group].length_limit_key
        return (
            f"raise models.{group}.{key}, which reasoning tokens also use up; lower models.{group}.reasoning_effort; "
            "or use another model"
        )

    def _repeated_calls(self) -> Iterator[GameProblem]:
        for fault, count in self._repeats.items():
            if count.number >= MIN_CALLS_SHARE * self._answers:
                yield GameProblem(
                    "repeats",
                    count.number,
                    self._answers,
                    f"{count.number} of {self._answers} calls were repeated because of {fault}",
                    example := self._describe_bad_answer(count),
                    self._advice_on_repeats(count, example),
                    count.rollout.job.rollout_id,
                )

    def _advice_on_repeats(self, count: _Count, example: str) -> str:
        agent = count.first_call.agent
        spec, group = self.plan.spec, self.plan.groups(swapped=count.rollout.job.swapped).get(agent, "")
        if example.endswith(NO_PROBABILITY):
            return f"use a model with log-probabilities (raise models.{group}.top_logprobs), or another selector"
        settings = spec.experiment.models.get(group)
        if settings is not None and settings.constrain_decisions and agent in spec.protocol.verifier_names:
            return advise_on_json(group, settings)
        return f"change the template of {agent} so that it asks for the format that the protocol parses"

    def _empty_messages(self) -> Iterator[GameProblem]:
        """Yield a problem if many messages were left empty because no answer was usable."""
        count = self._count_if_frequent(EMPTY_MESSAGES, self._messages)
        if count is not None:
            reason = f"none of {self._attempts} answers was" if self._attempts > 1 else "the answer was not"
            message = f"{count.number} of {self._messages} messages were left empty because {reason} usable"
            advice = "retry.invalid_response sets how often an answer is requested, and what happens after the last try"
            show = count.rollout.job.rollout_id
            yield GameProblem(EMPTY_MESSAGES, count.number, self._messages, message, advice=advice, show=show)

    def _failed_selections(self) -> Iterator[GameProblem]:
        """Yield a problem even for a single failed selection, because the design of the experiment needs all."""
        count = self._counts.get(FAILED_SELECTIONS)
        if count is not None:
            message = (
                f"{count.number} of {self._messages} messages were not selected from their candidates, because no "
                "judgment was usable; the first candidate was delivered"
            )
            advice = "correct the selector's template, or use another selector or model"
            show = count.rollout.job.rollout_id
            yield GameProblem(FAILED_SELECTIONS, count.number, self._messages, message, advice=advice, show=show)

    def _truncated_answers(self) -> Iterator[GameProblem]:
        count = self._count_if_frequent(TRUNCATED, self._answers)
        if count is not None:
            agent = count.first_call.agent
            group = self.plan.groups(swapped=count.rollout.job.swapped)[agent]
            yield self._call_problem(
                TRUNCATED,
                count,
                f"{count.number} of {self._answers} answers were truncated at the token limit",
                f"raise models.{group}.max_completion_tokens (or max_tokens), or lower "
                f"agents.{agent.partition('.')[0]}.max_response_words",
            )

    def _unknown_confidence(self) -> Iterator[GameProblem]:
        """Yield a problem for every reason, even a rare one, because metrics of confidence omit unknown values."""
        for note, count in self._unknown_confidences.items():
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
        judges = self.plan.spec.protocol.verifier_names
        if note == UNREADABLE:
            marker = self.plan.spec.experiment.decision_format.confidence
            return f"check that the template of {comma_join(judges)} asks for {marker!r} and a number from 0 to 1"
        if note.endswith((BOUND, UNBOUNDED)):
            models = self.plan.spec.experiment.models
            groups = dict.fromkeys(self.plan.spec.experiment.agents[judge].model for judge in judges)
            keys = [f"models.{g}.top_logprobs" for g in groups if (models[g].top_logprobs or 0) < MAX_TOP_LOGPROBS]
            return f"raise {' and '.join(keys)}" if keys else ""
        return ""

    def _rollout_count(self, count: _Count) -> str:
        return f"{count.number} of {self._rollouts} rollouts"

    def _rollout_problem(
        self, kind: str, count: _Count, message: str, *, example: str = "", advice: str = "", show: str = ""
    ) -> GameProblem:
        show = show or count.rollout.job.rollout_id
        return GameProblem(kind, count.number, self._rollouts, message, example, advice, show)

    def _call_problem(self, kind: str, count: _Count, message: str, advice: str, *, fault: str = "") -> GameProblem:
        """Return a problem whose example is the first affected call; `fault` is appended to the example."""
        rollout, call = count.rollout, count.first_call
        example = f"{call.agent} in round {call.round} of {_describe_rollout(rollout)}{fault}"
        return GameProblem(kind, count.number, self._answers, message, example, advice, rollout.job.rollout_id)

    def _describe_bad_answer(self, count: _Count) -> str:
        """Describe the first unusable answer of a count, and why it is unusable."""
        rollout, call = count.rollout, count.first_call
        reason = call.error or f"finish_reason {call.finish_reason!r}"
        if _fault(call) == UNPARSABLE:
            agent = self.plan.game_agents(swapped=rollout.job.swapped)[call.agent]
            choice = Choice(call.raw_message, call.finish_reason)
            unusable = agent.unusable_reason(choice, call.round, rollout.job.datapoint.answer_count)
            reason = unusable or NO_PROBABILITY
        quote = "" if call.raw_message is None else f" answered {_quote_start(call.raw_message)}"
        return f"{call.agent} in round {call.round} of {_describe_rollout(rollout)}{quote}: {reason}"


def _count_problem(counts: dict[str, _Count], kind: str, rollout: Rollout, call: Call | None = None) -> None:
    """Count one occurrence of a problem."""
    counts.setdefault(kind, _Count(rollout, call)).number += 1


def _fault(call: Call) -> str:
    """Return the kind of fault of an unusable answer."""
    if call.finish_reason == "content_filter" or call.error is not None:
        return REFUSED
    return UNPARSABLE if (call.raw_message or "").strip() else EMPTY


def _describe_rollout(rollout: Rollout) -> str:
    return f"rollout {rollout.job.rollout_id} ({in_one_line(rollout.job.datapoint.id)})"


def _quote_start(text: str) -> str:
    """Return the start of an answer, in one line and in quotes."""
    line = in_one_line(text.strip())
    return f"'{line}'" if len(line) <= EXAMPLE_LENGTH else f"'{line[:EXAMPLE_LENGTH]}...'"
