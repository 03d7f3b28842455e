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
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, dollar_range
from runner.cli.arguments import add_shard, add_specs, add_trust, results_option
from runner.cli.startup import one_blas_thread
from runner.cli.terminal.output import note, print_json, say
from runner.documents.fetched_files import describe_origin
from runner.statistics.intervals import load_intervals

if TYPE_CHECKING:
    from runner.base.errors import NipRunError, Waiting
    from runner.cli.specs import SpecPoint
    from runner.cli.terminal.progress import Display, WatchedRun
    from runner.runs.execution.accounting import Watch
    from runner.runs.finished.result import FinishedRun
    from runner.training.dispatch import PlannedRun
    from runner.training.sweep_budgets import Budgets


class _WaitingPoint(NamedTuple):
    """A point of a sweep that waits for models which the user trains."""

    point: SpecPoint
    run_id: str
    waiting: Waiting

    def as_json(self) -> dict[str, Any]:
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
    add_specs(parser)
    add_shard(parser, "play shard K of N, such as 3/8; the shard that finishes last merges all into one run")
    add("--replay", metavar="RUN", help="play with the answers of this run, without network and cost")
    add(
        "--until-round",
        type=int,
        metavar="N",
        help="with --replay: replay the rounds before N and ask the models from N on",
    )
    add(
        "--set-model",
        action="append",
        default=[],
        metavar="GROUP=NAME",
        help="the model that you trained for a group with `backend: files`",
    )
    add_trust(parser)
    add("--again", action="store_true", help="play a finished run again as a new run")
    add("--run-id", metavar="ID", help="the run's id; default: the spec's name and a hash of its content")


def execute(args: argparse.Namespace) -> int:
    from runner.cli.experiments.shards import in_shards, with_parts
    from runner.cli.specs import load_points
    from runner.results.leaderboard.results_folder import Results

    results = Results(args.results)
    points = load_points(with_parts(args.words, results, args.shard), results.path_of, quiet=args.quiet)
    check_usage(args, len(points))
    points = in_shards(points, args.shard)
    with one_blas_thread():
        load_intervals()
    return play(args, points)


def play(args: argparse.Namespace, points: Sequence[SpecPoint]) -> int:
    """Run every point, with the options of `run`; the exit code."""
    return _Runs(args, points).execute()


