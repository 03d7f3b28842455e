"""Print the result of a run, or convert it to JSON, at the end of `run`, `rejudge` and `merge`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from runner.base.text import counted, with_interval
from runner.cli.terminal.learning_curve import show_training
from runner.cli.terminal.output import describe_usage, note, print_heading, print_table, say, say_lines
from runner.cli.terminal.run_problems import print_problem_warning
from runner.cli.terminal.tournament_tables import show_tournament
from runner.results.default_folder import results_option_text
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status, verifiers_of
from runner.results.metric_computation import NO_LABELS
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.metric_rows import (
    COLUMNS,
    judge_rows,
    lost_games_lines,
    metric_rows,
    missing_intervals,
    section_lines,
    signal_rows,
)
from runner.results.metrics_file import MetricRow, find_metric_row
from runner.results.saved_spec import saved_value
from runner.results.sweep_points import format_point
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.stored_problems import collect_problems, load_problems
from runner.spec.checks.fixed_verdicts import explain_fixed_verdicts

_JSON_METRICS = (
    "outcomes", "metrics", "judge_pairs", "iterations", "tests", "until", "variance",
    "ratings", "effects", "pairings", "intransitivity",
)  # fmt: skip
"""Keys of the metrics file that the JSON output includes."""


def as_json(result: FinishedRun) -> dict[str, Any]:
    """Return a run's result as JSON data. The counts of a run with parts cover the games of all parts."""
    totals = result.metrics.get("games") or result.manifest.to_json()
    return {
        "run_id": result.folder.run_id,
        "folder": str(result.folder.path),
        "was_finished": result.was_finished,
        "status": result.manifest.status,
        **{name: totals.get(name) for name in ("rollouts", "completions", "cost_usd")},
        **{name: value for name, value in result.metrics.items() if name in _JSON_METRICS},
        "troubles": [problem.to_json() for problem in load_problems(result.folder)],
        "notes": list(result.notes),
    }


def show_result(
    result: FinishedRun,
    results: Results,
    path: str,
    *,
    quiet: bool = False,
    verbose: bool = False,
    printed: Collection[str] = frozenset(),
) -> None:
    """Print a run's result in a few rows, or with `verbose` every metric; then its problems, notes and next commands.

    `path` is the spec as the user wrote it. Notes in `printed` are not printed again.
    """
    results_option = results_option_text(results.path)
    if result.manifest.is_training_run:
        show_training(result.metrics, f"nip-run show {result.folder.run_id} --all{results_option}")
        say(f"folder: {result.folder.path}")
    elif result.manifest.is_tournament:
        show_tournament(result.metrics, full=verbose)
        say(f"folder: {result.folder.path}")
    elif verbose:
        _show_all_metrics(result)
    else:
        _show_summary(result)
    if not quiet:
        show_problems_and_notes(result, results, printed)
        if result.was_finished:
            source = result.manifest.rejudge_of
            if source is None:
                option = "--again" if result.manifest.shard is None else "--run-id NAME"
                note(f"{path} was already played; to play it again, add {option}")
            else:
                note(f"{source.run_id} was already judged by {result.folder.run_id}; to judge it again, add --again")
        _suggest_commands(result, results, has_all_metrics=verbose)


def _suggest_commands(result: FinishedRun, results: Results, *, has_all_metrics: bool) -> None:
    """Print commands that show more about the run."""
    results_option = results_option_text(results.path)
    show_command = f"nip-run show {result.folder.run_id}"
    if result.manifest.is_tournament:
        note(f"pairings: {show_command} --all{results_option}")
        players = [row["player"] for row in result.metrics["ratings"] if row["side"] == "overall"][:2]
        compare = f"nip-run compare {result.folder.run_id} --players {' '.join(players)}"
        note(f"compare two players: {compare}{results_option}")
    elif not result.manifest.is_training_run:
        if not has_all_metrics:
            note("all metrics: repeat the command with -v")
        note(f"transcripts: {show_command}{results_option}")
    if result.manifest.shard is None:
        note(f"leaderboard: nip-run leaderboard{results_option}   (file: {results.board.path})")


