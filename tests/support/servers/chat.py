"""A server that speaks OpenAI's chat completions wire format on 127.0.0.1, for tests and benchmarks.

    python -m tests.support.servers.chat [--options FILE_OR_JSON] [--set KEY=JSON ...]

Its first line on stdout is its port; it ends when its stdin closes. An answer is a function of the request's bytes
and the seed. Faults are drawn from the hash of the body and how often that body was asked before, so a retry
succeeds in the end whatever the order of arrival.

    POST /v1/chat/completions    GET /stats    GET /requests    POST /options
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

from tests.support.subprocess_server import serve

COMPLETIONS = "/v1/chat/completions"

HEADER = re.compile(r"^(.{1,60}:) <your question>", re.MULTILINE)
MUST_DECIDE = ("you must decide in this answer", "This is the last round")
ACCEPT, REJECT = "Decision: accept", "Decision: reject"

WORDS = (
    "the loop bound", "the empty input", "equal keys", "the last branch", "the first index", "a negative number",
    "the initial value", "the early return", "the sort order", "the largest input",
)  # fmt: skip
CLAIMS = ("it holds", "it is off by one", "the order is kept", "the state is carried over", "nothing is lost")


@dataclass
class Options:
    """How the server behaves. Times are seconds."""

    seed: int = 0
    latency: float | tuple[float, float] = 0.0
    """Fixed, or a range from which each request's is drawn by its hash."""
    usage: bool = True
    cached_tokens: int = 0
    decide: float = 0.3
    """How often a verifier that may go on decides."""
    text: str | None = None
    """The same text for every answer."""
    finish_reason: str = "stop"
    model: str | None = None
    """The model that answers say they come from; None: the one that was asked for."""
    reply: Any = None
    """The whole answer, as JSON; nothing is made up."""
    faults: dict[str, float] = field(default_factory=dict)
    """Probability of each kind in `FAULTS`; drawn for each attempt of each body."""
    max_faults: int = 3
    """A body that failed so often is answered."""
    retry_after: float = 0.02
    hang: float = 30.0
    slow: float = 0.3
    kind: str | None = None
    """One of `ENDS`: what every request after the first `after` ones gets."""
    after: int = 0
    location: str = "/v1/elsewhere"
    record: int = 0
    """How many requests to keep for GET /requests."""


