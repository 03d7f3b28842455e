"""A server of planted judges and provers: judges with a known sensitivity, criterion and calibration.

The options `judges` and `provers` have the settings of each model by name. The observation x of a judge is normally
distributed around +d'/2 if the claim is right, and around -d'/2 if it is wrong. Each argument shifts x by its force,
towards its side. The judge accepts if x exceeds its criterion c. So d' and c are those of signal detection theory. The
observation depends only on the name of the judge, the claim, the arguments and the seed. See
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
"""The truth of a claim in the prompt of a judge."""
SIDE = re.compile(r"You argue for: (accept|reject)")
"""The stance in the prompt of a prover."""
ARGUMENT = re.compile(r"\[for (accept|reject), force ([0-9.]+)\]")
"""An argument of a prover. The first argument in a chat is that of the first prover."""

REASON_WORDS = (
    "the", "a", "first", "second", "claim", "step", "case", "bound", "index", "proof", "follows", "holds", "fails",
    "since", "where", "each", "term", "sum", "by", "lemma", "value", "sign", "line", "last", "both", "some", "none",
    "other", "part", "whole",
)  # fmt: skip
"""Words for random reasons."""
SIGN = {"accept": 1, "reject": -1}


@dataclass(frozen=True)
class Judge:
    """The parameters of the verdicts and the confidence of a judge."""

    sensitivity: float = 0.0
    """d': the distance between the mean observations of right and wrong claims, in standard deviations."""
    criterion: float = 0.0
    """c: a judge with a value above 0 tends to reject."""
    follows_first: float = 0.0
    """The share of games with the verdict of the first argument, regardless of the observation."""
    sharpness: float = 1.0
    """Factor between the log odds of the observation and the stated ones: 1 is calibrated, more is overconfident."""
    states: bool = False
    """Whether the judge states its confidence."""


@dataclass
class Options(frame.Options):
    seed: int = 0
    judges: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of `Judge` by name of the model."""
    provers: dict[str, float] = field(default_factory=dict)
    """Force of the arguments of each prover: the shift of the observation of a judge."""
    reasons: bool = False
    """Whether judges give random reasons, which depend on the seed; each answer then has a unique id."""


class Server(frame.Server):
    options: Options

    async def complete(self, request: Request) -> Answer:
        request_body, options = request.json(), self.options
        name, chat = request_body["model"], "\n".join(message["content"] for message in request_body["messages"])
        digest = digest_of(request.body)
        self.count_attempt(digest)
        self.kinds[name] += 1
        if name in options.provers:
            side = SIDE.search(chat)
            if side is None:
                return error(400, "the prompt does not say which side to argue")
            text, p_accept = f"[for {side[1]}, force {options.provers[name]:g}] ({digest[:8]})", None
        elif name in options.judges:
            truth, claim = TRUTH.search(chat), CLAIM.search(chat)
            if truth is None or claim is None:
                return error(400, "the prompt does not say which claim there is, and what to see of it")
            rng = random.Random(f"{options.seed}/{name}/{claim[1]}/{ARGUMENT.findall(chat)}")
            text, p_accept = judge_chat(Judge(**options.judges[name]), truth[1] == "right", chat, rng)
            if options.reasons:
                text = f"{' '.join(rng.choices(REASON_WORDS, k=20))}.\n\n{text}"
                digest = digest_of(f"{options.seed} {digest}".encode())
        else:
            return error(404, f"no such model: {name}", "model_not_found")
        return Answer(body=orjson.dumps(_completion(request_body, digest, text, p_accept)))


def judge_chat(judge: Judge, is_right: bool, chat: str, rng: random.Random) -> tuple[str, float]:
    """Return the answer of a judge and its probability of `accept`."""
    arguments = [(side, float(force)) for side, force in ARGUMENT.findall(chat)]
    shift = sum(SIGN[side] * force for side, force in arguments)
    observation = rng.gauss((judge.sensitivity / 2) * (1 if is_right else -1) + shift, 1.0)
    accepts = observation > judge.criterion
    if arguments and rng.random() < judge.follows_first:
        accepts = arguments[0][0] == "accept"
    p_accept = 1 / (1 + math.exp(-judge.sharpness * judge.sensitivity * observation))
    p_accept = min(max(p_accept, 0.001), 0.999)
    stated = f"Confidence: {p_accept if accepts else 1 - p_accept:.4f}\n" if judge.states else ""
    return f"I have read it.\n\n{stated}Decision: {'accept' if accepts else 'reject'}", p_accept


def _completion(request_body: dict[str, Any], digest: str, text: str, p_accept: float | None) -> dict[str, Any]:
    logprobs = None
    if request_body.get("logprobs") and p_accept is not None:
        logprobs = {"content": [_token(piece, p_accept) for piece in re.findall(r"\s*(?:\w+|[^\w\s])", text)]}
    answer = {"role": "assistant", "content": text, "refusal": None}
    prompt_tokens = sum(len(message["content"]) // 4 + 4 for message in request_body["messages"])
    completion_tokens = len(text) // 4 + 1
    return {
        "id": "chatcmpl-" + digest[:24], "object": "chat.completion", "created": 1_790_000_000,
        "model": request_body["model"], "system_fingerprint": "fp_loopback",
        "choices": [{"index": 0, "message": answer, "logprobs": logprobs, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }  # fmt: skip


def _token(piece: str, p_accept: float) -> dict[str, Any]:
    """Return a token with its log-probability. The token of a verdict also has that of the other verdict."""
    shares = {" accept": p_accept, " reject": 1 - p_accept} if piece in (" accept", " reject") else {piece: 0.99}
    tokens = {name: {"token": name, "logprob": math.log(p), "bytes": list(name.encode())} for name, p in shares.items()}
    likeliest = sorted(tokens, key=lambda name: -shares[name])
    return {**tokens[piece], "top_logprobs": [tokens[name] for name in likeliest]}


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
