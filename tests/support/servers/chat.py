"""A server of OpenAI's chat completions, for tests and benchmarks.

An answer is a function of the request's bytes and the seed. See `tests.support.servers.frame`.

    POST /v1/chat/completions
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from tests.support.servers import frame
from tests.support.servers.completions import Style, completion
from tests.support.servers.frame import DROPPED, Answer, Request, digest_of, error, json_answer, run_server
from tests.support.servers.prefixes import Prefixes


@dataclass
class Options(Style, frame.Options):
    latency: float | tuple[float, float] = 0.0
    """A fixed latency, or a range; a hash of the request determines the value."""
    first_latency: float = 0.0
    """Additional latency of the first request."""
    reply: Any = None
    """The complete answer as JSON."""
    retry_after: float = 0.02
    slow: float = 0.3
    kind: str | None = None
    """The fault of every request after the first `after` ones: one of `ENDS`, `ALTERING` and `ENDING`."""
    after: int = 0
    prefix_block: int = 0
    """Characters per block of the prefix cache (see `prefixes`), which also counts sessions; 0 means no cache."""
    location: str = "/v1/elsewhere"
    malformed: str | None = None
    """Text whose requests are refused as malformed."""
    refused: tuple[str, ...] = ()
    """Parameters whose requests are refused."""
    alternates: bool = False
    """Whether messages of user and assistant must alternate after a system message, as in a strict chat template."""
    takes_system: bool = True
    """Whether system messages are accepted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind is not None and self.kind not in self.kinds():
            raise ValueError(f"no such kind: {self.kind}")

    def kinds(self) -> Collection[str]:
        return (*ENDS, *ALTERING, *ENDING)


LIMITED = error(429, "Rate limit reached", "rate_limit_exceeded", kind="requests")
_invalid = partial(error, kind="invalid_request_error")

MALFORMED = _invalid(400, "Invalid value for 'content': it cannot be read", param="messages.[1].content")

FAULTS: Mapping[str, Answer | Callable[[Options], Answer]] = {
    "rate_limit": LIMITED,
    "rate_limit_seconds": lambda o: LIMITED._replace(headers={"retry-after": f"{o.retry_after:g}"}),
    "rate_limit_ms": lambda o: LIMITED._replace(headers={"retry-after-ms": f"{o.retry_after * 1000:g}"}),
    "server_error": error(500, "The server had an error", kind="server_error"),
    "overloaded": error(503, "Slow down", "slow_down", kind="server_error"),
    "drop": DROPPED,
    "half_body": Answer(body=b'{"id": "chatcmpl-0", "choices": [{"index": 0, "mess' * 4, cut=120),
    "malformed": Answer(body=b'{"id": "chatcmpl-0", "choices": [{"index": 0, "message": {"role"'),
    "html": Answer(body=b"<html><body>Bad gateway</body></html>", content_type="text/html"),
    "hang": lambda o: Answer(504, b"{}", wait=o.hang),
}
"""Faults with their own response."""

ALTERING = ("slow", "empty_choices", "null_content", "bad_decision", "length", "blank_length", "null_length")
"""Faults that change a valid answer."""

ENDS: Mapping[str, Answer | Callable[[Options], Answer]] = {
    "insufficient_quota": error(
        429, "You exceeded your current quota, check your billing details", "insufficient_quota",
        kind="insufficient_quota",
    ),
    "unauthorized": _invalid(401, "Incorrect API key provided", "invalid_api_key"),
    "forbidden": error(403, "Country not supported", "unsupported_country_region_territory", kind="request_forbidden"),
    "unknown_model": _invalid(404, "The model does not exist", "model_not_found"),
    "unsupported_parameter": _invalid(400, "Unsupported: 'temperature'", "unsupported_parameter", param="temperature"),
    "context_length_exceeded": _invalid(
        400, "This model's maximum context length is 8 tokens", "context_length_exceeded"
    ),
    "malformed_request": MALFORMED,
    "cut_at_limit": _invalid(
        400, "Could not finish the message because max_tokens or model output limit was reached. Please try again with "
        "higher max_tokens.",
    ),
    "content_policy": _invalid(400, "Refused by policy", "content_policy_violation"),
    "error_in_200": json_answer({"error": {"message": "overloaded", "type": "server_error", "code": 503}}),
    "redirect": lambda o: Answer(307, headers={"location": o.location}),
    **FAULTS,
}  # fmt: skip

ENDING = ("content_filter", "refusal")
"""Faults that change the finish reason of a valid answer."""


class Server(frame.Server):
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.prefixes = Prefixes(options.prefix_block) if options.prefix_block else None

    def stats(self) -> dict[str, Any]:
        stats = super().stats()
        return stats if self.prefixes is None else {**stats, "prefixes": self.prefixes.stats()}

    async def complete(self, request: Request) -> Answer:
        options, digest = self.options, digest_of(request.body)
        attempt = self.count_attempt(digest)
        if self.prefixes is not None:
            self.prefixes.add(request)
        kind = options.kind if options.kind is not None and self.requests > options.after else None
        if kind is None:
            kind = self.fault(options.seed, digest, attempt)
        self.kinds[kind or "answer"] += 1
        wait = _latency(options, digest) + (options.first_latency if self.requests == 1 else 0.0)
        if options.malformed is not None and options.malformed.encode() in request.body:
            return MALFORMED._replace(wait=wait)
        for name in options.refused:
            if name in request.json():
                return _invalid(400, f"Unsupported parameter: '{name}'", "unsupported_parameter", param=name)
        if options.alternates or not options.takes_system:
            template_error = _find_template_error(options, request.json()["messages"])
            if template_error is not None:
                return error(400, template_error)
        if kind is not None and kind in ENDS:
            end = ENDS[kind]
            answer = end if isinstance(end, Answer) else end(options)
            return answer if answer.wait else answer._replace(wait=wait)
        if options.reply is not None:
            return Answer(body=orjson.dumps(options.reply), wait=wait)
        reply = orjson.dumps(completion(options, request.json(), digest, kind))
        return Answer(body=reply, wait=wait + (options.slow if kind == "slow" else 0.0))


def _find_template_error(options: Options, messages: list[dict[str, Any]]) -> str | None:
    """Return the error of the chat template of Llama 2 or Gemma 2, if it would reject the messages."""
    roles = [message["role"] for message in messages]
    if not options.takes_system and "system" in roles:
        return "System role not supported"
    turns = roles[1:] if roles[0] == "system" else roles
    if options.alternates and any(role != ("user", "assistant")[index % 2] for index, role in enumerate(turns)):
        return "Conversation roles must alternate user/assistant/user/assistant/..."
    return None


def _latency(options: Options, digest: str) -> float:
    if isinstance(options.latency, (int, float)):
        return float(options.latency)
    low, high = options.latency
    return low + (high - low) * int(digest[:8], 16) / 0xFFFFFFFF


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
