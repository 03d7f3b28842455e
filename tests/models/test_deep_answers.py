"""Deeply nested answers: stored without secrets if they can be parsed, and a transient error otherwise."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from runner.base.errors import TransientError
from runner.base.redaction import REMOVED, current_redactor
from runner.base.storage.log_lines import decode, encode
from runner.models.interface import Choice, Completion, Request
from runner.models.journal_records import CallRecord, RequestRecord, parse_record
from runner.models.providers.answer_reader import read_completion
from runner.models.providers.lenient_json import SECRET_ALTERED, read_json
from runner.models.providers.openai_http import without_secrets
from tests.models.test_batch_results import make_results
from tests.support.openai_calls import CHAT, SAMPLE, model_settings

KEY = "sk-Loop/back+0123456789abcdef"
ESCAPED = "\\u0073" + KEY[1:]
DEPTHS = (200, *range(218, 226), *range(252, 257), 300, 900, 1100)
KINDS = {
    "plain": ("yes", "yes", ()),
    "surrogate": ("\\ud800", "\ufffd", ("bytes",)),
    "bad UTF-8": ("BAD", "\ufffd", ("bytes",)),
    "key": (ESCAPED, REMOVED, (SECRET_ALTERED,)),
    "key and surrogate": (f"{ESCAPED} \\ud800", f"{REMOVED} \ufffd", ("bytes", SECRET_ALTERED)),
}


@pytest.fixture(autouse=True)
def _api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)


def make_nested_list(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


def make_body(spelled: str, depth: int) -> bytes:
    more = "[" * depth + "]" * depth
    text = f'{{"more": {more}, "choices": [{{"message": {{"content": "{spelled}"}}, "finish_reason": "stop"}}]}}'
    return text.encode().replace(b"BAD", b"\xff")


def parse_response(content: bytes) -> Completion:
    """Redact and parse a response as the transport and the model do."""
    cleaned = without_secrets(content, current_redactor())
    altered = () if cleaned is content else (SECRET_ALTERED,)
    request = Request("small", CHAT, SAMPLE)
    return read_completion(cleaned, {}, request, model_settings(), latency_ms=1.0, altered=altered)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_deep_answer_is_stored_in_the_journal_without_the_key(kind: str, depth: int) -> None:
    spelled, text, altered = KINDS[kind]
    if depth > 1000:
        with pytest.raises(TransientError) as raised:
            parse_response(make_body(spelled, depth))
        assert KEY not in str(raised.value)
        return
    completion = parse_response(make_body(spelled, depth))
    line = encode(1, CallRecord(SAMPLE, RequestRecord("model", "messages"), completion).to_json())
    assert decode(line, 1) is not None
    assert KEY.encode() not in line
    assert (completion.choices[0].text, completion.altered) == (text, altered)
    record = json.loads(line[9:])
    stored_body = record["answer"] if depth < 222 else json.loads(record["answer_text"])
    assert stored_body == {
        "more": make_nested_list(depth),
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
    }
    decoded = decode(line, 1)
    assert decoded is not None
    assert parse_record(decoded) == CallRecord(SAMPLE, RequestRecord("model", "messages"), completion)


@pytest.mark.parametrize("depth", [200, 254, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_deep_batch_line_is_read_without_the_key(kind: str, depth: int) -> None:
    spelled, text, altered = KINDS[kind]
    answer = make_body(spelled, depth)
    batch_results = make_results(b'{"custom_id": "a", "response": {"status_code": 200, "body": ' + answer + b"}}\n")
    row = batch_results.find_line("a")
    assert row is not None
    assert row.body["choices"][0]["message"]["content"] == text
    assert row.altered == altered


def test_unescaped_strings_are_searched_for_secrets_again() -> None:
    spelled = f'"{ESCAPED}"'
    message = f'{{"content": {spelled}, "refusal": {spelled}}}'
    rest = f'"finish_reason": {spelled}}}], "model": {spelled}, "more": {spelled}}}'
    content = f'{{"choices": [{{"message": {message}, {rest}'.encode()
    completion = read_completion(content, {}, Request("small", CHAT, SAMPLE), model_settings(), latency_ms=1.0)
    assert KEY not in repr(completion)
    assert completion.choices == (Choice(REMOVED, REMOVED, REMOVED),)
    assert (completion.model, completion.altered) == (REMOVED, (SECRET_ALTERED,))
    assert completion.body is not None
    assert json.loads(completion.body.json)["more"] == REMOVED


@pytest.mark.parametrize("spelled", [ESCAPED, ESCAPED.replace("/", "\\/"), "".join(f"\\u{ord(c):04X}" for c in KEY)])
def test_escaped_secret_is_removed_from_malformed_json(spelled: str) -> None:
    for content in (f'{{"a": "{spelled}", "b": "\\ud800"}}', f'{{"a": "\\\\\\"{spelled}"', "[" * 2000 + f'"{spelled}"'):
        cleaned = without_secrets(content.encode(), current_redactor())
        assert REMOVED.encode() in cleaned
        assert KEY[1:].encode() not in cleaned


@pytest.mark.parametrize(
    "spelled", ["\\\\u0073", "\\\\\\\\u0073", '\\"', "\\u0022\\u005c", "\\u005Cu0073", "\\n\\u000a"]
)
def test_other_escapes_are_unchanged(spelled: str) -> None:
    content = f'["{spelled}", "{ESCAPED}", {"[" * 300}{"]" * 300}]'.encode()
    cleaned = orjson.loads(without_secrets(content, current_redactor()))
    assert cleaned[:2] == [orjson.loads(f'"{spelled}"'), REMOVED]


def test_repaired_json_is_searched_for_secrets() -> None:
    data, json_text, altered = read_json(f'{{"a": ["{ESCAPED}", "\\ud800"]}}'.encode(), current_redactor())
    assert (data, altered) == ({"a": [REMOVED, "\ufffd"]}, ("bytes", SECRET_ALTERED))
    assert json.loads(json_text) == data
