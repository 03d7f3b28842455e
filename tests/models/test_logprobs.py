"""Token log-probabilities: finding the tokens of a verdict in the formats of several servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.documents.dataclass_schema import from_plain
from runner.game.protocols.answer_parser import DecisionFormat, verdict_span
from runner.models.interface import Completion, Request
from runner.models.logprobs import has_logprobs, logprobs_of_span
from runner.models.providers.answer_reader import read_completion
from tests.support.openai_calls import CHAT, SAMPLE, model_settings
from tests.support.response_bodies import REASONING, make_logprobs, openai_body, vllm_body


def parse_response(body: dict[str, Any]) -> Completion:
    return read_completion(json.dumps(body).encode(), {}, Request("m", CHAT, SAMPLE), model_settings(), latency_ms=1.0)


def find_tokens(text: str, tokens: Any, span: tuple[int, int]) -> list[str] | None:
    """Return the tokens that overlap a span, if the server sends `tokens` for `text`."""
    body = openai_body(text)
    body["choices"][0]["logprobs"] = tokens
    completion = parse_response(body)
    span_logprobs = logprobs_of_span(completion, 0, span)
    return None if span_logprobs is None else [token["token"] for token in json.loads(span_logprobs)]


def make_tokens_without_bytes(*texts: str) -> dict[str, Any]:
    """Build tokens without bytes, as some servers send them."""
    return {"content": [{"token": text, "logprob": -1.0, "bytes": None} for text in texts]}


@pytest.mark.parametrize(
    ("text", "options", "verdict"),
    [
        ("So. Decision: accept", {}, "Decision: accept"),
        ("decision: REJECT, and no\nDecision: reject", {}, "decision: REJECT"),
        ("\u0130 am sure. Decision: reject", {}, "Decision: reject"),
        ("Decision: accept or Decision: reject", {}, "Decision: accept"),
        ("**Decision:** Accept", {"lenient": True}, "Decision:** Accept"),
        ("Decision: accept or Decision: reject", {"lenient": True}, None),
        ("Decision: maybe", {}, None),
        ("Why?", {}, None),
    ],
)
def test_verdict_span_covers_the_verdict_found_by_the_parser(
    text: str, options: dict[str, Any], verdict: str | None
) -> None:
    span = verdict_span(text, from_plain(DecisionFormat, options))
    assert (None if span is None else text[slice(*span)]) == verdict


@pytest.mark.parametrize("size", range(1, 9))
def test_verdict_tokens_are_found_if_tokens_split_characters(size: int) -> None:
    text = "\u00dcn\u00ef \U0001f600: Decision: accept \u00dc"
    start = text.index("Decision")
    span, head = (start, start + len("Decision: accept")), len(text[:start].encode())
    tokens = {
        "content": [*make_logprobs(REASONING, size), *make_logprobs(text, size), *make_logprobs("<|im_end|>", 10)]
    }
    body = openai_body(text)
    body["choices"][0]["logprobs"] = tokens
    first, last = head // size, (head + 16 - 1) // size
    expected = make_logprobs(text, size)[first : last + 1]
    span_logprobs = json.loads(logprobs_of_span(parse_response(body), 0, span) or "null")
    assert [(t["token"], t["logprob"]) for t in span_logprobs] == [(t["token"], t["logprob"]) for t in expected]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (make_tokens_without_bytes("Dec", "ision: ", "accept"), ["ision: ", "accept"]),
        (make_tokens_without_bytes("<think>", "Decision: accept", "</s>"), ["Decision: accept"]),
        (make_tokens_without_bytes("Another", " text"), None),
        (make_tokens_without_bytes(), None),
        (None, None), ({"content": None}, None), ({"tokens": ["Decision"]}, None), ([], None),
        ({"content": [{"logprob": -1.0}]}, None), ({"content": [{"token": 3, "logprob": -1.0}]}, None),
        ({"content": [{"token": "x", "bytes": [300], "logprob": -1.0}]}, None),
        ({"content": [{"token": "Decision: accept"}]}, None),
    ],
)  # fmt: skip
def test_logprobs_are_none_for_tokens_of_another_text_or_format(tokens: Any, expected: list[str] | None) -> None:
    assert find_tokens("Decision: accept", tokens, (3, 16)) == expected


def test_answers_without_logprobs_are_recognized() -> None:
    assert has_logprobs(parse_response(vllm_body()))
    assert not has_logprobs(parse_response(openai_body()))
