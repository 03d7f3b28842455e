"""A server that puts hostile payloads into every text: answers, reasoning, names of models, errors and tokens.

The text `[P07]` in a request selects payload 7 of `hostile_payloads.PAYLOADS`. The first attempt of each body gets an
error, the second an unusable answer, and the third a usable one.

    POST /v1/chat/completions
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.hostile_payloads import PAYLOADS
from tests.support.servers import frame
from tests.support.servers.frame import Answer, Request, run_server

TEXTS = tuple(PAYLOADS.values())


class Server(frame.Server):
    async def complete(self, request: Request) -> Answer:
        body = request.json()
        match = re.search(r"\[P(\d\d)\]", json.dumps(body["messages"]))
        assert match is not None
        text = TEXTS[int(match[1])]
        attempt = self.count_attempt(frame.digest_of(request.body))
        if attempt == 0:
            return _ascii_answer({"error": {"message": f"error {text}", "type": text, "code": text}}, 500)
        if attempt == 1:
            return _ascii_answer(_completion("", text, finish=f"finish {text}"))
        # The verifier asks a question first, and decides after the prover's argument.
        if "Decision:" not in body["messages"][0]["content"]:
            answer = f"argument {text}"
        elif "argument" in json.dumps(body["messages"][1:]):
            answer = f"verdict {text}\n\nDecision: accept\nConfidence: 0.7"
        else:
            answer = f"question {text}"
        return _ascii_answer(_completion(answer, text))


def _completion(answer: str, text: str, *, finish: str = "stop") -> dict[str, Any]:
    pieces = re.findall(r"\s*\S{1,40}|\s+", answer)
    tokens = [
        {**_token(piece, -0.5), "top_logprobs": [_token(piece, -0.5), _token(f"token {text}", -1.5)]}
        for piece in pieces
    ]
    message = {"role": "assistant", "content": answer, "refusal": None, "reasoning_content": f"reasoning {text}"}
    choice = {"index": 0, "message": message, "logprobs": {"content": tokens}, "finish_reason": finish}
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    return {
        "id": text, "object": "chat.completion", "created": 1, "model": f"served {text}", "choices": [choice],
        "system_fingerprint": text, "usage": usage,
    }  # fmt: skip


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": None}


def _ascii_answer(data: Any, status: int = 200) -> Answer:
    """Return JSON in ASCII, which can represent lone surrogates."""
    return Answer(status, json.dumps(data).encode())


if __name__ == "__main__":
    run_server(Server, frame.Options, __doc__)
