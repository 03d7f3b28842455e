"""The provider `dummy`, which generates well-formed answers without a network, at random from the rollout's seed.

It also generates the confidence in a verdict, if requested. The stated confidence and the log-probabilities are
independent of each other and of the label.

The `dummy` trainer creates toy models, so that learning curves rise. The name of a toy model contains the number of
examples that it was trained on. The higher this number, the more often its verdicts are correct. A toy model learns
nothing: this provider gets the labels of the datapoints and looks them up. No prompt and no request contains a label.
"""

from __future__ import annotations

import math
import random
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from string import ascii_uppercase

import orjson

from runner.base.hashing import derived_seed
from runner.models.interface import Body, Choice, Completion, Request, Usage, estimate_prompt_tokens, estimate_tokens

MODEL = "dummy"

_REPORTED_PROBABILITY = 0.98
"""Total probability of the alternatives that an answer reports for each token."""

DECISION_PROBABILITY = 0.3
"""Probability that a verifier decides if it may also continue."""

STATEMENT_MARKER = "Answer:"
"""The marker of the answer that a prover chooses to argue for, which comes first in its message."""

EXAMPLES_FOR_HALF = 60
"""Number of examples after which a trained model knows half of the labels. It guesses the others."""

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
    """Answers immediately. The same sample of the same rollout always gets the same answer.

    For a trained model, `examples` is the number of examples that it was trained on, and `labels` has the label of each
    datapoint by id, or the text of the right answer that a prover must find. `top_logprobs` is the number of
    alternatives to report for each token; None: no log-probabilities.
    `answer_words` is the approximate number of words of an answer; None: a single sentence.
    """

    def __init__(
        self,
        examples: int = 0,
        labels: Mapping[str, int | str] | None = None,
        *,
        top_logprobs: int | None = None,
        answer_words: int | None = None,
    ) -> None:
        self._word_count = answer_words
        self._top_logprobs = top_logprobs
        self._known_share = examples / (examples + EXAMPLES_FOR_HALF)
        self._labels = labels or {}

    async def complete(self, request: Request) -> Completion:
        rng = random.Random(_derive_seed("dummy", request))
        if request.hint.states is None:
            text = _generate_answer(request, rng, self._known_label(request), self._word_count)
        else:
            right_answer = self._labels.get(request.sample.datapoint)
            text = _generate_text(rng, self._word_count)
            text += f"\n\n{_generate_statement(*request.hint.states, right_answer, rng)}"
        text = _add_notes_and_quote(request, text) if request.schema is None else _convert_to_json(request, text)
        usage = Usage(estimate_prompt_tokens(request.messages), estimate_tokens(text), estimated=True)
        body = None if self._top_logprobs is None else _build_body(request, text, self._top_logprobs)
        return Completion((Choice(text, "stop"),), MODEL, usage, body=body)

    async def close(self) -> None:
        """Do nothing, because nothing is open."""

    def _known_label(self, request: Request) -> int | None:
        """Return the label if the trained model knows it; otherwise None. More examples only add known labels."""
        label = self._labels.get(request.sample.datapoint)
        is_known = random.Random(_derive_seed("dummy-knows", request)).random() < self._known_share
        return label if isinstance(label, int) and is_known else None


def _derive_seed(purpose: str, request: Request) -> int:
    return derived_seed(purpose, request.seed, *request.sample.fields()[1:])


def _generate_answer(request: Request, rng: random.Random, label: int | None, word_count: int | None) -> str:
    hint = request.hint
    if hint.number is not None:
        return f"{_generate_text(rng, word_count)}\n\n{hint.number[0]} {rng.randint(1, hint.number[1])}"
    if hint.answer_order is not None:
        return _choose_listed_answer(request, rng, label, word_count)
    may_decide = hint.accept is not None and hint.reject is not None
    if may_decide and (hint.must_decide or rng.random() < DECISION_PROBABILITY):
        sentence, guess = _generate_sentence(rng), rng.random() < 0.5
        accepts = guess if label is None else label == 1
        answer = f"{_extend(sentence, rng, word_count)}\n\n{hint.accept if accepts else hint.reject}"
        return answer if hint.confidence is None else f"{answer}\n{hint.confidence} {_state_confidence(request)}"
    return _generate_message(request, rng, word_count)


