"""Answers of OpenAI-compatible servers: texts, usage and unusual bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.base.errors import TransientError
from runner.base.redaction import current_redactor
from runner.base.storage.log_lines import from_json, to_json
from runner.models.interface import Completion
from runner.models.journal_records import completion_fields, completion_from_fields
from runner.models.providers.lenient_json import BYTES_ALTERED, read_json
from tests.support.openai_calls import complete_chat, complete_with_answer, model_settings
from tests.support.servers.chat_client import run_chat_server


def test_usage_includes_the_servers_cached_tokens() -> None:
    with run_chat_server(cached_tokens=5) as server:
        usage = complete_chat(model_settings(server)).usage
    assert (usage.cached_tokens, usage.estimated) == (5, False)
    assert usage.prompt_tokens > 5


def test_missing_usage_is_estimated_and_marked() -> None:
    with run_chat_server(usage=False, text="x" * 400) as server:
        usage = complete_chat(model_settings(server)).usage
    assert usage.estimated
    assert 90 <= usage.completion_tokens <= 110
    assert usage.prompt_tokens > 10


def test_every_choice_of_n_is_returned() -> None:
    with run_chat_server() as server:
        completion = complete_chat(model_settings(server, n=3))
    assert len(completion.choices) == 3
    assert len({choice.text for choice in completion.choices}) > 1


def test_reported_model_and_unknown_fields_are_kept() -> None:
    with run_chat_server(model="tiny-2026-01-01") as server:
        completion = complete_chat(model_settings(server))
    assert completion.model == "tiny-2026-01-01"
    assert parse_body(completion)["system_fingerprint"] == "fp_loopback"
    assert parse_body(completion)["id"].startswith("chatcmpl-")


def parse_body(completion: Completion) -> Any:
    """Return the stored response body."""
    assert completion.body is not None
    return json.loads(completion.body.json)


def make_choice(**message: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}


@pytest.mark.parametrize(
    "reply",
    [
        [], "text", 7, None, {}, {"choices": None}, {"choices": {}}, {"choices": []}, {"choices": [None]},
        {"choices": [{"index": 0}]}, {"choices": [{"message": "text"}]},
    ],
)  # fmt: skip
def test_json_that_is_not_a_completion_is_a_transient_error(reply: Any) -> None:
    with pytest.raises(TransientError):
        complete_with_answer(200, reply if not isinstance(reply, str) else json.dumps(reply))


@pytest.mark.parametrize(
    "fields",
    [
        {"usage": None}, {"usage": []}, {"usage": {}}, {"usage": {"prompt_tokens": "many"}},
        {"usage": {"prompt_tokens": 3, "completion_tokens": None}},
        {"usage": {"prompt_tokens": 3, "prompt_tokens_details": None}},
        {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}},
        {"usage": {"prompt_tokens": 3, "completion_tokens": "many"}},
        {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": "few"}}},
        {"model": None}, {"model": 3}, {"id": None, "created": None},
    ],
)  # fmt: skip
def test_answer_with_invalid_usage_or_metadata_is_accepted(fields: dict[str, Any]) -> None:
    completion = complete_with_answer(200, {"choices": [make_choice(content="yes")], "model": "tiny", **fields})
    assert completion.choices[0].text == "yes"
    assert completion.usage.completion_tokens >= 0
    assert completion.usage.prompt_tokens > 0
    assert isinstance(completion.model, str)


@pytest.mark.parametrize(
    ("message", "text", "refusal"),
    [
        ({"content": None}, None, None),
        ({}, None, None),
        ({"content": ["a part"]}, None, None),
        ({"content": None, "refusal": "No."}, None, "No."),
        ({"content": "x", "refusal": ""}, "x", None),
        ({"content": "", "reasoning_content": "secret"}, "", None),
    ],
)
def test_content_is_text_or_none(message: dict[str, Any], text: str | None, refusal: str | None) -> None:
    (parsed_choice,) = complete_with_answer(200, {"choices": [{"finish_reason": "stop", "message": message}]}).choices
    assert (parsed_choice.text, parsed_choice.refusal) == (text, refusal)


def test_text_and_reasoning_of_a_list_of_content_blocks_are_read() -> None:
    # As documented for Mistral's reasoning models.
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "f(0) "}, {"type": "text", "text": "is 1."}]}
    message = {"content": [thinking, {"type": "text", "text": "Decision: "}, {"type": "text", "text": "accept"}]}
    (choice,) = complete_with_answer(200, {"choices": [{"finish_reason": "stop", "message": message}]}).choices
    assert (choice.text, choice.reasoning) == ("Decision: accept", "f(0) is 1.")


@pytest.mark.parametrize("reason", [None, 3, ["stop"], {"a": 1}])
def test_invalid_finish_reason_does_not_raise(reason: Any) -> None:
    (parsed_choice,) = complete_with_answer(
        200, {"choices": [{"finish_reason": reason, "message": {"content": "x"}}]}
    ).choices
    assert parsed_choice.finish_reason is None or isinstance(parsed_choice.finish_reason, str)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"choices": [{"message": {"content": "\\ud800 x"}}]}', "\ufffd x"),
        ('{"choices": [{"message": {"content": "\\ud83d\\ude00 \\ude00"}}]}', "\U0001f600 \ufffd"),
        ('\ufeff{"choices": [{"message": {"content": "x"}}]}', "x"),
        ('{"choices": [{"message": {"content": "a\nb\0c"}}]}', "a\nb\0c"),
        ('{"choices": [{"message": {"content": "x"}}], "a": [NaN, -Infinity, 1e999, ' + "9" * 5000 + "]}", "x"),
        ('{"choices": [{"message": {"content": "x"}}]}{"choices": []}', "x"),
    ],
)
def test_answer_with_invalid_bytes_or_json_is_repaired_and_kept(body: str, text: str) -> None:
    completion = complete_with_answer(200, body)
    assert (completion.choices[0].text, completion.altered) == (text, ("bytes",))
    assert completion_from_fields(from_json(to_json(completion_fields(completion)))) == completion


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("\ufeff{EXACT}", "{EXACT}"),
        ('{EXACT, "a": "\\ud800 \\ud83d\\ude00 \\\\udc00"}', '{EXACT, "a": "\\ufffd \\ud83d\\ude00 \\\\udc00"}'),
        ('{EXACT, "a": [NaN,-Infinity], "b": "NaN 1e400"}', '{EXACT, "a": [null,null], "b": "NaN 1e400"}'),
        ('{EXACT, "a": 1e400, "b": -' + "9" * 350 + "}", '{EXACT, "a": null, "b": null}'),
        ('{EXACT, "a": "\\" \t\x00"}', '{EXACT, "a": "\\" \\u0009\\u0000"}'),
        ("{EXACT}\n{EXACT}", "{EXACT}"),
    ],
)  # fmt: skip
def test_repair_leaves_the_valid_parts_of_a_body_unchanged(body: str, expected: str) -> None:
    exact = f'"x": [1.00, 1E5, -0, 1e-400, -0.{"1" * 310}, 123456789012345678901234567890], "x" : "\\u00e9\\/"'
    _, repaired, altered = read_json(body.replace("EXACT", exact).encode(), current_redactor())
    assert repaired.decode() == expected.replace("EXACT", exact)
    assert altered == (BYTES_ALTERED,)


def test_unchanged_answer_has_no_alteration_note() -> None:
    completion = complete_with_answer(200, {"choices": [make_choice(content="a \0 b \u00e9")]})
    assert completion.choices[0].text == "a \0 b \u00e9"
    assert "altered" not in completion_fields(completion)


@pytest.mark.parametrize("integer", [2**63, 2**64, 10**30])
def test_large_integers_keep_every_digit(integer: int) -> None:
    completion = complete_with_answer(200, {"choices": [make_choice(content="x")], "more": integer})
    assert parse_body(completion)["more"] == integer
