"""The page where people answer the questions of a queue: a `runner.pages.live.server.LiveContent`, and its server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from markupsafe import Markup

from runner.analysis.label_queue import LabelQueue
from runner.base.errors import UsageError
from runner.base.question_queue import MAX_NAME, Question, QuestionQueue
from runner.pages.html import PageView, policy, render_template, script, style
from runner.pages.live.server import PageServer

END_SECONDS = 5.0
"""Maximum seconds after the end until all pages have learned of it. A waiting page calls every 1.5 s."""
_CODE, _CSS = ("10_dom.js", "questions/form.js"), ("base.css", "questions/form.css")


class QuestionSource(Protocol):
    """The questions of a page; see `QuestionQueue`."""

    def take(self, person: str) -> Question | None:
        """Return the question that a person has; None if there is none."""

    def answer(self, person: str, question_id: str, values: Mapping[str, str]) -> None:
        """Save a person's answer."""

    def leave(self, person: str) -> None:
        """Record that a person has closed the page."""

    def has_ended_for(self, person: str) -> bool:
        """Return whether no question will follow."""

    def count_waiting(self) -> int:
        """Return the number of questions that wait for an answer of anybody."""


@dataclass(frozen=True, kw_only=True)
class QuestionsView(PageView):
    """The content of `questions.html`."""

    max_name: int = MAX_NAME
    """Maximum number of characters of a person's name."""


class QuestionPage:
    """The content of a server for people who answer questions."""

    def __init__(self, queue: QuestionSource, title: str = "Questions") -> None:
        self._queue, self._title = queue, title

    def page(self) -> bytes:
        """Return the page. It has no question: its script takes one after a person has entered a name."""
        view = QuestionsView(
            title=self._title,
            policy=self.policy(),
            style=Markup(style(*_CSS)),  # noqa: S704 - a file of this package
            script=Markup(script(*_CODE)),  # noqa: S704 - a file of this package
        )
        return render_template("questions.html", view).encode()

    def policy(self) -> str:
        """Return the content security policy of this page's script and style."""
        return policy(connects=True, code=script(*_CODE), css=style(*_CSS))

    def state(self) -> bytes:
        """Return an empty state."""
        return b"{}"

    def piece(self, name: str) -> bytes | None:
        """Return None, because the page has no data in pieces."""
        del name
        return None

    def post(self, name: str, data: Mapping[str, object]) -> dict[str, object] | None:
        """Give a person a question (`take`), save an answer (`answer`), or note that a page was closed (`leave`).

        Raises:
            UsageError: the answer or the name is invalid.
            RunError: the answer could not be saved.
        """
        person = data.get("person")
        if name not in ("take", "answer", "leave"):
            return None
        if not isinstance(person, str):
            raise UsageError("enter your name")
        if name == "leave":
            self._queue.leave(person)
            return {}
        if name == "answer":
            question_id, values = data.get("question"), data.get("values")
            if not isinstance(question_id, str) or not isinstance(values, dict):
                raise UsageError("an answer needs `question` (an id) and `values` (a text for each field)")
            texts = {str(name): _without_surrogates(str(value)) for name, value in values.items()}
            self._queue.answer(person, question_id, texts)
        if self._queue.has_ended_for(person):
            return {"question": None, "has_ended": True, "others": 0}
        question = self._queue.take(person)
        others = self._queue.count_waiting() - (question is not None)
        return {"question": None if question is None else _as_json(question), "has_ended": False, "others": others}


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot represent."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _as_json(question: Question) -> dict[str, object]:
    """Return what a person may see of a question: neither its game nor its role."""
    return {
        "id": question.id,
        "messages": [
            {name: _without_surrogates(str(text)) for name, text in message.items()} for message in question.messages
        ],
        "fields": [vars(field) | {"options": list(field.options)} for field in question.fields],
    }


@contextmanager
def serve_questions(queue: QuestionQueue, port: int = 0) -> Iterator[PageServer]:
    """Serve the questions of a queue in a thread. At the end, each open page learns that no question will follow.

    Raises:
        UsageError: the port is in use or privileged.
        RunError: the server cannot listen.
    """
    server = PageServer(QuestionPage(queue), port)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="nip-run-questions", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        queue.end()
        deadline = time.monotonic() + END_SECONDS
        while queue.has_people() and time.monotonic() < deadline:
            time.sleep(0.05)
        server.shutdown()
        server.server_close()
        thread.join()


class LabelPage(QuestionPage):
    """The page of questions, with undo and the reader's progress."""

    def __init__(self, labels: LabelQueue, title: str) -> None:
        super().__init__(labels, title)
        self._labels = labels

    def post(self, name: str, data: Mapping[str, object]) -> dict[str, object] | None:
        """Take back a reader's last label (`undo`), or do what a page of questions does, and add the progress.

        Raises:
            UsageError: the answer or the name is invalid, or there is nothing to take back.
            RunError: the labels could not be read or saved.
        """
        person = data.get("person")
        if name == "undo" and isinstance(person, str):
            self._labels.undo(person)
        state = super().post("take" if name == "undo" else name, data)
        if state and isinstance(person, str):
            labeled, total = self._labels.progress(person)
            state |= {"others": 0, "labeled": labeled, "total": total}
        return state
