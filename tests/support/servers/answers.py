"""A loopback server for games about listed answers, with planted debaters and a planted judge.

A prover argues for the answer of its prompt in the sentence `I argue for B.` The judge reads these sentences. A planted
function sets its answer from the question, the listed answers and the argued ones.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.threaded_server import serve_in_thread

Judge = Callable[[str, Mapping[str, str], list[str]], str]
"""Returns the judge's answer to a question, the answers by letter, and the letters that were argued for."""


@dataclass
class AnswerServer:
    base_url: str
    requests: Counter[str] = field(default_factory=Counter)
    """The number of requests to each model."""
    prompts: list[tuple[str, str]] = field(default_factory=list)
    """The model and all text of each request."""


def _reply(body: Mapping[str, Any], judge: Judge) -> str:
    text = "\n".join(str(message["content"]) for message in body["messages"])
    question = re.findall(r"<question>\s*(.*?)\s*</question>", text, re.DOTALL)[0]
    answers = dict(re.findall(r"^([A-Z])\) (.*)$", text, re.MULTILINE))
    if body["model"] == "judge":
        argued_letters = re.findall(r"I argue for ([A-Z])\.", text)
        return judge(question, answers, argued_letters)
    assigned_letters = re.findall(r"the right answer is ([A-Z])\)", text)
    if assigned_letters:
        return f"I argue for {assigned_letters[0]}."
    letter = next(letter for letter, answer in answers.items() if answer == body["model"])
    return f"Answer: {letter}\nI argue for {letter}."


@contextmanager
def run_answer_server(judge: Judge) -> Iterator[AnswerServer]:
    """Serve the answers of a planted judge and of planted debaters on loopback until the context ends."""
    with run_reply_server(lambda body: _reply(body, judge)) as server:
        yield server


@contextmanager
def run_reply_server(reply: Callable[[Mapping[str, Any]], str]) -> Iterator[AnswerServer]:
    """Serve chat completions on loopback until the context ends. `reply` returns the text for a request's body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.requests[body["model"]] += 1
                state.prompts.append((body["model"], json.dumps(body["messages"])))
            message = {"role": "assistant", "content": reply(body)}
            answer = {
                "id": "1", "object": "chat.completion", "created": 1, "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }  # fmt: skip
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    lock = threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = AnswerServer(f"http://127.0.0.1:{server.server_port}/v1")
    with serve_in_thread(server):
        yield state
