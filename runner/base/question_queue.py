"""A queue of questions that people answer on a page. Each question is given to one person at a time.

The queue knows nothing about games or pages: its user adds questions with a form and a function that receives the
answer. Threads of a page's server and the event loop of a run call it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from runner.base.errors import UsageError

LEASE_SECONDS = 150.0
"""A person who was not seen for this time is away: another person may get the question. Browsers let a page in the
background call its server only once per minute."""
LEAVING_SECONDS = 5.0
"""A person who closes the page is away after this time. A reloaded page returns sooner and keeps its question."""
MAX_NAME = 60
"""Maximum number of characters of a person's name."""


@dataclass(frozen=True)
class FormField:
    """A field of the form below a question."""

    name: str
    label: str
    kind: Literal["text", "line", "choice"] = "text"
    """`text`: several lines; `line`: one line; `choice`: one of the options, which number keys select."""
    options: tuple[str, ...] = ()
    required: bool = True
    default: str = ""


class PersonAnswer(NamedTuple):
    """A person's answer: the value of each field of the form. The value of a choice is the option's text."""

    person: str
    values: Mapping[str, str]
    seconds: float
    """The time since the person first saw the question."""


@dataclass(eq=False)
class Question:
    """A question for one person."""

    messages: Sequence[Mapping[str, object]]
    """The texts to show, each with `content` and optionally `role` and `name`."""
    fields: Sequence[FormField]
    submit: Callable[[PersonAnswer], None]
    """Saves an answer, and raises `UsageError` with the reason if it is invalid. A thread of the page's server calls
    it."""
    topic: Hashable = None
    """The game of the question. A person never gets questions of two roles in the same game."""
    role: Hashable = None
    priority: float = 0.0
    """Questions with a higher priority are given first."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))


class _Lease(NamedTuple):
    question: Question
    since: float


class QuestionQueue:
    """The questions that wait for answers, and the people who are answering."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.page = ""
        """The address of the page, for the progress display."""
        self._clock = clock
        self._lock = threading.RLock()
        self._questions: dict[str, Question] = {}
        self._leases: dict[str, _Lease] = {}
        """The question that each person has, by the person's name."""
        self._last_calls: dict[str, float] = {}
        """Time of the last call of each person's page, by the person's name."""
        self._players: dict[Hashable, list[tuple[Hashable, str]]] = {}
        """Pairs of a role and a person who has answered in it, by topic, oldest first."""
        self._in_submission: set[str] = set()
        self._has_ended = False

    def add(self, question: Question) -> None:
        """Add a question."""
        with self._lock:
            self._questions[question.id] = question

    def remove(self, question: Question) -> None:
        """Remove a question, if it still waits for an answer."""
        with self._lock:
            self._questions.pop(question.id, None)
            self._leases = {person: lease for person, lease in self._leases.items() if lease.question is not question}

    def remember(self, topic: Hashable, role: Hashable, person: str) -> None:
        """Record that a person has answered a question of a topic in a role, also in an earlier process."""
        with self._lock:
            players = self._players.setdefault(topic, [])
            if not players or players[-1] != (role, person):
                players.append((role, person))

    def count_waiting(self) -> int:
        """Return the number of questions without an answer."""
        return len(self._questions)

    def take(self, person: str) -> Question | None:
        """Return the question that a person has, or give the person the next one; None if there is none.

        Raises:
            UsageError: the name is invalid.
        """
        check_name(person)
        with self._lock:
            lease = self._leases.get(person)
            if lease is not None and self._is_present(person):
                self._last_calls[person] = self._clock()
                return lease.question
            self._leases.pop(person, None)
            self._last_calls[person] = self._clock()
            free = [question for question in self._questions.values() if self._may_take(person, question)]
            if not free:
                return None
            question = max(free, key=lambda question: question.priority)
            self._leases = {name: lease for name, lease in self._leases.items() if lease.question is not question}
            self._leases[person] = _Lease(question, self._clock())
            return question

    def answer(self, person: str, question_id: str, values: Mapping[str, str]) -> None:
        """Submit a person's answer. The question is answered once this returns.

        Raises:
            UsageError: the answer is invalid, or the person does not have the question.
            RunError: the answer could not be saved.
        """
        with self._lock:
            lease = self._leases.get(person)
            if lease is None or lease.question.id != question_id or question_id in self._in_submission:
                raise UsageError("this question was answered, or given to another person while this page was away")
            self._last_calls[person] = self._clock()
            self._in_submission.add(question_id)
        question = lease.question
        try:
            question.submit(PersonAnswer(person, values, self._clock() - lease.since))
        finally:
            with self._lock:
                self._in_submission.discard(question_id)
        self.remember(question.topic, question.role, person)
        self.remove(question)

    def leave(self, person: str) -> None:
        """Record that a person has closed the page. Unless it is opened again soon, the question is free."""
        with self._lock:
            if person in self._last_calls:
                self._last_calls[person] = self._clock() - LEASE_SECONDS + LEAVING_SECONDS

    def end(self) -> None:
        """Record that no question will follow, which each page learns when it calls again."""
        self._has_ended = True

    def has_ended_for(self, person: str) -> bool:
        """Return whether no question will follow. If so, the person counts as away."""
        with self._lock:
            if self._has_ended:
                self._last_calls.pop(person, None)
            return self._has_ended

    def has_people(self) -> bool:
        """Return whether anybody has the page open."""
        with self._lock:
            return any(map(self._is_present, self._last_calls))

    def _is_present(self, person: str) -> bool:
        last_call = self._last_calls.get(person)
        return last_call is not None and self._clock() - last_call < LEASE_SECONDS

    def _may_take(self, person: str, question: Question) -> bool:
        """Return whether a question is free, and the person has not seen its game in another role.

        A role stays with the person who played it, unless this person is away.
        """
        for other, lease in self._leases.items():
            if lease.question is question and other != person and self._is_present(other):
                return False
        if question.topic is None:
            return True
        players = self._players.get(question.topic, [])
        if any(player == person and role != question.role for role, player in players):
            return False
        owner = next((player for role, player in reversed(players) if role == question.role), person)
        return owner == person or not self._is_present(owner)


def check_name(person: str) -> None:
    """Raise `UsageError` if this is not a name of a person."""
    if not person.strip() or len(person) > MAX_NAME or not person.isprintable():
        raise UsageError(f"enter a name of 1 to {MAX_NAME} characters")
