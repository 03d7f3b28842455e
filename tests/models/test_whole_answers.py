"""Complete response bodies: stored once, without secrets, and returned by journal, cache, replay and batch."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.redaction import REMOVED, current_redactor
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import JOURNAL, decode, encode
from runner.models.answers import split_choices
from runner.models.interface import Choice, Completion, Request, SampleKey, Usage
from runner.models.journal_index import open_index
from runner.models.journal_records import CallRecord, RequestRecord, parse_record
from runner.models.layers.cache import Cache, request_fields
from runner.models.providers.answer_reader import read_completion
from runner.models.providers.lenient_json import SECRET_ALTERED
from runner.models.providers.openai_http import without_secrets
from runner.runs.finished.selection import ReplayOf
from tests.models.test_batch_results import REQUEST as BATCH_REQUEST
from tests.models.test_batch_results import complete_by_batch, make_custom_id
from tests.support.openai_calls import CHAT, SAMPLE, model_settings
from tests.support.response_bodies import ANSWER_TEXT, REASONING, openai_body, vllm_body
from tests.support.runs import journal_records, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

KEY = "sk-Loop/back+0123456789abcdef"
BODIES = {"vllm": vllm_body(), "openai": openai_body()}
REQUEST = Request("small", CHAT, SAMPLE)
SOLO_VERIFIER: dict[str, Any] = {
    "size": 2, "protocol": {"use": "solo_verifier", "max_message_rounds": None}, "agents": {"prover": None},
    "prompts": "prompts/code_validation/solo_verifier",
}  # fmt: skip
"""A game of one call."""


def parse_response(content: bytes, n: int = 1) -> Completion:
    """Redact and parse a response as the transport and the model do."""
    cleaned = without_secrets(content, current_redactor())
    altered = () if cleaned is content else (SECRET_ALTERED,)
    request = replace(REQUEST, n=n)
    return read_completion(cleaned, {}, request, model_settings(), latency_ms=1.0, altered=altered)


def parse_body(completion: Completion | None) -> Any:
    assert completion is not None
    assert completion.body is not None
    return json.loads(completion.body.json)


def read_bodies(run: Path) -> list[Any]:
    """Return the response bodies in a journal, read without the journal reader under test."""
    return [record["answer"] for record in journal_records(run) if "answer" in record]


def iter_recorded(run: Path, *samples: SampleKey) -> Iterator[Completion]:
    """Yield the completions that resume, replay and export read from the journal."""
    reader, index = open_index(run / JOURNAL)
    for sample in samples:
        record = index.get(sample)
        assert isinstance(record, CallRecord)
        yield record.completion
    reader.close()


@pytest.mark.full
@pytest.mark.parametrize("name", ["vllm", pytest.param("openai", marks=pytest.mark.full)])
def test_complete_answer_is_in_the_journal_after_resume_replay_and_from_the_cache(tmp_path: Path, name: str) -> None:
    body = BODIES[name]
    with run_chat_server(reply=body) as server:
        path = spec_file(tmp_path, server.base_url, cache="cache.sqlite", **SOLO_VERIFIER)
        first = run_spec(path, tmp_path / "results", "dataset.limit=1").folder.path
        assert read_bodies(first) == [body]
        assert run_spec(path, tmp_path / "results", "dataset.limit=2").folder.path == first
        assert read_bodies(first) == [body] * 2
        rows = table(first, "completions")
        replayed = run_spec(path, tmp_path / "replayed", replay=ReplayOf(first)).folder.path
        cached = run_spec(path, tmp_path / "cached").folder.path
        assert server.requests == 2
    for other_run in (replayed, cached):
        assert read_bodies(other_run) == [body] * 2
        assert table(other_run, "completions") == rows
    (completion,) = iter_recorded(first, SampleKey("p0", 0, 0, "verifier", 0))
    assert parse_body(completion) == body
    assert {row["reasoning"] for row in rows} == {REASONING if name == "vllm" else None}
    verdict = json.loads(rows[0]["verdict_logprobs"] or "null")
    assert (verdict is None) is (name == "openai")
    if verdict is not None:
        assert "Decision: accept" in "".join(token["token"] for token in verdict)
        assert verdict[-1]["top"].keys() == {verdict[-1]["token"], "~"}


@pytest.mark.full
def test_answer_to_several_samples_is_stored_once_and_each_sample_gets_its_choice(tmp_path: Path) -> None:
    texts = [f"{number}. {ANSWER_TEXT}" for number in range(3)]
    body = vllm_body(texts)
    changes = {"models": {"m": {"share_prompts": True}}, "rollouts": {"per_datapoint": 3}}
    samples = [SampleKey("p0", repeat, 0, "verifier", 0) for repeat in range(3)]
    with run_chat_server(reply=body) as server:
        path = spec_file(tmp_path, server.base_url, cache="cache.sqlite", **{**SOLO_VERIFIER, **changes, "size": 1})
        first = run_spec(path, tmp_path / "results").folder.path
        replayed = run_spec(path, tmp_path / "replayed", replay=ReplayOf(first)).folder.path
        cached = run_spec(path, tmp_path / "cached").folder.path
        assert server.requests == 1
    assert read_bodies(first) == [body]
    rows = table(first, "completions")
    assert sorted(row["raw_message"] for row in rows) == texts
    assert sorted(row["prompt_tokens"] for row in rows) == [0, 0, 400]
    assert all(row["verdict_logprobs"] for row in rows)
    for completion in iter_recorded(first, *samples):
        assert completion.body is not None
        assert completion.choices[0].text == texts[completion.body.choice or 0]
        assert parse_body(completion) == body
    for other_run in (replayed, cached):
        assert table(other_run, "completions") == rows
        bodies_with_one_choice = [{**body, "choices": [choice]} for choice in body["choices"]]
        assert (
            sorted(read_bodies(other_run), key=lambda answer: str(answer["choices"][0]["index"]))
            == bodies_with_one_choice
        )


def test_each_choice_is_split_off_with_the_unchanged_rest_of_the_body(tmp_path: Path) -> None:
    """Numbers beyond any number type and repeated keys are kept byte for byte."""
    choice_template = (
        '{{"index": 1.0, "message": {{"content": "{}", "choices": []}}, "id": 123456789012345678901234567890}}'
    )
    body_template = '{{"a": 1e-400, "a": [1.00, {{"choices": [0]}}], "choices": 3, "choices": [{}] , "usage": {{}}}}'
    content = body_template.format(", ".join(["null", *map(choice_template.format, "xyz"), '{"message": 1}']))
    cache = Cache(tmp_path / "cache.sqlite", "run")
    for number, (text, choice_completion) in enumerate(
        zip("xyz", split_choices(parse_response(content.encode(), 3)), strict=True)
    ):
        request = replace(REQUEST, sample=SAMPLE._replace(repeat=number))
        fields = request_fields(request, model_settings())
        cache.put(request, fields, choice_completion)
        cached_completion = cache.get(fields, SAMPLE.agent)
        assert cached_completion is not None
        assert cached_completion.body is not None
        assert cached_completion.body.json.decode() == body_template.format(choice_template.format(text))
        assert cached_completion.choices == choice_completion.choices == (Choice(text, None),)
        assert cached_completion.usage == choice_completion.usage
    cache.close()


def test_batch_line_is_stored_completely() -> None:
    response = {"status_code": 200, "body": vllm_body()}
    content = json.dumps({"custom_id": make_custom_id(BATCH_REQUEST), "response": response}).encode() + b"\n"
    assert parse_body(complete_by_batch(content)) == vllm_body()


def test_batch_line_keeps_number_spelling_and_repeated_keys() -> None:
    body = json.dumps(vllm_body())[:-1] + ', "seen": 1.10, "large": 123456789012345678901234567890, "seen": 2}'
    response = f'{{"body": {body}, "status_code": 200}}'
    line = f'{{"response": {{"body": 0}}, "custom_id": "{make_custom_id(BATCH_REQUEST)}", "response": {response}}}'
    completion = complete_by_batch(line.encode() + b"\n")
    assert completion.body is not None
    assert completion.body.json.decode() == body
    assert completion.altered == ()


PLACES: tuple[tuple[str | int, ...], ...] = (
    ("id",), ("system_fingerprint",), ("choices", 0, "message", "content"), ("choices", 0, "message", "reasoning"),
    ("choices", 0, "message", "tool_calls", 0, "function", "arguments"), ("choices", 0, "stop_reason"),
    ("choices", 0, "logprobs", "content", 2, "token"), ("usage", "note"),
    ("choices", 0, "logprobs", "content", 2, "top_logprobs", 1, "token"),
)  # fmt: skip


def body_with_text(text: str) -> dict[str, Any]:
    """Build a response that contains `text` in every place."""
    body = copy.deepcopy(vllm_body())
    for place in PLACES:
        node: Any = body
        for step in place[:-1]:
            node = node[step]
        node[place[-1]] = text
    return body


@pytest.mark.parametrize("spelled", [KEY, "".join(f"\\u{ord(c):04x}" for c in KEY), KEY.replace("/", "\\/")])
def test_key_is_removed_from_every_place_of_an_answer(spelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    content = json.dumps(body_with_text("KEY")).replace("KEY", spelled).encode()
    for completion in (
        parse_response(content),
        read_completion(content, {}, REQUEST, model_settings(), latency_ms=1.0)
        if spelled != KEY
        else parse_response(content),
    ):
        assert parse_body(completion) == body_with_text(REMOVED)
        assert completion.altered == (SECRET_ALTERED,)
        assert KEY not in repr(completion)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_multi_line_body_is_stored_as_one_line(line_end: str) -> None:
    text = json.dumps(vllm_body(), indent=2, ensure_ascii=False).replace("\n", line_end)
    completion = parse_response(f"{line_end}{text}{line_end}".encode())
    line = encode(3, CallRecord(SAMPLE, RequestRecord("0" * 64, "m"), completion).to_json())
    assert line.count(b"\n") == 1
    assert len(line) < len(text)
    assert json.loads(line[9:])["answer"] == vllm_body()


def test_call_record_holds_the_values_that_the_body_lacks() -> None:
    body = {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}], "more": {"model": "x"}}
    completion = parse_response(json.dumps(body).encode())
    record = CallRecord(SAMPLE, RequestRecord("p", "m"), completion)
    decoded = decode(encode(3, record.to_json()), 3)
    assert decoded is not None
    assert parse_record(decoded) == record
    assert completion.usage.estimated
    assert completion.usage != Usage(estimated=True)
    assert completion.model == "tiny"


@pytest.mark.full
def test_large_answer_is_read_back_from_journal_and_cache(tmp_path: Path) -> None:
    body = openai_body(', "answer": {"kind": "call"}} \\" \u2028 ' * 150_000)
    completion = parse_response(json.dumps(body, ensure_ascii=False).encode())

    async def write() -> None:
        journal = Journal(tmp_path / JOURNAL, durable=False)
        for text in ("short", "long"):
            stored_completion = completion if text == "long" else parse_response(json.dumps(openai_body()).encode())
            await journal.append(
                CallRecord(SAMPLE._replace(agent=text), RequestRecord("p", "m"), stored_completion).to_json()
            )
        await journal.close()

    asyncio.run(write())
    assert (tmp_path / JOURNAL).stat().st_size > 5e6
    (recorded_completion,) = iter_recorded(tmp_path, SAMPLE._replace(agent="long"))
    cache = Cache(tmp_path / "cache.sqlite", "run")
    fields = request_fields(REQUEST, model_settings())
    cache.put(REQUEST, fields, completion)
    for read_back in (recorded_completion, cache.get(fields, SAMPLE.agent)):
        assert read_back is not None
        assert read_back.choices == completion.choices
        assert parse_body(read_back) == body
    cache.close()
