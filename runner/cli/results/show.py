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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted, in_one_line
from runner.cli.arguments import RUN, add_shard, results_option
from runner.cli.terminal.output import columns_of_output, heading, note, print_json, print_table, say
from runner.cli.terminal.wrapping import wrapped

if TYPE_CHECKING:
    from runner.results.folder import RunFolder
    from runner.results.manifest import Manifest
    from runner.rollouts.job import Job
    from runner.rollouts.rollout import Rollout
    from runner.runs.finished.rollout_details import RolloutDetails
    from runner.runs.finished.rollout_rows import RowFilter
    from runner.runs.finished.sent_prompts import SentPrompt


NAMED = 3
"""So many other rollouts that a name can mean are named."""

LIMIT = 20
"""Rollouts that a list has, where nothing else is said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", default="last", help=f"{RUN}; default: last, the newest run")
    add("rollout", metavar="ROLLOUT", nargs="?", help="a rollout id, the start of one, or a datapoint's id")
    add("other", metavar="RUN ROLLOUT", nargs="*", help="a second run and rollout, shown after the first")
    add_shard(parser, "shard K of N of a run that is played in shards")
    add("--wrong", action="store_true", help="only rollouts with a wrong verdict")
    add("--undecided", action="store_true", help="only rollouts without a verdict")
    add("--repeat", type=int, metavar="N", help="only this repeat of each datapoint, from 0")
    add("--limit", type=int, metavar="N", help="number of rollouts to list; default: 20")
    add("--all", action="store_true", help="list all rollouts")
    add("--prompt", metavar="AGENT", help="with ROLLOUT: show the prompts sent to this agent's model")
    add("--round", type=int, metavar="N", help="with ROLLOUT: only this round, from 0")


def execute(args: argparse.Namespace) -> int:
    from runner.base.errors import UsageError
    from runner.results.leaderboard.results_folder import Results
    from runner.runs.execution.shard_consistency import parse_shard
    from runner.runs.finished.rollout_rows import RowFilter

    wanted = RowFilter(wrong=args.wrong, undecided=args.undecided, repeat=args.repeat)
    if args.other:
        return _show_both(wanted, args)
    results = Results(args.results)
    folder = results.find(args.run) if args.shard is None else results.find_part(args.run, parse_shard(args.shard))
    if args.rollout is not None:
        return _show_rollout(folder, wanted, args)
    for option, value in (("--prompt", args.prompt), ("--round", args.round)):
        if value is not None:
            raise UsageError(f"{option} is for one rollout: nip-run show RUN ROLLOUT {option} {value}")
    if args.limit is not None and args.limit < 0:
        raise UsageError(f"--limit {args.limit}: the number of rollouts must be 0 or more")
    manifest = folder.manifest()
    return _show_training_run(folder, manifest, args) if manifest.is_training_run else _show_run(folder, wanted, args)


# A run


def _show_run(folder: RunFolder, wanted: RowFilter, args: argparse.Namespace) -> int:
    from runner.base.storage.log_lines import NOT_BOUND, is_bound_to_run
    from runner.cli.terminal.rollout_table import print_rollouts
    from runner.results.manifest import Status
    from runner.runs.finished.problems import load_problems
    from runner.runs.finished.resume_advice import resume_advice
    from runner.runs.finished.rollout_rows import RolloutList, RowFilter

    manifest, metrics = folder.manifest(), _metrics(folder)
    found = RolloutList(folder, wanted, None if args.all else LIMIT if args.limit is None else args.limit)
    if args.json:
        rows = [row.to_json() for row in found.rows()]
        troubles = [trouble.to_json() for trouble in load_problems(folder)]
        shown = {"manifest": manifest.to_json(), "metrics": metrics, "troubles": troubles, "rollouts": rows}
        print_json({**shown, "more": found.more})
        return ExitCode.DONE
    filtered = wanted != RowFilter()
    if not filtered:
        _print_facts({**manifest.to_json(), "cost_usd": manifest.own_cost_usd})
        if manifest.rejudge_of is not None:
            source = manifest.rejudge_of
            say(f"{'judges':<15} the debates of {in_one_line(source.run_id)} (verdict: {source.verdict})")
        if not is_bound_to_run(folder.journal):
            say(f"{'journal':<15} {NOT_BOUND}")
        if metrics is not None:
            _print_metrics(metrics, whole=args.verbose > 0)
        _print_troubles(folder, (), args)
        if manifest.status != Status.DONE:
            step = resume_advice(folder, manifest, results_option(args.results))
            if metrics is None:
                note(f"no results yet; {step}")
            else:
                _say(step)
        say()
    first = print_rollouts(found)
    if first is None and filtered:
        say(f"run {folder.run_id} has {_none_such(folder, wanted)}")
    if first is not None and not args.quiet:
        say(f"one in full: {_command(folder, args, first.rollout_id)}")
    return ExitCode.DONE


def _none_such(folder: RunFolder, wanted: RowFilter) -> str:
    """What to say where no rollout is as it is wanted: one without a verdict has no wrong one."""
    from runner.runs.finished.rollout_rows import RolloutList, RowFilter

    if not wanted.wrong or wanted.undecided:
        return "no such rollout"
    undecided = RolloutList(folder, RowFilter(undecided=True, repeat=wanted.repeat), 0)
    for _ in undecided.rows():
        pass
    without = "some" if undecided.more is None else undecided.more
    return "no wrong verdict" + (f"; {without} without a verdict: --undecided" if without else "")


def _command(folder: RunFolder, args: argparse.Namespace, *words: str) -> str:
    """The `show` of a run: by its id, or by its folder where that is not in the results that are meant."""
    from runner.results.leaderboard.results_folder import Results

    is_there = Results(args.results).run(folder.run_id).path.resolve() == folder.path.resolve()
    named = folder.run_id if is_there else str(folder.path)
    return shlex.join(["nip-run", "show", named, *words, *(results_option(args.results) if is_there else ())])


def _metrics(folder: RunFolder) -> dict[str, Any] | None:
    """What a run has come to; None where there is nothing to tell."""
    return folder.read_metrics() if folder.metrics.is_file() else None


def _print_troubles(folder: RunFolder, parts: Sequence[RunFolder], args: argparse.Namespace) -> None:
    from runner.cli.terminal.run_problems import say_trouble
    from runner.runs.finished.part_problems import collect_problems

    shown = {one.run_id: one for one in (folder, *parts)}
    for run_id, trouble in collect_problems(folder, parts):
        say_trouble(trouble, _command(shown[run_id], args, trouble.show))


def _print_facts(shown: dict[str, Any]) -> None:
    if shown.get("why_stopped"):
        shown = {**shown, "status": f"{shown['status']}: {shown['why_stopped']}"}
    for name in ("run_id", "status", "benchmark", "protocol", "seed", "rollouts", "completions", "cost_usd", "version",
                 "git_commit", "git_dirty", "started_at", "finished_at", "spec_sha256", "dataset_sha256"):  # fmt: skip
        say(f"{name:<15} {in_one_line(str(shown.get(name, '-')))}")


def _print_metrics(metrics: dict[str, Any], *, whole: bool) -> None:
    from runner.results.metric_rows import COLUMNS, extra_lines, metric_rows, reasons

    print_table(COLUMNS, metric_rows(metrics, whole=whole))
    for line in (*(reasons(metrics) if whole else ()), *extra_lines(metrics)):
        _say(line)
    _say("outcomes: " + ", ".join(f"{name} {count}" for name, count in metrics["outcomes"].items()))


def _say(text: str) -> None:
    for line in wrapped(text, columns_of_output()):
        say(line)


# A training run


def _show_training_run(folder: RunFolder, manifest: Manifest, args: argparse.Namespace) -> int:
    from runner.base.errors import UsageError
    from runner.base.storage.log_lines import NOT_BOUND, is_bound_to_run
    from runner.cli.terminal.learning_curve import show_training
    from runner.results.leaderboard.results_folder import Results
    from runner.training.summary import read_summary

    metrics = read_summary(folder, manifest)
    parts = Results.of(folder).parts_of(folder.run_id)
    if args.wrong or args.undecided or args.repeat is not None:
        said = "is a training run; its rollouts are those of its games and tests"
        if not parts:
            raise UsageError(f"{folder.run_id} {said}, and there are none yet")
        filters = [f"--{name}" for name in ("wrong", "undecided") if getattr(args, name)]
        filters += [] if args.repeat is None else ["--repeat", str(args.repeat)]
        one = _command(parts[-1], args, *filters)
        raise UsageError(f"{folder.run_id} {said}: {one}")
    if args.json:
        listed = [_part_json(part) for part in parts]
        print_json({"manifest": manifest.to_json(), "metrics": metrics, "parts": listed})
        return ExitCode.DONE
    _print_facts({**manifest.to_json(), **metrics["games"]})
    if not is_bound_to_run(folder.stage_log):
        say(f"{'journal':<15} {NOT_BOUND}")
    say()
    show_training(metrics, _command(folder, args, "--all"), whole=args.all)
    _print_troubles(folder, parts, args)
    _print_parts(folder, parts, args)
    return ExitCode.DONE


def _part_json(part: RunFolder) -> dict[str, Any]:
    manifest = part.manifest()
    names = ("run_id", "kind", "iteration", "status", "rollouts", "completions", "cost_usd")
    return {name: getattr(manifest, name) for name in names}


def _print_parts(folder: RunFolder, parts: list[RunFolder], args: argparse.Namespace) -> None:
    """The runs of a training run: folded to a line for its games and one for its tests, or each by itself."""
    if args.all:
        say()
        facts = [_part_json(part) for part in parts]
        rows = [(one["run_id"], one["kind"], one["status"], one["rollouts"], one["completions"]) for one in facts]
        print_table(("run", "kind", "status", "rollouts", "calls"), rows)
        return
    for name, letter in (("games", "i"), ("tests", "t")):
        ids = [part.run_id for part in parts if part.run_id.startswith(f"{folder.run_id}-{letter}")]
        if ids:
            through = "" if len(ids) == 1 else f" to {ids[-1]}"
            count = "1 run" if len(ids) == 1 else f"{len(ids)} runs"
            _say(f"{name}: {count}, {ids[0]}{through}")
    if parts:
        shown = _command(parts[-1], args)
        say(f"all of them: add --all; one: {shown}")


# A rollout


class _Found(NamedTuple):
    """A rollout that was asked for, with all that its run's folder has of it."""

    folder: RunFolder
    told: RolloutDetails
    prompts: list[SentPrompt] | None

    @property
    def rollout(self) -> Rollout:
        return self.told.rollout


