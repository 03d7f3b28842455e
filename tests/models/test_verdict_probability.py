"""The probability of accept, computed from token log-probabilities of any tokenizer."""

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


def make_token(text: str, tops: Tops | None = None, *, spelled: bool = True) -> dict[str, Any]:
    """Build a token with `tops` as its alternatives; servers that send no bytes have `spelled=False`."""

    def make_entry(name: str, probability: float) -> dict[str, Any]:
        return {"token": name, "logprob": math.log(probability), "bytes": list(name.encode()) if spelled else None}

    tops = {text: 1.0} if tops is None else tops
    return {**make_entry(text, tops.get(text, 0.01)), "top_logprobs": [make_entry(*item) for item in tops.items()]}


def read_p_accept(text: str, logprobs_field: Any, format_: DecisionFormat | None = None) -> PAccept:
    body = openai_body(text)
    body["choices"][0]["logprobs"] = {"content": logprobs_field} if isinstance(logprobs_field, list) else logprobs_field
    completion = read_completion(
        json.dumps(body).encode(), {}, Request("m", CHAT, SAMPLE), model_settings(), latency_ms=1.0
    )
    return p_accept(completion, 0, verdict_fork(text, format_ or DecisionFormat()))


def read_probability(text: str, logprobs_field: Any, format_: DecisionFormat | None = None) -> float:
    result = read_p_accept(text, logprobs_field, format_)
    assert result.note is None, result.note
    assert result.value is not None
    return result.value


HEAD = [make_token("So.\n\n"), make_token("Decision"), make_token(":")]
ACCEPT, REJECT = "So.\n\nDecision: accept", "So.\n\nDecision: reject"


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        (ACCEPT, [*HEAD, make_token(" accept", {" accept": 0.6, " reject": 0.3})], 0.6 / 0.9),
        (REJECT, [*HEAD, make_token(" re", {" accept": 0.6, " re": 0.3}), make_token("ject")], 0.6 / 0.9),
        # tokens that differ in case, spacing, marks or length count for their verdict
        (
            ACCEPT,
            [*HEAD, make_token(
                " accept", {" accept": 0.4, "Accept": 0.1, " **acc": 0.1, " r": 0.2, " REJECT.\n": 0.05}
            )],
            0.6 / 0.85,
        ),
        # a word that is neither verdict, and a blank that may begin either, are ignored
        (ACCEPT, [*HEAD, make_token(" accept", {" accept": 0.4, " und": 0.3, " ": 0.2, " reject": 0.1})], 0.8),
        # a separate token for the blank; the colon in the verdict's token; a single token
        (ACCEPT, [*HEAD, make_token(" "), make_token("accept", {"accept": 0.6, "reject": 0.2})], 0.75),
        (ACCEPT, [*HEAD[:2], make_token(": accept", {": accept": 0.6, ": rej": 0.2, ":": 0.1})], 0.75),
        (ACCEPT, [HEAD[0], make_token("Decision: accept", {"Decision: accept": 0.6, "Decision: reject": 0.2})], 0.75),
        # the generated token is not among the most likely ones, and still counts
        (ACCEPT, [*HEAD, make_token(" accept", {" reject": 0.09})], 0.1),
        # reasoning tokens before the text, and an end token after it
        (
            ACCEPT,
            [make_token("Hm."), *HEAD, make_token(" accept", {" accept": 0.6, " reject": 0.2}), make_token("<|e|>")],
            0.75,
        ),
    ],
)  # fmt: skip
def test_p_accept_is_the_share_of_accept_where_the_verdicts_diverge(text: str, tokens: Any, expected: float) -> None:
    assert read_probability(text, tokens) == pytest.approx(expected, abs=1e-12)


def test_marks_and_case_of_a_lenient_verdict_are_ignored() -> None:
    text = "**Decision:** Reject"
    tokens = [
        make_token("**Decision"),
        make_token(":**"),
        make_token(" Re", {" Re": 0.7, " Accept": 0.1}),
        make_token("ject"),
    ]
    assert read_probability(text, tokens, DecisionFormat(lenient=True)) == pytest.approx(0.125)