def _generate_statement(kind: str, count: int, right_answer: int | str | None, rng: random.Random) -> str:
    """Return what a message must state: an answer or sub-claims, about half of them right, or probabilities."""
    if kind == "answer":
        wrong_answer = rng.randint(1, 999)
        return f"{STATEMENT_MARKER} {wrong_answer if right_answer is None or rng.random() < 0.5 else right_answer}"
    if kind == "estimates":
        return "\n".join(f"Claim {number}: {rng.randint(1, 99)}%" for number in range(1, count + 1))
    sums = [(rng.randint(1, 99), rng.randint(1, 99), rng.random() < 0.5) for _ in range(rng.randint(2, count))]
    return "\n".join(f"Claim {i}: {a} + {b} = {a + b + is_wrong}" for i, (a, b, is_wrong) in enumerate(sums, 1))


def _choose_listed_answer(request: Request, rng: random.Random, right: int | None, word_count: int | None) -> str:
    """Return an answer that chooses one of the listed answers, or a question if the agent may also continue.

    `right` is the index of a right answer in the dataset if the trained model knows it.
    """
    hint, order = request.hint, request.hint.answer_order or (0,)
    is_statement = hint.answer_marker == STATEMENT_MARKER
    if not (is_statement or hint.must_decide or rng.random() < DECISION_PROBABILITY):
        return _generate_message(request, rng, word_count)
    sentence, guess = _generate_sentence(rng), rng.randrange(len(order))
    chosen = guess if right is None else order.index(right)
    line = f"{hint.answer_marker} {_format_choice(chosen, len(order), hint.form, rng)}"
    text = _extend(sentence, rng, word_count)
    return f"{line}\n\n{text}" if is_statement else f"{text}\n\n{line}"


def _format_choice(chosen: int, count: int, form: str, rng: random.Random) -> str:
    """Return the letter of the chosen answer, or a number for each answer: the highest for the chosen answer."""
    if form == "answer":
        return ascii_uppercase[chosen]
    weights = [rng.randint(1, 50) for _ in range(count)]
    weights[chosen] += max(weights)
    shares = [round(100 * weight / sum(weights)) for weight in weights]
    shares[chosen] += 100 - sum(shares)
    unit = "" if form == "scores" else "%"
    return ", ".join(f"{ascii_uppercase[i]} {share}{unit}" for i, share in enumerate(shares))


def _generate_message(request: Request, rng: random.Random, word_count: int | None) -> str:
    """Return a message for each channel of the agent."""
    headers = request.hint.headers
    if not headers:
        return _generate_text(rng, word_count)
    words_each = None if word_count is None else word_count // len(headers)
    return "\n\n".join(f"{header} {_generate_text(rng, words_each)}" for header in headers)


def _add_notes_and_quote(request: Request, text: str) -> str:
    """Return an answer with private notes before it and a quote after it, if the request expects them.

    A quarter of the quotes have another word at the end, so that the source does not have them.
    """
    hint = request.hint
    if not hint.source and hint.scratchpad is None:
        return text
    words, rng = (hint.source or "").split(), random.Random(_derive_seed("dummy-quotes", request))
    if words:
        start = rng.randrange(len(words))
        quote = [*words[start : start + 6], *(["indeed"] if rng.random() < 0.25 else [])]
        text = f"{text} <quote>{' '.join(quote)}</quote>"
    return text if hint.scratchpad is None else f"{_generate_sentence(rng)}\n\n{hint.scratchpad} {text}"


def _convert_to_json(request: Request, text: str) -> str:
    """Return an answer in the JSON of the request's schema, with the same decision."""
    assert request.schema is not None
    properties, hint = request.schema["properties"], request.hint
    marker = f"{hint.answer_marker} " if hint.answer_order is not None else ""
    options = properties["decision"]["enum"]
    chosen = {
        "decision": next((option for option in options if f"{marker}{option}" in text), options[-1]),
        "confidence": f"{float(_state_confidence(request)):.0%}",
    }
    message = text.partition("\n\n")[0]
    for header in hint.headers:
        message = message.removeprefix(header).lstrip()
    return orjson.dumps({name: chosen.get(name, message) for name in properties}).decode()


