"""A server of a planted analyst, which answers questions about transcripts.

The prompt ends with the possible answers by letter. The analyst gives the planted answer of the first rule whose text
is in the prompt, otherwise an answer that a hash of the prompt chooses. See `tests.support.servers.frame`.

    POST /v1/chat/completions
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.servers import frame
from tests.support.servers.frame import Answer, Request, digest_of, error, run_server

ANSWER = re.compile(r"^([A-Z])\) (.*)$", re.MULTILINE)


@dataclass
class Options(frame.Options):
    planted: dict[str, str] = field(default_factory=dict)
    """The answer to prompts that contain a text; an answer that is not possible becomes the whole reply."""
    latency: float = 0.0
    json: bool = False
    """Whether replies are JSON if the request has a schema."""

    def kinds(self) -> Collection[str]:
        return ("server_error",)


class Server(frame.Server):
    options: Options

    async def complete(self, request: Request) -> Answer:
        body, digest = request.json(), digest_of(request.body)
        fault = self.fault(0, digest, self.count_attempt(digest))
        self.kinds[fault or "answer"] += 1
        if fault is not None:
            return error(500, "The server had an error", kind="server_error")
        text = self._text(body["messages"][0]["content"], digest, is_json="response_format" in body)
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        reply: dict[str, Any] = {
            "id": f"chatcmpl-{digest[:24]}", "object": "chat.completion", "created": 1_790_000_000,
            "model": body["model"], "choices": [choice],
            "usage": {"prompt_tokens": len(request.body) // 4, "completion_tokens": len(text) // 4 + 1},
        }  # fmt: skip
        return Answer(body=orjson.dumps(reply), wait=self.options.latency)

    def _text(self, prompt: str, digest: str, *, is_json: bool) -> str:
        letters = {text: letter for letter, text in ANSWER.findall(prompt.rpartition("The possible answers:")[2])}
        default = list(letters)[int(digest[:8], 16) % len(letters)]
        answer = next((answer for text, answer in self.options.planted.items() if text in prompt), default)
        if answer not in letters:
            return answer
        if is_json and self.options.json:
            return json.dumps({"reason": f"It is {answer}.", "decision": letters[answer]})
        return f"It is {answer}.\n\nDecision: {letters[answer]}"


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
