"""Plans of benchmarks and training runs behind one interface."""

from __future__ import annotations

from pathlib import Path

from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import RunPlan
from runner.spec.loader import load_spec
from runner.training.plan import TrainingPlan, plan_of
from tests.support.specs import spec_file
from tests.support.training import TEST, TRAIN, training_spec


def test_benchmark_plan_is_its_own_game_plan(tmp_path: Path) -> None:
    plan = plan_of(load_spec(spec_file(tmp_path, size=3)))
    assert isinstance(plan, Plan)
    assert plan.games is plan
    assert [games.size for games in plan.list_game_plans()] == [3]


def test_training_plan_lists_its_iterations_and_tests(tmp_path: Path) -> None:
    changes = {"iterations": 2, "datapoints_per_iteration": 5, "test": {"scheme": "first_and_last"}}
    plan = plan_of(load_spec(training_spec(tmp_path, training=changes)))
    assert isinstance(plan, TrainingPlan)
    assert plan.games.size == TRAIN
    assert [games.size for games in plan.list_game_plans()] == [5, 5, TEST, TEST]
    assert plan.games.identity != plan.identity


def test_run_id_is_the_name_and_the_identity_for_both_kinds(tmp_path: Path) -> None:
    plans: list[RunPlan] = [
        plan_of(load_spec(spec_file(tmp_path, size=3))),
        plan_of(load_spec(training_spec(tmp_path / "t"))),
    ]
    for plan in plans:
        assert plan.run_id == f"{plan.spec.experiment.name}-{plan.identity[:10]}"
        assert "description" in plan.mutable_keys