@dataclass(frozen=True)
class Answer:
    """What goes back; `cut` bytes of it before the connection is dropped (None: all of it)."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    wait: float = 0.0
    cut: int | None = None


def error(status: int, code: str | None, kind: str, message: str, **more: Any) -> Callable[[Options], Answer]:
    body = orjson.dumps({"error": {"message": message, "type": kind, "param": more.pop("param", None), "code": code}})
    return lambda options: Answer(status, body, more)


def limited(**headers: Callable[[Options], str]) -> Callable[[Options], Answer]:
    def made(options: Options) -> Answer:
        wire = {name.replace("_", "-"): value(options) for name, value in headers.items()}
        return error(429, "rate_limit_exceeded", "requests", "Rate limit reached", **wire)(options)

    return made


FAULTS: Mapping[str, Callable[[Options], Answer]] = {
    "rate_limit": limited(),
    "rate_limit_seconds": limited(retry_after=lambda o: f"{o.retry_after:g}"),
    "rate_limit_ms": limited(retry_after_ms=lambda o: f"{o.retry_after * 1000:g}"),
    "server_error": error(500, None, "server_error", "The server had an error"),
    "overloaded": error(503, "slow_down", "server_error", "Slow down"),
    "drop": lambda options: Answer(cut=0),
    "half_body": lambda options: Answer(body=b'{"id": "chatcmpl-0", "choices": [{"index": 0, "mess' * 4, cut=120),
    "malformed": lambda options: Answer(body=b'{"id": "chatcmpl-0", "choices": [{"index": 0, "message": {"role"'),
    "html": lambda options: Answer(body=b"<html><body>Bad gateway</body></html>", content_type="text/html"),
    "hang": lambda options: Answer(504, b"{}", wait=options.hang),
}  # fmt: skip
"""Faults that are whole answers of their own."""

ALTERING = ("slow", "empty_choices", "null_content", "bad_decision", "length")
"""Faults that alter a good answer."""

ENDS: Mapping[str, Callable[[Options], Answer]] = {
    "insufficient_quota": error(
        429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota, check your billing details"
    ),
    "unauthorized": error(401, "invalid_api_key", "invalid_request_error", "Incorrect API key provided"),
    "forbidden": error(403, "unsupported_country_region_territory", "request_forbidden", "Country not supported"),
    "unknown_model": error(404, "model_not_found", "invalid_request_error", "The model does not exist"),
    "unsupported_parameter": error(
        400, "unsupported_parameter", "invalid_request_error", "Unsupported: 'temperature'", param="temperature"
    ),
    "context_length_exceeded": error(
        400, "context_length_exceeded", "invalid_request_error", "This model's maximum context length is 8 tokens"
    ),
    "content_policy": error(400, "content_policy_violation", "invalid_request_error", "Refused by policy"),
    "error_in_200": lambda options: Answer(
        200, orjson.dumps({"error": {"message": "overloaded", "type": "server_error", "code": 503}})
    ),
    "redirect": lambda options: Answer(307, b"", {"location": options.location}),
    **FAULTS,
}

ENDING = ("content_filter", "refusal")
"""Ends that are answers with another finish."""


class Server:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.paths: Counter[str] = Counter()
        self.bodies: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.requests = self.open = self.max_open = self.connections = self.body_bytes = 0
        self.recorded: deque[dict[str, Any]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        method, path, _ = first.decode("latin-1").split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        if path.startswith(("/stats", "/requests", "/options")):
            writer.write(_wire(self._about(path, body)))
            return True
        self.requests += 1
        self.paths[path] += 1
        self.body_bytes += len(body)
        if len(self.recorded) < self.options.record:
            shown = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
            self.recorded.append({"method": method, "path": path, "headers": shown, "body": body.decode()})
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            answer = self._answer(path, body)
            if answer.wait:
                await asyncio.sleep(answer.wait)
        finally:
            self.open -= 1
        data = _wire(answer)
        if answer.cut is None:
            writer.write(data)
            return True
        if answer.cut:
            start = data.index(b"\r\n\r\n") + 4
            writer.write(data[: start + answer.cut])
            await writer.drain()
        return False

    def _about(self, path: str, body: bytes) -> Answer:
        if path == "/options":
            for name, value in orjson.loads(body).items():
                setattr(self.options, name, value)
            return Answer(body=b"{}")
        if path == "/requests":
            return Answer(body=orjson.dumps(list(self.recorded)))
        names = ("requests", "max_open", "open", "connections", "body_bytes")
        counts = {"paths": self.paths, "bodies": self.bodies, "kinds": self.kinds}
        return Answer(body=orjson.dumps({**{name: getattr(self, name) for name in names}, **counts}))

    def _answer(self, path: str, body: bytes) -> Answer:
        options = self.options
        digest = hashlib.sha256(body).hexdigest()[:32]
        attempt = self.bodies[digest]
        self.bodies[digest] += 1
        if path != COMPLETIONS:
            return error(404, None, "invalid_request_error", f"no such path {path}")(options)
        kind = options.kind if options.kind is not None and self.requests > options.after else None
        if kind is None and options.faults and attempt < options.max_faults:
            kind = _drawn(options, digest, attempt)
        self.kinds[kind or "answer"] += 1
        wait = _latency(options, digest)
        if kind in ENDS:
            made = ENDS[kind](options)
            return Answer(made.status, made.body, made.headers, made.content_type, made.wait or wait, made.cut)
        if options.reply is not None:
            return Answer(body=orjson.dumps(options.reply), wait=wait)
        reply = _completion(options, orjson.loads(body), digest, kind)
        return Answer(body=orjson.dumps(reply), wait=wait + (options.slow if kind == "slow" else 0.0))


def _drawn(options: Options, digest: str, attempt: int) -> str | None:
    draw = random.Random(f"{options.seed}/{digest}/{attempt}").random()
    for kind, probability in options.faults.items():
        draw -= probability
        if draw < 0:
            return kind
    return None


def _latency(options: Options, digest: str) -> float:
    if isinstance(options.latency, (int, float)):
        return float(options.latency)
    low, high = options.latency
    return low + (high - low) * int(digest[:8], 16) / 0xFFFFFFFF


def _completion(options: Options, asked: dict[str, Any], digest: str, kind: str | None) -> dict[str, Any]:
    messages, count = asked["messages"], asked.get("n") or 1
    choices, length = [], 0
    for index in range(count):
        text: str | None = options.text if options.text is not None else _text(options, messages, f"{digest}/{index}")
        finish, refusal = options.finish_reason, None
        if kind == "null_content":
            text = None
        elif kind == "bad_decision":
            text = "I have checked it.\n\nDecision: undecided"
        elif kind == "length":
            finish = "length"
        elif kind == "content_filter":
            text, finish = "", "content_filter"
        elif kind == "refusal":
            text, refusal = None, "I cannot help with that."
        length += len(text or "") // 4 + 1
        message = {"role": "assistant", "content": text, "refusal": refusal}
        choices.append({"index": index, "message": message, "logprobs": None, "finish_reason": finish})
    reply = {
        "id": "chatcmpl-" + digest[:24],
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": options.model or asked["model"],
        "choices": [] if kind == "empty_choices" else choices,
        "system_fingerprint": "fp_loopback",
    }
    if options.usage:
        prompt = sum(len(message["content"]) // 4 + 4 for message in messages)
        reply["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": length,
            "total_tokens": prompt + length,
            "prompt_tokens_details": {"cached_tokens": min(options.cached_tokens, prompt)},
        }
    return reply


def _text(options: Options, messages: list[dict[str, Any]], key: str) -> str:
    """What the role asks for: a verdict, a question for each header, or an argument."""
    system = messages[0]["content"]
    rng = random.Random(f"{options.seed}/{key}")
    said = f"Look at {rng.choice(WORDS)} ({rng.randrange(10_000)}): {rng.choice(CLAIMS)}."
    if ACCEPT not in system or REJECT not in system:
        return said
    must = MUST_DECIDE[0] in system or MUST_DECIDE[1] in messages[-1]["content"]
    if must or rng.random() < options.decide:
        return f"{said}\n\n{rng.choice((ACCEPT, REJECT))}"
    headers = HEADER.findall(system)
    if not headers:
        return f"What about {rng.choice(WORDS)} ({rng.randrange(10_000)})?"
    return "\n\n".join(f"{header} what about {rng.choice(WORDS)}?" for header in headers)


def _wire(answer: Answer) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    head = (
        f"HTTP/1.1 {answer.status} X\r\ncontent-type: {answer.content_type}\r\n"
        f"content-length: {len(answer.body)}\r\n{more}\r\n"
    )
    return head.encode("latin-1") + answer.body


def parsed(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--options", default="{}", help="a JSON file, or JSON")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="one option")
    args = parser.parse_args(arguments)
    text = args.options if args.options.lstrip().startswith("{") else Path(args.options).read_text("utf-8")
    data = orjson.loads(text)
    for pair in args.set:
        name, _, value = pair.partition("=")
        data[name] = orjson.loads(value)
    unknown = data.keys() - {option.name for option in fields(Options)}
    kinds = {*data.get("faults", {}), *filter(None, [data.get("kind")])} - {*ENDS, *ALTERING, *ENDING}
    if unknown or kinds:
        parser.error(f"no such option or kind: {', '.join(sorted(unknown | kinds))}")
    return Options(**data)


if __name__ == "__main__":
    try:
        asyncio.run(serve(Server(parsed()).connected, limit=1 << 22))
    except KeyboardInterrupt:
        sys.exit(130)