class _Runs:
    """The runs of one command, each named once."""

    def __init__(self, args: argparse.Namespace, points: Sequence[SpecPoint]) -> None:
        from runner.cli.experiments.shards import check_shard
        from runner.cli.specs import points_as_begun
        from runner.models.api_keys import all_allowed
        from runner.results.leaderboard.results_folder import Results
        from runner.runs.finished.selection import ReplayOf, WhichRun

        self.args, self.results = args, Results(args.results)
        run = self.results.find(args.replay).path if args.replay else None
        self._which = WhichRun(args.run_id, args.again, None if run is None else ReplayOf(run, args.until_round))
        self.points = points_as_begun(points, self.results, self._which)
        check_shard(self.points, getattr(args, "shard", None))
        self._names: dict[SpecPoint, str] = {}
        self._told: set[str] = set()
        """Notes that were shown while a run went on."""
        self._allowed = all_allowed(args.allow_key, args.allow_command, args.allow_host)
        self._done: list[FinishedRun] = []
        self._waiting: list[_WaitingPoint] = []

    def execute(self) -> int:
        """Run every point; the exit code."""
        from runner.base.errors import BudgetExhausted, Interrupted, ProviderRefusal, RunError, Waiting
        from runner.cli.experiments.shards import ShardMerges, without_merged
        from runner.cli.terminal.progress import watching
        from runner.training.dispatch import run_all
        from runner.training.sweep_budgets import shared_budgets

        self._show_notes()
        self._show_keys()
        watched = [_watched(point) for point in self.points]
        named = [(point.path, point.plan, self._name(point)) for point in self.points]
        with shared_budgets(named, self.results) as budgets:
            try:
                with watching(watched, self._told, quiet=self.args.quiet) as display:
                    run_all(
                        [self._to_run(point, display.of(place), budgets) for place, point in enumerate(self.points)],
                        self.results,
                        partial(self._ended, display),
                    )
            except Waiting as error:
                error.add_note(f"Resume with: {_same_command(self.args, error.groups)}")
                raise
            except (Interrupted, ProviderRefusal, BudgetExhausted, RunError) as error:
                _add_next_step(error, self.args)
                error.seen_lines = frozenset(f"note: {line}" for line in self._told)
                raise
        if len(self.points) > 1 and not self.args.json:
            self._show_table()
        merges = ShardMerges(self.results, self.args, self._told)
        merged = merges.of(self._done)
        code = _ended(self.args, [*without_merged(self._done, merged), *merged], self._waiting)
        return merges.code or code

    def _show_table(self) -> None:
        """The benchmarks among the points as one table."""
        # Here and not above: ranks need NumPy, which is loaded with one thread when the command begins.
        from runner.cli.results.sweep import points_of, show_sweep
        from runner.results.leaderboard.sweep_table import sweep_rows
        from runner.results.metric_table import RANKING_METRIC
        from runner.rollouts.plan import Plan

        points = [point for point in self.points if isinstance(point.plan, Plan)]
        if len(points) > 1:
            say()
            show_sweep(
                sweep_rows(points_of(points, [self._name(point) for point in points]), self.results), (RANKING_METRIC,)
            )

    def _to_run(self, point: SpecPoint, watch: Watch | None, budgets: Budgets) -> PlannedRun:
        from runner.runs.session.run import RunOptions
        from runner.training.dispatch import PlannedRun

        name = self._name(point)
        options = RunOptions(
            replay=self._which.replay,
            budget=budgets.by_key.get(point.path),
            locked=name in budgets.locked,
            watch=watch,
            manual_models=_manual_models(self.args.set_model),
            allowed_keys=self._allowed,
        )
        return PlannedRun(point.plan, name, options)

    def _ended(self, display: Display, place: int, result: FinishedRun | Waiting) -> None:
        """Show what a point has come to."""
        from runner.base.errors import Waiting
        from runner.cli.terminal.run_result import show_result

        point, args = self.points[place], self.args
        display.ended(place)
        if isinstance(result, Waiting):
            self._waiting.append(_WaitingPoint(point, self._name(point), result))
            return
        self._done.append(self._with_note(point, result))
        if not args.json:
            with display.apart():
                show_result(
                    result, self.results, point.path, quiet=args.quiet, verbose=args.verbose > 0, told=self._told
                )

    def _with_note(self, point: SpecPoint, result: FinishedRun) -> FinishedRun:
        """A result with what people were told before it was played, for machines."""
        from dataclasses import replace

        return replace(result, notes=(*point.notes, *result.notes)) if self.args.json else result

    def _show_notes(self) -> None:
        """Tell what there is to say of the points before any is played."""
        from runner.cli.specs import show_warnings

        for line in () if self.args.quiet else [line for point in self.points for line in _notes(point)]:
            note(f"note: {line}")
        if not self.args.quiet:
            show_warnings(self.points)

    def _show_keys(self) -> None:
        """Tell which variables go where, before any does; and ask, where a spec came from elsewhere."""
        from runner.models.api_keys import ALL
        from runner.training.trust import check_trust, is_whole_replay, keys_sent, unconfirmed_prices

        sent = (use for point in self.points for use in keys_sent(point.plan, self._which.replay))
        uses = dict.fromkeys(use for use in sent if use.variable != ALL)
        for point in self.points:
            check_trust(point.plan, self._which.replay, self._allowed)
        if self.args.quiet:
            return
        if uses:
            note(f"sends {comma_join(map(str, uses))}")
        for point in self.points:
            if point.spec.fetched is not None and not is_whole_replay(self._which.replay):
                said = describe_origin(point.spec.path, point.spec.fetched)
                note(f"{point.path} {said}: {_bill(point)}")
                for _, line in unconfirmed_prices(point.plan):
                    note(line)

    def _name(self, point: SpecPoint) -> str:
        """The id of a point's run. With --again, points that would be one run have each a run of their own."""
        from runner.training.dispatch import choose_run_id

        if point not in self._names:
            given = self._names.values()
            self._names[point] = choose_run_id(point.plan, self.results, self._which, given=given)
        return self._names[point]


