"""The provider without a network: well-formed answers for the agent's role, drawn from rollout and sample.

How sure it is of a verdict is drawn too, where that is asked for: what it states and what its log-probabilities say are
two draws, which know nothing of each other or of the label.

A model that the `dummy` trainer has "trained" is a toy that makes a learning curve rise: its verdicts are right more
often, the more examples its name says that it was trained on. It does not learn anything: it looks the label up, in a
table that the program gives to this provider alone. No prompt and no request holds a label.
"""

from __future__ import annotations

import math
import random
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import orjson

from runner.base.hashing import derived_seed
from runner.models.interface import Body, Choice, Completion, Request, Usage, estimated_prompt_tokens, estimated_tokens

MODEL = "dummy"

_CERTAIN = 0.98
"""What the tokens that it tells of have of the probability, together."""

DECIDES = 0.3
"""The share of rounds in which a verifier that may go on decides."""

HALF_KNOWN = 60
"""After this many examples a trained model knows every other verdict; it guesses the rest, as an untrained one does."""

_OPENINGS = ("Look at", "Take", "Consider", "Trace", "Compare", "Check")
_OBJECTS = (
    "the empty input",
    "the loop bound",
    "the first iteration",
    "equal keys",
    "the initial value",
    "the last branch",
)
_CLAIMS = (
    "it returns what the statement asks for",
    "the result is off by one",
    "the state is carried over",
    "the order is kept",
)


class DummyModel:
    """Answers at once. The same sample of the same rollout always gets the same answer.

    `examples` is how many it was trained on, and `labels` has the label of each datapoint, by id, for a trained one.
    `top_logprobs` is how many likeliest tokens it tells with the log-probability of each; None: it tells neither.
    `words` is about how long its answers are; None: a sentence.
    """

    def __init__(
        self,
        examples: int = 0,
        labels: Mapping[str, int] | None = None,
        *,
        top_logprobs: int | None = None,
        words: int | None = None,
    ) -> None:
        self._words = words
        self._top = top_logprobs
        self._known = examples / (examples + HALF_KNOWN)
        self._labels = labels or {}

    async def complete(self, request: Request) -> Completion:
        text = _answer(request, random.Random(_seed("dummy", request)), self._known_label(request), self._words)
        usage = Usage(estimated_prompt_tokens(request.messages), estimated_tokens(text), estimated=True)
        body = None if self._top is None else _body(request, text, self._top)
        return Completion((Choice(text, "stop"),), MODEL, usage, body=body)

    async def close(self) -> None:
        """Nothing is open."""

    def _known_label(self, request: Request) -> int | None:
        """The label, where the model knows it by now; what it has come to know it does not forget."""
        label = self._labels.get(request.sample.datapoint)
        if label is None or random.Random(_seed("dummy-knows", request)).random() >= self._known:
            return None
        return label


def _seed(what: str, request: Request) -> int:
    return derived_seed(what, request.seed, *request.sample.fields()[1:])


def _answer(request: Request, rng: random.Random, known: int | None, words: int | None) -> str:
    wanted = request.wanted
    if wanted.accept is not None and wanted.reject is not None and (wanted.must_decide or rng.random() < DECIDES):
        sentence, guess = _sentence(rng), rng.random() < 0.5
        accepts = guess if known is None else known == 1
        sentence = _lengthened(sentence, rng, words)
        verdict = f"{sentence}\n\n{wanted.accept if accepts else wanted.reject}"
        return verdict if wanted.confidence is None else f"{verdict}\n{wanted.confidence} {_stated(request)}"
    if wanted.headers:
        each = None if words is None else words // len(wanted.headers)
        return "\n\n".join(f"{header} {_said(rng, each)}" for header in wanted.headers)
    return _said(rng, words)


def _said(rng: random.Random, words: int | None) -> str:
    return _lengthened(_sentence(rng), rng, words)


def _lengthened(sentence: str, rng: random.Random, words: int | None) -> str:
    """A sentence, and what makes it about as long as that; it draws after all else that is drawn of an answer."""
    missing = 0 if words is None else words - sentence.count(" ") - 1
    if missing <= 0:
        return sentence
    text, starts = _long_text(1 << max(missing + _FEWEST_WORDS, 1 << 10).bit_length())
    first = rng.randrange(len(starts) - missing)
    return f"{sentence} {text[starts[first] : starts[first + missing] - 1]}"


_FEWEST_WORDS = 64
"""What a long text has more than an answer that is cut out of it, so that answers differ."""


@cache
def _long_text(words: int) -> tuple[str, Sequence[int]]:
    """A text of at least so many words, which long answers are cut out of, and where each of its words starts."""
    rng, said, count = random.Random(words), [], 0
    while count <= words:
        said.append(_sentence(rng))
        count += said[-1].count(" ") + 1
    text = " ".join(said)
    return text, array("L", [0, *(place.end() for place in re.finditer(" ", text))])


def _stated(request: Request) -> str:
    """How sure it says that it is of its verdict: from 0.5 to 1."""
    return f"{random.Random(_seed('dummy-states', request)).randint(50, 100) / 100:g}"


def _body(request: Request, text: str, top: int) -> Body:
    """The answer as a server would send it that tells log-probabilities."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": list(_tokens(request, text, top))},
        "finish_reason": "stop",
    }
    return Body(orjson.dumps({"object": "chat.completion", "model": MODEL, "choices": [choice]}))


def _tokens(request: Request, text: str, top: int) -> Iterator[dict[str, Any]]:
    """A token for each word; in the place of the verdict's the other verdict's word may stand as well."""
    at, other = _verdict(request, text)
    start = 0
    for word in re.findall(r"\s*\S+", text):
        likely = [(word, _CERTAIN)]
        if start <= at < start + len(word):
            share = random.Random(_seed("dummy-weighs", request)).uniform(0.3, 1.0)
            likely = [(word, share * _CERTAIN), (word[: at - start] + other, (1 - share) * _CERTAIN)]
        alternatives = [_token(token, probability) for token, probability in sorted(likely, key=lambda one: -one[1])]
        yield {**_token(*likely[0]), "top_logprobs": alternatives[:top]}
        start += len(word)


def _verdict(request: Request, text: str) -> tuple[int, str]:
    """Where in an answer the verdict is told from the other one, and how that goes on; -1 where there is none."""
    accept, reject = request.wanted.accept, request.wanted.reject
    if accept is None or reject is None:
        return -1, ""
    pairs = enumerate(zip(accept, reject, strict=False))
    common = next((place for place, (one, other) in pairs if one != other), min(len(accept), len(reject)))
    for own, other in ((accept, reject), (reject, accept)):
        at = text.rfind(own)
        if at >= 0 and other[common:].strip():
            return at + common, other[common:].split()[0]
    return -1, ""


def _token(word: str, probability: float) -> dict[str, Any]:
    return {"token": word, "logprob": round(math.log(probability), 6), "bytes": list(word.encode())}


def _sentence(rng: random.Random) -> str:
    return f"{rng.choice(_OPENINGS)} {rng.choice(_OBJECTS)}: {rng.choice(_CLAIMS)}."
