"""The cache shares answers between runs, but only for identical requests."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import BudgetExhausted, ContextExceededError, RunError, TransientError
from runner.game.prompts.chat import ChatMessage
from runner.models.interface import Choice, Completion, Request, SampleKey, Usage
from runner.models.layers.cache import Cache, differences, request_fields, through_cache
from runner.models.settings import ModelSettings
from tests.support.event_loop import as_coroutine
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment, nip_run_here
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

SETTINGS = ModelSettings(model="tiny", base_url="http://127.0.0.1:9/v1")
ANSWER = Completion((Choice("Ünï\n", "stop"),), "tiny", Usage(10, 5, 2), 12.5, other_fields={"id": "x"})


def make_request(repeat: int = 0, attempt: int = 0, text: str = "Why?", agent: str = "verifier") -> Request:
    chat: Sequence[ChatMessage] = ({"role": "system", "content": "s"}, {"role": "user", "content": text})
    return Request("m", chat, SampleKey("p", repeat, 0, agent, attempt))


@pytest.fixture
def server() -> Any:
    with run_chat_server() as running:
        yield running


# Runs


def test_second_run_with_the_same_cache_sends_no_requests(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, cache="shared/cache.sqlite")
    first = run_spec(path, tmp_path / "first")
    requests_before = server.requests
    second = run_spec(path, tmp_path / "second")
    assert server.requests == requests_before
    assert derived_files(second.folder.path) == derived_files(first.folder.path)
    assert second.manifest.prompt_tokens == first.manifest.prompt_tokens


@pytest.mark.full
def test_answers_from_the_cache_cost_nothing(tmp_path: Path, server: LoopbackServer) -> None:
    price = {"m": {"price": {"input": 1.0, "output": 2.0}}}
    path = spec_file(tmp_path, server.base_url, cache="cache.sqlite", models=price)
    assert run_spec(path, tmp_path / "first").manifest.cost_usd not in (0, None)
    assert run_spec(path, tmp_path / "second").manifest.cost_usd == 0


@pytest.mark.full
def test_run_with_other_rewards_shares_cached_answers(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, cache="cache.sqlite")
    run_spec(path, tmp_path / "results")
    requests_before = server.requests
    run_spec(path, tmp_path / "results", "protocol.verifier_reward=3.5")
    assert server.requests == requests_before


@pytest.mark.full
def test_repeats_never_share_an_answer(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, cache="cache.sqlite", rollouts={"per_datapoint": 3})
    run_spec(path, tmp_path / "first")
    first_round = [
        r for r in journal_records(only_run(tmp_path / "first")) if r["kind"] == "call" and r["sample"][2] == 0
    ]
    assert len(first_round) == 36
    assert not any(record.get("cache") for record in first_round)
    bodies = Counter(server.stats()["bodies"])
    assert sum(count >= 3 for count in bodies.values()) >= 12
    requests_before = server.requests
    run_spec(path, tmp_path / "second")
    assert server.requests == requests_before


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "change",
    ["models.m.model=other", "+models.m.extra_body.min_p=0.1", "models.m.chat_format=alternating",
     *(pytest.param(change, marks=pytest.mark.full) for change in (
         "models.m.temperature=0.5", "models.m.max_tokens=99", "models.m.system_role=developer",
         "models.m.send_name=false",
     ))],
)  # fmt: skip
def test_changed_request_body_misses_the_cache(tmp_path: Path, server: LoopbackServer, change: str) -> None:
    models = {"m": {"chat_format": "openai"}}
    path = spec_file(tmp_path, server.base_url, size=2, cache="cache.sqlite", models=models)
    run_spec(path, tmp_path / "first")
    requests_before = server.requests
    second = run_spec(path, tmp_path / "second", change)
    assert server.requests - requests_before >= (2 if "send_name" in change else second.manifest.completions or 0)


@pytest.mark.full
def test_requests_to_another_server_miss_the_cache(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, size=2, cache="cache.sqlite")
    run_spec(path, tmp_path / "first")
    with run_chat_server() as other_server:
        second = run_spec(path, tmp_path / "second", f"models.m.base_url={other_server.base_url}")
        assert other_server.requests == second.manifest.completions


@pytest.mark.full
def test_cached_invalid_answer_is_not_reused_for_the_next_attempt(tmp_path: Path) -> None:
    with run_chat_server(faults={"bad_decision": 0.4}) as server:
        path = spec_file(tmp_path, server.base_url, cache="cache.sqlite")
        first = run_spec(path, tmp_path / "first")
        requests_before = server.requests
        second = run_spec(path, tmp_path / "second")
        assert server.requests == requests_before
    assert {r["sample"][4] for r in journal_records(first.folder.path) if r["kind"] == "call"} > {0, 1}
    assert derived_files(second.folder.path) == derived_files(first.folder.path)


@pytest.mark.full
def test_errors_are_not_cached(tmp_path: Path) -> None:
    with run_chat_server(kind="server_error") as server:
        path = spec_file(tmp_path, server.base_url, size=3, cache="cache.sqlite", retry={"transient": {"attempts": 1}})
        assert run_spec(path, tmp_path / "first").metrics["outcomes"]["transport_failed"] == 3
        server.change(kind="context_length_exceeded")
        assert run_spec(path, tmp_path / "second").metrics["outcomes"]["context_exceeded"] == 3
        server.change(kind=None)
        assert run_spec(path, tmp_path / "third").metrics["outcomes"]["decided"] == 3


@pytest.mark.full
def test_concurrent_processes_share_one_cache(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.0, 0.02]) as server:
        spec_file(tmp_path, server.base_url, cache="cache.sqlite")
        processes = [
            subprocess.Popen(
                command("spec.yaml", "-q", "--results", name), cwd=tmp_path, env=environment(),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for name in ("one", "two", "three")
        ]  # fmt: skip
        try:
            for process in processes:
                _, stderr = process.communicate(timeout=HANG_SECONDS)
                assert process.returncode == 0, stderr
        finally:
            for process in processes:
                process.kill()
                process.wait()
        needed = sum(r["kind"] == "call" for r in journal_records(only_run(tmp_path / "one")))
        assert needed <= server.requests <= 3 * needed
    files = [derived_files(only_run(tmp_path / name)) for name in ("one", "two", "three")]
    assert files[0] == files[1] == files[2]


def test_invalid_cache_file_fails_before_any_call(tmp_path: Path, server: LoopbackServer) -> None:
    (tmp_path / "cache.sqlite").write_text("not a database, but long enough to be taken for the header of one\n" * 20)
    spec_file(tmp_path, server.base_url, cache="cache.sqlite")
    done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
    assert done.returncode == 1
    assert "cache.sqlite" in done.stderr
    assert "bug in nip-run" not in done.stderr
    assert server.requests == 0


@pytest.mark.full
def test_shared_prompts_are_answered_from_the_cache(tmp_path: Path, server: LoopbackServer) -> None:
    shared = {"m": {"share_prompts": True}}
    path = spec_file(tmp_path, server.base_url, cache="cache.sqlite", models=shared, rollouts={"per_datapoint": 3})
    run_spec(path, tmp_path / "first")
    requests_before = server.requests
    run_spec(path, tmp_path / "second")
    assert server.requests == requests_before


# explain-misses


@pytest.mark.full
def test_explain_misses_names_the_fields_that_differ(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, cache="cache.sqlite")
    run_spec(path, tmp_path / "results")
    second = run_spec(path, tmp_path / "results", "models.m.temperature=0.5")
    arguments = ("explain-misses", second.folder.run_id, "--cache", "cache.sqlite")
    done = nip_run_here(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "temperature" in done.stdout
    assert f"{second.manifest.completions} of {second.manifest.completions} requests" in done.stdout
    report = json.loads(nip_run_here(*arguments, "--json", "--max", "2", cwd=tmp_path).stdout)
    assert report["misses"] == report["requests"] == second.manifest.completions
    assert len(report["explained"]) == 2
    (difference,) = [d for d in report["explained"][0]["differences"] if not d["field"].startswith("messages")]
    assert difference == {"field": "temperature", "asked": 0.5, "nearest": None}


@pytest.mark.full
def test_explain_misses_reports_zero_misses(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, cache="cache.sqlite")
    run_spec(path, tmp_path / "results")
    second = run_spec(path, tmp_path / "results", "protocol.verifier_reward=3.5")
    done = nip_run_here("explain-misses", second.folder.run_id, "--cache", "cache.sqlite", cwd=tmp_path)
    assert "0 of " in done.stdout


@pytest.mark.full
def test_explain_misses_finds_hits_for_a_run_in_another_results_folder(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, size=2, cache="cache.sqlite")
    run_spec(path, tmp_path / "results")
    second = run_spec(path, tmp_path / "elsewhere")
    done = nip_run_here("explain-misses", second.folder.run_id, "--results", "elsewhere", cwd=tmp_path)
    assert done.stdout.startswith("0 of "), done.stdout + done.stderr


def test_explain_misses_includes_unfinished_games(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, size=4, cache="cache.sqlite")
    with pytest.raises(BudgetExhausted):
        run_spec(path, tmp_path / "results", "+budget.completions=2", "rollouts.concurrency=2")
    report = json.loads(nip_run_here("explain-misses", "tiny", "--json", cwd=tmp_path).stdout)
    assert report["misses"] == report["requests"] == 2


def test_explain_misses_without_the_cache_file_is_a_usage_error(tmp_path: Path, server: LoopbackServer) -> None:
    first = run_spec(spec_file(tmp_path, server.base_url, size=2), tmp_path / "results")
    done = nip_run_here("explain-misses", first.folder.run_id, "--cache", "nothing.sqlite", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing.sqlite" in done.stderr
    assert not (tmp_path / "nothing.sqlite").exists()


# Unit tests


def test_cached_answer_is_equal_and_marked_as_from_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.sqlite", "run")
    fields = request_fields(make_request(), SETTINGS)
    cache.put(make_request(), fields, ANSWER)
    cached_answer = cache.get(fields, "verifier")
    cache.close()
    assert cached_answer is not None
    assert cached_answer.from_cache
    assert (cached_answer.choices, cached_answer.model, cached_answer.usage, cached_answer.other_fields) == (
        ANSWER.choices, ANSWER.model, ANSWER.usage, ANSWER.other_fields,
    )  # fmt: skip


def test_cache_key_includes_the_repeat_the_attempt_and_every_message() -> None:
    base = request_fields(make_request(), SETTINGS)
    assert differences(base, request_fields(make_request(), SETTINGS)) == []
    for changed_request, name in (
        (make_request(repeat=1), "sample.repeat"), (make_request(attempt=1), "sample.attempt"),
        (make_request(text="How?"), "messages[1].content"),
    ):  # fmt: skip
        assert [difference[0] for difference in differences(base, request_fields(changed_request, SETTINGS))] == [name]


@pytest.mark.parametrize("error", [TransientError("x"), ContextExceededError("x", status=400)])
def test_failed_call_stores_nothing_in_the_cache(tmp_path: Path, error: Exception) -> None:
    cache = Cache(tmp_path / "c.sqlite", "run")
    outcomes: list[Exception | Completion] = [error, ANSWER]

    async def complete(_: Request) -> Completion:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    complete_cached = through_cache(complete, cache, {"m": SETTINGS})
    with pytest.raises(type(error)):
        asyncio.run(as_coroutine(complete_cached(make_request())))
    answer = asyncio.run(as_coroutine(complete_cached(make_request())))
    assert answer == ANSWER
    cache.store(make_request(), SETTINGS, answer)
    assert asyncio.run(as_coroutine(complete_cached(make_request()))).from_cache
    cache.close()


def test_cache_keeps_the_first_answer_of_a_request(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.sqlite", "run")
    fields = request_fields(make_request(), SETTINGS)
    cache.put(make_request(), fields, ANSWER)
    cache.put(make_request(), fields, Completion((Choice("other", "stop"),), "tiny"))
    cached_answer = cache.get(fields, "verifier")
    cache.close()
    assert cached_answer is not None
    assert cached_answer.choices == ANSWER.choices


def test_judges_with_the_same_prompt_do_not_share_an_answer(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.sqlite", "run")
    requests = [make_request(agent=f"judge{number}") for number in range(3)]
    fields = request_fields(requests[0], SETTINGS)
    answers = [Completion((Choice(text, "stop"),), "tiny") for text in ("yes", "no")]
    for request, answer in zip(requests, answers, strict=False):
        cache.put(request, request_fields(request, SETTINGS), answer)
    cached_answers = [cache.get(request_fields(request, SETTINGS), request.sample.agent) for request in requests]
    has_answers = [cache.has_answer_of_other_run(fields, request.sample.agent) for request in requests]
    cache.close()
    assert [answer and answer.choices[0].text for answer in cached_answers] == ["yes", "no", None]
    assert has_answers == [False] * 3
    other_run = Cache(tmp_path / "c.sqlite", "other")
    has_answers = [other_run.has_answer_of_other_run(fields, request.sample.agent) for request in requests]
    other_run.close()
    assert has_answers == [True, True, False]


def test_dummy_answers_of_another_length_are_not_taken_from_the_cache(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, cache="cache.sqlite")
    for name, words in (("short", 3), ("long", 40), ("again", 3)):
        run_spec(path, tmp_path / name, f"+models.m.answer_words={words}")
    short, long, again = (
        [r for r in journal_records(only_run(tmp_path / name)) if r["kind"] == "call"]
        for name in ("short", "long", "again")
    )
    assert not any(record["cache"] for record in (*short, *long))
    assert all(record["cache"] for record in again)
    assert min(record["usage"][1] for record in long) > max(record["usage"][1] for record in short)


def test_cache_folder_that_cannot_be_created_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cache"):
        Cache(tmp_path / "file" / "cache.sqlite", "run")


def test_invalid_cache_file_raises_a_run_error_and_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.sqlite").write_text("not a database " * 100)
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_record(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_and_record)
    with pytest.raises(RunError, match="cannot open the cache"):
        Cache(tmp_path / "c.sqlite", "run")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
