"""All that a server says in an answer is kept: equal in value, once, without secrets, and given back everywhere."""

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
from tests.models.test_batch_results import REQUEST as BATCHED
from tests.models.test_batch_results import batched, name_of
from tests.support.openai_calls import CHAT, SAMPLE, model_settings
from tests.support.response_bodies import ANSWER_TEXT, REASONING, openai_body, vllm_body
from tests.support.runs import journal_records, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

KEY = "sk-Loop/back+0123456789abcdef"
BODIES = {"vllm": vllm_body(), "openai": openai_body()}
REQUEST = Request("small", CHAT, SAMPLE)
ALONE: dict[str, Any] = {
    "size": 2, "protocol": {"use": "solo_verifier", "max_message_rounds": None}, "agents": {"prover": None},
    "prompts": "prompts/code_validation/solo_verifier",
}  # fmt: skip
"""A game of one call."""


def read(content: bytes, n: int = 1) -> Completion:
    """As the transport and the model do it."""
    cleaned = without_secrets(content, current_redactor())
    altered = () if cleaned is content else (SECRET_ALTERED,)
    request = replace(REQUEST, n=n)
    return read_completion(cleaned, {}, request, model_settings(), latency_ms=1.0, altered=altered)


def parse_body(completion: Completion | None) -> Any:
    assert completion is not None
    assert completion.body is not None
    return json.loads(completion.body.json)


def answers(run: Path) -> list[Any]:
    """The server's answers that a journal holds, read by another reader than the program's."""
    return [record["answer"] for record in journal_records(run) if "answer" in record]


def recorded(run: Path, *samples: SampleKey) -> Iterator[Completion]:
    """What resuming, replaying and exporting read."""
    reader, index = open_index(run / JOURNAL)
    for sample in samples:
        record = index.get(sample)
        assert isinstance(record, CallRecord)
        yield record.completion
    reader.close()


@pytest.mark.full
@pytest.mark.parametrize("name", ["vllm", pytest.param("openai", marks=pytest.mark.full)])
def test_an_answer_is_whole_in_the_journal_after_a_resume_a_replay_and_from_the_cache(
    tmp_path: Path, name: str
) -> None:
    body = BODIES[name]
    with run_chat_server(reply=body) as server:
        path = spec_file(tmp_path, server.base_url, cache="cache.sqlite", **ALONE)
        first = run_spec(path, tmp_path / "results", "dataset.limit=1").folder.path
        assert answers(first) == [body]
        assert run_spec(path, tmp_path / "results", "dataset.limit=2").folder.path == first
        assert answers(first) == [body] * 2
        rows = table(first, "completions")
        replayed = run_spec(path, tmp_path / "replayed", replay=ReplayOf(first)).folder.path
        cached = run_spec(path, tmp_path / "cached").folder.path
        assert server.requests == 2
    for again in (replayed, cached):
        assert answers(again) == [body] * 2
        assert table(again, "completions") == rows
    (completion,) = recorded(first, SampleKey("p0", 0, 0, "verifier", 0))
    assert parse_body(completion) == body
    assert {row["reasoning"] for row in rows} == {REASONING if name == "vllm" else None}
    verdict = json.loads(rows[0]["verdict_logprobs"] or "null")
    assert (verdict is None) is (name == "openai")
    if verdict is not None:
        assert "Decision: accept" in "".join(token["token"] for token in verdict)
        assert verdict[-1]["top"].keys() == {verdict[-1]["token"], "~"}


@pytest.mark.full
def test_one_call_for_several_samples_is_kept_once_and_each_has_its_own_choice(tmp_path: Path) -> None:
    texts = [f"{number}. {ANSWER_TEXT}" for number in range(3)]
    body = vllm_body(texts)
    more = {"models": {"m": {"share_prompts": True}}, "rollouts": {"per_datapoint": 3}}
    samples = [SampleKey("p0", repeat, 0, "verifier", 0) for repeat in range(3)]
    with run_chat_server(reply=body) as server:
        path = spec_file(tmp_path, server.base_url, cache="cache.sqlite", **{**ALONE, **more, "size": 1})
        first = run_spec(path, tmp_path / "results").folder.path
        replayed = run_spec(path, tmp_path / "replayed", replay=ReplayOf(first)).folder.path
        cached = run_spec(path, tmp_path / "cached").folder.path
        assert server.requests == 1
    assert answers(first) == [body]
    rows = table(first, "completions")
    assert sorted(row["raw_message"] for row in rows) == texts
    assert sorted(row["prompt_tokens"] for row in rows) == [0, 0, 400]
    assert all(row["verdict_logprobs"] for row in rows)
    for completion in recorded(first, *samples):
        assert completion.body is not None
        assert completion.choices[0].text == texts[completion.body.choice or 0]
        assert parse_body(completion) == body
    for again in (replayed, cached):
        assert table(again, "completions") == rows
        each = [{**body, "choices": [choice]} for choice in body["choices"]]
        assert sorted(answers(again), key=lambda one: str(one["choices"][0]["index"])) == each


