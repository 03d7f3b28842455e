"""What a model says: a chat completion in OpenAI's format, a function of the request's bytes and the seed."""

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

WORDS = (
    "the loop bound", "the empty input", "equal keys", "the last branch", "the first index", "a negative number",
    "the initial value", "the early return", "the sort order", "the largest input",
)  # fmt: skip
CLAIMS = ("it holds", "it is off by one", "the order is kept", "the state is carried over", "nothing is lost")


@dataclass
class Style:
    """What shapes an answer."""

    seed: int = 0
    usage: bool = True
    drops_system: bool = False
    """Like a chat template that leaves system messages out: 10 tokens of its own, and none of theirs."""
    cached_tokens: int = 0
    decide: float = 0.3
    """How often a verifier that may go on decides."""
    text: str | None = None
    """The same text for every answer."""
    length: int = 0
    """So many characters that no compression shortens much, before what an answer says."""
    prose: int = 0
    """So many characters of words, which compression shortens as it shortens what models write, before that."""
    max_n: int = 128
    """No call gets more answers, whatever it asks for."""
    finish_reason: str = "stop"
    model: str | None = None
    """The model that answers say they come from; None: the one that was asked for."""
    logprobs: bool = False
    """Tell the log-probabilities of tokens to who asks for them."""
    confidence: str | None = None
    """Text below a verdict; None: a probability, where the system message asks for one."""


def completion(style: Style, asked: dict[str, Any], digest: str, kind: str | None) -> dict[str, Any]:
    messages, count = asked["messages"], min(asked.get("n") or 1, style.max_n)
    choices, length = [], 0
    for index in range(count):
        text: str | None = style.text if style.text is not None else _text(style, messages, f"{digest}/{index}")
        if style.length:
            text = f"{_varied(style.length, f'{style.seed}/{digest}/{index}')}\n\n{text}"
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
        told = style.logprobs and asked.get("logprobs") and text
        tokens = {"content": _tokens(text or "", asked, f"{digest}/{index}")} if told else None
        choices.append({"index": index, "message": message, "logprobs": tokens, "finish_reason": finish})
    reply = {
        "id": "chatcmpl-" + digest[:24],
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": style.model or asked["model"],
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


def _tokens(text: str, asked: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Its tokens: pieces of words, one of which leads to the verdict, and may lead to the other one."""
    found, at = [], max(text.rfind(ACCEPT), text.rfind(REJECT))
    start = 0
    for piece in re.findall(r"\s*\S{1,6}|\s+", text):
        likely = {piece: 0.95}
        if at >= 0 and start <= at + len("Decision: ") < start + len(piece):
            share = random.Random(key).uniform(0.2, 0.9)
            likely = {piece: share, " reject" if "a" in piece else " acc": 0.95 - share, " ": 0.03}
        tops = sorted(likely.items(), key=lambda one: -one[1])[: asked.get("top_logprobs") or 0]
        alternatives = [{"token": t, "logprob": math.log(p), "bytes": list(t.encode())} for t, p in tops]
        first = {"token": piece, "logprob": math.log(likely[piece]), "bytes": list(piece.encode())}
        found.append({**first, "top_logprobs": alternatives})
        start += len(piece)
    return found


def _varied(length: int, key: str) -> str:
    drawn = base64.b64encode(random.Random(key).randbytes(length * 3 // 4)).decode()
    return " ".join(drawn[at : at + 60] for at in range(0, len(drawn), 61))


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    """Words, and how often each comes, summed: the n-th 1/n as often as the first, as in any language."""
    rng = random.Random("vocabulary")
    words = ["".join(rng.choices("etaoinshrdlucmfwypvbgk", k=rng.randint(2, 9))) for _ in range(8000)]
    return words, list(accumulate(1 / (place + 3) for place in range(len(words))))


def _prose(length: int, key: str) -> str:
    words, shares = _vocabulary()
    drawn = random.Random(key).choices(words, cum_weights=shares, k=length // 4)
    lines = (" ".join(drawn[at : at + 14]) for at in range(0, len(drawn), 14))
    return "\n".join(lines)[:length]


def _text(style: Style, messages: list[dict[str, Any]], key: str) -> str:
    """What the role asks for: a verdict, a question for each header, or an argument."""
    system = messages[0]["content"]
    rng = random.Random(f"{style.seed}/{key}")
    said = f"Look at {rng.choice(WORDS)} ({rng.randrange(10_000)}): {rng.choice(CLAIMS)}."
    if ACCEPT not in system or REJECT not in system:
        return said
    must = MUST_DECIDE[0] in system or MUST_DECIDE[1] in messages[-1]["content"]
    if must or rng.random() < style.decide:
        verdict = f"{said}\n\n{rng.choice((ACCEPT, REJECT))}"
        if style.confidence is not None:
            return f"{verdict}\n{style.confidence}"
        return f"{verdict}\nConfidence: 0.{rng.randrange(50, 100)}" if "Confidence:" in system else verdict
    headers = HEADER.findall(system)
    if not headers:
        return f"What about {rng.choice(WORDS)} ({rng.randrange(10_000)})?"
    return "\n\n".join(f"{header} what about {rng.choice(WORDS)}?" for header in headers)
