"""The provider `human`: forms, the answer texts made from them, and confirmation of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any

import pytest

from runner.base.errors import RunError, Stopped, UsageError
from runner.base.question_queue import Question, QuestionQueue
from runner.models.interface import Choice, Completion, Request, ResponseHint, SampleKey
from runner.models.layers.answer_form import NO_VERDICT, answer_text, form_fields, selected_decision
from runner.models.layers.human import HumanModel
from runner.models.provider_traits import PROVIDERS
from runner.models.settings import ModelSettings
from tests.support.processes import wait_until

VERDICT: dict[str, Any] = {"accept": "Decision: accept", "reject": "Decision: reject"}
JUDGE = ResponseHint(**VERDICT, must_decide=True)
ASKER = ResponseHint(**VERDICT)
CHOOSER = ResponseHint(answer_order=(2, 0, 1), answer_marker="Decision:", must_decide=True)
OPEN_CHOOSER = ResponseHint(answer_order=(0, 1), answer_marker="Answer:")


@pytest.mark.parametrize(
    ("hint", "values", "text", "decision"),
    [
        (ResponseHint(), {"text0": " a text \n"}, "a text", None),
        (ResponseHint(("Ann:", "Ben:")), {"text0": "a", "text1": "b"}, "Ann: a\n\nBen: b", None),
        (ResponseHint(scratchpad="Speech:"), {"text0": "a"}, "Speech: a", None),
        (ResponseHint(scratchpad="Speech:"), {"notes": "n", "text0": "a"}, "n\n\nSpeech: a", None),
        (JUDGE, {"verdict": "Decision: accept"}, "Decision: accept", 1),
        (JUDGE, {"text0": "a", "verdict": "Decision: reject"}, "a\n\nDecision: reject", 0),
        (ASKER, {"text0": "why?", "verdict": NO_VERDICT}, "why?", 2),
        (ASKER, {"text0": "why?"}, "why?", 2),
        (
            ResponseHint(**VERDICT, must_decide=True, confidence="Confidence:"),
            {"verdict": "Decision: accept", "confidence": "0.9"},
            "Decision: accept\nConfidence: 0.9",
            1,
        ),
        (CHOOSER, {"verdict": "C"}, "Decision: C", 5),
        (OPEN_CHOOSER, {"text0": "a", "verdict": "B"}, "Answer: B\n\na", None),
        (
            ResponseHint(answer_order=(0, 1), answer_marker="Decision:", form="scores", must_decide=True),
            {"verdict": "A 20, B 80"},
            "Decision: A 20, B 80",
            None,
        ),
        (ResponseHint(number=("Score:", 100)), {"verdict": "40"}, "Score: 40", None),
    ],
)
def test_form_is_rendered_as_the_text_a_model_would_write(
    hint: ResponseHint, values: Mapping[str, str], text: str, decision: int | None
) -> None:
    assert values.keys() <= {field.name for field in form_fields(hint)}
    assert answer_text(hint, values) == text
    assert selected_decision(hint, values) == decision


@pytest.mark.parametrize(
    ("hint", "values", "reason"),
    [
        (ResponseHint(), {"text0": " "}, "write a text: Message"),
        (ResponseHint(("Ann:", "Ben:")), {"text0": "a"}, "write a text: Ben:"),
        (JUDGE, {"text0": "a"}, "choose one: 1 for 'Decision: accept', 2 for 'Decision: reject'"),
        (JUDGE, {"verdict": NO_VERDICT + "!"}, "choose one"),
        (ASKER, {"verdict": NO_VERDICT}, "write a text"),
        (CHOOSER, {"verdict": "D"}, "choose one"),
        (OPEN_CHOOSER, {"verdict": "A"}, "write a text"),
        (ResponseHint(number=("Score:", 100)), {}, "fill in: Score:"),
    ],
)
def test_incomplete_form_is_rejected_with_the_reason(
    hint: ResponseHint, values: Mapping[str, str], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        answer_text(hint, values)


def in_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


REQUEST = Request(
    "people", [{"role": "user", "name": "prover", "content": "Is it right?"}], SampleKey("p", 0, 2, "v", 0)
)


class HumanDesk:
    """A human model with its question queue; if `reason` is set, it rejects every answer."""

    def __init__(self, reason: str | None = None) -> None:
        self.queue = QuestionQueue()
        self.model = HumanModel(self.queue, "run", {"people": ModelSettings(provider="human")}, lambda *_: reason)

    async def take(self, person: str = "Ann") -> Question:
        await asyncio.to_thread(wait_until, lambda: self.queue.take(person) is not None)
        question = self.queue.take(person)
        assert question is not None
        return question

    async def answer(self, person: str = "Ann", **values: str) -> None:
        question = await self.take(person)
        await asyncio.to_thread(self.queue.answer, person, question.id, values)


@in_event_loop
async def test_answer_is_confirmed_after_it_is_recorded() -> None:
    desk, steps = HumanDesk(), []

    async def record(request: Request) -> Completion:
        completion = await desk.model.complete(request)
        for _ in range(100):  # a confirmation that does not wait for the record would arrive now
            await asyncio.sleep(0)
        steps.append("recorded")
        return completion

    async def submit() -> None:
        await desk.answer(text0="yes")
        steps.append("confirmed")

    completion, _ = await asyncio.gather(desk.model.confirm_answers(record)(REQUEST), submit())
    assert steps == ["recorded", "confirmed"]
    assert completion.choices == (Choice("yes", "stop"),)
    assert completion.other_fields == {"person": "Ann"}
    assert completion.model == "human"
    assert 0 <= completion.latency_ms < 60_000
    assert completion.usage.prompt_tokens == completion.usage.completion_tokens == 0


@in_event_loop
async def test_person_gets_an_error_if_the_answer_cannot_be_saved() -> None:
    desk = HumanDesk()

    async def fail_to_record(request: Request) -> Completion:
        await desk.model.complete(request)
        raise RunError("the disk is full")

    async def submit() -> None:
        with pytest.raises(RunError, match="the answer was not saved"):
            await desk.answer(text0="yes")

    results = await asyncio.gather(
        desk.model.confirm_answers(fail_to_record)(REQUEST), submit(), return_exceptions=True
    )
    assert [type(result) for result in results] == [RunError, type(None)]


@in_event_loop
async def test_unusable_answer_is_rejected_and_its_question_stays_open() -> None:
    desk = HumanDesk("the answer has no verdict")
    call = asyncio.create_task(desk.model.complete(REQUEST))
    with pytest.raises(UsageError, match="no verdict"):
        await desk.answer(text0="yes")
    assert not call.done()
    assert desk.queue.count_waiting() == 1
    call.cancel()
    await asyncio.wait([call])
    assert desk.queue.count_waiting() == 0


@in_event_loop
async def test_stop_withdraws_all_questions() -> None:
    desk = HumanDesk()
    calls = [asyncio.create_task(desk.model.complete(REQUEST)) for _ in range(3)]
    await desk.take()
    desk.model.stop(Stopped())
    assert [type(result) for result in await asyncio.gather(*calls, return_exceptions=True)] == [Stopped] * 3
    assert desk.queue.count_waiting() == 0


@in_event_loop
async def test_recorded_answer_reserves_its_role_for_its_person() -> None:
    desk = HumanDesk()

    async def from_journal(_: Request) -> Completion:
        return Completion((Choice("a", "stop"),), "human", other_fields={"person": "Ann"})

    await desk.model.confirm_answers(from_journal)(REQUEST)
    other_request = Request("people", REQUEST.messages, REQUEST.sample._replace(agent="prover"))
    call = asyncio.create_task(desk.model.complete(other_request))
    assert (await desk.take("Ben")).role == ("prover", 0)
    desk.queue.leave("Ben")
    assert desk.queue.take("Ann") is None
    call.cancel()


def test_human_provider_costs_nothing_and_has_no_server() -> None:
    traits = PROVIDERS["human"]
    assert not any((traits.remote, traits.metered, traits.takes_batches, traits.gives_many))
