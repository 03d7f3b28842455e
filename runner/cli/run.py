"""`nip-run run`: play specs."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from runner.api import id_of, run, spent
from runner.cli.learning_curve import show_training
from runner.cli.output import (
    calls_and_cost,
    load_all,
    note,
    print_json,
    print_table,
    shown_point,
    split_words,
    with_interval,
)
from runner.cli.progress import watching
from runner.errors import (
    BudgetExhausted,
    Interrupted,
    LeaderboardError,
    NipRunError,
    ProviderRefusal,
    RunDirectoryError,
    RunError,
    UsageError,
    Waiting,
)
from runner.models.layers.budget import Budget
from runner.results.folder import FAILED, INTERRUPTED, find_run
from runner.runs.process import allow_open_files
from runner.runs.run import RunResult, lock_run
from runner.runs.wiring import ReplayOf
from runner.spec.load import Spec


@dataclass(frozen=True)
class _WaitingPoint:
    """A point of a sweep that waits for models which the user trains."""

    path: str
    spec: Spec
    run_id: str
    waiting: Waiting

    def as_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "status": INTERRUPTED,
            "point": dict(self.spec.point),
            "waiting_for": list(self.waiting.groups),
            "message": str(self.waiting),
        }


def execute(args: argparse.Namespace) -> int:
    specs = load_all(args.words)
    _check_usage(args, len(specs))
    replay = ReplayOf(find_run(args.results, args.replay).path, args.until_round) if args.replay else None
    results: list[RunResult] = []
    waiting_points: list[_WaitingPoint] = []
    with ExitStack() as locks:
        budgets, locked_runs = _shared_budgets(args, specs, locks)
        for path, spec in specs:
            try:
                with watching(spec.experiment.name, quiet=args.quiet) as watch:
                    result = run(
                        spec,
                        args.results,
                        run_id=args.run_id,
                        again=args.again,
                        replay=replay,
                        budget=budgets.get(path),
                        locked_runs=locked_runs,
                        watch=watch,
                        set_model=_chosen(args.set_model),
                    )
            except Waiting as error:
                if len(specs) == 1:
                    error.add_note(f"Go on with: {_same_command(args, error.groups)}")
                    raise
                name = id_of(spec, args.results, run_id=args.run_id, again=args.again, replay=False)
                waiting_points.append(_WaitingPoint(path, spec, name, error))
                continue
            except (Interrupted, ProviderRefusal, BudgetExhausted, RunError) as error:
                _add_next_step(error, args)
                raise
            results.append(result)
            if not args.json:
                _show(result, path, quiet=args.quiet)
    return _ended(args, results, waiting_points)


def _check_usage(args: argparse.Namespace, size: int) -> None:
    if args.run_id and size > 1:
        raise UsageError(f"--run-id names one run; these specs make {size}")
    if args.set_model and size > 1:
        raise UsageError(f"--set-model is for one training run; these specs make {size}")
    if args.until_round is not None and args.replay is None:
        raise UsageError("--until-round needs --replay RUN")


def _ended(args: argparse.Namespace, results: Sequence[RunResult], waiting_points: Sequence[_WaitingPoint]) -> int:
    """Say what failed and what waits; the exit code."""
    if args.json:
        print_json([*map(as_json, results), *(point.as_json() for point in waiting_points)])
    failed = [result for result in results if result.manifest["status"] == FAILED]
    for result in failed:
        note(f"run {result.folder.run_id} failed: no game got its answers. Go on with: {_same_command(args)}")
    for point in waiting_points:
        note(f"run {point.run_id} waits: {point.waiting}\nGo on with: {_point_command(args, point)}")
    return 1 if failed or waiting_points else 0


def _shared_budgets(
    args: argparse.Namespace, specs: list[tuple[str, Spec]], locks: ExitStack
) -> tuple[dict[str, Budget], set[str]]:
    """One budget for all points of a spec's sweep, with what their journals hold counted in, and the runs it locks.

    All points stay locked until the command ends: what was counted is true only as long as nobody else pays for
    any of them. A second process that comes to one of them is told who has it, before it has asked for anything.
    """
    budgets: dict[str, Budget] = {}
    locked_runs: set[str] = set()
    counted: set[tuple[str, str]] = set()
    allow_open_files(len(specs))
    for path, spec in specs:
        settings = spec.experiment.budget
        if not settings.limited:
            continue
        budget = budgets.setdefault(path, Budget(settings))
        name = id_of(spec, args.results, run_id=args.run_id, again=args.again, replay=args.replay is not None)
        if name not in locked_runs:
            locks.enter_context(lock_run(args.results, name))
            locked_runs.add(name)
        amount = spent(spec, args.results, name)
        if (path, name) not in counted:
            budget.add_spent(amount)
            counted.add((path, name))
    return budgets, locked_runs


def _add_next_step(error: NipRunError, args: argparse.Namespace) -> None:
    if not isinstance(error, (RunDirectoryError, LeaderboardError)):
        more = " a larger budget (budget.usd=..., .tokens or .completions)"
        error.add_note(f"Go on with{more if isinstance(error, BudgetExhausted) else ''}: {_same_command(args)}")


def _chosen(words: list[str]) -> dict[str, str]:
    """`--set-model GROUP=NAME` as a mapping."""
    chosen = {}
    for word in words:
        group, equals, name = word.partition("=")
        if not (group and equals and name.strip()):
            raise UsageError(f"--set-model {word!r}: GROUP=NAME belongs here")
        if group in chosen:
            raise UsageError(f"--set-model {group}=... is given twice")
        chosen[group] = name.strip()
    return chosen


def _same_command(args: argparse.Namespace, waiting: Sequence[str] = ()) -> str:
    """The command again; with a place for the name of each model that is waited for."""
    words = ["nip-run", "run", *args.words, *_options(args)]
    # What was named before is taken already, and is no name of the models that are waited for now.
    for chosen in [f"{group}=NAME" for group in waiting] or args.set_model:
        words += ["--set-model", chosen]
    return shlex.join(words)


def _point_command(args: argparse.Namespace, point: _WaitingPoint) -> str:
    """The command that goes on with one point of a sweep alone, whose models have names of their own."""
    _, overrides = split_words(args.words)
    swept = [f"{key}={json.dumps(value)}" for key, value in point.spec.point.items()]
    words = ["nip-run", "run", point.path, *overrides, *swept, *(["sweep={}"] if swept else []), *_options(args)]
    for group in point.waiting.groups:
        words += ["--set-model", f"{group}=NAME"]
    return shlex.join(words)


def _options(args: argparse.Namespace) -> list[str]:
    words = []
    if args.results.as_posix() != "results":
        words += ["--results", str(args.results)]
    if args.run_id:
        words += ["--run-id", args.run_id]
    if args.again:
        words.append("--again")
    if args.replay:
        words += ["--replay", args.replay]
    if args.until_round is not None:
        words += ["--until-round", str(args.until_round)]
    return words


_SHOWN = ("outcomes", "metrics", "iterations", "tests")
"""What of a run's metrics a machine is told at once."""


