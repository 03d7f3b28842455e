"""The server of the page where people answer questions: its responses and the requests it refuses."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from runner.base.errors import RunError, UsageError
from runner.base.question_queue import FormField, PersonAnswer, Question, QuestionQueue
from runner.pages.live.question_page import serve_questions
from runner.pages.live.server import PageServer


def refuse_empty(answer: PersonAnswer) -> None:
    if not answer.values["text"]:
        raise UsageError("write a text")
    if answer.values["text"] == "lost":
        raise RunError("the answer was not saved")


@pytest.fixture
def queue() -> QuestionQueue:
    queue = QuestionQueue()
    queue.add(
        Question(
            [{"role": "user", "content": "</script><b>?\ud800"}], [FormField("text", "Text")], refuse_empty,
            topic=("secret-run", "p1"), role="judge",
        )
    )  # fmt: skip
    return queue


@pytest.fixture
def server(queue: QuestionQueue, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr("runner.pages.live.question_page.END_SECONDS", 0.0)
    with serve_questions(queue) as server:
        yield server
        queue.leave("Ann")
        queue.has_ended_for("Ann")


def send(server: PageServer, method: str, name: str, data: Any = None, **headers: str) -> tuple[int, Any, str]:
    """Send a request and return the response's status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    body = None if data is None else json.dumps(data)
    sent = {"Content-Type": "application/json", **headers}
    connection.request(method, urlsplit(server.address).path + name, body, sent)
    response = connection.getresponse()
    return response.status, response.headers, response.read().decode()


def take_question(server: PageServer) -> Any:
    status, _, body = send(server, "POST", "take", {"person": "Ann"})
    assert status == 201
    return json.loads(body)


def test_question_contains_only_its_messages_and_its_form(server: PageServer) -> None:
    state = take_question(server)
    question = state.pop("question")
    assert state == {"has_ended": False, "others": 0}
    assert question.pop("id")
    field = {"name": "text", "label": "Text", "kind": "text", "options": [], "required": True, "default": ""}
    assert question == {"messages": [{"role": "user", "content": "</script><b>?\ufffd"}], "fields": [field]}


def test_answer_is_refused_with_the_reason_or_leads_to_the_next_question(server: PageServer) -> None:
    identity = {"person": "Ann", "question": take_question(server)["question"]["id"]}
    status, _, body = send(server, "POST", "answer", {**identity, "values": {"text": ""}})
    assert (status, json.loads(body)) == (400, {"error": "write a text"})
    status, _, body = send(server, "POST", "answer", {**identity, "values": {"text": "lost"}})
    assert (status, json.loads(body)) == (500, {"error": "the answer was not saved"})
    status, _, body = send(server, "POST", "answer", {**identity, "values": {"text": "yes"}})
    assert (status, json.loads(body)) == (201, {"question": None, "has_ended": False, "others": 0})
    status, _, body = send(server, "POST", "answer", {**identity, "values": {"text": "again"}})
    assert status == 400
    assert "was answered" in body


@pytest.mark.parametrize(
    "data", [{}, {"person": 7}, {"person": ""}, {"person": "Ann", "question": 1, "values": {}}, {"person": "Ann"}]
)
def test_malformed_answer_is_refused(data: Any, server: PageServer) -> None:
    assert send(server, "POST", "answer", data)[0] == 400


def test_page_allows_only_its_own_script_and_contains_no_question(server: PageServer) -> None:
    status, headers, body = send(server, "GET", "")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 2
    assert policy.removesuffix("; frame-ancestors 'none'") in body.replace("&#39;", "'")
    assert "secret-run" not in body


@pytest.mark.parametrize(
    ("name", "headers", "status"),
    [
        ("take", {"Origin": "http://evil.example"}, 403),
        ("take", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("take", {"Content-Type": "text/plain"}, 415),
        ("take", {"Host": "evil.example"}, 421),
        ("notes", {}, 404),
        ("../take", {}, 404),
    ],
)
def test_cross_site_and_invalid_requests_are_refused(
    name: str, headers: dict[str, str], status: int, server: PageServer, queue: QuestionQueue
) -> None:
    assert send(server, "POST", name, {"person": "Ann"}, **headers)[0] == status
    assert not queue.has_people()