def _bill(point: SpecPoint) -> str:
    """What a run may come to, in a line."""
    from runner.training.trust import estimate_run

    asked = estimate_run(point.plan)
    least, most = (sum(one.calls[end] for one in asked) for end in (0, 1))
    costs = [one.cost_usd for one in asked if one.cost_usd is not None]
    cost = (sum(one[0] for one in costs), sum(one[1] for one in costs)) if len(costs) == len(asked) else None
    return f"{least:,} to {most:,} calls, cost {dollar_range(cost)}"


def _watched(point: SpecPoint) -> WatchedRun:
    from runner.cli.terminal.progress import WatchedRun
    from runner.rollouts.plan import Plan

    name, plan = point.spec.experiment.name, point.plan
    return WatchedRun(name, plan.size if isinstance(plan, Plan) else None)


def _notes(point: SpecPoint) -> list[str]:
    from runner.cli.experiments.shards import shard_lines
    from runner.runs.finished.debates import debate_notes

    return [*point.notes, *shard_lines(point.plan.games), *debate_notes(point.plan.games)]


def check_usage(args: argparse.Namespace, size: int) -> None:
    from runner.base.errors import UsageError
    from runner.runs.execution.shard_consistency import parse_shard

    if args.run_id and size > 1:
        raise UsageError(f"--run-id names one run; these specs make {size}")
    if args.set_model and size > 1:
        raise UsageError(f"--set-model is for one training run; these specs make {size}")
    if getattr(args, "shard", None) is not None:
        parse_shard(args.shard, again=args.again, replay=args.replay, set_model=args.set_model)
    if args.until_round is not None and args.replay is None:
        raise UsageError("--until-round needs --replay RUN")


def _ended(args: argparse.Namespace, results: Sequence[FinishedRun], waiting_points: Sequence[_WaitingPoint]) -> int:
    """Say what failed and what waits; the exit code."""
    from runner.cli.terminal.run_result import as_json
    from runner.results.manifest import Status
    from runner.runs.finished.problems import load_problems

    if args.json:
        print_json([*map(as_json, results), *(point.as_json() for point in waiting_points)])
    failed = [result for result in results if result.manifest.status == Status.FAILED]
    for result in failed:
        why = comma_join(f" ({t.message})" for t in load_problems(result.folder) if t.kind == "transport_failed")
        note(f"run {result.folder.run_id} failed: no game got its answers{why}. Resume with: {_same_command(args)}")
    incomplete = [result for result in results if result.manifest.status == Status.INCOMPLETE]
    for result in incomplete:
        note(f"run {result.folder.run_id} is incomplete: {result.lost}. {_after_loss(result, args)}")
    for point in waiting_points:
        note(f"run {point.run_id} waits: {point.waiting}\nResume with: {_point_command(args, point)}")
    return ExitCode.FAILED if failed or incomplete or waiting_points else ExitCode.DONE


def _after_loss(result: FinishedRun, args: argparse.Namespace) -> str:
    """What to do about rollouts that were lost in transport: a replay has them from its source."""
    source = result.manifest.replay_of
    if source is None or source.until_round is not None:
        return f"Resume with: {_same_command(args)}"
    return f"It replays {source.run_id}, which has no answers for them: resume that run, then replay it again"


def _add_next_step(error: NipRunError, args: argparse.Namespace) -> None:
    from runner.base.errors import (
        BudgetExhausted,
        DamagedRunError,
        FolderGoneError,
        LeaderboardError,
        ProviderRefusal,
        RunDirectoryError,
    )

    if isinstance(error, FolderGoneError) and error.now is not None:
        error.add_note(f"Resume with{_going_on_there(error.now, args)}")
    elif isinstance(error, ProviderRefusal) and error.changes:
        error.add_note(f"After that change, resume with: {_changed_command(args, error.changes)}")
    elif isinstance(error, BudgetExhausted) and error.key is not None:
        error.add_note(f"Resume with a larger budget: {_command_with(args, error.key, 'N')}")
    elif not isinstance(error, (DamagedRunError, RunDirectoryError, LeaderboardError)):
        error.add_note(f"Resume with: {_same_command(args)}")


