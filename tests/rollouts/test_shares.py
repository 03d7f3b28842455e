"""The shares of a limit over all shards sum to no more than the limit."""

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

PRICED_MODEL = {"max_completion_tokens": 50, "price": {"input": 1.0, "output": 2.0}}
"""The settings that a budget in dollars requires of a model group."""


def make_limited_plan(folder: Path) -> Plan:
    path = spec_file(
        folder,
        "http://127.0.0.1:9/v1",
        size=20,
        models={"m": {**PRICED_MODEL, "requests_per_minute": 100, "tokens_per_minute": 9_001}},
        budget={"usd": 0.1, "tokens": 1_001, "completions": 33},
        rollouts={"concurrency": 13, "per_datapoint": 2},
        stances="both",
    )
    return Plan(load_spec(path))


@pytest.mark.parametrize("count", [1, 3, 7])
def test_shares_of_all_shards_sum_to_the_limits(tmp_path: Path, count: int) -> None:
    plan = make_limited_plan(tmp_path)
    shares = [plan_of_shard(plan, shard).shard_experiment for shard in all_shards(count)]
    experiment = plan.spec.experiment
    assert sum(share.rollouts.concurrency for share in shares) == experiment.rollouts.concurrency
    assert sum(share.budget.tokens or 0 for share in shares) == experiment.budget.tokens
    assert sum(share.budget.completions or 0 for share in shares) == experiment.budget.completions
    usd = sum(Fraction(share.budget.usd or 0) for share in shares)
    assert Fraction(0.0999) < usd <= Fraction(0.1) * (1 + Fraction(1, 10**12)), "as the budget itself is compared"
    for name in ("requests_per_minute", "tokens_per_minute"):
        assert sum(getattr(share.models["m"], name) for share in shares) == getattr(experiment.models["m"], name)


def test_shards_have_the_jobs_and_the_identity_of_the_run(tmp_path: Path) -> None:
    plan = make_limited_plan(tmp_path)
    parts = [plan_of_shard(plan, shard) for shard in all_shards(3)]
    assert {part.identity for part in parts} == {plan.identity}
    jobs = {job.rollout_id: job for job in plan.jobs()}
    jobs_of_shards = [job for part in parts for job in part.jobs()]
    assert sorted(job.rollout_id for job in jobs_of_shards) == sorted(jobs)
    assert all(replace(job, index=jobs[job.rollout_id].index) == jobs[job.rollout_id] for job in jobs_of_shards)
    for part in parts:
        assert [job.index for job in part.jobs()] == list(range(part.size))
        numbers = {(job.datapoint.id, job.number) for job in part.jobs()}
        for job in part.jobs():
            assert {(job.datapoint.id, number) for number in part.sibling_numbers(job, "verifier")} < numbers


def test_all_obstacles_to_sharding_are_reported_together(tmp_path: Path) -> None:
    spec = make_limited_plan(tmp_path).spec
    budget = replace(spec.experiment.budget, completions=2)
    rollouts = replace(spec.experiment.rollouts, concurrency=2)
    invalid_spec = replace(spec, experiment=replace(spec.experiment, budget=budget, rollouts=rollouts))
    with pytest.raises(UsageError) as refused:
        plan_of_shard(Plan(invalid_spec), Shard(1, 3))
    message = "\n".join(refused.value.lines())
    assert "rollouts.concurrency: 2 cannot be divided among 3 shards; set it to 3 or more" in message
    assert "budget.completions: 2 cannot be divided" in message


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("until.width=0.1", "until: this setting stops a run"),
        ("dataset.limit=2", "3 shards of 2 datapoints"),
    ],
)
def test_error_says_why_a_run_cannot_be_sharded(tmp_path: Path, override: str, reason: str) -> None:
    plan = Plan(load_spec(spec_file(tmp_path), [override]))
    with pytest.raises(UsageError, match=reason):
        plan_of_shard(plan, Shard(1, 3))


def test_deprecated_attributes_of_a_plan_work_with_a_warning(tmp_path: Path) -> None:
    plan = make_limited_plan(tmp_path)
    for old, new in (("all_games", "list_game_plans"), ("blocks", "block_count"), ("shape", "tree_shape")):
        with pytest.warns(DeprecationWarning, match=new):
            assert getattr(plan, old) == getattr(plan, new)
