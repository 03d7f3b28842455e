"""Play specs. `nip-run SPEC` is short for `nip-run run SPEC`.

Examples:
  nip-run spec.yaml
  nip-run spec.yaml dataset.limit=10 budget.usd=1
  nip-run spec.yaml --replay RUN
  nip-run spec.yaml --shard 3/8
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.base.errors import (
    BudgetExhausted,
    DamagedRunError,
    FolderGoneError,
    Interrupted,
    LeaderboardError,
    NipRunError,
    ProviderRefusal,
    RunDirectoryError,
    RunError,
    UsageError,
    Waiting,
)
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, dollar_range
from runner.cli.arguments import add_shard_option, add_spec_arguments, add_trust_options
from runner.cli.experiments.question_page import CommandQuestions, add_page_options
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import note, print_json, say
from runner.documents.fetched_files import describe_origin
from runner.results.default_folder import results_arguments

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.cli.terminal.progress import Display
    from runner.results.leaderboard.results_folder import Results
    from runner.runs.execution.accounting import OnProgress
    from runner.runs.finished.result import FinishedRun
    from runner.training.sweep_budgets import PlannedRun


class _WaitingPoint(NamedTuple):
    """A point of a sweep that is waiting for models that the user trains."""

    point: SpecPoint
    run_id: str
    waiting: Waiting

    def as_json(self) -> dict[str, object]:
        from runner.results.manifest import Status

        return {
            "run_id": self.run_id,
            "status": Status.INTERRUPTED,
            "point": dict(self.point.spec.point),
            "waiting_for": list(self.waiting.groups),
            "message": str(self.waiting),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_spec_arguments(parser)
    add_shard_option(parser, "play shard K of N, such as 3/8; the shard that finishes last merges all into one run")
    add("--replay", metavar="RUN", help="play with the answers of this run, without network and cost")
    add(
        "--until-round",
        type=int,
        metavar="N",
        help="with --replay: replay only the rounds before round N, and call the models from round N on",
    )
    add(
        "--set-model",
        action="append",
        default=[],
        metavar="GROUP=NAME",
        help="the model that you trained for a group with `backend: files`",
    )
    add_trust_options(parser)
    add("--again", action="store_true", help="play a finished run again as a new run")
    add("--run-id", metavar="ID", help="the run's id; default: the spec's name and a hash of its content")
    add_page_options(parser)
    parser.set_defaults(command="run", verdict="last")


def execute(args: argparse.Namespace) -> int:
    from runner.cli.experiments.shards import resolve_shard_folders, restrict_to_shard
    from runner.cli.specs import load_points

    results: Results = args.results
    points = load_points(
        resolve_shard_folders(args.spec_arguments, results, args.shard), results.path_of, quiet=args.quiet
    )
    check_run_options(args, len(points))
    points = restrict_to_shard(points, args.shard)
    load_scipy_with_one_thread()
    return RunCommand(args, points).execute()


OnPointEnd = Callable[["SpecPoint", "FinishedRun"], None]


class RunCommand:
    """Plays the points of one command, such as `run` or `rejudge`, and prints their results.

    `on_point_end` is called with the result of each point, which then is not printed. Warnings are about the spec's
    prompts and dataset; they are left out if nip-run wrote these.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        points: Sequence[SpecPoint],
        on_point_end: OnPointEnd | None = None,
        *,
        shows_warnings: bool = True,
    ) -> None:
        from runner.cli.experiments.shards import check_shard
        from runner.cli.specs import keep_chat_formats
        from runner.models.api_keys import all_allowed
        from runner.runs.finished.selection import ReplayOf, RunSelection

        self.args, self.results, self._report_point = args, args.results, on_point_end
        self._shows_warnings = shows_warnings
        replay = ReplayOf(self.results.find(args.replay).path, args.until_round) if args.replay else None
        self._selection = RunSelection(args.run_id, args.again, replay)
        self.points = keep_chat_formats(points, self.results, self._selection)
        check_shard(self.points, args.shard)
        self._run_ids: dict[SpecPoint, str] = {}
        """The ids of the runs so far. A second choice with --again would be another id."""
        self._printed: set[str] = set()
        """Notes that were already printed during a run."""
        self._allowed = all_allowed(args.allow_key, args.allow_command, args.allow_host)
        self._done: list[FinishedRun] = []
        self._table_points: list[tuple[SpecPoint, FinishedRun]] = []
        """The finished points for the table that is printed at the end."""
        self._waiting: list[_WaitingPoint] = []

    def execute(self) -> int:
        """Play every point, and return the exit code."""
        from runner.cli.experiments.shards import ShardMerger, drop_merged_shards
        from runner.cli.terminal.progress import WatchedRun, show_progress
        from runner.rollouts.plan import Plan
        from runner.training.dispatch import run_all

        self._show_notes()
        self._show_keys()
        words = ("analysis", "analyses") if self.args.command == "analyze" else ("point", "points")
        watched_runs = [
            WatchedRun(point.spec.experiment.name, point.plan.size if isinstance(point.plan, Plan) else None, words)
            for point in self.points
        ]
        all_games = [games for point in self.points for games in point.plan.list_game_plans()]
        try:
            with (
                show_progress(watched_runs, self._printed, quiet=self.args.quiet) as display,
                CommandQuestions(self.args, all_games, display) as questions,
            ):
                runs = [
                    self._planned_run(point, display.on_progress_of(i), questions)
                    for i, point in enumerate(self.points)
                ]
                # The first run of a spec has the same id with --again, but only the command without it resumes the run.
                again = self.args.again and any(run_id != point.plan.run_id for point, run_id in self._run_ids.items())
                self.args = argparse.Namespace(**{**vars(self.args), "again": again})
                run_all(runs, self.results, partial(self._on_point_end, display))
        except Waiting as error:
            error.add_note(f"Resume with: {_same_command(self.args, groups=error.groups)}")
            raise
        except (Interrupted, ProviderRefusal, BudgetExhausted, RunError) as error:
            _add_next_step(error, self.args)
            error.printed_lines = frozenset(f"note: {line}" for line in self._printed)
            raise
        finally:
            if self._table_points:
                self._show_table()
        merges = ShardMerger(self.results, self.args, self._printed)
        merged = merges.merge_finished(self._done)
        finished_runs = [*drop_merged_shards(self._done, merged), *merged]
        code = _report_unfinished(self.args, finished_runs, self._waiting, prints_json=self._report_point is None)
        return merges.code or code

    def _show_table(self) -> None:
        """Print the benchmarks among the points as one table, then their problems or, with -v, all their results."""
        # Imported here: ranks need NumPy, which load_scipy_with_one_thread must load.
        from runner.cli.results.sweep import show_sweep, sweep_points_of
        from runner.cli.terminal.run_result import show_problems_and_notes
        from runner.results.leaderboard.sweep_table import sweep_rows
        from runner.results.metric_definitions import RANKING_METRIC
        from runner.rollouts.plan import Plan

        points = [point for point in self.points if isinstance(point.plan, Plan)]
        rows = sweep_rows(sweep_points_of(points, [self._run_id(point) for point in points]), self.results)
        show_sweep(rows, (RANKING_METRIC,))
        if self.args.verbose:
            for point, result in self._table_points:
                say()
                self._show_point(point, result)
        elif not self.args.quiet:
            for _, result in self._table_points:
                show_problems_and_notes(result, self.results, self._printed)
                self._printed.update(result.notes)
            if any(result.was_finished for _, result in self._table_points):
                note("some points were already played; to play them again, add --again")
            note("a block for each point: repeat the command with -v")

    def _show_point(self, point: SpecPoint, result: FinishedRun) -> None:
        from runner.cli.terminal.run_result import show_result

        args, printed = self.args, self._printed
        show_result(result, self.results, point.path, quiet=args.quiet, verbose=args.verbose > 0, printed=printed)

    def _planned_run(self, point: SpecPoint, on_progress: OnProgress | None, questions: CommandQuestions) -> PlannedRun:
        from runner.runs.session.run import RunOptions
        from runner.training.sweep_budgets import PlannedRun

        options = RunOptions(
            replay=self._selection.replay,
            ask_people=questions.open_page,
            on_progress=on_progress,
            manual_models=_parse_model_names(self.args.set_model),
            allowed_keys=self._allowed,
        )
        budget_key = point.path, point.spec.experiment.budget
        return PlannedRun(point.plan, self._run_id(point), options, budget_key)

    def _on_point_end(self, display: Display, index: int, result: FinishedRun | Waiting) -> None:
        """Print the result of a point, or record that the point waits for models."""
        from dataclasses import replace

        from runner.rollouts.plan import Plan

        point = self.points[index]
        display.mark_finished(index)
        if isinstance(result, Waiting):
            self._waiting.append(_WaitingPoint(point, self._run_id(point), result))
            return
        # JSON output has the notes that otherwise are printed before the run.
        self._done.append(replace(result, notes=(*point.notes, *result.notes)))
        if self._report_point is not None:
            self._report_point(point, result)
            return
        if self.args.json:
            return
        if sum(isinstance(other.plan, Plan) for other in self.points) > 1 and isinstance(point.plan, Plan):
            self._table_points.append((point, result))
            return
        with display.paused():
            self._show_point(point, result)

    def _show_notes(self) -> None:
        """Print notes and warnings about the points before any is played."""
        from runner.cli.experiments.shards import shard_lines
        from runner.cli.specs import show_warnings
        from runner.runs.finished.debates import debate_notes

        if self.args.quiet:
            return
        for point in self.points:
            games_plan = point.plan.games
            for line in (*point.notes, *shard_lines(games_plan), *debate_notes(games_plan)):
                note(f"note: {line}")
        if self._shows_warnings:
            show_warnings(self.points)

    def _show_keys(self) -> None:
        """Print which API keys are sent to which hosts, and check that the user allows this for downloaded specs."""
        from runner.models.api_keys import ALL
        from runner.runs.finished.selection import is_whole_replay
        from runner.training.trust import check_trust, keys_sent, unconfirmed_prices

        sent_uses = (use for point in self.points for use in keys_sent(point.plan, self._selection.replay))
        uses = dict.fromkeys(use for use in sent_uses if use.variable != ALL)
        for point in self.points:
            check_trust(point.plan, self._selection.replay, self._allowed)
        if self.args.quiet:
            return
        if uses:
            note(f"sends {comma_join(map(str, uses))}")
        for point in self.points:
            if point.spec.fetched is not None and not is_whole_replay(self._selection.replay):
                origin = describe_origin(point.spec.path, point.spec.fetched)
                note(f"{point.path} {origin}: {_describe_cost(point)}")
                for _, line in unconfirmed_prices(point.plan):
                    note(line)

    def _run_id(self, point: SpecPoint) -> str:
        """Return the id of a point's run. With --again, points with the same spec get different runs."""
        from runner.training.dispatch import choose_run_id

        if point not in self._run_ids:
            taken_ids = self._run_ids.values()
            self._run_ids[point] = choose_run_id(point.plan, self.results, self._selection, taken_ids=taken_ids)
        return self._run_ids[point]


