"""`nip-run check`: every error at once, then what would be played and what it would cost. Writes nothing."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from runner.commands.common import load_all, print_json, print_table, shown_point
from runner.plan import Estimate, Plan


def execute(args: argparse.Namespace) -> int:
    plans = [(path, Plan(spec)) for path, spec in load_all(args.words)]
    if args.json:
        print_json([_as_json(path, plan) for path, plan in plans])
        return 0
    for path, plan in plans:
        points = len(plan.spec.dataset.datapoints)
        print(f"{path}: no errors. Run {plan.run_id} plays {plan.size} rollouts of {plan.spec.protocol.name}")
        if plan.spec.point:
            print(f"with {shown_point(plan.spec.point)}")
        print(f"on {points} datapoints ({sum(p.label for p in plan.spec.dataset.datapoints)} with label 1).")
        rows = [_row(estimate) for estimate in plan.estimates()]
        columns = ("model group", "model", "calls", "prompt tokens", "answer tokens", "cost")
        print_table(columns, rows, title="from the shortest games to the longest, without retries; tokens are rough")
    return 0


def _row(estimate: Estimate) -> tuple[str, ...]:
    low_high = [
        f"{low:,} to {high:,}" for low, high in (estimate.calls, estimate.prompt_tokens, estimate.completion_tokens)
    ]
    cost = (
        "unknown (no price)"
        if estimate.cost_usd is None
        else f"${estimate.cost_usd[0]:.2f} to ${estimate.cost_usd[1]:.2f}"
    )
    return (estimate.group, estimate.model, *low_high, cost)


def _as_json(path: str, plan: Plan) -> dict[str, Any]:
    return {
        "spec": path,
        "run_id": plan.run_id,
        "point": dict(plan.spec.point),
        "identity": plan.identity,
        "rollouts": plan.size,
        "datapoints": len(plan.spec.dataset.datapoints),
        "protocol": plan.spec.protocol.name,
        "models": [asdict(estimate) for estimate in plan.estimates()],
    }