def _show_both(wanted: RowFilter, args: argparse.Namespace) -> int:
    """Two transcripts, one after the other, each below the name of its run."""
    from runner.base.errors import UsageError
    from runner.cli.terminal.transcript import print_transcript
    from runner.results.leaderboard.results_folder import Results

    if len(args.other) != 2:
        raise UsageError("two rollouts are shown by their runs: nip-run show RUN ROLLOUT RUN ROLLOUT")
    if args.prompt is not None:
        raise UsageError("--prompt is for one rollout: nip-run show RUN ROLLOUT --prompt AGENT")
    transcripts = []
    for run, rollout in ((args.run, args.rollout), args.other):
        one = argparse.Namespace(**{**vars(args), "run": run, "rollout": rollout, "quiet": True})
        folder = Results(args.results).find(run)
        found = _find_rollout(folder, wanted, one)
        if args.json:
            transcripts.append({"run_id": found.folder.run_id, **found.told.to_json(args.round)})
            continue
        heading(f"run {found.folder.run_id}")
        print_transcript(found.told, args.round)
        say()
    if args.json:
        print_json(transcripts)
    return ExitCode.DONE


def _show_rollout(folder: RunFolder, wanted: RowFilter, args: argparse.Namespace) -> int:
    from runner.base.errors import UsageError
    from runner.cli.terminal.sent_prompts import print_prompts
    from runner.cli.terminal.transcript import print_transcript

    found = _find_rollout(folder, wanted, args)
    if folder.manifest().is_training_run and not args.quiet:
        note(f"of run {found.folder.run_id}")
    if found.prompts is not None:
        if args.json:
            shown = [prompt.to_json() for prompt in found.prompts]
            print_json({"rollout_id": found.rollout.job.rollout_id, "agent": args.prompt, "prompts": shown})
        else:
            print_prompts(found.prompts, args.prompt)
        return ExitCode.DONE
    rounds = [number for number, _ in found.told.rounds(None)]
    if args.round is not None and args.round not in rounds:
        raise UsageError(
            f"rollout {found.rollout.job.rollout_id} has {counted(len(rounds), 'round')}, from 0; "
            f"there is no {args.round}"
        )
    if args.json:
        print_json(found.told.to_json(args.round))
    else:
        print_transcript(found.told, args.round)
    return ExitCode.DONE