def _describe_cost(point: SpecPoint) -> str:
    """Describe the calls and the cost of a run in one line."""
    from runner.training.trust import estimate_run

    estimates = estimate_run(point.plan)
    least, most = (sum(estimate.calls[end] for estimate in estimates) for end in (0, 1))
    costs = [estimate.cost_usd for estimate in estimates if estimate.cost_usd is not None]
    least_usd, most_usd = (sum(cost[end] for cost in costs) for end in (0, 1))
    cost = (least_usd, most_usd) if len(costs) == len(estimates) else None
    return f"{least:,} to {most:,} calls, cost {dollar_range(cost)}"


def check_run_options(args: argparse.Namespace, run_count: int) -> None:
    """Check that the options fit each other and the number of runs.

    Raises:
        UsageError: an option does not fit.
    """
    from runner.runs.execution.shard_consistency import parse_shard

    if args.run_id and run_count > 1:
        raise UsageError(f"--run-id works with one run, but these specs define {run_count} runs; omit --run-id")
    if args.set_model and run_count > 1:
        raise UsageError(
            f"--set-model works with one training run, but these specs define {run_count} runs. Give one spec; to "
            "select a point of its sweep, add KEY=VALUE for each swept key, and 'sweep={}'"
        )
    if args.shard is not None:
        parse_shard(args.shard, again=args.again, replay=args.replay, set_model=args.set_model)
    if args.until_round is not None and args.replay is None:
        raise UsageError("--until-round works only with a replay: add --replay RUN, or omit --until-round")


