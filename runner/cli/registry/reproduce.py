"""Recompute a published run from its transcripts, or play it again.

Examples:
  nip-run reproduce acme/nip-0123456789 --from DIR
  nip-run reproduce mine --fresh
  nip-run reproduce mine --fresh --set models.small.base_url=http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import RunError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, path_argument
from runner.cli.arguments import (
    REFERENCE_HELP,
    add_registry_option,
    add_trust_options,
)
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import note, print_heading, print_json, say_lines, warn
from runner.documents.fetched_files import fetched_registry
from runner.results.default_folder import results_arguments, results_option_text

if TYPE_CHECKING:
    from runner.registry.fetched_release import FetchedRelease
    from runner.registry.transports.registry import Registry
    from runner.registry.verification.fresh_play import FreshPlay
    from runner.registry.verification.replay import ReplayResult
    from runner.registry.verification.training_replay import TrainingReplayResult
    from runner.results.leaderboard.results_folder import Results


EXIT_CODES_OF_FRESH_PLAY = {"reproduced": ExitCode.DONE, "drifted": ExitCode.FAILED, "undecided": ExitCode.UNDECIDED}


def share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share; use a number between 0 and 1")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("reference", metavar="REF|DIR", help=f"{REFERENCE_HELP}; or a folder written by `get`")
    add_registry_option(parser)
    add(
        "--fresh",
        action="store_true",
        help="play the run again and test whether the metric differs: exit code 1 if it does, 5 if there is too little "
        "data to decide, 4 if a model no longer exists",
    )
    add(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="with --fresh: set model servers and other keys that do not change games; dataset.path=FILE if the run "
        "was published without its dataset; repeatable",
    )
    add("--metric", metavar="NAME", help="with --fresh: the metric to compare; default: accuracy")
    add(
        "--margin",
        type=share,
        default=0.1,
        metavar="SHARE",
        help="with --fresh: the largest difference that counts as reproduced, as a share of the metric's scale (or of "
        "the published value if it has no scale); default: 0.1",
    )
    add_trust_options(parser)


def execute(args: argparse.Namespace) -> int:
    from runner.cli.terminal.progress import WatchedRun, show_progress
    from runner.registry.bundles.missing_rows import ROWS_KEY, add_rows
    from runner.registry.verification.replay import replay_json, replay_run
    from runner.results.metric_definitions import RANKING_METRIC

    args.metric = args.metric or RANKING_METRIC
    results: Results = args.results
    row_files = [override for override in args.overrides if override.startswith(f"{ROWS_KEY}=")]
    args.overrides = [override for override in args.overrides if override not in row_files]
    if args.overrides and not args.fresh:
        raise UsageError(f"--set works only with --fresh, except for {ROWS_KEY}; add --fresh to call the models again")
    fetched = _open_or_download(args, results)
    for override in row_files:
        add_rows(fetched, Path(override.removeprefix(f"{ROWS_KEY}=")))
    for line in fetched.notes:
        warn(f"warning: {line}")
    load_scipy_with_one_thread()
    if args.fresh:
        return _play_again(args, fetched, results)
    if fetched.is_training_run:
        return _reproduce_training_run(args, fetched, results)
    with show_progress([WatchedRun(str(fetched.release.reference), None)], set(), quiet=args.quiet) as display:
        replay = replay_run(fetched, results, display.on_progress_of(0))
    if args.json:
        print_json(replay_json(replay))
    else:
        _show_replay(replay)
    return ExitCode.FAILED if replay.errors else ExitCode.DONE


def _open_or_download(args: argparse.Namespace, results: Results) -> FetchedRelease:
    from runner.documents.releases.reference import Kind, parse_reference
    from runner.registry.fetched_release import find_run, is_fetched, open_fetched
    from runner.registry.transports.locations import connect_to_read
    from runner.registry.verification.reproducibility import fetch_into_results

    folder = Path(args.reference)
    if is_fetched(folder):
        return open_fetched(folder)
    if folder.exists():
        raise UsageError(f"{folder} is not a published run; name a release, or a folder written by `nip-run get`")
    try:
        reference = parse_reference(args.reference, default_kind=Kind.RUN)
    except UsageError as error:
        raise UsageError(_suggest_verify(args, results) or str(error)) from error
    with connect_to_read(args.registry) as registry:
        return fetch_into_results(registry, find_run(registry, reference), results)


def _suggest_verify(args: argparse.Namespace, results: Results) -> str | None:
    """Return an error message that suggests `nip-run verify`, if the reference names a local run; otherwise None."""
    try:
        run = results.find(args.reference)
    except (RunError, UsageError):
        return None
    command = shlex.join(["nip-run", "verify", args.reference, *results_arguments(args.results.path)])
    return f"{run.run_id} is a local run, but reproduce needs a published run; check its numbers with: {command}"


def _show_replay(replay: ReplayResult) -> None:
    name = f"{replay.fetched.release.reference} (as {replay.run_id})"
    if replay.is_same_version:
        summary = "does not follow from the transcripts:" if replay.errors else "follows from the transcripts"
    else:
        reported = "reported differently:" if replay.version_notes else "nothing differs"
        differences = "these differ:" if replay.errors else reported
        summary = f"{replay.versions_text}: {differences}"
    print_heading(f"{name}: {summary}")
    say_lines((*replay.errors, *replay.version_notes))


def _reproduce_training_run(args: argparse.Namespace, fetched: FetchedRelease, results: Results) -> int:
    """Recompute each part of a training run, and check that each model was trained from the previous one."""
    from runner.registry.verification.replay import replay_json
    from runner.registry.verification.training_replay import replay_training

    with _connect_registry_of_parts(args, fetched) as registry:
        result: TrainingReplayResult = replay_training(fetched, registry, results)
    if args.json:
        print_json(
            {
                "release": str(fetched.release.reference),
                "follows": not result.has_errors,
                "different": list(result.errors),
                "parts": [replay_json(part) for part in result.parts],
            }
        )
    else:
        for part in result.parts:
            _show_replay(part)
        summary = "its parts and the chain of its models follow" if not result.has_errors else "does not follow:"
        print_heading(f"{fetched.release.reference}: {summary}")
        say_lines(result.errors)
    return ExitCode.FAILED if result.has_errors else ExitCode.DONE


def _connect_registry_of_parts(args: argparse.Namespace, fetched: FetchedRelease) -> Registry:
    """Connect to the registry that has the parts of a training run.

    If the user names no registry, suggest the one that the folder records. It is not used without asking, since
    somebody else may have written the record.

    Raises:
        UsageError: the user named no registry.
    """
    from runner.registry.transports.locations import connect_to_read

    try:
        return connect_to_read(args.registry)
    except UsageError as error:
        address = fetched_registry(fetched.folder)
        if args.registry is not None or address is None:
            raise
        command = shlex.join(["nip-run", "reproduce", args.reference, "--from", address])
        raise UsageError(
            f"the parts of this training run are separate releases; name the registry they are in: {command}"
        ) from error


def _play_again(args: argparse.Namespace, fetched: FetchedRelease, results: Results) -> int:
    """Play the published run again, print the difference, and return the exit code."""
    from runner.cli.terminal.progress import WatchedRun, show_progress
    from runner.models.api_keys import ALL, all_allowed
    from runner.registry.verification.fresh_play import fresh_plan, play_again
    from runner.registry.verification.verify import find_edited_files
    from runner.rollouts.plan import Plan
    from runner.training.trust import check_trust, keys_sent

    plan = fresh_plan(fetched, args.overrides)
    for path in () if args.quiet else find_edited_files(fetched.folder):
        folder = shlex.quote(path_argument(fetched.folder))
        note(f"{path} was edited, but --fresh plays the published version; to play the edited one: nip-run {folder}")
    allowed = all_allowed(args.allow_key, args.allow_command, args.allow_host)
    check_trust(plan, None, allowed, override="--set ")
    uses = [use for use in keys_sent(plan) if use.variable != ALL]
    if uses and not args.quiet:
        note(f"sends {comma_join(map(str, uses))}")
    size = plan.size if isinstance(plan, Plan) else None
    with show_progress([WatchedRun(str(fetched.release.reference), size)], set(), quiet=args.quiet) as display:
        fresh_play = play_again(
            fetched,
            plan,
            results,
            allowed,
            metric=args.metric,
            margin=args.margin,
            on_progress=display.on_progress_of(0),
        )
    code = EXIT_CODES_OF_FRESH_PLAY[fresh_play.outcome]
    _show_fresh_play(args, fresh_play, code)
    return code


def _show_fresh_play(args: argparse.Namespace, fresh_play: FreshPlay, code: ExitCode) -> None:
    """Print the difference to the published run, and commands that show more about it."""
    from dataclasses import asdict

    reference = fresh_play.fetched.release.reference
    if args.json:
        print_json(
            {
                "release": str(reference),
                "run_id": fresh_play.run_id,
                "outcome": fresh_play.outcome,
                "verdict": fresh_play.verdict,
                "margin": args.margin,
                "compared": asdict(fresh_play.pair),
                "notes": list(fresh_play.comparison.notes),
                "exit_code": int(code),
            }
        )
        return
    print_heading(f"{reference}, played again as {fresh_play.run_id}: {args.metric} {fresh_play.verdict}")
    say_lines(() if args.quiet else _next_commands(args, fresh_play))


def _next_commands(args: argparse.Namespace, fresh_play: FreshPlay) -> Sequence[str]:
    """Return commands that show more about the comparison."""
    results = results_option_text(args.results.path)
    folder = shlex.quote(path_argument(fresh_play.fetched.folder))
    run_id = fresh_play.run_id
    lines = [f"compare: nip-run compare {folder} {run_id}{results}"]
    if fresh_play.outcome == "drifted":
        lines += [
            f"{flip.datapoint}: nip-run show {folder} {flip.base_rollout} {run_id} {flip.other_rollout}{results}"
            for flip in fresh_play.pair.flips[:5]
        ]
    return lines
