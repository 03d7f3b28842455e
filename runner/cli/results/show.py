"""Show a run, its rollouts, a transcript or the prompts that were sent.

Examples:
  nip-run show last --wrong
  nip-run show RUN ROLLOUT
  nip-run show RUN ROLLOUT RUN ROLLOUT
  nip-run show RUN ROLLOUT --prompt verifier
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.base.errors import RunError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted, in_one_line, list_some
from runner.cli.arguments import RUN_HELP, add_shard_option
from runner.cli.terminal.output import note, print_heading, print_json, print_table, say, say_wrapped
from runner.results.default_folder import results_arguments

if TYPE_CHECKING:
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results
    from runner.results.manifest import Manifest
    from runner.rollouts.job import Job
    from runner.rollouts.rollout import Rollout
    from runner.runs.finished.rollout_details import RolloutDetails
    from runner.runs.finished.rollout_rows import RowFilter
    from runner.runs.finished.sent_prompts import SentPrompt


MAX_LISTED_ROLLOUTS = 3
"""Maximum number of other rollouts that a note lists if a name matches several."""

DEFAULT_LIMIT = 20
"""Number of rollouts that are listed by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", default="last", help=f"{RUN_HELP}; default: last, the newest run")
    add("rollout", metavar="ROLLOUT", nargs="?", help="a rollout id, the start of one, or a datapoint's id")
    add("other", metavar="RUN ROLLOUT", nargs="*", help="a second run and rollout, shown after the first")
    add_shard_option(parser, "shard K of N of a run that is played in shards")
    add("--wrong", action="store_true", help="only rollouts with a wrong verdict")
    add("--undecided", action="store_true", help="only rollouts without a verdict")
    add("--repeat", type=int, metavar="N", help="only this repeat of each datapoint, from 0")
    add("--limit", type=int, metavar="N", help="number of rollouts to list; default: 20")
    add("--all", action="store_true", help="list all rollouts")
    add("--prompt", metavar="AGENT", help="with ROLLOUT: show the prompts sent to this agent's model")
    add("--round", type=int, metavar="N", help="with ROLLOUT: only this round, from 0")


def execute(args: argparse.Namespace) -> int:
    from runner.runs.finished.rollout_rows import RowFilter

    row_filter = RowFilter(wrong=args.wrong, undecided=args.undecided, repeat=args.repeat)
    if args.other:
        return _show_two_rollouts(row_filter, args)
    results: Results = args.results
    if args.shard is None:
        folder = results.find(args.run)
    else:
        from runner.runs.execution.shard_consistency import parse_shard

        folder = results.find_part(args.run, parse_shard(args.shard))
    if args.rollout is not None:
        return _show_rollout(folder, row_filter, args)
    for option, value in (("--prompt", args.prompt), ("--round", args.round)):
        if value is not None:
            raise UsageError(f"{option} needs a rollout: nip-run show RUN ROLLOUT {option} {value}")
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit}: the number of rollouts must be 0 or more")
    manifest = folder.manifest()
    if manifest.is_training_run:
        return _show_training_run(folder, manifest, args)
    if manifest.is_tournament:
        return _show_tournament(folder, manifest, args)
    return _show_run(folder, row_filter, args)


# A run


def _show_run(folder: RunFolder, row_filter: RowFilter, args: argparse.Namespace) -> int:
    from runner.cli.terminal.rollout_table import print_rollouts
    from runner.runs.finished.rollout_rows import RolloutList, RowFilter
    from runner.runs.finished.stored_problems import load_problems

    manifest, metrics = folder.manifest(), folder.read_metrics() if folder.metrics.is_file() else None
    limit = None if args.all else DEFAULT_LIMIT if args.limit is None else args.limit
    rollouts = RolloutList(folder, row_filter, limit)
    if args.json:
        rows = [row.to_json() for row in rollouts.rows()]
        problems = [problem.to_json() for problem in load_problems(folder)]
        facts = {"manifest": manifest.to_json(), "metrics": metrics, "troubles": problems, "rollouts": rows}
        print_json({**facts, "more": rollouts.further_count})
        return ExitCode.DONE
    is_filtered = row_filter != RowFilter()
    if not is_filtered:
        _print_summary(folder, manifest, metrics, args)
        say()
    first = print_rollouts(rollouts)
    if first is None and is_filtered:
        say(f"run {folder.run_id} has {_describe_no_match(folder, row_filter)}")
    if first is not None and not args.quiet:
        say(f"show one in full: {_show_command(folder, args, first.rollout_id)}")
    return ExitCode.DONE