def _going_on_there(moved: Path, args: argparse.Namespace) -> str:
    """What to say of going on with a run whose log was moved."""
    from runner.results.leaderboard.results_folder import Results

    results = Results.moved(moved)
    if results is None:
        return f" the same command once {moved.parent} is back at its place: {_same_command(args)}"
    return f": {_same_command(argparse.Namespace(**{**vars(args), 'results': results.path}))}"


def _manual_models(words: list[str]) -> dict[str, str]:
    """`--set-model GROUP=NAME` as a mapping."""
    from runner.base.errors import UsageError

    chosen = {}
    for word in words:
        group, equals, name = word.partition("=")
        if not (group and equals and name.strip()):
            raise UsageError(f"--set-model {word!r}: write GROUP=NAME")
        if group in chosen:
            raise UsageError(f"--set-model {group}=... is given more than once")
        chosen[group] = name.strip()
    return chosen


def _same_command(args: argparse.Namespace, waiting: Sequence[str] = ()) -> str:
    """The command again; with a place for the name of each model that is waited for."""
    words = ["nip-run", getattr(args, "command", "run"), *args.words, *_options(args)]
    # What was named before is taken already, and is no name of the models that are waited for now.
    for chosen in [f"{group}=NAME" for group in waiting] or args.set_model:
        words += ["--set-model", chosen]
    return shlex.join(words)


def _changed_command(args: argparse.Namespace, changes: Mapping[str, str | None]) -> str:
    """The command again, its overrides of these keys with the new values: `...` where only the user knows one.

    What decides what a game is makes another run, which needs another name.
    """
    from runner.rollouts.identity import MUTABLE_MODEL_KEYS

    words = [_changed_word(word, changes) for word in args.words]
    is_same_run = all(key.rpartition(".")[2] in MUTABLE_MODEL_KEYS for key in changes)
    run_id = args.run_id if is_same_run or not args.run_id else "NAME"
    return _same_command(argparse.Namespace(**{**vars(args), "words": words, "run_id": run_id}))


def _command_with(args: argparse.Namespace, key: str, value: str) -> str:
    """The command again, with this override in the place of one of that key."""
    words = [word for word in args.words if word.partition("=")[0].removeprefix("+") != key]
    return _same_command(argparse.Namespace(**{**vars(args), "words": [*words, f"{key}={value}"]}))


def _changed_word(word: str, changes: Mapping[str, str | None]) -> str:
    key, equals, _ = word.partition("=")
    name = key.removeprefix("+")
    return f"{key}={changes[name] or '...'}" if equals and name in changes else word


def _point_command(args: argparse.Namespace, waiting: _WaitingPoint) -> str:
    """The command that goes on with one point of a sweep alone, whose models have names of their own."""
    from runner.cli.specs import split_words

    _, overrides = split_words(args.words)
    point = waiting.point
    swept = [f"{key}={json.dumps(value)}" for key, value in point.spec.point.items()]
    words = ["nip-run", "run", point.path, *overrides, *swept, *(["sweep={}"] if swept else []), *_options(args)]
    for group in waiting.waiting.groups:
        words += ["--set-model", f"{group}=NAME"]
    return shlex.join(words)


def _options(args: argparse.Namespace) -> list[str]:
    words = results_option(args.results)
    if args.run_id:
        words += ["--run-id", args.run_id]
    if getattr(args, "shard", None):
        words += ["--shard", args.shard]
    if args.again:
        words.append("--again")
    if args.replay:
        words += ["--replay", args.replay]
    for option in ("allow_key", "allow_command", "allow_host"):
        for value in getattr(args, option):
            words += [f"--{option.replace('_', '-')}", value]
    if getattr(args, "verdict", "last") != "last":
        words += ["--verdict", args.verdict]
    if args.until_round is not None:
        words += ["--until-round", str(args.until_round)]
    return words
