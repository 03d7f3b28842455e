"""What a run has come to: for a machine, and for a person."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import Any

from runner.base.text import counted, with_interval
from runner.cli.arguments import results_option
from runner.cli.terminal.learning_curve import show_training
from runner.cli.terminal.output import calls_and_cost, heading, note, print_table, say
from runner.cli.terminal.run_problems import warn_of
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.rows import saved_value
from runner.results.manifest import Manifest, Status, verifiers_of
from runner.results.metric_rows import COLUMNS, extra_lines, judging_rows, metric_rows, reasons
from runner.results.metric_table import RANKING_METRIC
from runner.results.metrics import NO_LABELS
from runner.results.sweep_points import shown_point
from runner.runs.finished.part_problems import collect_problems
from runner.runs.finished.problems import load_problems
from runner.runs.finished.result import FinishedRun
from runner.spec.checks.fixed_verdicts import fixed_verdicts

_SHOWN = ("outcomes", "metrics", "iterations", "tests", "until", "variance")
"""What of a run's metrics a machine is told at once."""


def as_json(result: FinishedRun) -> dict[str, Any]:
    """A run's result as JSON; the counts of a training run are those of all its games."""
    counted = result.metrics.get("games") or result.manifest.to_json()
    return {
        "run_id": result.folder.run_id,
        "folder": str(result.folder.path),
        "was_finished": result.was_finished,
        "status": result.manifest.status,
        **{name: counted.get(name) for name in ("rollouts", "completions", "cost_usd")},
        **{name: value for name, value in result.metrics.items() if name in _SHOWN},
        "troubles": [trouble.to_json() for trouble in load_problems(result.folder)],
        "notes": list(result.notes),
    }


def show_result(
    result: FinishedRun,
    results: Results,
    path: str,
    *,
    quiet: bool = False,
    verbose: bool = False,
    told: Collection[str] = frozenset(),
) -> None:
    """Show a run's result in a few rows, with `verbose` every metric, what went wrong, and the notes not yet `told`."""
    where = "".join(f" {shlex.quote(word)}" for word in results_option(results.path))
    show = f"nip-run show {result.folder.run_id}"
    if result.manifest.is_training_run:
        show_training(result.metrics, f"{show} --all{where}")
        say(f"folder: {result.folder.path}")
    elif verbose:
        _show_all(result)
    else:
        _show_summary(result)
    if quiet:
        return
    parts = results.parts_of(result.folder.run_id) if result.manifest.is_training_run else []
    troubles = collect_problems(result.folder, parts)
    if result.manifest.status != Status.DONE:  # what is said at the end of the command need not be said here
        troubles = [one for one in troubles if one.trouble.kind != "transport_failed"]
    for run_id, trouble in troubles:
        warn_of(trouble, f"nip-run show {run_id} {trouble.show}{where}")
    if result.was_finished:
        source = result.manifest.rejudge_of
        if source is None:
            note(f"{path} was played already; --again plays it again")
        else:
            note(f"{source.run_id} was judged so already: {result.folder.run_id}; --again judges it again")
    said = {*told, *(str(trouble) for folder in (result.folder, *parts) for trouble in load_problems(folder))}
    for line in result.notes:
        part, _, of_part = line.partition(": ")
        is_of_part = part.startswith(f"{result.folder.run_id}-")  # the games of a training run, which told it live
        if line not in said and not (is_of_part and of_part in said):
            note(f"note: {line}")
    if not result.manifest.is_training_run:
        if not verbose:
            note("all metrics: the same command with -v")
        note(f"transcripts: {show}{where}")
    if result.manifest.shard is None:
        note(f"leaderboard: nip-run leaderboard{where}   (file: {results.board.path})")


def _why_none(accuracy: Mapping[str, Any]) -> str:
    return f" ({NO_LABELS}: who keeps them can score it)" if accuracy.get("reason") == NO_LABELS else ""


def _show_summary(result: FinishedRun) -> None:
    """How well it judged, how many games were decided, how many there are, what they cost, where they are."""
    manifest, metrics = result.manifest, {(m["agent"], m["metric"]): m for m in result.metrics["metrics"]}
    accuracy, outcomes = metrics[None, RANKING_METRIC], result.metrics["outcomes"]
    value = with_interval(accuracy["value"], accuracy["ci_low"], accuracy["ci_high"])
    others = ", ".join(f"{name} {count}" for name, count in outcomes.items() if count and name != "decided")
    heading(_title(result))
    for name, shown in (
        (RANKING_METRIC, value + (" (95% interval)" if "[" in value else _why_none(accuracy))),
        *judging_rows(result.metrics),
        ("decided", f"{outcomes['decided']} of {sum(outcomes.values())}" + (f" ({others})" if others else "")),
        ("n", f"{counted(accuracy['n'], 'rollout')} in {counted(accuracy['clusters'], 'cluster')}"),
        ("cost", _cost(manifest)),
        ("where", str(result.folder.path)),
    ):
        say(f"{name:<9} {shown}")
    force_guess = saved_value(result.folder, "protocol", "force_guess")
    if (fixed := fixed_verdicts(force_guess, verifiers_of(manifest))) is not None:
        say(f"{'no rank':<9} {fixed}")
    if until := result.metrics.get("until"):
        say(f"{'until':<9} {until['note']}")


def _cost(manifest: Manifest) -> str:
    """`$0.0034, 12 calls`; what a replay was answered with are no calls of its own."""
    if manifest.is_whole_replay:
        return f"$0.0000 (replayed), {manifest.completions} answers"
    cost = "unknown (no price)" if manifest.cost_usd is None else f"${manifest.cost_usd:.4f}"
    if manifest.replay_of is not None:
        return f"{cost}, {manifest.completions} answers (in part replayed)"
    return f"{cost}, {manifest.completions} calls"


def _title(result: FinishedRun) -> str:
    """The run, how it stands where it is not done, and its point of a sweep."""
    manifest = result.manifest
    status = "" if manifest.status == Status.DONE else f"({manifest.status})"
    return "  ".join(part for part in (result.folder.run_id, status, shown_point(manifest.point)) if part)


def _show_all(result: FinishedRun) -> None:
    rows = [row for row in metric_rows(result.metrics) if row[COLUMNS.index("n")]]
    print_table(COLUMNS, rows, title=_title(result))
    outcomes = ", ".join(f"{name} {count}" for name, count in result.metrics["outcomes"].items() if count)
    for line in reasons(result.metrics):
        say(line)
    say(f"\noutcomes: {outcomes}")
    for line in extra_lines(result.metrics):
        say(line)
    if result.manifest.replay_of is None:
        say(calls_and_cost(result.manifest.completions, result.manifest.cost_usd))
    else:
        say(f"cost: {_cost(result.manifest)}")
    say(f"folder: {result.folder.path}")
