"""Shared prompts: several samples of one request in one call with `n` pay for the prompt once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import BudgetExhausted, RefusedError, SpecError
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import read_journal
from runner.models.interface import Choice, Completion, Request, SampleKey
from runner.models.journal_index import JournalIndex
from runner.models.layers.journal import JournaledCompleter
from runner.spec.loader import load_spec
from tests.support.processes import nip_run_here, start_nip_run_silently, wait_for_requests
from tests.support.runs import journal_records, only_run, run_spec, table
from tests.support.servers.batch_client import BatchProvider, run_batch_provider
from tests.support.specs import spec_file

REPEATS = 4
SIZE = 6


def write_shared_spec(folder: Path, provider: BatchProvider, share: bool = True, **changes: Any) -> Path:
    return spec_file(
        folder, provider.base_url, size=SIZE,
        **{"models": {"m": {"share_prompts": share}}, "rollouts": {"per_datapoint": REPEATS}, **changes},
    )  # fmt: skip


def count_samples(run: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(record["sample"]) for record in journal_records(run) if record["kind"] == "call")


def test_first_requests_of_all_repeats_are_one_call(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        result = run_spec(write_shared_spec(tmp_path, provider), tmp_path / "results")
        stats = provider.stats()
    opening = sum(row["round"] == 0 for row in table(result.folder.path, "completions"))
    assert opening == SIZE * REPEATS
    assert Counter(stats["ns"])[REPEATS] == SIZE
    assert set(stats["ns"]) == {1, REPEATS}
    assert stats["chat"] == len(table(result.folder.path, "completions")) - SIZE * (REPEATS - 1)
    assert set(count_samples(result.folder.path).values()) == {1}


def test_each_repeat_gets_its_own_answer(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        result = run_spec(write_shared_spec(tmp_path, provider), tmp_path / "results")
    texts_by_datapoint: dict[str, set[str]] = {}
    ids = {row["rollout_id"]: row["datapoint_id"] for row in table(result.folder.path, "rollouts")}
    for row in table(result.folder.path, "completions"):
        if row["round"] == 0:
            texts_by_datapoint.setdefault(ids[row["rollout_id"]], set()).add(row["raw_message"])
    assert all(len(texts) == REPEATS for texts in texts_by_datapoint.values())


def test_recorded_tokens_equal_the_billed_tokens(tmp_path: Path) -> None:
    """The prompt tokens of a shared call are recorded with one of its answers."""
    with run_batch_provider() as provider:
        result = run_spec(write_shared_spec(tmp_path, provider), tmp_path / "results")
        billed = provider.stats()["billed"]
    assert result.manifest.prompt_tokens == billed["prompt_tokens"]
    assert result.manifest.completion_tokens == billed["completion_tokens"]
    assert sum(row["prompt_tokens"] for row in table(result.folder.path, "completions")) == billed["prompt_tokens"]


@pytest.mark.full
def test_records_with_and_without_sharing_differ_only_in_tokens(tmp_path: Path) -> None:
    """The server's answers do not depend on `n`."""
    rows_by_variant = []
    for name, share in (("with", True), ("without", False)):
        folder = tmp_path / name
        folder.mkdir()
        with run_batch_provider(chat={"text": "It holds.\n\nDecision: accept"}) as provider:
            result = run_spec(write_shared_spec(folder, provider, share), folder / "results")
        ignored_columns = ("run_id", "rollout_id", "prompt_tokens", "completion_tokens", "cached_tokens", "latency_ms")
        rows_by_variant.append(
            [
                [{k: v for k, v in row.items() if k not in ignored_columns} for row in table(result.folder.path, kind)]
                for kind in ("rollouts", "messages", "completions")
            ]
        )
    assert rows_by_variant[0] == rows_by_variant[1]


def test_server_that_refuses_n_gets_one_call_per_answer(tmp_path: Path) -> None:
    with run_batch_provider(refuses_n=True) as provider:
        result = run_spec(write_shared_spec(tmp_path, provider), tmp_path / "results")
        stats = provider.stats()
    assert result.metrics["outcomes"]["decided"] == SIZE * REPEATS
    rows = table(result.folder.path, "completions")
    assert stats["kinds"]["answer"] == sum(row["error"] is None for row in rows)
    assert stats["kinds"]["answer"] == sum(count_samples(result.folder.path).values())
    assert stats["kinds"]["refused_n"] == sum("refuses n" in (row["error"] or "") for row in rows)
    # Each call in flight may find out separately; later calls do not.
    assert stats["kinds"]["refused_n"] <= 8
    assert set(count_samples(result.folder.path).values()) == {1}


@pytest.mark.full
@pytest.mark.parametrize(("share", "ns"), [(None, {3}), (False, {1}), (True, {3})])
def test_answers_to_one_step_of_a_tree_share_a_call_unless_disabled(
    tmp_path: Path, share: bool | None, ns: set[int]
) -> None:
    trees = {"num_responses_per_timestep": 3, "per_datapoint": 1}
    models = {"m": {} if share is None else {"share_prompts": share}}
    with run_batch_provider(chat={"decide": 0.0}) as provider:
        path = write_shared_spec(tmp_path, provider, rollouts=trees, models=models, protocol={"max_message_rounds": 3})
        run_spec(path, tmp_path / "results")
        assert set(provider.stats()["ns"]) == ns


@pytest.mark.full
def test_calls_refused_for_n_count_toward_the_budget(tmp_path: Path) -> None:
    with run_batch_provider(refuses_n=True) as provider:
        path = write_shared_spec(tmp_path, provider)
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", "budget.completions=10")
        assert provider.stats()["chat"] <= 10


