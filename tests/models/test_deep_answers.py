"""Answers nested as deep as JSON can be: kept where they can be read, without the key, and never a crash."""

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
from tests.models.test_batch_results import results
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
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


def body(spelled: str, depth: int) -> bytes:
    more = "[" * depth + "]" * depth
    text = f'{{"more": {more}, "choices": [{{"message": {{"content": "{spelled}"}}, "finish_reason": "stop"}}]}}'
    return text.encode().replace(b"BAD", b"\xff")


def read(content: bytes) -> Completion:
    """As the transport and the model do it."""
    cleaned = without_secrets(content, current_redactor())
    altered = () if cleaned is content else (SECRET_ALTERED,)
    request = Request("small", CHAT, SAMPLE)
    return read_completion(cleaned, {}, request, model_settings(), latency_ms=1.0, altered=altered)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_deep_answer_is_kept_in_the_journal_without_the_key(kind: str, depth: int) -> None:
    spelled, text, altered = KINDS[kind]
    if depth > 1000:
        with pytest.raises(TransientError) as raised:
            read(body(spelled, depth))
        assert KEY not in str(raised.value)
        return
    completion = read(body(spelled, depth))
    line = encode(1, CallRecord(SAMPLE, RequestRecord("model", "messages"), completion).to_json())
    assert decode(line, 1) is not None
    assert KEY.encode() not in line
    assert (completion.choices[0].text, completion.altered) == (text, altered)
    record = json.loads(line[9:])
    kept = record["answer"] if depth < 222 else json.loads(record["answer_text"])
    assert kept == {"more": nested(depth), "choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    again = decode(line, 1)
    assert again is not None
    assert parse_record(again) == CallRecord(SAMPLE, RequestRecord("model", "messages"), completion)


@pytest.mark.parametrize("depth", [200, 254, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_a_deep_line_of_a_batch_is_kept_without_the_key(kind: str, depth: int) -> None:
    spelled, text, altered = KINDS[kind]
    answer = body(spelled, depth)
    found = results(b'{"custom_id": "a", "response": {"status_code": 200, "body": ' + answer + b"}}\n")
    row = found.find_line("a")
    assert row is not None
    assert row.body["choices"][0]["message"]["content"] == text
    assert row.altered == altered


def test_what_comes_with_escapes_is_searched_again_when_they_are_undone() -> None:
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
def test_no_json_that_spells_a_secret_comes_in_with_it(spelled: str) -> None:
    for content in (f'{{"a": "{spelled}", "b": "\\ud800"}}', f'{{"a": "\\\\\\"{spelled}"', "[" * 2000 + f'"{spelled}"'):
        cleaned = without_secrets(content.encode(), current_redactor())
        assert REMOVED.encode() in cleaned
        assert KEY[1:].encode() not in cleaned


@pytest.mark.parametrize(
    "spelled", ["\\\\u0073", "\\\\\\\\u0073", '\\"', "\\u0022\\u005c", "\\u005Cu0073", "\\n\\u000a"]
)
def test_what_is_no_escape_of_a_letter_stays_what_it_is(spelled: str) -> None:
    content = f'["{spelled}", "{ESCAPED}", {"[" * 300}{"]" * 300}]'.encode()
    cleaned = orjson.loads(without_secrets(content, current_redactor()))
    assert cleaned[:2] == [orjson.loads(f'"{spelled}"'), REMOVED]


def test_what_was_mended_is_searched_before_anybody_has_it() -> None:
    data, found, altered = read_json(f'{{"a": ["{ESCAPED}", "\\ud800"]}}'.encode(), current_redactor())
    assert (data, altered) == ({"a": [REMOVED, "\ufffd"]}, ("bytes", SECRET_ALTERED))
    assert json.loads(found) == data
