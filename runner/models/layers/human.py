"""The provider `human`: people answer the requests of a run on a page, through a queue of questions.

A question has the messages that a model would get, and a form for the expected answer. The form's values become the
text that a model would write. A person's answer is confirmed only after it is in the journal, so no answer is lost.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Collection, Mapping

from runner.base.errors import RunError, UsageError
from runner.base.question_queue import PersonAnswer, Question, QuestionQueue
from runner.models.interface import Choice, Complete, Completion, Request, SampleKey
from runner.models.layers.answer_form import answer_text, form_fields, selected_decision
from runner.models.settings import ModelSettings

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