def _report_unfinished(
    args: argparse.Namespace,
    results: Sequence[FinishedRun],
    waiting_points: Sequence[_WaitingPoint],
    *,
    prints_json: bool,
) -> int:
    """Print which runs failed, are incomplete or wait for models, and return the exit code."""
    from runner.cli.terminal.run_result import as_json
    from runner.results.manifest import Status
    from runner.runs.finished.stored_problems import load_problems

    if args.json and prints_json:
        print_json([*map(as_json, results), *(point.as_json() for point in waiting_points)])
    failed = [result for result in results if result.manifest.status == Status.FAILED]
    for result in failed:
        problems = load_problems(result.folder)
        reasons = comma_join(problem.message for problem in problems if problem.kind == "transport_failed")
        reason = f"{reasons or 'no game was answered'}. Resolve this, then resume with: {_same_command(args)}"
        note(f"run {result.folder.run_id} failed: {reason}")
    incomplete = [result for result in results if result.manifest.status == Status.INCOMPLETE]
    for result in incomplete:
        note(f"run {result.folder.run_id} is incomplete: {result.lost}. {_next_step_after_loss(result, args)}")
    for point in waiting_points:
        note(f"run {point.run_id} is waiting: {point.waiting}\nResume with: {_point_command(args, point)}")
    return ExitCode.FAILED if failed or incomplete or waiting_points else ExitCode.DONE