def show_problems_and_notes(result: FinishedRun, results: Results, printed: Collection[str]) -> None:
    """Print a run's problems, and the notes that are neither in `printed` nor among the problems."""
    parts = results.parts_of(result.folder.run_id) if result.manifest.has_parts else []
    problems = collect_problems(result.folder, parts)
    if result.manifest.status != Status.DONE:  # the last lines of the command report lost rollouts
        problems = [run_problem for run_problem in problems if run_problem.problem.kind != "transport_failed"]
    for run_id, problem in problems:
        print_problem_warning(problem, f"nip-run show {run_id} {problem.show}{results_option_text(results.path)}")
    printed_notes = {
        *printed,
        *(str(problem) for folder in (result.folder, *parts) for problem in load_problems(folder)),
    }
    for line in result.notes:
        part_id, _, part_note = line.partition(": ")
        # While a run with parts plays, a note of one of its parts is printed without the part's id.
        was_printed_for_part = part_id.startswith(f"{result.folder.run_id}-") and part_note in printed_notes
        if line not in printed_notes and not was_printed_for_part:
            note(f"note: {line}")


def _interval_note(manifest: Manifest, accuracy: MetricRow, formatted: str) -> str:
    """Return an explanation of the interval in `formatted`, or of its absence."""
    if "[" in formatted:
        return " (95% interval)"
    if manifest.analysis_of is not None:
        return " (an analysis has no right answers)"
    return f" ({NO_LABELS}: the owner of the labels can score the run)" if accuracy.get("reason") == NO_LABELS else ""


def _show_summary(result: FinishedRun) -> None:
    """Print the accuracy, the number of decided games, the number of rollouts, the cost and the folder."""
    manifest = result.manifest
    accuracy, outcomes = find_metric_row(result.metrics, RANKING_METRIC), result.metrics["outcomes"]
    assert accuracy is not None
    value = with_interval(accuracy["value"], accuracy["ci_low"], accuracy["ci_high"])
    others = ", ".join(f"{name} {count}" for name, count in outcomes.items() if count and name != "decided")
    print_heading(_title(result))
    for name, text in (
        (RANKING_METRIC, f"{value}{_interval_note(manifest, accuracy, value)}"),
        *signal_rows(result.metrics),
        *judge_rows(result.metrics),
        ("decided", f"{outcomes['decided']} of {sum(outcomes.values())}" + (f" ({others})" if others else "")),
        ("n", f"{counted(accuracy['n'], 'rollout')} in {counted(accuracy['clusters'], 'cluster')}"),
        ("cost", _describe_cost(manifest)),
        ("where", str(result.folder.path)),
    ):
        say(f"{name:<9} {text}")
    say_lines(lost_games_lines(result.metrics))
    force_guess = saved_value(result.folder, "protocol", "force_guess")
    if (reason := explain_fixed_verdicts(force_guess, verifiers_of(manifest))) is not None:
        say(f"{'no rank':<9} {reason}")
    if until := result.metrics.get("until"):
        say(f"{'until':<9} {until['note']}")


def _describe_cost(manifest: Manifest) -> str:
    """Return a text such as `$0.0034, 12 calls`. Replayed answers do not count as calls."""
    if manifest.is_whole_replay:
        return f"$0.0000 (replayed), {manifest.completions} answers"
    cost = "unknown (no price)" if manifest.cost_usd is None else f"${manifest.cost_usd:.4f}"
    if manifest.replay_of is not None:
        return f"{cost}, {manifest.completions} answers (in part replayed)"
    return f"{cost}, {counted(manifest.completions or 0, 'call')}"


def _title(result: FinishedRun) -> str:
    """Return the run's id, its status unless the run is done, and the values that a sweep sets in it."""
    manifest = result.manifest
    status = "" if manifest.status == Status.DONE else f"({manifest.status})"
    return "  ".join(part for part in (result.folder.run_id, status, format_point(manifest.point)) if part)


def _show_all_metrics(result: FinishedRun) -> None:
    rows = [row for row in metric_rows(result.metrics) if row[COLUMNS.index("n")]]
    print_table(COLUMNS, rows, title=_title(result))
    outcomes = ", ".join(f"{name} {count}" for name, count in result.metrics["outcomes"].items() if count)
    say_lines(missing_intervals(result.metrics))
    say(f"\noutcomes: {outcomes}")
    say_lines(section_lines(result.metrics))
    if result.manifest.replay_of is None:
        say(describe_usage(result.manifest.completions, result.manifest.cost_usd))
    else:
        say(f"cost: {_describe_cost(result.manifest)}")
    say(f"folder: {result.folder.path}")
