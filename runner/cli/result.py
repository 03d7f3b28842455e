"""What a run has come to: for a machine, and for a person."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Any

from runner.cli.learning_curve import show_training
from runner.cli.output import calls_and_cost, note, print_table, say, shown_point, with_interval
from runner.results.results import Results
from runner.runs.result import RunResult

_SHOWN = ("outcomes", "metrics", "iterations", "tests")
"""What of a run's metrics a machine is told at once."""


def as_json(result: RunResult) -> dict[str, Any]:
    """A run's result for machines; the counts of a training run are those of all its games."""
    counted = result.metrics.get("games") or result.manifest.to_json()
    return {
        "run_id": result.folder.run_id,
        "folder": str(result.folder.path),
        "was_finished": result.was_finished,
        "status": result.manifest.status,
        **{name: counted.get(name) for name in ("rollouts", "completions", "cost_usd")},
        **{name: value for name, value in result.metrics.items() if name in _SHOWN},
        "notes": list(result.notes),
    }


def show_result(
    result: RunResult, results: Results, path: str, *, quiet: bool, told: Collection[str] = frozenset()
) -> None:
    """Show a run's result, and the notes that were not `told` while it went on."""
    where = "" if results.path.as_posix() == "results" else f" --results {shlex.quote(str(results.path))}"
    if result.manifest.is_training_run:
        show_training(result.metrics)
        say(f"folder: {result.folder.path}")
    else:
        _show_games(result)
    if quiet:
        return
    if result.was_finished:
        note(f"{path} was played already; --again plays it anew")
    for line in result.notes:
        if line not in told:
            note(f"note: {line}")
    if not result.manifest.is_training_run:
        note(f"transcripts: nip-run show {result.folder.run_id}{where}")
    note(f"leaderboard: nip-run leaderboard{where}   (file: {results.board.path})")


def _show_games(result: RunResult) -> None:
    rows = [
        (m["agent"] or "game", m["metric"], with_interval(m["value"], m["ci_low"], m["ci_high"]), m["n"], m["clusters"])
        for m in result.metrics["metrics"]
        if m["n"]
    ]
    title = f"{result.folder.run_id}  {shown_point(result.manifest.point)}".rstrip()
    print_table(("of", "metric", "value [95% interval]", "n", "datapoints"), rows, title=title)
    outcomes = ", ".join(f"{name} {count}" for name, count in result.metrics["outcomes"].items() if count)
    say(f"\noutcomes: {outcomes}")
    say(calls_and_cost(result.manifest.completions, result.manifest.cost_usd))
    say(f"folder: {result.folder.path}")
