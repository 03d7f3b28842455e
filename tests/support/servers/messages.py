"""A server of Anthropic's Messages API, with its prompt cache and its errors.

An answer is a function of the request's bytes and the seed. See `tests.support.servers.frame`.

    POST /v1/messages
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tests.support.servers import frame
from tests.support.servers.completions import Style, completion
from tests.support.servers.frame import Answer, Request, digest_of, json_answer, run_server

VERSION = b"2026-10-21"
PARAMETERS = {
    "model", "max_tokens", "messages", "system", "stop_sequences", "cache_control", "output_config", "thinking",
}  # fmt: skip


def error(status: int, kind: str, message: str, **headers: str) -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}
    return json_answer(body, status)._replace(headers=headers)


ERRORS: Mapping[str, Answer] = {
    "overloaded": error(529, "overloaded_error", "Overloaded"),
    "rate_limit": error(429, "rate_limit_error", "This request would exceed your rate limit", **{"retry-after": "0"}),
    "server_error": error(500, "api_error", "Internal server error"),
    "unauthorized": error(401, "authentication_error", "invalid x-api-key"),
    "billing": error(
        400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API. Please go to Plans "
        "& Billing to upgrade or purchase credits.",
    ),
    "forbidden": error(403, "permission_error", "Your API key does not have permission to use the specified resource."),
    "no_model": error(404, "not_found_error", "model: claude-nope"),
    "too_long": error(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
    "too_large": error(413, "request_too_large", "Request exceeds the maximum size"),
    "invalid": error(400, "invalid_request_error", "messages.1: user messages must have non-empty content"),
}  # fmt: skip
"""Faults that are error responses."""

ENDS = ("refusal", "max_tokens", "thinking_only", "context_full")
"""Faults that change the end of an answer."""


@dataclass
class Options(Style, frame.Options):
    kind: str | None = None
    """The fault of every request after the first `after` ones: one of `ERRORS` and `ENDS`."""
    after: int = 0
    rates: tuple[int, int, int] | None = None
    """Limits in the headers of responses: requests, input tokens and output tokens per minute."""

    def kinds(self) -> Collection[str]:
        return (*ERRORS, *ENDS)


class Server(frame.Server):
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.routes["POST /v1/messages"] = self.message
        self.cached: set[str] = set()
        self.billed: Counter[str] = Counter()

    def stats(self) -> dict[str, Any]:
        return {**super().stats(), "billed": self.billed}

    def message(self, request: Request) -> Answer:
        options, digest = self.options, digest_of(request.body)
        request_error = _find_request_error(request)
        if request_error is not None:
            return request_error
        attempt = self.count_attempt(digest)
        kind = options.kind if self.requests > options.after else None
        kind = kind or self.fault(options.seed, digest, attempt)
        self.kinds[kind or "answer"] += 1
        if kind is not None and kind in ERRORS:
            return ERRORS[kind]
        headers = {}
        if options.rates is not None:
            names = ("requests-limit", "input-tokens-limit", "output-tokens-limit")
            headers = {f"anthropic-ratelimit-{n}": str(rate) for n, rate in zip(names, options.rates, strict=True)}
        return Answer(body=orjson.dumps(self._reply(request.json(), digest, kind)), headers=headers)

    def _reply(self, body: dict[str, Any], digest: str, kind: str | None) -> dict[str, Any]:
        system = "".join(block["text"] for block in body.get("system", ()))
        chat = [{"role": "system", "content": system}, *body["messages"]]
        text = completion(self.options, {**body, "messages": chat}, digest, None)["choices"][0]["message"]["content"]
        content: list[dict[str, Any]] = [
            {"type": "thinking", "thinking": "I look at it.", "signature": "EqQBCgIYAhIM"},
            {"type": "text", "text": text},
        ]
        reason, details = "end_turn", None
        if kind == "refusal":
            content, reason = [], "refusal"
            details = {"type": "refusal", "category": "cyber", "explanation": "This could enable harm."}
        elif kind == "max_tokens":
            content, reason = [{"type": "text", "text": text[:20]}], "max_tokens"
        elif kind == "thinking_only":
            content, reason = content[:1], "max_tokens"
        elif kind == "context_full":
            reason = "model_context_window_exceeded"
        usage = self._usage(body, system, 3 + sum(len(orjson.dumps(block)) // 4 for block in content))
        return {
            "id": "msg_01" + digest[:22],
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "stop_details": details,
            "usage": usage,
        }

    def _usage(self, body: dict[str, Any], system: str, output: int) -> dict[str, Any]:
        """Count tokens, and cache the marked prefixes that no earlier request has cached."""
        texts = [system, *(f"{turn['role']}: {turn['content']}" for turn in body["messages"])]
        sizes = [len(text.encode()) // 4 + 4 for text in texts]
        marks = [1] if any("cache_control" in block for block in body.get("system", ())) else []
        marks += [len(texts)] if "cache_control" in body else []
        prefixes = {
            end: digest_of("\0".join([body["model"], *texts[:end]]).encode()) for end in range(1, len(texts) + 1)
        }
        last = marks[-1] if marks else 0
        hit = max((end for end, prefix in prefixes.items() if end <= last and prefix in self.cached), default=0)
        self.cached.update(prefixes[end] for end in marks)
        read, written = sum(sizes[:hit]), sum(sizes[hit:last])
        usage = {
            "input_tokens": sum(sizes) - read - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "output_tokens": output,
        }
        self.billed.update(usage)
        return {**usage, "output_tokens_details": {"thinking_tokens": min(output, 4)}, "service_tier": "standard"}


def _find_request_error(request: Request) -> Answer | None:
    """Return the error for a request that the API would refuse."""
    if request.headers.get(b"anthropic-version") != VERSION:
        return error(400, "invalid_request_error", "anthropic-version: header is required")
    if not request.headers.get(b"authorization", b"").startswith(b"Bearer "):
        return ERRORS["unauthorized"]
    body = request.json()
    unknown = sorted(body.keys() - PARAMETERS)
    if unknown:
        return error(400, "invalid_request_error", f"{unknown[0]}: Extra inputs are not permitted")
    if "max_tokens" not in body:
        return error(400, "invalid_request_error", "max_tokens: Field required")
    for index, turn in enumerate(body["messages"]):
        if turn.keys() != {"role", "content"} or turn["role"] not in ("user", "assistant"):
            return error(400, "invalid_request_error", f"messages.{index}: Extra inputs are not permitted")
    return None


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
