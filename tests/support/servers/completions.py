"""Chat completions in OpenAI's format, as a function of the bytes of the request and a seed."""

from __future__ import annotations

import base64
import math
import random
import re
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

HEADER = re.compile(r"^(.{1,60}:) <your question>", re.MULTILINE)
MUST_DECIDE = ("you must decide in this answer", "This is the last round")
ACCEPT, REJECT = "Decision: accept", "Decision: reject"

TOPICS = (
    "the loop bound", "the empty input", "equal keys", "the last branch", "the first index", "a negative number",
    "the initial value", "the early return", "the sort order", "the largest input",
)  # fmt: skip
CLAIMS = ("it holds", "it is off by one", "the order is kept", "the state is carried over", "nothing is lost")


@dataclass
class Style:
    """The properties of answers."""

    seed: int = 0
    usage: bool = True
    drops_system: bool = False
    """Whether the usage excludes system messages, like a chat template that drops them, and adds 10 tokens."""
    cached_tokens: int = 0
    decide: float = 0.3
    """The probability that a verifier decides before it must."""
    text: str | None = None
    """The text of every answer; None means a generated text."""
    length: int = 0
    """Number of random characters before the text, which compression hardly shortens."""
    prose: int = 0
    """Number of characters of random words before that, which compress like the text of a model."""
    max_n: int = 128
    """Maximum number of answers to one request."""
    finish_reason: str = "stop"
    model: str | None = None
    """The model that answers name; None means the requested one."""
    logprobs: bool = False
    """Whether answers include log-probabilities if requested."""
    confidence: str | None = None
    """Text after a verdict; None means a probability if the system message asks for one."""


def completion(style: Style, request: dict[str, Any], digest: str, kind: str | None) -> dict[str, Any]:
    messages, count = request["messages"], min(request.get("n") or 1, style.max_n)
    choices, length = [], 0
    for index in range(count):
        text: str | None = style.text if style.text is not None else _text(style, messages, f"{digest}/{index}")
        if style.length:
            text = f"{_random_text(style.length, f'{style.seed}/{digest}/{index}')}\n\n{text}"
        if style.prose:
            text = f"{_prose(style.prose, f'{style.seed}/{digest}/{index}')}\n\n{text}"
        finish, refusal = style.finish_reason, None
        if kind == "null_content":
            text = None
        elif kind == "bad_decision":
            text = "I have checked it.\n\nDecision: undecided"
        elif kind == "length":
            finish = "length"
        elif kind in ("blank_length", "null_length"):
            text, finish = "\n\n" if kind == "blank_length" else None, "length"
        elif kind == "content_filter":
            text, finish = "", "content_filter"
        elif kind == "refusal":
            text, refusal = None, "I cannot help with that."
        length += len(text or "") // 4 + 1
        message = {"role": "assistant", "content": text, "refusal": refusal}
        has_logprobs = style.logprobs and request.get("logprobs") and text
        tokens = {"content": _logprobs(text or "", request, f"{digest}/{index}")} if has_logprobs else None
        choices.append({"index": index, "message": message, "logprobs": tokens, "finish_reason": finish})
    reply = {
        "id": "chatcmpl-" + digest[:24],
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": style.model or request["model"],
        "choices": [] if kind == "empty_choices" else choices,
        "system_fingerprint": "fp_loopback",
    }
    if style.usage:
        prompt = sum(len(message["content"]) // 4 + 4 for message in messages)
        if style.drops_system:
            prompt = 10 + sum(len(m["content"]) // 4 + 4 for m in messages if m["role"] != "system")
        reply["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": length,
            "total_tokens": prompt + length,
            "prompt_tokens_details": {"cached_tokens": min(style.cached_tokens, prompt)},
        }
    return reply


def _logprobs(text: str, request: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the log-probabilities of a text. The token of the verdict has both verdicts as alternatives."""
    tokens, verdict = [], max(text.rfind(ACCEPT), text.rfind(REJECT))
    start = 0
    for piece in re.findall(r"\s*\S{1,6}|\s+", text):
        likely = {piece: 0.95}
        if verdict >= 0 and start <= verdict + len("Decision: ") < start + len(piece):
            share = random.Random(key).uniform(0.2, 0.9)
            likely = {piece: share, " reject" if "a" in piece else " acc": 0.95 - share, " ": 0.03}
        tops = sorted(likely.items(), key=lambda item: -item[1])[: request.get("top_logprobs") or 0]
        alternatives = [{"token": t, "logprob": math.log(p), "bytes": list(t.encode())} for t, p in tops]
        first = {"token": piece, "logprob": math.log(likely[piece]), "bytes": list(piece.encode())}
        tokens.append({**first, "top_logprobs": alternatives})
        start += len(piece)
    return tokens


def _random_text(length: int, key: str) -> str:
    random_text = base64.b64encode(random.Random(key).randbytes(length * 3 // 4)).decode()
    return " ".join(random_text[start : start + 60] for start in range(0, len(random_text), 61))


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    """Return random words with cumulative frequencies. The n-th word is about 1/n as frequent as the first."""
    rng = random.Random("vocabulary")
    words = ["".join(rng.choices("etaoinshrdlucmfwypvbgk", k=rng.randint(2, 9))) for _ in range(8000)]
    return words, list(accumulate(1 / (place + 3) for place in range(len(words))))


def _prose(length: int, key: str) -> str:
    words, shares = _vocabulary()
    sample = random.Random(key).choices(words, cum_weights=shares, k=length // 4)
    lines = (" ".join(sample[start : start + 14]) for start in range(0, len(sample), 14))
    return "\n".join(lines)[:length]


def _text(style: Style, messages: list[dict[str, Any]], key: str) -> str:
    """Return the text that the role requires: a verdict, a question for each header, or an argument."""
    system = messages[0]["content"]
    rng = random.Random(f"{style.seed}/{key}")
    argument = f"Look at {rng.choice(TOPICS)} ({rng.randrange(10_000)}): {rng.choice(CLAIMS)}."
    if ACCEPT not in system or REJECT not in system:
        return argument
    must_decide = MUST_DECIDE[0] in system or MUST_DECIDE[1] in messages[-1]["content"]
    if must_decide or rng.random() < style.decide:
        verdict = f"{argument}\n\n{rng.choice((ACCEPT, REJECT))}"
        if style.confidence is not None:
            return f"{verdict}\n{style.confidence}"
        return f"{verdict}\nConfidence: 0.{rng.randrange(50, 100)}" if "Confidence:" in system else verdict
    headers = HEADER.findall(system)
    if not headers:
        return f"What about {rng.choice(TOPICS)} ({rng.randrange(10_000)})?"
    return "\n\n".join(f"{header} what about {rng.choice(TOPICS)}?" for header in headers)