def test_verdicts_in_byte_tokens_diverge_at_their_first_different_byte() -> None:
    """Both characters have three bytes, and a byte-level tokenizer makes their common first byte a separate token."""
    decision_format = DecisionFormat(marker="D:", accept="D: \u63a5\u53d7", reject="D: \u62d2\u7edd")
    first, second = "\u63a5".encode(), "\u62d2".encode()
    assert first[0] == second[0]

    def piece(data: bytes, tops: dict[bytes, float]) -> dict[str, Any]:
        tokens = [{"token": "\ufffd", "logprob": math.log(p), "bytes": list(t)} for t, p in tops.items()]
        return {**next(t for t in tokens if t["bytes"] == list(data)), "top_logprobs": tokens}

    tokens = [
        make_token("D:"), make_token(" "), piece(first[:1], {first[:1]: 0.9}),
        piece(first[1:], {first[1:]: 0.6, second[1:]: 0.2}), make_token("\u53d7"),
    ]  # fmt: skip
    assert read_probability("D: \u63a5\u53d7", tokens, decision_format) == pytest.approx(0.75)


def test_byte_pair_tokens_and_the_legacy_logprobs_format_are_read() -> None:
    pieces = [
        make_token("So.\u010a\u010aDecision", spelled=False), make_token(":", spelled=False),
        make_token("\u0120accept", {"\u0120accept": 0.6, "\u0120reject": 0.2}, spelled=False),
    ]  # fmt: skip
    assert read_probability(ACCEPT, pieces) == pytest.approx(0.75)
    lists = {
        "tokens": ["So.\n\nDecision:", " accept"], "token_logprobs": [None, math.log(0.6)],
        "top_logprobs": [None, {" accept": math.log(0.6), " reject": math.log(0.2)}],
    }  # fmt: skip
    assert read_probability(ACCEPT, lists) == pytest.approx(0.75)


def test_p_accept_without_an_alternative_is_bounded_by_the_remaining_probability() -> None:
    result = read_p_accept(ACCEPT, [*HEAD, make_token(" accept", {" accept": 0.9, " und": 0.06})])
    assert result.value == pytest.approx(0.9 / 0.94)
    assert result.note == logprobs.BOUND
    result = read_p_accept(REJECT, [*HEAD, make_token(" re", {" re": 0.9, " ": 0.06}), make_token("ject")])
    assert result.value == pytest.approx(0.1)
    assert result.note == logprobs.BOUND
    certain = read_p_accept(ACCEPT, [*HEAD, make_token(" accept", {" accept": 1.0, " und": 0.01})])
    assert (certain.value, certain.note) == (1.0, logprobs.BOUND)


@pytest.mark.parametrize(
    ("tokens", "note"),
    [
        (None, logprobs.NO_LOGPROBS),
        ([], logprobs.NO_LOGPROBS),
        ([make_token("Another"), make_token(" text")], logprobs.OTHER_TOKENS),
        ([*HEAD, {"token": " accept"}], logprobs.OTHER_TOKENS),
        ([*HEAD, make_token(" accept", {" accept": 0.4, " und": 0.1})], logprobs.UNBOUNDED),
        ([*HEAD, {"token": " accept", "logprob": 0.0, "bytes": [0, 300]}], logprobs.OTHER_TOKENS),
        *[
            ([*HEAD, {"token": " accept", "logprob": invalid, "top_logprobs": []}], logprobs.INVALID_LOGPROB)
            for invalid in (None, "-1", 0.7, True, float("nan"))
        ],
        ([*HEAD, {"token": " accept", "logprob": -9999.0, "top_logprobs": None}], logprobs.INVALID_LOGPROB),
    ],
)
def test_p_accept_is_none_with_a_reason_if_it_is_unknown(tokens: Any, note: str) -> None:
    assert read_p_accept(ACCEPT, tokens) == PAccept(None, note)


def test_slightly_positive_log_probability_counts_as_certainty() -> None:
    certain = {"token": " accept", "logprob": 1e-7}
    assert read_probability(
        ACCEPT, [*HEAD, {**certain, "top_logprobs": [certain, {"token": " re", "logprob": -1.0}]}]
    ) == (pytest.approx(1 / (1 + math.exp(-1))))
