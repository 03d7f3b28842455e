"""A training run for a person: its learning curve, and what became of each model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.cli.output import calls_and_cost, print_table, say, with_interval
from runner.training.stages import Became


def show_training(metrics: Mapping[str, Any]) -> None:
    """Print the tests and the iterations of a training run, and what comes next where it is not finished."""
    run_id, iterations, todo = metrics["run_id"], metrics["iterations"], metrics.get("next", ())
    if metrics["tests"]:
        tests = [_test(row, last=row["iteration"] == len(iterations) and not todo) for row in metrics["tests"]]
        of_tests = ("models", "accuracy [95% interval]", "n", "datapoints", "run")
        print_table(of_tests, tests, title=f"{run_id}: tests", drop=("datapoints", "n"))
        say()
    rows = [
        (row["iteration"], group, outcome["examples"], _became(outcome), row["models"][group]["model"], _why(outcome))
        for row in iterations
        for group, outcome in row["outcomes"].items()
    ]
    columns = ("iteration", "model group", "examples", "outcome", "model", "left out")
    print_table(columns, rows, title=f"{run_id}: training")
    games = metrics["games"]
    paid = calls_and_cost(games["completions"], games["cost_usd"])
    say(f"\nrollouts: {games['rollouts']}, {paid}, without what the trainers cost")
    for line in todo:
        say(f"next: {line}")


def _test(row: Mapping[str, Any], *, last: bool) -> tuple[Any, ...]:
    accuracy = row["accuracy"]
    shown = with_interval(accuracy["value"], accuracy["ci_low"], accuracy["ci_high"])
    models = "in the end" if last else f"before iteration {row['iteration']}"
    return models, shown, accuracy["n"], accuracy["clusters"], row["run_id"]


def _why(outcome: Mapping[str, Any]) -> str:
    """Why examples were left out, and whatever else there is to say of the dataset."""
    counts = [f"{count} {why}" for why, count in outcome.get("left_out", {}).items()]
    return "; ".join([*counts, *outcome.get("notes", ())]) or "-"


def _became(outcome: Mapping[str, Any]) -> str:
    if outcome["outcome"] == Became.TOO_FEW:
        return f"not trained: fewer than {outcome['min_examples']} examples"
    return str(outcome["outcome"])
