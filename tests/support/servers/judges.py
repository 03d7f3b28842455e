"""A server of planted judges and provers: how well each judge sees, leans, and knows itself is given.

A model's name says who it is: `judges` and `provers` have each one's settings. A judge sees x, drawn from a normal
distribution around +d'/2 where the claim is right and -d'/2 where it is wrong, moved by the force of each argument for
its side, and accepts where x is above its criterion; its d' and c are those of signal detection theory. What it sees is
a function of its name, the claim, the arguments and the seed, however a prompt is worded. See
`tests.support.servers.frame`.

    POST /v1/chat/completions
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.servers import frame
from tests.support.servers.frame import Answer, Request, digest_of, error, run_server

CLAIM = re.compile(r"Claim (\S+) of")
TRUTH = re.compile(r"<there>(right|wrong)</there>")
"""What there is to see of a claim, in a judge's prompt."""
SIDE = re.compile(r"You argue for: (accept|reject)")
"""The stance, in a prover's prompt."""
ARGUMENT = re.compile(r"\[for (accept|reject), force ([0-9.]+)\]")
"""An argument, as provers write it and judges read it; the first in a chat is that of the first seat."""

WORDS = (
    "the", "a", "first", "second", "claim", "step", "case", "bound", "index", "proof", "follows", "holds", "fails",
    "since", "where", "each", "term", "sum", "by", "lemma", "value", "sign", "line", "last", "both", "some", "none",
    "other", "part", "whole",
)  # fmt: skip
"""Of which reasons are made."""
SIGN = {"accept": 1, "reject": -1}


@dataclass(frozen=True)
class Judge:
    """How a judge comes to its verdict, and to its confidence in it."""

    sensitivity: float = 0.0
    """d': how far apart right and wrong claims look, in standard deviations of what is seen of one."""
    criterion: float = 0.0
    """c: above 0, it would rather reject."""
    follows_first: float = 0.0
    """The share of games in which it sides with whoever stands first, whatever it sees."""
    sharpness: float = 1.0
    """By how much the log odds that it tells are those of what it sees: 1 is calibrated, above it is overconfident."""
    states: bool = False
    """Whether it states its confidence."""


@dataclass
class Options(frame.Options):
    seed: int = 0
    judges: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name, the fields of `Judge`."""
    provers: dict[str, float] = field(default_factory=dict)
    """By name, the force of a prover's arguments: by how much one moves what a judge sees."""
    reasons: bool = False
    """Whether judges give reasons, in words that another seed draws otherwise; each answer has a name of its own."""


class Server(frame.Server):
    options: Options

    async def complete(self, request: Request) -> Answer:
        asked, options = request.json(), self.options
        name, chat = asked["model"], "\n".join(message["content"] for message in asked["messages"])
        digest = digest_of(request.body)
        self.attempted(digest)
        self.kinds[name] += 1
        if name in options.provers:
            side = SIDE.search(chat)
            if side is None:
                return error(400, "the prompt does not say which side to argue")
            text, p_accept = f"[for {side[1]}, force {options.provers[name]:g}] ({digest[:8]})", None
        elif name in options.judges:
            there, claim = TRUTH.search(chat), CLAIM.search(chat)
            if there is None or claim is None:
                return error(400, "the prompt does not say which claim there is, and what to see of it")
            rng = random.Random(f"{options.seed}/{name}/{claim[1]}/{ARGUMENT.findall(chat)}")
            text, p_accept = judged(Judge(**options.judges[name]), there[1] == "right", chat, rng)
            if options.reasons:
                text = f"{' '.join(rng.choices(WORDS, k=20))}.\n\n{text}"
                digest = digest_of(f"{options.seed} {digest}".encode())
        else:
            return error(404, f"no such model: {name}", "model_not_found")
        return Answer(body=orjson.dumps(_completion(asked, digest, text, p_accept)))


def judged(judge: Judge, is_right: bool, chat: str, rng: random.Random) -> tuple[str, float]:
    """A judge's answer to a chat, and the probability of `accept` that it tells."""
    arguments = [(side, float(force)) for side, force in ARGUMENT.findall(chat)]
    moved = sum(SIGN[side] * force for side, force in arguments)
    seen = rng.gauss((judge.sensitivity / 2) * (1 if is_right else -1) + moved, 1.0)
    accepts = seen > judge.criterion
    if arguments and rng.random() < judge.follows_first:
        accepts = arguments[0][0] == "accept"
    p_accept = 1 / (1 + math.exp(-judge.sharpness * judge.sensitivity * seen))
    p_accept = min(max(p_accept, 0.001), 0.999)
    stated = f"Confidence: {p_accept if accepts else 1 - p_accept:.4f}\n" if judge.states else ""
    return f"I have read it.\n\n{stated}Decision: {'accept' if accepts else 'reject'}", p_accept


def _completion(asked: dict[str, Any], digest: str, text: str, p_accept: float | None) -> dict[str, Any]:
    logprobs = None
    if asked.get("logprobs") and p_accept is not None:
        logprobs = {"content": [_token(piece, p_accept) for piece in re.findall(r"\s*(?:\w+|[^\w\s])", text)]}
    message = {"role": "assistant", "content": text, "refusal": None}
    prompt, said = (sum(len(one["content"]) // 4 + 4 for one in asked["messages"]), len(text) // 4 + 1)
    return {
        "id": "chatcmpl-" + digest[:24], "object": "chat.completion", "created": 1_790_000_000,
        "model": asked["model"], "system_fingerprint": "fp_loopback",
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said},
    }  # fmt: skip


def _token(piece: str, p_accept: float) -> dict[str, Any]:
    """A token with its log-probability: of the verdict's, the likelihood of both."""
    shares = {" accept": p_accept, " reject": 1 - p_accept} if piece in (" accept", " reject") else {piece: 0.99}
    told = {name: {"token": name, "logprob": math.log(p), "bytes": list(name.encode())} for name, p in shares.items()}
    likeliest = sorted(told, key=lambda name: -shares[name])
    return {**told[piece], "top_logprobs": [told[name] for name in likeliest]}


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