def as_json(result: RunResult) -> dict[str, Any]:
    """A run's result for machines; the counts of a training run are those of all its games."""
    counted = result.metrics.get("games", result.manifest)
    return {
        "run_id": result.folder.run_id,
        "folder": str(result.folder.path),
        "was_finished": result.was_finished,
        "status": result.manifest["status"],
        **{name: counted.get(name) for name in ("rollouts", "completions", "cost_usd")},
        **{name: value for name, value in result.metrics.items() if name in _SHOWN},
        "notes": list(result.notes),
    }


def _show(result: RunResult, path: str, *, quiet: bool) -> None:
    results = result.folder.path.parents[1]
    where = "" if results.as_posix() == "results" else f" --results {shlex.quote(str(results))}"
    if result.manifest["kind"] == "training":
        show_training(result.metrics)
        print(f"folder: {result.folder.path}")
    else:
        _show_games(result)
    if quiet:
        return
    if result.was_finished:
        note(f"{path} was played already; --again plays it anew")
    for line in result.notes:
        note(f"note: {line}")
    if result.manifest["kind"] != "training":
        note(f"transcripts: nip-run show {result.folder.run_id}{where}")
    note(f"leaderboard: nip-run leaderboard{where}   (file: {results / 'leaderboard.duckdb'})")


def _show_games(result: RunResult) -> None:
    rows = [
        (m["agent"] or "game", m["metric"], with_interval(m["value"], m["ci_low"], m["ci_high"]), m["n"], m["clusters"])
        for m in result.metrics["metrics"]
        if m["n"]
    ]
    title = f"{result.folder.run_id}  {shown_point(result.manifest.get('point', {}))}".rstrip()
    print_table(("of", "metric", "value [95% interval]", "n", "datapoints"), rows, title=title)
    outcomes = ", ".join(f"{name} {count}" for name, count in result.metrics["outcomes"].items() if count)
    print(f"\noutcomes: {outcomes}")
    print(calls_and_cost(result.manifest))
    print(f"folder: {result.folder.path}")
