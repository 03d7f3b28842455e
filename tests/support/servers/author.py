"""A server of a planted author, which writes the programs that a test has planned.

The prompt contains a right program. The author answers with the planted programs of the first rule whose text is in the
prompt, one after another for the versions that nip-run asks for, and again from the first. The number of the version is
a hash of the request's `seed`, or, without one, the number of equal requests before it. See
`tests.support.servers.frame`.

    POST /v1/chat/completions
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.support.servers import frame
from tests.support.servers.frame import Answer, Request, digest_of, error, run_server


@dataclass
class Options(frame.Options):
    planted: list[tuple[list[str], list[str]]] = field(default_factory=list)
    """Rules: texts that are all in the prompt, and the answers to it."""
    planted_file: str | None = None
    """A JSON file with the rules, if there are many."""
    latency: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.planted_file is not None:
            self.planted = orjson.loads(Path(self.planted_file).read_bytes())

    def kinds(self) -> Collection[str]:
        return ("server_error",)


class Server(frame.Server):
    options: Options

    async def complete(self, request: Request) -> Answer:
        body, digest = request.json(), digest_of(request.body)
        attempt = self.count_attempt(digest)
        fault = self.fault(0, digest, attempt)
        self.kinds[fault or "answer"] += 1
        if fault is not None:
            return error(500, "The server had an error", kind="server_error")
        prompt = body["messages"][0]["content"]
        rules = self.options.planted
        answers = next((answers for texts, answers in rules if all(text in prompt for text in texts)), ["Sorry."])
        text = answers[body.get("seed", attempt) % len(answers)]
        reply: dict[str, Any] = {
            "id": f"chatcmpl-{digest[:24]}", "object": "chat.completion", "created": 1_790_000_000,
            "model": body["model"],
            "choices": [{
                "index": 0, "message": {"role": "assistant", "content": text, "refusal": None}, "logprobs": None,
                "finish_reason": "stop",
            }],
            "usage": {"prompt_tokens": len(request.body) // 4, "completion_tokens": len(text) // 4 + 1},
        }  # fmt: skip
        return Answer(body=orjson.dumps(reply), wait=self.options.latency)


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
