"""The provider `human`: people answer the requests of a run on a page, through a queue of questions.

A question has the messages that a model would get, and a form for the expected answer. The form's values become the
text that a model would write. A person's answer is confirmed only after it is in the journal, so no answer is lost.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from string import ascii_uppercase

from runner.base.errors import RunError, UsageError
from runner.base.question_queue import FormField, PersonAnswer, Question, QuestionQueue
from runner.game.protocols.answer_verdicts import ANSWER_MARKER
from runner.game.protocols.ballot import FIRST_ANSWER
from runner.game.protocols.protocol import Decision
from runner.models.interface import Choice, Complete, Completion, Request, ResponseHint, SampleKey
from runner.models.settings import ModelSettings

NO_VERDICT = "No verdict yet"
PERSON = "person"
"""The key of the person's name in `Completion.other_fields`."""
RECORD_SECONDS = 20.0
"""The maximum time until an answer is in the journal."""

CheckAnswer = Callable[[Request, Choice, int | None], str | None]
"""Returns why an answer is unusable; None if it is usable. The number is the code of the selected verdict, if any."""


class HumanModel:
    """The people who answer for some model groups of a run: a provider for all these groups."""

    def __init__(
        self, queue: QuestionQueue, run_id: str, models: Mapping[str, ModelSettings], check_answer: CheckAnswer
    ) -> None:
        """Ask the questions of a run's model groups through this queue."""
        self._queue, self._run_id, self._models, self._check_answer = queue, run_id, models, check_answer
        self._waiting: set[asyncio.Future[Completion]] = set()
        self._in_submission: dict[SampleKey, _Submission] = {}

    @property
    def groups(self) -> Collection[str]:
        """The model groups that people answer for."""
        return self._models.keys()

    async def complete(self, request: Request) -> Completion:
        """Ask a question, and return the answer when a person has submitted it."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Completion] = loop.create_future()

        def submit(answer: PersonAnswer) -> None:
            completion = self._checked_completion(request, answer)
            submission = self._in_submission[request.sample] = _Submission()
            try:
                loop.call_soon_threadsafe(_resolve, answered, completion, submission)
            except RuntimeError:  # the event loop is closed
                submission.settle(is_saved=False)
            submission.wait()

        question = Question(
            self._models[request.group].sent_messages(request.messages), form_fields(request.hint), submit,
            topic=self._game(request.sample), role=_role(request.sample),
            priority=request.sample.round + random.random(),
        )  # fmt: skip
        self._waiting.add(answered)
        self._queue.add(question)
        try:
            return await answered
        finally:
            self._waiting.discard(answered)
            self._queue.remove(question)

    def confirm_answers(self, complete: Complete) -> Complete:
        """Return a function that calls `complete`, which includes the journal, and then confirms people's answers."""

        async def complete_and_confirm(request: Request) -> Completion:
            if request.group not in self._models:
                return await complete(request)
            is_saved = False
            try:
                completion = await complete(request)
                is_saved = True
            finally:
                submission = self._in_submission.pop(request.sample, None)
                if submission is not None:
                    submission.settle(is_saved=is_saved)
            person = completion.other_fields.get(PERSON)
            if isinstance(person, str):
                self._queue.remember(self._game(request.sample), _role(request.sample), person)
            return completion

        return complete_and_confirm

    def stop(self, error: Exception) -> None:
        """Withdraw all questions: each call raises this error."""
        for answered in self._waiting:
            if not answered.done():
                answered.set_exception(error)

    async def close(self) -> None:
        """Do nothing: the end of each call removes its question."""

    def _game(self, sample: SampleKey) -> tuple[str, str, int]:
        return self._run_id, sample.datapoint, sample.repeat

    def _checked_completion(self, request: Request, answer: PersonAnswer) -> Completion:
        """Return a person's answer as a completion.

        Raises:
            UsageError: the answer is unusable.
        """
        choice = Choice(answer_text(request.hint, answer.values), "stop")
        reason = self._check_answer(request, choice, selected_decision(request.hint, answer.values))
        if reason is not None:
            raise UsageError(reason)
        return Completion(
            (choice,), self._models[request.group].name, latency_ms=1000 * answer.seconds,
            other_fields={PERSON: answer.person},
        )  # fmt: skip


def _role(sample: SampleKey) -> tuple[str, int]:
    """Return the role of a person in a game. Each vote and each candidate is written by another person."""
    return sample.agent, sample.vote


class _Submission:
    """An answer that was submitted, and waits until it is in the journal."""

    def __init__(self) -> None:
        self._is_settled, self._is_saved = threading.Event(), False

    def settle(self, *, is_saved: bool) -> None:
        self._is_saved = is_saved
        self._is_settled.set()

    def wait(self) -> None:
        """Wait for the journal.

        Raises:
            RunError: the answer is not in the journal.
        """
        if not (self._is_settled.wait(RECORD_SECONDS) and self._is_saved):
            raise RunError("the answer was not saved, because the run has ended or was stopped; resume the run")


