"""What one shard of a run may use: the shares of every limit together are no more than the limit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.rollouts.plan import Plan
from runner.runs.execution.shard_consistency import plan_of_shard
from runner.spec.datasets.shards import Shard
from runner.spec.loader import load_spec
from tests.support.shards import all_shards
from tests.support.specs import spec_file

LIMITS = {"max_completion_tokens": 50, "price": {"input": 1.0, "output": 2.0}}
"""What a budget in dollars asks of a model group."""


def limited(folder: Path) -> Plan:
    path = spec_file(
        folder,
        "http://127.0.0.1:9/v1",
        size=20,
        models={"m": {**LIMITS, "requests_per_minute": 100, "tokens_per_minute": 9_001}},
        budget={"usd": 0.1, "tokens": 1_001, "completions": 33},
        rollouts={"concurrency": 13, "per_datapoint": 2},
        stances="both",
    )
    return Plan(load_spec(path))


@pytest.mark.parametrize("of", [1, 3, 7])
def test_shares_never_come_to_more_than_the_limit(tmp_path: Path, of: int) -> None:
    whole = limited(tmp_path)
    shares = [plan_of_shard(whole, shard).shard_experiment for shard in all_shards(of)]
    said = whole.spec.experiment
    assert sum(one.rollouts.concurrency for one in shares) == said.rollouts.concurrency
    assert sum(one.budget.tokens or 0 for one in shares) == said.budget.tokens
    assert sum(one.budget.completions or 0 for one in shares) == said.budget.completions
    usd = sum(Fraction(one.budget.usd or 0) for one in shares)
    assert Fraction(0.0999) < usd <= Fraction(0.1) * (1 + Fraction(1, 10**12)), "as the budget itself is compared"
    for name in ("requests_per_minute", "tokens_per_minute"):
        assert sum(getattr(one.models["m"], name) for one in shares) == getattr(said.models["m"], name)


def test_a_shard_has_the_jobs_of_the_whole_run_and_its_identity(tmp_path: Path) -> None:
    whole = limited(tmp_path)
    parts = [plan_of_shard(whole, shard) for shard in all_shards(3)]
    assert {part.identity for part in parts} == {whole.identity}
    jobs = {job.rollout_id: job for job in whole.jobs()}
    played = [job for part in parts for job in part.jobs()]
    assert sorted(job.rollout_id for job in played) == sorted(jobs)
    assert all(replace(job, index=jobs[job.rollout_id].index) == jobs[job.rollout_id] for job in played)
    for part in parts:
        assert [job.index for job in part.jobs()] == list(range(part.size))
        numbers = {(job.datapoint.id, job.number) for job in part.jobs()}
        for job in part.jobs():
            assert {(job.datapoint.id, other) for other in part.sibling_numbers(job, "verifier")} < numbers


def test_all_that_keeps_a_run_from_shards_is_said_at_once(tmp_path: Path) -> None:
    spec = limited(tmp_path).spec
    budget = replace(spec.experiment.budget, completions=2)
    narrow = replace(spec.experiment.rollouts, concurrency=2)
    wrong = replace(spec, experiment=replace(spec.experiment, budget=budget, rollouts=narrow))
    with pytest.raises(UsageError) as refused:
        plan_of_shard(Plan(wrong), Shard(1, 3))
    said = "\n".join(refused.value.lines())
    assert "rollouts.concurrency: 2 cannot be divided among 3 shards; set it to 3 or more" in said
    assert "budget.completions: 2 cannot be divided" in said


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("until.width=0.1", "until: this setting stops a run"),
        ("dataset.limit=2", "3 shards of 2 datapoints"),
    ],
)
def test_a_run_that_cannot_be_played_in_shards_says_why(tmp_path: Path, override: str, why: str) -> None:
    plan = Plan(load_spec(spec_file(tmp_path), [override]))
    with pytest.raises(UsageError, match=why):
        plan_of_shard(plan, Shard(1, 3))


def test_the_earlier_names_of_a_plan_s_attributes_work_with_a_warning(tmp_path: Path) -> None:
    plan = limited(tmp_path)
    for old, new in (("all_games", "list_game_plans"), ("blocks", "block_count"), ("shape", "tree_shape")):
        with pytest.warns(DeprecationWarning, match=new):
            assert getattr(plan, old) == getattr(plan, new)