def _find_rollout(folder: RunFolder, wanted: RowFilter, args: argparse.Namespace) -> _Found:
    """Find the first such rollout of a run; of a training run, in the order of its iterations.

    Raises:
        UsageError: There is none.
    """
    from runner.base.errors import UsageError
    from runner.results.leaderboard.results_folder import Results

    if not folder.manifest().is_training_run:
        found = _rollout(folder, wanted, args)
        if isinstance(found, str):
            raise UsageError(found)
        return found
    parts = Results.of(folder).parts_of(folder.run_id)
    for part in parts:
        found = _rollout(part, wanted, args)
        if not isinstance(found, str):
            return found
    raise UsageError(
        f"no rollout {args.rollout!r} in training run {folder.run_id}; its rollouts are in the runs "
        f"{comma_join(part.run_id for part in parts) or 'that are still to come'}"
    )


def _others(jobs: Sequence[Job], shown: Job) -> str:
    """The first few other games that a name can mean, by id and by what tells them apart."""
    from runner.rollouts.transcript import describe_variant

    others = [job for job in jobs if job.rollout_id != shown.rollout_id]
    named = (
        f"{job.rollout_id} ({', '.join([*describe_variant(job), f'repeat {job.repeat}'])})" for job in others[:NAMED]
    )
    return f"others: {comma_join(named)}" + (", ..." if len(others) > NAMED else "")


