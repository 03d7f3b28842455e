"""The tokens that spell a verdict, found in what servers say of an answer's tokens."""

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


def read(body: dict[str, Any]) -> Completion:
    return read_completion(json.dumps(body).encode(), {}, Request("m", CHAT, SAMPLE), model_settings(), latency_ms=1.0)


def find_tokens(text: str, tokens: Any, span: tuple[int, int]) -> list[str] | None:
    """The tokens that overlap a span, where the server says these of a text."""
    body = openai_body(text)
    body["choices"][0]["logprobs"] = tokens
    completion = read(body)
    said = logprobs_of_span(completion, 0, span)
    return None if said is None else [token["token"] for token in json.loads(said)]


def tokens_without_bytes(*texts: str) -> dict[str, Any]:
    """Tokens without their bytes, as some servers have them."""
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
def test_a_verdict_stands_where_the_parser_found_it(text: str, options: dict[str, Any], verdict: str | None) -> None:
    span = verdict_span(text, from_plain(DecisionFormat, options))
    assert (None if span is None else text[slice(*span)]) == verdict


@pytest.mark.parametrize("size", range(1, 9))
def test_the_tokens_that_overlap_a_verdict_are_found_whatever_characters_they_cut(size: int) -> None:
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
    said = json.loads(logprobs_of_span(read(body), 0, span) or "null")
    assert [(t["token"], t["logprob"]) for t in said] == [(t["token"], t["logprob"]) for t in expected]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (tokens_without_bytes("Dec", "ision: ", "accept"), ["ision: ", "accept"]),
        (tokens_without_bytes("<think>", "Decision: accept", "</s>"), ["Decision: accept"]),
        (tokens_without_bytes("Another", " text"), None),
        (tokens_without_bytes(), None),
        (None, None), ({"content": None}, None), ({"tokens": ["Decision"]}, None), ([], None),
        ({"content": [{"logprob": -1.0}]}, None), ({"content": [{"token": 3, "logprob": -1.0}]}, None),
        ({"content": [{"token": "x", "bytes": [300], "logprob": -1.0}]}, None),
        ({"content": [{"token": "Decision: accept"}]}, None),
    ],
)  # fmt: skip
def test_tokens_of_another_text_or_form_are_none(tokens: Any, expected: list[str] | None) -> None:
    assert find_tokens("Decision: accept", tokens, (3, 16)) == expected


def test_most_answers_need_no_second_look() -> None:
    assert has_logprobs(read(vllm_body()))
    assert not has_logprobs(read(openai_body()))