def _next_step_after_loss(result: FinishedRun, args: argparse.Namespace) -> str:
    """Return the advice on rollouts lost in transport. For a replay, the replayed run must be resumed first."""
    source = result.manifest.replay_of
    if source is None or source.until_round is not None:
        return f"Resume with: {_same_command(args)}"
    return f"The replayed run {source.run_id} lacks these answers: resume that run, then replay it again"


def _add_next_step(error: NipRunError, args: argparse.Namespace) -> None:
    if isinstance(error, FolderGoneError) and error.now is not None:
        error.add_note(f"Resume with{_resume_after_move(error.now, args)}")
    elif isinstance(error, ProviderRefusal) and error.changes:
        error.add_note(f"After that change, resume with: {_changed_command(args, error.changes)}")
    elif isinstance(error, BudgetExhausted) and error.key is not None:
        error.add_note(f"Resume with a larger budget: {_command_with_override(args, error.key, 'N')}")
    elif not isinstance(error, (DamagedRunError, RunDirectoryError, LeaderboardError)):
        error.add_note(f"Resume with: {_same_command(args)}")


def _resume_after_move(moved: Path, args: argparse.Namespace) -> str:
    """Return how to resume a run whose folder was moved while it was played."""
    from runner.results.leaderboard.results_folder import Results

    results = Results.of_log(moved)
    if results is None:
        return f" the same command after moving {moved.parent} back: {_same_command(args)}"
    return f": {_same_command(args, results=results)}"


