"""The queue of questions for people: leases, roles, and the time that a person takes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest

from runner.base.errors import RunError, UsageError
from runner.base.question_queue import LEASE_SECONDS, LEAVING_SECONDS, FormField, PersonAnswer, Question, QuestionQueue


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Desk:
    """A queue with its own clock, and the answers to its questions."""

    clock: Clock = field(default_factory=Clock)
    answers: list[PersonAnswer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = QuestionQueue(self.clock)

    def ask(self, submit: Callable[[PersonAnswer], None] | None = None, **options: Any) -> Question:
        question = Question([{"content": "?"}], [FormField("text", "Text")], submit or self.answers.append, **options)
        self.queue.add(question)
        return question


def test_a_question_is_given_to_one_person_at_a_time() -> None:
    desk = Desk()
    questions = {desk.ask(), desk.ask()}
    assert {desk.queue.take("Ann"), desk.queue.take("Ben")} == questions
    assert desk.queue.take("Cid") is None
    assert desk.queue.count_waiting() == 2


def test_a_person_gets_the_same_question_until_it_is_answered() -> None:
    desk = Desk()
    first, second = desk.ask(priority=2), desk.ask(priority=1)
    assert desk.queue.take("Ann") is desk.queue.take("Ann") is first
    desk.clock.now = 12.5
    desk.queue.answer("Ann", first.id, {"text": "x"})
    assert desk.answers == [PersonAnswer("Ann", {"text": "x"}, 12.5)]
    assert desk.queue.take("Ann") is second


def test_time_continues_while_a_page_is_reloaded() -> None:
    desk = Desk()
    question = desk.ask()
    desk.queue.take("Ann")
    desk.clock.now = 10
    desk.queue.leave("Ann")
    desk.clock.now += LEAVING_SECONDS / 2
    assert desk.queue.take("Ben") is None
    assert desk.queue.take("Ann") is question
    desk.queue.answer("Ann", question.id, {})
    assert desk.answers[0].seconds == 10 + LEAVING_SECONDS / 2


@pytest.mark.parametrize("leaves", [True, False])
def test_a_question_returns_when_its_person_is_away_and_a_late_answer_is_refused(leaves: bool) -> None:
    desk = Desk()
    question = desk.ask()
    desk.queue.take("Ann")
    if leaves:
        desk.queue.leave("Ann")
    desk.clock.now = LEAVING_SECONDS if leaves else LEASE_SECONDS
    assert desk.queue.take("Ben") is question
    with pytest.raises(UsageError, match="given to another person"):
        desk.queue.answer("Ann", question.id, {})
    assert desk.queue.take("Ann") is None
    desk.queue.answer("Ben", question.id, {})
    assert [answer.person for answer in desk.answers] == ["Ben"]
    assert desk.answers[0].seconds == 0


def test_time_restarts_for_a_person_who_was_away() -> None:
    desk = Desk()
    question = desk.ask()
    desk.queue.take("Ann")
    desk.clock.now = LEASE_SECONDS
    assert desk.queue.take("Ann") is question
    desk.queue.answer("Ann", question.id, {})
    assert desk.answers[0].seconds == 0


@pytest.mark.parametrize("error", [UsageError("no verdict"), RunError("the disk is full")])
def test_question_stays_with_its_person_if_the_answer_is_refused_or_not_saved(error: Exception) -> None:
    desk = Desk()

    def refuse(_: PersonAnswer) -> None:
        raise error

    question = desk.ask(refuse)
    desk.queue.take("Ann")
    with pytest.raises(type(error), match=str(error)):
        desk.queue.answer("Ann", question.id, {})
    assert desk.queue.take("Ann") is question
    assert desk.queue.take("Ben") is None


def test_only_one_of_two_submissions_of_a_person_counts() -> None:
    desk, is_saving, may_end = Desk(), Event(), Event()

    def save_slowly(answer: PersonAnswer) -> None:
        is_saving.set()
        assert may_end.wait(60)
        desk.answers.append(answer)

    question = desk.ask(save_slowly)
    desk.queue.take("Ann")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(desk.queue.answer, "Ann", question.id, {"text": "1"})
        assert is_saving.wait(60)
        with pytest.raises(UsageError):
            desk.queue.answer("Ann", question.id, {"text": "2"})
        may_end.set()
        first.result(60)
    assert [answer.values for answer in desk.answers] == [{"text": "1"}]


def test_a_person_never_gets_two_roles_of_a_game_and_keeps_a_role_while_present() -> None:
    desk = Desk()
    prover = desk.ask(topic="game", role="prover", priority=9)
    assert desk.queue.take("Ann") is prover
    desk.queue.answer("Ann", prover.id, {})
    judge = desk.ask(topic="game", role="judge")
    assert desk.queue.take("Ann") is None
    assert desk.queue.take("Ben") is judge
    desk.queue.answer("Ben", judge.id, {})
    second_judge = desk.ask(topic="game", role="judge")
    assert desk.queue.take("Cid") is None
    assert desk.queue.take("Ben") is second_judge
    desk.clock.now = LEASE_SECONDS
    assert desk.queue.take("Ann") is None
    assert desk.queue.take("Cid") is second_judge


def test_roles_of_an_earlier_process_are_respected() -> None:
    desk = Desk()
    desk.queue.remember("game", "prover", "Ann")
    judge = desk.ask(topic="game", role="judge")
    assert desk.queue.take("Ann") is None
    assert desk.queue.take("Ben") is judge


def test_a_removed_question_is_not_given() -> None:
    desk = Desk()
    question = desk.ask()
    desk.queue.take("Ann")
    desk.queue.remove(question)
    assert desk.queue.take("Ann") is None
    assert desk.queue.count_waiting() == 0


def test_people_are_notified_of_the_end_and_then_count_as_away() -> None:
    desk = Desk()
    desk.queue.take("Ann")
    assert desk.queue.has_people()
    assert not desk.queue.has_ended_for("Ann")
    desk.queue.end()
    assert desk.queue.has_people()
    assert desk.queue.has_ended_for("Ann")
    assert not desk.queue.has_people()


@pytest.mark.parametrize("name", ["", "  ", "x" * 61, "a\nb", "a\x1b[31m"])
def test_unprintable_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name of 1 to 60"):
        QuestionQueue().take(name)
