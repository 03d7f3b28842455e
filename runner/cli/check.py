"""`nip-run check`: every error at once, then what would be played and what it would cost. Writes nothing."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from runner.cli.output import load_all, print_json, print_table, shown_point
from runner.rollouts.estimate import CostEstimate, estimates, total_cost
from runner.rollouts.plan import Plan
from runner.spec.checks.trees import tree_calls
from runner.spec.load import Spec
from runner.text import comma_join
from runner.training.plan import TrainingPlan


def execute(args: argparse.Namespace) -> int:
    specs = load_all(args.words, quiet=args.quiet)
    if args.json:
        print_json([_as_json(path, spec) for path, spec in specs])
        return 0
    for path, spec in specs:
        plan = Plan(spec)
        points = len(spec.dataset.datapoints)
        print(f"{path}: no errors. {_what(plan)}")
        if spec.point:
            print(f"with {shown_point(spec.point)}")
        print(f"on {points} datapoints ({sum(p.label for p in spec.dataset.datapoints)} with label 1).")
        columns = ("model group", "model", "calls", "prompt tokens", "answer tokens", "cost")
        title = "from the shortest games to the longest, without retries; tokens are rough"
        print_table(columns, [_row(estimate) for estimate in _estimates(plan)], title=title)
    return 0


def _what(plan: Plan) -> str:
    """What a run of this plan does, in a sentence or two."""
    experiment, shape = plan.spec.experiment, plan.shape
    training = TrainingPlan(plan.spec) if experiment.kind == "training" else None
    each = len(plan.spec.dataset.datapoints) if training is None else len(training.datapoints(0))
    size = each * experiment.rollouts.per_datapoint
    played = f"{size} rollouts of {plan.spec.protocol.name}"
    if shape is not None:
        played = (
            f"{size} trees of {plan.spec.protocol.name}, {shape.responses} answers to each step: exponential in their "
            f"{shape.rounds} rounds, at most {tree_calls(plan.spec.protocol, shape.responses) * size:,} calls"
        )
    if training is None:
        return f"Run {plan.run_id} plays {played}"
    groups = "; ".join(f"{group} on the games of {comma_join(agents)}" for group, agents in training.trained.items())
    many, method = training.training.iterations, training.training.method
    return f"Run {training.run_id} trains by {method}: {groups}.\nEach of {many} iterations plays {played}"


def _estimates(plan: Plan) -> list[CostEstimate]:
    if plan.spec.experiment.kind == "benchmark":
        return estimates(plan)
    return total_cost(estimate for games in TrainingPlan(plan.spec).all_games() for estimate in estimates(games))


def _row(estimate: CostEstimate) -> tuple[str, ...]:
    low_high = [
        f"{low:,} to {high:,}" for low, high in (estimate.calls, estimate.prompt_tokens, estimate.completion_tokens)
    ]
    cost = (
        "unknown (no price)"
        if estimate.cost_usd is None
        else f"${estimate.cost_usd[0]:.2f} to ${estimate.cost_usd[1]:.2f}"
    )
    return (estimate.group, estimate.model, *low_high, cost)


def _as_json(path: str, spec: Spec) -> dict[str, Any]:
    plan = Plan(spec)
    training = TrainingPlan(spec) if spec.experiment.kind == "training" else None
    games = [plan] if training is None else training.all_games()
    return {
        "spec": path,
        "run_id": plan.run_id if training is None else training.run_id,
        "kind": spec.experiment.kind,
        "point": dict(spec.point),
        "identity": plan.identity if training is None else training.identity,
        "rollouts": sum(one.size for one in games) if plan.shape is None else None,
        "datapoints": len(spec.dataset.datapoints),
        "protocol": spec.protocol.name,
        "models": [asdict(estimate) for estimate in _estimates(plan)],
    }
