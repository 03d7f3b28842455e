"""Several samples of one request in one call with `n`: the prompt is paid once, the records are the same."""

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


def shared(folder: Path, provider: BatchProvider, share: bool = True, **changes: Any) -> Path:
    return spec_file(
        folder, provider.base_url, size=SIZE,
        **{"models": {"m": {"share_prompts": share}}, "rollouts": {"per_datapoint": REPEATS}, **changes},
    )  # fmt: skip


def samples(run: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(record["sample"]) for record in journal_records(run) if record["kind"] == "call")


def test_the_first_requests_of_all_repeats_are_one_call(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        result = run_spec(shared(tmp_path, provider), tmp_path / "results")
        stats = provider.stats()
    opening = sum(row["round"] == 0 for row in table(result.folder.path, "completions"))
    assert opening == SIZE * REPEATS
    assert Counter(stats["ns"])[REPEATS] == SIZE
    assert set(stats["ns"]) == {1, REPEATS}
    assert stats["chat"] == len(table(result.folder.path, "completions")) - SIZE * (REPEATS - 1)
    assert set(samples(result.folder.path).values()) == {1}


def test_each_repeat_gets_an_answer_of_its_own(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        result = run_spec(shared(tmp_path, provider), tmp_path / "results")
    said: dict[str, set[str]] = {}
    ids = {row["rollout_id"]: row["datapoint_id"] for row in table(result.folder.path, "rollouts")}
    for row in table(result.folder.path, "completions"):
        if row["round"] == 0:
            said.setdefault(ids[row["rollout_id"]], set()).add(row["raw_message"])
    assert all(len(texts) == REPEATS for texts in said.values())


def test_the_tokens_in_the_records_are_those_of_the_bill(tmp_path: Path) -> None:
    """The prompt of a shared call stands with one of its answers."""
    with run_batch_provider() as provider:
        result = run_spec(shared(tmp_path, provider), tmp_path / "results")
        billed = provider.stats()["billed"]
    assert result.manifest.prompt_tokens == billed["prompt_tokens"]
    assert result.manifest.completion_tokens == billed["completion_tokens"]
    assert sum(row["prompt_tokens"] for row in table(result.folder.path, "completions")) == billed["prompt_tokens"]


@pytest.mark.full
def test_the_records_are_those_without_sharing_apart_from_tokens(tmp_path: Path) -> None:
    """With a server whose answers do not depend on how many are asked for."""
    found = []
    for name, share in (("with", True), ("without", False)):
        folder = tmp_path / name
        folder.mkdir()
        with run_batch_provider(chat={"text": "It holds.\n\nDecision: accept"}) as provider:
            result = run_spec(shared(folder, provider, share), folder / "results")
        drop = ("run_id", "rollout_id", "prompt_tokens", "completion_tokens", "cached_tokens", "latency_ms")
        found.append(
            [
                [{k: v for k, v in row.items() if k not in drop} for row in table(result.folder.path, kind)]
                for kind in ("rollouts", "messages", "completions")
            ]
        )
    assert found[0] == found[1]


def test_a_server_that_refuses_n_is_asked_one_by_one(tmp_path: Path) -> None:
    with run_batch_provider(refuses_n=True) as provider:
        result = run_spec(shared(tmp_path, provider), tmp_path / "results")
        stats = provider.stats()
    assert result.metrics["outcomes"]["decided"] == SIZE * REPEATS
    rows = table(result.folder.path, "completions")
    assert stats["kinds"]["answer"] == sum(row["error"] is None for row in rows)
    assert stats["kinds"]["answer"] == sum(samples(result.folder.path).values())
    assert stats["kinds"]["refused_n"] == sum("refuses n" in (row["error"] or "") for row in rows)
    # Calls that were under way together may each find out for themselves; nobody after them.
    assert stats["kinds"]["refused_n"] <= 8
    assert set(samples(result.folder.path).values()) == {1}


@pytest.mark.full
@pytest.mark.parametrize(("share", "ns"), [(None, {3}), (False, {1}), (True, {3})])
def test_answers_to_one_step_of_a_tree_are_one_call_unless_switched_off(
    tmp_path: Path, share: bool | None, ns: set[int]
) -> None:
    trees = {"num_responses_per_timestep": 3, "per_datapoint": 1}
    models = {"m": {} if share is None else {"share_prompts": share}}
    with run_batch_provider(chat={"decide": 0.0}) as provider:
        path = shared(tmp_path, provider, rollouts=trees, models=models, protocol={"max_message_rounds": 3})
        run_spec(path, tmp_path / "results")
        assert set(provider.stats()["ns"]) == ns


@pytest.mark.full
def test_calls_that_were_refused_for_n_count_in_the_budget(tmp_path: Path) -> None:
    with run_batch_provider(refuses_n=True) as provider:
        path = shared(tmp_path, provider)
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", "budget.completions=10")
        assert provider.stats()["chat"] <= 10


@pytest.mark.full
def test_where_the_budget_does_not_hold_all_answers_one_is_asked_for(tmp_path: Path) -> None:
    priced = {"m": {"price": {"input": 0.0, "output": 1e6}, "max_completion_tokens": 100}}
    with run_batch_provider() as provider:
        path = shared(tmp_path, provider, models=priced)
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", "budget.usd=150")  # one call may cost 100
        assert set(provider.stats()["ns"]) == {1}


def test_a_sample_that_was_refused_is_not_asked_for_again_by_its_siblings(tmp_path: Path) -> None:
    """Else the journal would hold an answer that the game never had, and a replay would tell another story."""
    family = [SampleKey("p0", repeat, 0, "verifier", 0) for repeat in range(3)]
    asked: list[int] = []

    async def refusing_once(request: Request) -> Completion:
        asked.append(request.n)
        if len(asked) == 1:
            raise RefusedError("by policy", status=400)
        return Completion((Choice("yes", "stop"),) * request.n, "tiny")

    async def all_three() -> list[Any]:
        journal = Journal(tmp_path / "journal.jsonl")
        through = JournaledCompleter(
            refusing_once,
            journal,
            JournalIndex(journal.record, ()),
            {"m": "parameters"},
            sharing_groups=frozenset({"m"}),
        )
        requests = (Request("m", (), own, siblings=tuple(s for s in family if s != own)) for own in family)
        try:
            return await asyncio.gather(*map(through.complete, requests), return_exceptions=True)
        finally:
            await journal.close()

    first, *others = asyncio.run(all_three())
    assert isinstance(first, RefusedError)
    assert [other.choices[0].text for other in others] == ["yes", "yes"]
    assert asked == [3, 2]
    kept = [(record["kind"], record["sample"][1]) for _, record in read_journal(tmp_path / "journal.jsonl")]
    assert kept == [("ended", 0), ("call", 1), ("call", 2)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_server_that_gives_too_few_answers_is_asked_for_the_rest(tmp_path: Path, most: int) -> None:
    """No sample is asked for twice, none is doubled in the journal."""
    with run_batch_provider(most_n=most) as provider:
        result = run_spec(shared(tmp_path, provider), tmp_path / "results")
        billed = provider.stats()["billed"]
    assert result.metrics["outcomes"]["decided"] == SIZE * REPEATS
    assert set(samples(result.folder.path).values()) == {1}
    assert result.manifest.completion_tokens == billed["completion_tokens"]


@pytest.mark.full
def test_a_failed_call_is_asked_again_for_all(tmp_path: Path) -> None:
    with run_batch_provider(faults={"server_error": 0.3, "drop": 0.2}, max_faults=2) as provider:
        result = run_spec(shared(tmp_path, provider), tmp_path / "results")
    assert result.metrics["outcomes"]["decided"] == SIZE * REPEATS
    assert set(samples(result.folder.path).values()) == {1}


@pytest.mark.full
def test_more_repeats_pay_for_the_difference_alone(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        path = shared(tmp_path, provider)
        run_spec(path, tmp_path / "results", "rollouts.per_datapoint=2")
        before = samples(only_run(tmp_path / "results"))
        chat = provider.stats()["chat"]
        run_spec(path, tmp_path / "results", "rollouts.per_datapoint=5")
        ns = provider.stats()["ns"][chat:]
    after = samples(only_run(tmp_path / "results"))
    assert set(after.values()) == {1}
    assert set(before) <= set(after)
    assert Counter(ns)[3] == SIZE


@pytest.mark.full
def test_a_killed_run_goes_on_with_no_answer_lost_or_doubled(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.03) as provider:
        path = shared(tmp_path, provider)
        for count in (2, 5, 20):
            before = provider.stats()["chat"]
            process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
            wait_for_requests(provider, "chat", before + count, process)
            process.send_signal(signal.SIGKILL)
            process.wait()
        result = run_spec(path, tmp_path / "results")
        whole = run_spec(path, tmp_path / "whole")
        again = run_spec(path, tmp_path / "results")
    assert again.was_finished
    assert set(samples(result.folder.path).values()) == {1}
    assert result.metrics["outcomes"] == whole.metrics["outcomes"]


@pytest.mark.full
def test_a_budget_holds_with_shared_prompts(tmp_path: Path) -> None:
    priced = {"m": {"share_prompts": True, "price": {"input": 100, "output": 400}, "max_completion_tokens": 60}}
    with run_batch_provider(faults={"drop": 0.1}, latency=0.01) as provider:
        shared(tmp_path, provider, models=priced, budget={"usd": 1.5})
        for _ in range(2):
            done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
            assert done.returncode == 3, done.stderr
        assert 0.3 < provider.billed_usd(100, 400) <= 1.5


@pytest.mark.full
def test_a_budget_of_calls_counts_a_shared_call_once_also_after_a_resume(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        shared(tmp_path, provider)
        assert nip_run_here("spec.yaml", "-q", "budget.completions=20", cwd=tmp_path).returncode == 3
        assert provider.stats()["chat"] == 20
        assert nip_run_here("spec.yaml", "-q", "budget.completions=30", cwd=tmp_path).returncode == 3
        assert provider.stats()["chat"] == 30


@pytest.mark.full
def test_one_repeat_has_nothing_to_share(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        run_spec(shared(tmp_path, provider, rollouts={"per_datapoint": 1}), tmp_path / "results")
        assert set(provider.stats()["ns"]) == {1}


def test_n_of_its_own_and_shared_prompts_exclude_each_other(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"share_prompts": True, "n": 2}})
    with pytest.raises(SpecError, match="share_prompts"):
        load_spec(path)