def _print_summary(
    folder: RunFolder, manifest: Manifest, metrics: dict[str, Any] | None, args: argparse.Namespace
) -> None:
    """Print facts, metrics and problems of a run, and for an unfinished run how to resume it."""
    from runner.base.storage.log_lines import NOT_BOUND, is_log_bound_to_run
    from runner.results.manifest import Status
    from runner.runs.finished.resume_advice import resume_advice

    _print_facts({**manifest.to_json(), "cost_usd": manifest.own_cost_usd})
    if manifest.rejudge_of is not None:
        source = manifest.rejudge_of
        say(f"{'judges':<15} the debates of {in_one_line(source.run_id)} (verdict: {source.verdict})")
    if manifest.analysis_of is not None:
        say(f"{'analyzes':<15} {in_one_line(manifest.analysis_of)}; an analysis has no right answers")
    if not is_log_bound_to_run(folder.journal):
        say(f"{'journal':<15} {NOT_BOUND}")
    if metrics is not None:
        _print_metrics(metrics, full=args.verbose > 0)
    _print_problems(folder, (), args)
    if manifest.status != Status.DONE:
        next_step = resume_advice(folder, manifest, results_arguments(args.results.path))
        if metrics is None:
            note(f"no results yet; {next_step}")
        else:
            say_wrapped(next_step)


def _describe_no_match(folder: RunFolder, row_filter: RowFilter) -> str:
    """Return a message that no rollout matches the filter. With --wrong, it counts the rollouts without a verdict."""
    from runner.runs.finished.rollout_rows import RolloutList, RowFilter

    if not row_filter.wrong or row_filter.undecided:
        return "no matching rollout"
    undecided = RolloutList(folder, RowFilter(undecided=True, repeat=row_filter.repeat), 0)
    list(undecided.rows())  # lists no row, but counts the matching ones
    count = "some" if undecided.further_count is None else undecided.further_count
    return "no wrong verdict" + (f"; {count} without a verdict: --undecided" if count else "")


def _show_command(folder: RunFolder, args: argparse.Namespace, *options: str) -> str:
    """Return the `show` command for a run: by its id, or by its folder if it is not in the results folder."""
    is_in_results = args.results.run(folder.run_id).path.resolve() == folder.path.resolve()
    run = folder.run_id if is_in_results else str(folder.path)
    return shlex.join(
        ["nip-run", "show", run, *options, *(results_arguments(args.results.path) if is_in_results else ())]
    )


def _print_problems(folder: RunFolder, parts: Sequence[RunFolder], args: argparse.Namespace) -> None:
    from runner.cli.terminal.run_problems import print_problem
    from runner.runs.finished.stored_problems import collect_problems

    folders = {run.run_id: run for run in (folder, *parts)}
    for run_id, problem in collect_problems(folder, parts):
        print_problem(problem, _show_command(folders[run_id], args, problem.show))


def _print_facts(facts: dict[str, Any]) -> None:
    if facts.get("why_stopped"):
        facts = {**facts, "status": f"{facts['status']}: {facts['why_stopped']}"}
    for name in ("run_id", "status", "benchmark", "protocol", "seed", "rollouts", "completions", "cost_usd", "version",
                 "git_commit", "git_dirty", "started_at", "finished_at", "spec_sha256", "dataset_sha256"):  # fmt: skip
        say(f"{name:<15} {in_one_line(str(facts.get(name, '-')))}")


def _print_metrics(metrics: dict[str, Any], *, full: bool) -> None:
    from runner.results.metric_rows import COLUMNS, metric_rows, missing_intervals, section_lines

    print_table(COLUMNS, metric_rows(metrics, include_minor=full))
    for line in (*(missing_intervals(metrics) if full else ()), *section_lines(metrics, include_minor=full)):
        say_wrapped(line)
    say_wrapped("outcomes: " + ", ".join(f"{name} {count}" for name, count in metrics["outcomes"].items()))


# A training run


def _show_training_run(folder: RunFolder, manifest: Manifest, args: argparse.Namespace) -> int:
    from runner.base.storage.log_lines import NOT_BOUND, is_log_bound_to_run
    from runner.cli.terminal.learning_curve import show_training
    from runner.results.leaderboard.results_folder import Results
    from runner.training.summary import read_summary

    metrics = read_summary(folder, manifest)
    parts = Results.of(folder).parts_of(folder.run_id)
    if args.wrong or args.undecided or args.repeat is not None:
        message = "is a training run; its rollouts are in the runs of its games and tests"
        if not parts:
            raise UsageError(f"{folder.run_id} {message}. None has started yet; resume the training run first")
        filters = [f"--{name}" for name in ("wrong", "undecided") if getattr(args, name)]
        filters += [] if args.repeat is None else ["--repeat", str(args.repeat)]
        example = _show_command(parts[-1], args, *filters)
        raise UsageError(f"{folder.run_id} {message}. Show one of these: {example}")
    if args.json:
        return _print_as_json(manifest, metrics, parts)
    _print_facts({**manifest.to_json(), **metrics["games"]})
    if not is_log_bound_to_run(folder.stage_log):
        say(f"{'journal':<15} {NOT_BOUND}")
    say()
    show_training(metrics, _show_command(folder, args, "--all"), full=args.all)
    _print_problems(folder, parts, args)
    _print_parts(folder, parts, args)
    return ExitCode.DONE