def _parse_model_names(assignments: list[str]) -> dict[str, str]:
    """Parse `--set-model GROUP=NAME` options into a mapping."""
    names = {}
    for assignment in assignments:
        group, equals, name = assignment.partition("=")
        if not (group and equals and name.strip()):
            raise UsageError(f"--set-model {assignment!r} is not an assignment; write --set-model GROUP=NAME")
        if group in names:
            raise UsageError(f"--set-model names more than one model for group {group!r}; give one NAME per group")
        names[group] = name.strip()
    return names


def _same_command(args: argparse.Namespace, *, groups: Sequence[str] = (), **changes: Any) -> str:
    """Return this command with `changes` to its arguments.

    If the command waits for models of `groups`, NAME stands for their names, which replace those of `args.set_model`.
    """
    args = argparse.Namespace(**{**vars(args), **changes})
    models = [f"{group}=NAME" for group in groups] or args.set_model
    command = ["nip-run", args.command, *args.spec_arguments, *_given_options(args)]
    return shlex.join([*command, *_repeat_option("--set-model", models)])


def _repeat_option(option: str, values: Sequence[str]) -> list[str]:
    return [argument for value in values for argument in (option, value)]


def _changed_command(args: argparse.Namespace, changes: Mapping[str, str | None]) -> str:
    """Return this command with new values for these keys, where `...` stands for values that only the user knows.

    If a key is part of the run's identity, the changed command starts another run. So `--run-id` must be another id.
    """
    from runner.rollouts.identity import MUTABLE_MODEL_KEYS

    arguments = [_override_with_change(argument, changes) for argument in args.spec_arguments]
    is_same_run = all(key.rpartition(".")[2] in MUTABLE_MODEL_KEYS for key in changes)
    run_id = args.run_id if is_same_run or not args.run_id else "NAME"
    return _same_command(args, spec_arguments=arguments, run_id=run_id)


def _command_with_override(args: argparse.Namespace, key: str, value: str) -> str:
    """Return this command with `key=value` in place of its overrides of the same key."""
    arguments = [argument for argument in args.spec_arguments if argument.partition("=")[0].removeprefix("+") != key]
    return _same_command(args, spec_arguments=[*arguments, f"{key}={value}"])


def _override_with_change(argument: str, changes: Mapping[str, str | None]) -> str:
    key, equals, _ = argument.partition("=")
    name = key.removeprefix("+")
    return f"{key}={changes[name] or '...'}" if equals and name in changes else argument


def _point_command(args: argparse.Namespace, waiting: _WaitingPoint) -> str:
    """Return the command that resumes one point of a sweep alone, since each point waits for different models."""
    from runner.cli.specs import split_arguments

    _, overrides = split_arguments(args.spec_arguments)
    point = waiting.point
    swept = [f"{key}={json.dumps(value)}" for key, value in point.spec.point.items()]
    arguments = [point.path, *overrides, *swept, *(["sweep={}"] if swept else [])]
    return _same_command(args, groups=waiting.waiting.groups, spec_arguments=arguments)


def _given_options(args: argparse.Namespace) -> list[str]:
    """Return the options of this command that are not defaults, except `--set-model`."""
    options = results_arguments(args.results.path)
    if args.run_id:
        options += ["--run-id", args.run_id]
    if args.shard:
        options += ["--shard", args.shard]
    if args.again:
        options.append("--again")
    if args.replay:
        options += ["--replay", args.replay]
    options += _repeat_option("--allow-key", args.allow_key)
    options += _repeat_option("--allow-command", args.allow_command)
    options += _repeat_option("--allow-host", args.allow_host)
    if args.verdict != "last":
        options += ["--verdict", args.verdict]
    if args.until_round is not None:
        options += ["--until-round", str(args.until_round)]
    return options
