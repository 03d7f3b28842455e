"""A server whose every word is a stranger's: texts, reasoning, names of models, errors, tokens.

A request says by `[P07]` which of `hostile_payloads.PAYLOADS` comes back. Of each body the first attempt is an error,
the second an answer that cannot be used, and the third one that can.

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
        asked = request.json()
        found = re.search(r"\[P(\d\d)\]", json.dumps(asked["messages"]))
        assert found is not None
        text = TEXTS[int(found[1])]
        attempt = self.attempted(frame.digest_of(request.body))
        if attempt == 0:
            return _answered({"error": {"message": f"error {text}", "type": text, "code": text}}, 500)
        if attempt == 1:
            return _answered(_completion("", text, finish=f"finish {text}"))
        # The verifier asks first, and decides once the prover has spoken.
        if "Decision:" not in asked["messages"][0]["content"]:
            said = f"argument {text}"
        elif "argument" in json.dumps(asked["messages"][1:]):
            said = f"verdict {text}\n\nDecision: accept\nConfidence: 0.7"
        else:
            said = f"question {text}"
        return _answered(_completion(said, text))


def _completion(said: str, text: str, *, finish: str = "stop") -> dict[str, Any]:
    pieces = re.findall(r"\s*\S{1,40}|\s+", said)
    tokens = [
        {**_token(piece, -0.5), "top_logprobs": [_token(piece, -0.5), _token(f"token {text}", -1.5)]}
        for piece in pieces
    ]
    message = {"role": "assistant", "content": said, "refusal": None, "reasoning_content": f"reasoning {text}"}
    choice = {"index": 0, "message": message, "logprobs": {"content": tokens}, "finish_reason": finish}
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    return {
        "id": text, "object": "chat.completion", "created": 1, "model": f"served {text}", "choices": [choice],
        "system_fingerprint": text, "usage": usage,
    }  # fmt: skip


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": None}


def _answered(data: Any, status: int = 200) -> Answer:
    """In ASCII, so that half of a pair can be said, too."""
    return Answer(status, json.dumps(data).encode())


if __name__ == "__main__":
    run_server(Server, frame.Options, __doc__)