def _print_as_json(manifest: Manifest, metrics: Mapping[str, object], parts: Sequence[RunFolder]) -> int:
    """Print a training run or a tournament with facts about its parts."""
    names = ("run_id", "kind", "iteration", "status", "rollouts", "completions", "cost_usd")
    part_facts = [{name: getattr(part, name) for name in names} for part in (run.manifest() for run in parts)]
    print_json({"manifest": manifest.to_json(), "metrics": metrics, "parts": part_facts})
    return ExitCode.DONE


def _show_tournament(folder: RunFolder, manifest: Manifest, args: argparse.Namespace) -> int:
    from runner.cli.terminal.tournament_tables import show_tournament
    from runner.results.leaderboard.results_folder import Results
    from runner.runs.tournaments.summary import read_tournament

    parts = Results.of(folder).parts_of(folder.run_id)
    if args.wrong or args.undecided or args.repeat is not None:
        example = f". Show one of these: {_show_command(parts[0], args)}" if parts else ""
        raise UsageError(f"{folder.run_id} is a tournament; its rollouts are in the runs of its pairings{example}")
    metrics = read_tournament(folder, manifest)
    if args.json:
        return _print_as_json(manifest, metrics, parts)
    _print_facts({**manifest.to_json(), **metrics["games"]})
    say()
    show_tournament(metrics, full=args.all)
    _print_problems(folder, parts, args)
    if parts and not args.quiet:
        say(f"list pairings with --all; show one: {_show_command(parts[0], args)}")
    return ExitCode.DONE


def _print_parts(folder: RunFolder, parts: list[RunFolder], args: argparse.Namespace) -> None:
    """Print the runs of a training run: one line for its games and one for its tests, or with --all each run."""
    if args.all:
        say()
        keys = ("run_id", "kind", "status", "rollouts", "completions")
        rows = [[getattr(part, key) for key in keys] for part in (run.manifest() for run in parts)]
        print_table(("run", "kind", "status", "rollouts", "calls"), rows)
        return
    for name, letter in (("games", "i"), ("tests", "t")):
        ids = [part.run_id for part in parts if part.run_id.startswith(f"{folder.run_id}-{letter}")]
        if ids:
            through = "" if len(ids) == 1 else f" to {ids[-1]}"
            count = "1 run" if len(ids) == 1 else f"{len(ids)} runs"
            say_wrapped(f"{name}: {count}, {ids[0]}{through}")
    if parts:
        example = _show_command(parts[-1], args)
        say(f"list all with --all; show one: {example}")


# A rollout


class _RolloutMatch(NamedTuple):
    """A rollout that the user requested, and with --prompt the prompts that were sent."""

    folder: RunFolder
    details: RolloutDetails
    prompts: list[SentPrompt] | None

    @property
    def rollout(self) -> Rollout:
        return self.details.rollout


def _show_two_rollouts(row_filter: RowFilter, args: argparse.Namespace) -> int:
    """Print two transcripts, one after the other, each below the id of its run."""
    from runner.cli.terminal.transcript import print_transcript

    if len(args.other) != 2:
        raise UsageError("two rollouts need a run each; write nip-run show RUN ROLLOUT RUN ROLLOUT")
    if args.prompt is not None:
        raise UsageError("--prompt works with one rollout; write nip-run show RUN ROLLOUT --prompt AGENT")
    transcripts = []
    for run, rollout in ((args.run, args.rollout), args.other):
        rollout_args = argparse.Namespace(**{**vars(args), "run": run, "rollout": rollout, "quiet": True})
        folder: RunFolder = args.results.find(run)
        match = _find_rollout(folder, row_filter, rollout_args)
        if args.json:
            transcripts.append({"run_id": match.folder.run_id, **match.details.to_json(args.round)})
            continue
        print_heading(f"run {match.folder.run_id}")
        print_transcript(match.details, args.round)
        say()
    if args.json:
        print_json(transcripts)
    return ExitCode.DONE


