"""The probability of accept, from the tokens that servers tell, whatever their tokenizers make of the verdict."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from runner.game.protocols.answer_parser import DecisionFormat, verdict_fork
from runner.models import logprobs
from runner.models.interface import Request
from runner.models.logprobs import PAccept, p_accept
from runner.models.providers.answer_reader import read_completion
from tests.support.openai_calls import CHAT, SAMPLE, model_settings
from tests.support.response_bodies import openai_body

Tops = dict[str, float]


def token(text: str, tops: Tops | None = None, *, spelled: bool = True) -> dict[str, Any]:
    """A token and the probabilities of those in its place; with their bytes, or without as some servers tell them."""

    def one(name: str, share: float) -> dict[str, Any]:
        return {"token": name, "logprob": math.log(share), "bytes": list(name.encode()) if spelled else None}

    tops = {text: 1.0} if tops is None else tops
    return {**one(text, tops.get(text, 0.01)), "top_logprobs": [one(*item) for item in tops.items()]}


def read(text: str, told: Any, format_: DecisionFormat | None = None) -> PAccept:
    body = openai_body(text)
    body["choices"][0]["logprobs"] = {"content": told} if isinstance(told, list) else told
    completion = read_completion(
        json.dumps(body).encode(), {}, Request("m", CHAT, SAMPLE), model_settings(), latency_ms=1.0
    )
    return p_accept(completion, 0, verdict_fork(text, format_ or DecisionFormat()))


def known(text: str, told: Any, format_: DecisionFormat | None = None) -> float:
    found = read(text, told, format_)
    assert found.note is None, found.note
    assert found.value is not None
    return found.value


HEAD = [token("So.\n\n"), token("Decision"), token(":")]
ACCEPT, REJECT = "So.\n\nDecision: accept", "So.\n\nDecision: reject"


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        (ACCEPT, [*HEAD, token(" accept", {" accept": 0.6, " reject": 0.3})], 0.6 / 0.9),
        (REJECT, [*HEAD, token(" re", {" accept": 0.6, " re": 0.3}), token("ject")], 0.6 / 0.9),
        # another case, spacing, marks, a longer token, a shorter one: all are of their verdict
        (
            ACCEPT,
            [*HEAD, token(" accept", {" accept": 0.4, "Accept": 0.1, " **acc": 0.1, " r": 0.2, " REJECT.\n": 0.05})],
            0.6 / 0.85,
        ),
        # a word that is neither, and a blank that leads to either, are of none
        (ACCEPT, [*HEAD, token(" accept", {" accept": 0.4, " und": 0.3, " ": 0.2, " reject": 0.1})], 0.8),
        # the blank is a token of its own; the colon is part of the verdict's token; the whole is one token
        (ACCEPT, [*HEAD, token(" "), token("accept", {"accept": 0.6, "reject": 0.2})], 0.75),
        (ACCEPT, [*HEAD[:2], token(": accept", {": accept": 0.6, ": rej": 0.2, ":": 0.1})], 0.75),
        (ACCEPT, [HEAD[0], token("Decision: accept", {"Decision: accept": 0.6, "Decision: reject": 0.2})], 0.75),
        # what was said is not among the likeliest, and counts
        (ACCEPT, [*HEAD, token(" accept", {" reject": 0.09})], 0.1),
        # reasoning before the text, and an end after it
        (ACCEPT, [token("Hm."), *HEAD, token(" accept", {" accept": 0.6, " reject": 0.2}), token("<|e|>")], 0.75),
    ],
)  # fmt: skip
def test_it_is_the_share_of_accept_where_the_verdicts_part(text: str, tokens: Any, expected: float) -> None:
    assert known(text, tokens) == pytest.approx(expected, abs=1e-12)


def test_marks_and_case_of_a_lenient_verdict_are_passed_over() -> None:
    text = "**Decision:** Reject"
    tokens = [token("**Decision"), token(":**"), token(" Re", {" Re": 0.7, " Accept": 0.1}), token("ject")]
    assert known(text, tokens, DecisionFormat(lenient=True)) == pytest.approx(0.125)


def test_verdicts_of_bytes_part_where_their_bytes_do() -> None:
    """Two characters of three bytes begin with the same one, which a tokenizer of bytes makes a token of its own."""
    words = DecisionFormat(marker="D:", accept="D: \u63a5\u53d7", reject="D: \u62d2\u7edd")
    first, second = "\u63a5".encode(), "\u62d2".encode()
    assert first[0] == second[0]

    def piece(data: bytes, tops: dict[bytes, float]) -> dict[str, Any]:
        tokens = [{"token": "\ufffd", "logprob": math.log(p), "bytes": list(t)} for t, p in tops.items()]
        return {**next(t for t in tokens if t["bytes"] == list(data)), "top_logprobs": tokens}

    tokens = [
        token("D:"), token(" "), piece(first[:1], {first[:1]: 0.9}),
        piece(first[1:], {first[1:]: 0.6, second[1:]: 0.2}), token("\u53d7"),
    ]  # fmt: skip
    assert known("D: \u63a5\u53d7", tokens, words) == pytest.approx(0.75)


def test_pieces_of_tokenizers_and_the_older_lists_are_read() -> None:
    pieces = [
        token("So.\u010a\u010aDecision", spelled=False), token(":", spelled=False),
        token("\u0120accept", {"\u0120accept": 0.6, "\u0120reject": 0.2}, spelled=False),
    ]  # fmt: skip
    assert known(ACCEPT, pieces) == pytest.approx(0.75)
    lists = {
        "tokens": ["So.\n\nDecision:", " accept"], "token_logprobs": [None, math.log(0.6)],
        "top_logprobs": [None, {" accept": math.log(0.6), " reject": math.log(0.2)}],
    }  # fmt: skip
    assert known(ACCEPT, lists) == pytest.approx(0.75)


def test_a_verdict_without_an_alternative_is_bounded_by_what_is_left() -> None:
    found = read(ACCEPT, [*HEAD, token(" accept", {" accept": 0.9, " und": 0.06})])
    assert found.value == pytest.approx(0.9 / 0.94)
    assert found.note == logprobs.BOUND
    found = read(REJECT, [*HEAD, token(" re", {" re": 0.9, " ": 0.06}), token("ject")])
    assert found.value == pytest.approx(0.1)
    assert found.note == logprobs.BOUND
    sure = read(ACCEPT, [*HEAD, token(" accept", {" accept": 1.0, " und": 0.01})])
    assert (sure.value, sure.note) == (1.0, logprobs.BOUND)


@pytest.mark.parametrize(
    ("tokens", "note"),
    [
        (None, logprobs.NO_LOGPROBS),
        ([], logprobs.NO_LOGPROBS),
        ([token("Another"), token(" text")], logprobs.OTHER_TOKENS),
        ([*HEAD, {"token": " accept"}], logprobs.OTHER_TOKENS),
        ([*HEAD, token(" accept", {" accept": 0.4, " und": 0.1})], logprobs.UNBOUNDED),
        ([*HEAD, {"token": " accept", "logprob": 0.0, "bytes": [0, 300]}], logprobs.OTHER_TOKENS),
        *[
            ([*HEAD, {"token": " accept", "logprob": wrong, "top_logprobs": []}], logprobs.INVALID_LOGPROB)
            for wrong in (None, "-1", 0.7, True, float("nan"))
        ],
        ([*HEAD, {"token": " accept", "logprob": -9999.0, "top_logprobs": None}], logprobs.INVALID_LOGPROB),
    ],
)
def test_what_cannot_be_known_is_none_with_the_reason(tokens: Any, note: str) -> None:
    assert read(ACCEPT, tokens) == PAccept(None, note)


def test_a_log_probability_a_little_above_zero_is_that_of_certainty() -> None:
    certain = {"token": " accept", "logprob": 1e-7}
    assert known(ACCEPT, [*HEAD, {**certain, "top_logprobs": [certain, {"token": " re", "logprob": -1.0}]}]) == (
        pytest.approx(1 / (1 + math.exp(-1)))
    )