@pytest.mark.full
def test_answers_are_requested_one_by_one_if_the_budget_is_too_small_for_all(tmp_path: Path) -> None:
    priced = {"m": {"price": {"input": 0.0, "output": 1e6}, "max_completion_tokens": 100}}
    with run_batch_provider() as provider:
        path = write_shared_spec(tmp_path, provider, models=priced)
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", "budget.usd=150")  # one call may cost 100
        assert set(provider.stats()["ns"]) == {1}


def test_refused_sample_is_not_requested_again_by_its_siblings(tmp_path: Path) -> None:
    """Otherwise the journal would hold an answer that the game never had, and a replay would differ."""
    siblings = [SampleKey("p0", repeat, 0, "verifier", 0) for repeat in range(3)]
    requested_counts: list[int] = []

    async def refusing_once(request: Request) -> Completion:
        requested_counts.append(request.n)
        if len(requested_counts) == 1:
            raise RefusedError("by policy", status=400)
        return Completion((Choice("yes", "stop"),) * request.n, "tiny")

    async def complete_all() -> list[Any]:
        journal = Journal(tmp_path / "journal.jsonl")
        completer = JournaledCompleter(
            refusing_once,
            journal,
            JournalIndex(journal.record, ()),
            {"m": "parameters"},
            sharing_groups=frozenset({"m"}),
        )
        requests = (Request("m", (), sample, siblings=tuple(s for s in siblings if s != sample)) for sample in siblings)
        try:
            return await asyncio.gather(*map(completer.complete, requests), return_exceptions=True)
        finally:
            await journal.close()

    first, *other_answers = asyncio.run(complete_all())
    assert isinstance(first, RefusedError)
    assert [answer.choices[0].text for answer in other_answers] == ["yes", "yes"]
    assert requested_counts == [3, 2]
    recorded_calls = [(record["kind"], record["sample"][1]) for _, record in read_journal(tmp_path / "journal.jsonl")]
    assert recorded_calls == [("ended", 0), ("call", 1), ("call", 2)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("max_n", [1, 2, 3])
def test_missing_answers_of_a_shared_call_are_requested_again(tmp_path: Path, max_n: int) -> None:
    """No sample is requested twice or recorded twice."""
    with run_batch_provider(most_n=max_n) as provider:
        result = run_spec(write_shared_spec(tmp_path, provider), tmp_path / "results")
        billed = provider.stats()["billed"]
    assert result.metrics["outcomes"]["decided"] == SIZE * REPEATS
    assert set(count_samples(result.folder.path).values()) == {1}
    assert result.manifest.completion_tokens == billed["completion_tokens"]


@pytest.mark.full
def test_failed_shared_call_is_retried_for_all_samples(tmp_path: Path) -> None:
    with run_batch_provider(faults={"server_error": 0.3, "drop": 0.2}, max_faults=2) as provider:
        result = run_spec(write_shared_spec(tmp_path, provider), tmp_path / "results")
    assert result.metrics["outcomes"]["decided"] == SIZE * REPEATS
    assert set(count_samples(result.folder.path).values()) == {1}


@pytest.mark.full
def test_additional_repeats_pay_only_for_the_difference(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        path = write_shared_spec(tmp_path, provider)
        run_spec(path, tmp_path / "results", "rollouts.per_datapoint=2")
        before = count_samples(only_run(tmp_path / "results"))
        calls_before = provider.stats()["chat"]
        run_spec(path, tmp_path / "results", "rollouts.per_datapoint=5")
        ns = provider.stats()["ns"][calls_before:]
    after = count_samples(only_run(tmp_path / "results"))
    assert set(after.values()) == {1}
    assert set(before) <= set(after)
    assert Counter(ns)[3] == SIZE


@pytest.mark.full
def test_killed_run_resumes_without_lost_or_repeated_answers(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.03) as provider:
        path = write_shared_spec(tmp_path, provider)
        for count in (2, 5, 20):
            before = provider.stats()["chat"]
            process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
            wait_for_requests(provider, "chat", before + count, process)
            process.send_signal(signal.SIGKILL)
            process.wait()
        result = run_spec(path, tmp_path / "results")
        uninterrupted = run_spec(path, tmp_path / "whole")
        rerun = run_spec(path, tmp_path / "results")
    assert rerun.was_finished
    assert set(count_samples(result.folder.path).values()) == {1}
    assert result.metrics["outcomes"] == uninterrupted.metrics["outcomes"]


@pytest.mark.full
def test_budget_limits_runs_with_shared_prompts(tmp_path: Path) -> None:
    priced = {"m": {"share_prompts": True, "price": {"input": 100, "output": 400}, "max_completion_tokens": 60}}
    with run_batch_provider(faults={"drop": 0.1}, latency=0.01) as provider:
        write_shared_spec(tmp_path, provider, models=priced, budget={"usd": 1.5})
        for _ in range(2):
            done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
            assert done.returncode == 3, done.stderr
        assert 0.3 < provider.billed_usd(100, 400) <= 1.5


@pytest.mark.full
def test_completions_budget_counts_a_shared_call_once_after_a_resume(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        write_shared_spec(tmp_path, provider)
        assert nip_run_here("spec.yaml", "-q", "budget.completions=20", cwd=tmp_path).returncode == 3
        assert provider.stats()["chat"] == 20
        assert nip_run_here("spec.yaml", "-q", "budget.completions=30", cwd=tmp_path).returncode == 3
        assert provider.stats()["chat"] == 30


@pytest.mark.full
def test_single_repeat_shares_no_prompts(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        run_spec(write_shared_spec(tmp_path, provider, rollouts={"per_datapoint": 1}), tmp_path / "results")
        assert set(provider.stats()["ns"]) == {1}


def test_share_prompts_and_n_exclude_each_other(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"share_prompts": True, "n": 2}})
    with pytest.raises(SpecError, match="share_prompts"):
        load_spec(path)