def _show_rollout(folder: RunFolder, row_filter: RowFilter, args: argparse.Namespace) -> int:
    from runner.cli.terminal.sent_prompts import print_prompts
    from runner.cli.terminal.transcript import print_transcript

    match = _find_rollout(folder, row_filter, args)
    if folder.manifest().has_parts and not args.quiet:
        note(f"from run {match.folder.run_id}")
    if match.prompts is not None:
        if args.json:
            prompts = [prompt.to_json() for prompt in match.prompts]
            print_json({"rollout_id": match.rollout.job.rollout_id, "agent": args.prompt, "prompts": prompts})
        else:
            print_prompts(match.prompts, args.prompt)
        return ExitCode.DONE
    rounds = [number for number, _ in match.details.rounds(None)]
    if args.round is not None and args.round not in rounds:
        raise UsageError(
            f"rollout {match.rollout.job.rollout_id} has no round {args.round}; "
            f"choose one of its {counted(len(rounds), 'round')}, which are numbered from 0"
        )
    if args.json:
        print_json(match.details.to_json(args.round))
    else:
        print_transcript(match.details, args.round)
    return ExitCode.DONE


def _find_rollout(folder: RunFolder, row_filter: RowFilter, args: argparse.Namespace) -> _RolloutMatch:
    """Find the first matching rollout of a run; for a training run, search its iterations in order.

    Raises:
        UsageError: no rollout matches.
    """
    from runner.results.leaderboard.results_folder import Results

    manifest = folder.manifest()
    if not manifest.has_parts:
        match = _find_in_run(folder, row_filter, args)
        if isinstance(match, str):
            raise UsageError(match)
        return match
    parts = Results.of(folder).parts_of(folder.run_id)
    for part in parts:
        match = _find_in_run(part, row_filter, args)
        if not isinstance(match, str):
            return match
    raise UsageError(
        f"no rollout {args.rollout!r} in {folder.run_id}, {manifest.kind_name}; list the rollouts of one of its runs "
        f"with nip-run show RUN: {comma_join(part.run_id for part in parts) or 'none has started yet'}"
    )


def _list_others(jobs: Sequence[Job], displayed: Job) -> str:
    """Return a text that lists the other rollouts of the requested name, with the variant and repeat of each."""
    from runner.rollouts.transcript import describe_variant

    other_jobs = [job for job in jobs if job.rollout_id != displayed.rollout_id]
    names = [f"{job.rollout_id} ({', '.join([*describe_variant(job), f'repeat {job.repeat}'])})" for job in other_jobs]
    return f"others: {list_some(names, MAX_LISTED_ROLLOUTS)}"


def _find_in_run(folder: RunFolder, row_filter: RowFilter, args: argparse.Namespace) -> _RolloutMatch | str:
    """Return the first rollout whose id or datapoint matches `args.rollout`, or a message that none matches."""
    from runner.runs.finished.reconstruction import Reconstructor, played_jobs, played_plan
    from runner.runs.finished.rollout_rows import RowFilter
    from runner.runs.finished.sent_prompts import sent_prompts

    plan, name = played_plan(folder, trusts_manifest=True), args.rollout

    def is_named(job: Job) -> bool:
        return job.rollout_id.startswith(name) or job.datapoint.id == name

    # A job that plays a tree has several rollouts, whose ids are known only after its answers are read.
    jobs = [job for job in played_jobs(folder, plan) if plan.tree_shape is not None or is_named(job)]
    has_finished = False
    with closing(Reconstructor(folder, plan)) as reconstructor:
        for rollout in (rollout for job in jobs for rollout in reconstructor.rollouts_of(job) if is_named(rollout.job)):
            has_finished = True
            if not row_filter.accepts(rollout):
                continue
            if not args.quiet and len(jobs) > 1 and plan.tree_shape is None and row_filter == RowFilter():
                is_only_variant = len(plan.variants) == 1
                hint = "--repeat N chooses another" if is_only_variant else _list_others(jobs, rollout.job)
                note(f"{name!r} matches {len(jobs)} rollouts; this is the first; {hint}")
            prompts = args.prompt and sent_prompts(reconstructor, rollout, args.prompt, args.round)
            return _RolloutMatch(folder, reconstructor.details(rollout), prompts)
    if has_finished:
        return f"--wrong, --undecided and --repeat exclude the rollouts {name!r} of run {folder.run_id}; omit them"
    if jobs and plan.tree_shape is None:
        raise RunError(
            f"rollout {jobs[0].rollout_id} is not finished; resume run {folder.run_id} with the command that started it"
        )
    first = next(plan.jobs())
    return (
        f"run {folder.run_id} has no rollout {name!r}; list all with `{_show_command(folder, args, '--all')}`, or show "
        f"the first: {first.rollout_id} (datapoint {first.datapoint.id})"
    )