def test_a_choice_of_several_stands_by_itself_in_all_that_came_with_it(tmp_path: Path) -> None:
    """To the byte: numbers that no program reads exactly, names that are there twice."""
    one = '{{"index": 1.0, "message": {{"content": "{}", "choices": []}}, "id": 123456789012345678901234567890}}'
    rest = '{{"a": 1e-400, "a": [1.00, {{"choices": [0]}}], "choices": 3, "choices": [{}] , "usage": {{}}}}'
    content = rest.format(", ".join(["null", *map(one.format, "xyz"), '{"message": 1}']))
    cache = Cache(tmp_path / "cache.sqlite", "run")
    for number, (text, part) in enumerate(zip("xyz", split_choices(read(content.encode(), 3)), strict=True)):
        request = replace(REQUEST, sample=SAMPLE._replace(repeat=number))
        asked = request_fields(request, model_settings())
        cache.put(request, asked, part)
        found = cache.get(asked)
        assert found is not None
        assert found.body is not None
        assert found.body.json.decode() == rest.format(one.format(text))
        assert found.choices == part.choices == (Choice(text, None),)
        assert found.usage == part.usage
    cache.close()


def test_a_line_of_a_batch_is_kept_whole() -> None:
    response = {"status_code": 200, "body": vllm_body()}
    content = json.dumps({"custom_id": name_of(BATCHED), "response": response}).encode() + b"\n"
    assert parse_body(batched(content)) == vllm_body()


def test_a_line_of_a_batch_keeps_its_numbers_and_its_doubled_keys_as_they_came() -> None:
    body = json.dumps(vllm_body())[:-1] + ', "seen": 1.10, "large": 123456789012345678901234567890, "seen": 2}'
    response = f'{{"body": {body}, "status_code": 200}}'
    line = f'{{"response": {{"body": 0}}, "custom_id": "{name_of(BATCHED)}", "response": {response}}}'
    completion = batched(line.encode() + b"\n")
    assert completion.body is not None
    assert completion.body.json.decode() == body
    assert completion.altered == ()


PLACES: tuple[tuple[str | int, ...], ...] = (
    ("id",), ("system_fingerprint",), ("choices", 0, "message", "content"), ("choices", 0, "message", "reasoning"),
    ("choices", 0, "message", "tool_calls", 0, "function", "arguments"), ("choices", 0, "stop_reason"),
    ("choices", 0, "logprobs", "content", 2, "token"), ("usage", "note"),
    ("choices", 0, "logprobs", "content", 2, "top_logprobs", 1, "token"),
)  # fmt: skip


def with_key(text: str) -> dict[str, Any]:
    """An answer that has it in every place."""
    body = copy.deepcopy(vllm_body())
    for place in PLACES:
        at: Any = body
        for step in place[:-1]:
            at = at[step]
        at[place[-1]] = text
    return body


@pytest.mark.parametrize("spelled", [KEY, "".join(f"\\u{ord(c):04x}" for c in KEY), KEY.replace("/", "\\/")])
def test_a_key_comes_back_from_no_place_of_an_answer(spelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    content = json.dumps(with_key("KEY")).replace("KEY", spelled).encode()
    for completion in (
        read(content),
        read_completion(content, {}, REQUEST, model_settings(), latency_ms=1.0) if spelled != KEY else read(content),
    ):
        assert parse_body(completion) == with_key(REMOVED)
        assert completion.altered == (SECRET_ALTERED,)
        assert KEY not in repr(completion)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_body_in_many_lines_is_one_line(line_end: str) -> None:
    text = json.dumps(vllm_body(), indent=2, ensure_ascii=False).replace("\n", line_end)
    completion = read(f"{line_end}{text}{line_end}".encode())
    line = encode(3, CallRecord(SAMPLE, RequestRecord("0" * 64, "m"), completion).to_json())
    assert line.count(b"\n") == 1
    assert len(line) < len(text)
    assert json.loads(line[9:])["answer"] == vllm_body()


def test_what_a_body_does_not_say_its_record_does() -> None:
    body = {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}], "more": {"model": "x"}}
    completion = read(json.dumps(body).encode())
    record = CallRecord(SAMPLE, RequestRecord("p", "m"), completion)
    again = decode(encode(3, record.to_json()), 3)
    assert again is not None
    assert parse_record(again) == record
    assert completion.usage.estimated
    assert completion.usage != Usage(estimated=True)
    assert completion.model == "tiny"


@pytest.mark.full
def test_an_answer_of_many_megabytes_comes_back_from_a_journal_and_a_cache(tmp_path: Path) -> None:
    body = openai_body(', "answer": {"kind": "call"}} \\" \u2028 ' * 150_000)
    completion = read(json.dumps(body, ensure_ascii=False).encode())

    async def write() -> None:
        journal = Journal(tmp_path / JOURNAL, durable=False)
        for text in ("short", "long"):
            kept = completion if text == "long" else read(json.dumps(openai_body()).encode())
            await journal.append(CallRecord(SAMPLE._replace(agent=text), RequestRecord("p", "m"), kept).to_json())
        await journal.close()

    asyncio.run(write())
    assert (tmp_path / JOURNAL).stat().st_size > 5e6
    (found,) = recorded(tmp_path, SAMPLE._replace(agent="long"))
    cache = Cache(tmp_path / "cache.sqlite", "run")
    asked = request_fields(REQUEST, model_settings())
    cache.put(REQUEST, asked, completion)
    for again in (found, cache.get(asked)):
        assert again is not None
        assert again.choices == completion.choices
        assert parse_body(again) == body
    cache.close()