def _generate_text(rng: random.Random, word_count: int | None) -> str:
    return _extend(_generate_sentence(rng), rng, word_count)


def _extend(sentence: str, rng: random.Random, word_count: int | None) -> str:
    """Extend a sentence to about `word_count` words.

    Use `rng` for nothing else afterwards, so that all other random choices are the same for every `word_count`.
    """
    missing = 0 if word_count is None else word_count - sentence.count(" ") - 1
    if missing <= 0:
        return sentence
    text, starts = _generate_long_text(1 << max(missing + _MIN_SPARE_WORDS, 1 << 10).bit_length())
    first = rng.randrange(len(starts) - missing)
    return f"{sentence} {text[starts[first] : starts[first + missing] - 1]}"


_MIN_SPARE_WORDS = 64
"""Minimum number of words that the long text has in addition to those of an answer, so that answers differ."""


@cache
def _generate_long_text(min_words: int) -> tuple[str, Sequence[int]]:
    """Return a text of more than `min_words` words, and the offset of each word. Long answers are parts of this."""
    rng, sentences, word_count = random.Random(min_words), [], 0
    while word_count <= min_words:
        sentences.append(_generate_sentence(rng))
        word_count += sentences[-1].count(" ") + 1
    text = " ".join(sentences)
    return text, array("L", [0, *(space.end() for space in re.finditer(" ", text))])


def _state_confidence(request: Request) -> str:
    """Return the stated confidence in the verdict, from 0.5 to 1, as text."""
    return f"{random.Random(_derive_seed('dummy-states', request)).randint(50, 100) / 100:g}"


def _build_body(request: Request, text: str, top_logprobs: int) -> Body:
    """Return an answer in the form of a server that sends log-probabilities."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": list(_list_tokens(request, text, top_logprobs))},
        "finish_reason": "stop",
    }
    return Body(orjson.dumps({"object": "chat.completion", "model": MODEL, "choices": [choice]}))


def _list_tokens(request: Request, text: str, top_logprobs: int) -> Iterator[dict[str, object]]:
    """Yield a token for each word. The verdict's token has the other verdict's word as an alternative."""
    offset, other_word = _find_verdict(request, text)
    start = 0
    for word in re.findall(r"\s*\S+", text):
        candidates = [(word, _REPORTED_PROBABILITY)]
        if start <= offset < start + len(word):
            share = random.Random(_derive_seed("dummy-weighs", request)).uniform(0.3, 1.0)
            probabilities = share * _REPORTED_PROBABILITY, (1 - share) * _REPORTED_PROBABILITY
            candidates = list(zip((word, word[: offset - start] + other_word), probabilities, strict=True))
        alternatives = [
            _build_token(*candidate) for candidate in sorted(candidates, key=lambda candidate: -candidate[1])
        ]
        yield {**_build_token(*candidates[0]), "top_logprobs": alternatives[:top_logprobs]}
        start += len(word)


def _find_verdict(request: Request, text: str) -> tuple[int, str]:
    """Return where the verdict in a text begins to differ from the other possible verdict, and the other's next word.

    The offset is -1 if the text has no verdict.
    """
    accept, reject = request.hint.accept, request.hint.reject
    if accept is None or reject is None:
        return -1, ""
    pairs = enumerate(zip(accept, reject, strict=False))
    common = next((index for index, (a, r) in pairs if a != r), min(len(accept), len(reject)))
    for verdict, other in ((accept, reject), (reject, accept)):
        start = text.rfind(verdict)
        if start >= 0 and other[common:].strip():
            return start + common, other[common:].split()[0]
    return -1, ""


def _build_token(text: str, probability: float) -> dict[str, object]:
    return {"token": text, "logprob": round(math.log(probability), 6), "bytes": list(text.encode())}


def _generate_sentence(rng: random.Random) -> str:
    return f"{rng.choice(_OPENINGS)} {rng.choice(_OBJECTS)}: {rng.choice(_CLAIMS)}."