def _resolve(answered: asyncio.Future[Completion], completion: Completion, submission: _Submission) -> None:
    if answered.done():
        submission.settle(is_saved=False)
    else:
        answered.set_result(completion)


# The form of an answer


def form_fields(hint: ResponseHint) -> tuple[FormField, ...]:
    """Return the fields of the form for an answer. A required verdict comes first, so that it has the focus."""
    verdict = _verdict_field(hint)
    is_text_needed = verdict is None or hint.answer_marker == ANSWER_MARKER or not hint.must_decide
    texts = [FormField("notes", f"Private notes (before {hint.scratchpad})", required=False)] if hint.scratchpad else []
    if hint.number is None:
        labels = hint.headers or ("Message" if is_text_needed else "Reasons (optional)",)
        texts += [FormField(f"text{index}", label, required=is_text_needed) for index, label in enumerate(labels)]
    decision = [] if verdict is None else [verdict]
    if hint.confidence is not None:
        decision.append(FormField("confidence", f"{hint.confidence} (with a verdict)", "line", required=False))
    return (*decision, *texts) if verdict is not None and verdict.required else (*texts, *decision)


def _verdict_field(hint: ResponseHint) -> FormField | None:
    """Return the field for a verdict, a choice of an answer or a number; None if the answer is only text."""
    undecided = () if hint.must_decide or hint.answer_marker == ANSWER_MARKER else (NO_VERDICT,)
    if hint.number is not None:
        marker, highest = hint.number
        return FormField("verdict", f"{marker} a number up to {highest}", "line")
    if hint.answer_order is not None:
        letters = ascii_uppercase[: len(hint.answer_order)]
        if hint.form == "answer":
            return _choice(hint.answer_marker, (*letters, *undecided))
        example = ", ".join(f"{letter} ..." for letter in letters)
        return FormField("verdict", f"{hint.answer_marker} {example}", "line", required=not undecided)
    if hint.accept is not None and hint.reject is not None:
        return _choice("Verdict", (hint.accept, hint.reject, *undecided))
    return None


def _choice(label: str, options: tuple[str, ...]) -> FormField:
    default = NO_VERDICT if NO_VERDICT in options else ""
    return FormField("verdict", label, "choice", options, required=not default, default=default)


def answer_text(hint: ResponseHint, values: Mapping[str, str]) -> str:
    """Return the text of an answer, as a model would write it.

    Raises:
        UsageError: a value is missing or not an option.
    """
    verdict = _verdict_line(hint, values)
    fields = [field for field in form_fields(hint) if field.name.startswith("text")]
    texts = [values.get(field.name, "").strip() for field in fields]
    if verdict is None or hint.answer_marker == ANSWER_MARKER:
        for field, text in zip(fields, texts, strict=True):
            if not text:
                raise UsageError(f"write a text: {field.label}")
    if hint.headers:
        texts = [f"{header} {text}" for header, text in zip(hint.headers, texts, strict=True)]
    parts = [text for text in texts if text]
    if verdict is not None:
        parts.insert(0 if hint.answer_marker == ANSWER_MARKER else len(parts), verdict)
    answer = "\n\n".join(parts)
    notes = values.get("notes", "").strip()
    return answer if hint.scratchpad is None else f"{notes}\n\n{hint.scratchpad} {answer}".lstrip()


def _verdict_line(hint: ResponseHint, values: Mapping[str, str]) -> str | None:
    field, value = _verdict_field(hint), values.get("verdict", "").strip()
    if field is None or value == NO_VERDICT or (not value and not field.required):
        return None
    if not value or (field.options and value not in field.options):
        raise UsageError(f"choose one: {_list(field.options)}" if field.options else f"fill in: {field.label}")
    marker = hint.number[0] if hint.number is not None else hint.answer_marker
    line = f"{marker} {value}".lstrip()
    confidence = values.get("confidence", "").strip()
    return f"{line}\n{hint.confidence} {confidence}" if hint.confidence is not None else line


def selected_decision(hint: ResponseHint, values: Mapping[str, str]) -> int | None:
    """Return the code of the verdict that was selected; None if the form has no choice of a verdict."""
    field, value = _verdict_field(hint), values.get("verdict", "")
    if field is None or field.kind != "choice" or hint.answer_marker == ANSWER_MARKER:
        return None
    if value in ("", NO_VERDICT):
        return Decision.NONE
    if hint.answer_order is not None:
        return FIRST_ANSWER + ascii_uppercase.index(value)
    return Decision.ACCEPT if value == hint.accept else Decision.REJECT


def _list(options: Sequence[str]) -> str:
    return ", ".join(f"{number} for {option!r}" for number, option in enumerate(options, 1))