def _rollout(folder: RunFolder, wanted: RowFilter, args: argparse.Namespace) -> _Found | str:
    """Return the first rollout of that id or datapoint, or why there is none."""
    from runner.base.errors import RunError
    from runner.runs.finished.reconstruction import Reconstructor, played_jobs, played_plan
    from runner.runs.finished.rollout_details import RolloutDetails
    from runner.runs.finished.rollout_rows import RowFilter
    from runner.runs.finished.sent_prompts import sent_prompts

    plan, name = played_plan(folder), args.rollout

    def meant(job: Job) -> bool:
        return job.rollout_id.startswith(name) or job.datapoint.id == name

    jobs = [job for job in played_jobs(folder, plan) if plan.shape is not None or meant(job)]
    reconstructor = Reconstructor(folder, plan)
    finished = False
    try:
        for job in jobs:
            for rollout in reconstructor.of_job(job):
                finished = finished or meant(rollout.job)
                if meant(rollout.job) and wanted.accepts(rollout):
                    if not args.quiet and len(jobs) > 1 and plan.shape is None and wanted == RowFilter():
                        how = "--repeat N chooses another" if len(plan.variants) == 1 else _others(jobs, rollout.job)
                        note(f"1 of {len(jobs)} rollouts that {name!r} can mean; {how}")
                    failures = reconstructor.failures(rollout.job)
                    told = RolloutDetails(
                        rollout, plan.spec.protocol, plan.agents(swapped=rollout.job.swapped), failures
                    )
                    prompts = args.prompt and sent_prompts(reconstructor, rollout, args.prompt, args.round)
                    return _Found(folder, told, prompts)
    finally:
        reconstructor.close()
    if finished:
        return f"run {folder.run_id} has rollouts {name!r}, and none that the other options select"
    if jobs and plan.shape is None:
        raise RunError(f"rollout {jobs[0].rollout_id} is not finished; run the same command again to resume")
    first = next(plan.jobs())
    return f"run {folder.run_id} has no rollout {name!r}; its first is {first.rollout_id} ({first.datapoint.id})"
