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

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join
from runner.cli.arguments import REF, add_registry, add_trust, results_option
from runner.cli.startup import one_blas_thread
from runner.cli.terminal.output import heading, note, print_json, say, warn
from runner.documents.fetched_files import fetched_registry
from runner.statistics.intervals import load_intervals

if TYPE_CHECKING:
    from runner.registry.fetched_release import FetchedRelease
    from runner.registry.transports.registry import Registry
    from runner.registry.verification.fresh_play import FreshPlay
    from runner.registry.verification.replay import ReplayResult
    from runner.registry.verification.training_chain import ChainResult
    from runner.results.leaderboard.results_folder import Results


FRESH_CODES = {"reproduced": ExitCode.DONE, "drifted": ExitCode.FAILED, "undecided": ExitCode.UNDECIDED}


def _margin(text: str) -> float:
    margin = float(text)
    if not 0 < margin < 1:
        raise argparse.ArgumentTypeError(f"a share above 0 and below 1 belongs here, not {text}")
    return margin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("reference", metavar="REF|DIR", help=f"{REF}; or a folder written by `get`")
    add_registry(parser)
    add(
        "--fresh",
        action="store_true",
        help="play it again and measure the drift: exit code 1 if it drifted, 5 if the data cannot decide, "
        "4 if its model is gone",
    )
    add(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="with --fresh: set where models are served and other keys that change no game; dataset.path=FILE if it "
        "was published without its dataset; repeatable",
    )
    add("--metric", metavar="NAME", help="with --fresh: the metric to compare; default: accuracy")
    add(
        "--margin",
        type=_margin,
        default=0.1,
        metavar="SHARE",
        help="with --fresh: the largest difference that counts as reproduced, as a share of the metric's scale (or of "
        "the published value if it has no scale); default: 0.1",
    )
    add_trust(parser)


def execute(args: argparse.Namespace) -> int:
    from runner.base.errors import UsageError
    from runner.cli.terminal.progress import WatchedRun, watching
    from runner.registry.bundles.missing_rows import OPTION, add_rows
    from runner.registry.verification.replay import replay_json, replay_run
    from runner.results.leaderboard.results_folder import Results
    from runner.results.metric_table import RANKING_METRIC

    args.metric = args.metric or RANKING_METRIC
    results = Results(args.results)
    rows = [word for word in args.overrides if word.startswith(f"{OPTION}=")]
    args.overrides = [word for word in args.overrides if word not in rows]
    if args.overrides and not args.fresh:
        raise UsageError(f"--set needs --fresh, except for {OPTION}: a replay calls no model")
    got = _got(args, results)
    for word in rows:
        add_rows(got, Path(word.removeprefix(f"{OPTION}=")))
    for line in got.notes:
        warn(f"warning: {line}")
    with one_blas_thread():
        load_intervals()
    if args.fresh:
        return _fresh(args, got, results)
    if got.is_training_run:
        return _chain(args, got, results)
    with watching([WatchedRun(str(got.release.reference), None)], set(), quiet=args.quiet) as display:
        found = replay_run(got, results, display.of(0))
    if args.json:
        print_json(replay_json(found))
    else:
        _show(found)
    return ExitCode.FAILED if found.different else ExitCode.DONE


def _got(args: argparse.Namespace, results: Results) -> FetchedRelease:
    from runner.base.errors import UsageError
    from runner.documents.releases.reference import Kind, parse
    from runner.registry.fetched_release import find_run, is_fetched, open_fetched
    from runner.registry.transports.locations import connect_to_read
    from runner.registry.verification.reproducible import fetch_into_results

    folder = Path(args.reference)
    if is_fetched(folder):
        return open_fetched(folder)
    if folder.exists():
        raise UsageError(f"{folder}: not a published run; give its name, or a folder written by `nip-run get`")
    try:
        named = parse(args.reference, None if args.reference.count("/") > 1 else Kind.RUN)
    except UsageError as error:
        raise UsageError(_of_own(args, results) or str(error)) from error
    with connect_to_read(args.where) as registry:
        return fetch_into_results(registry, find_run(registry, named), results)


def _of_own(args: argparse.Namespace, results: Results) -> str | None:
    """What checks a run of the results folder, where such a one is named, and nothing published."""
    from runner.base.errors import RunError, UsageError

    try:
        run = results.find(args.reference)
    except (RunError, UsageError):
        return None
    command = shlex.join(["nip-run", "verify", args.reference, *results_option(args.results)])
    return f"{run.run_id} is a run of yours, and reproduce is for what was published; check its numbers: {command}"


def _show(found: ReplayResult) -> None:
    name = f"{found.fetched.release.reference} (as {found.run_id})"
    if found.same_version:
        said = "does not follow from the transcripts:" if found.different else "follows from the transcripts"
    else:
        differ = (
            "these differ:" if found.different else "told otherwise then:" if found.otherwise else "nothing differs"
        )
        said = f"{found.versions}: {differ}"
    heading(f"{name}: {said}")
    for line in (*found.different, *found.otherwise):
        say(line)


def _chain(args: argparse.Namespace, got: FetchedRelease, results: Results) -> int:
    """A training run: its parts each, and the chain of its models."""
    from runner.registry.verification.replay import replay_json
    from runner.registry.verification.training_chain import replay_training

    with _registry_of_parts(args, got) as registry:
        found: ChainResult = replay_training(got, registry, results)
    if args.json:
        print_json(
            {
                "release": str(got.release.reference),
                "follows": not found.wrong,
                "different": list(found.different),
                "parts": [replay_json(part) for part in found.parts],
            }
        )
    else:
        for part in found.parts:
            _show(part)
        said = "its parts and the chain of its models follow" if not found.wrong else "does not follow:"
        heading(f"{got.release.reference}: {said}")
        for line in found.different:
            say(line)
    return ExitCode.FAILED if found.wrong else ExitCode.DONE


def _registry_of_parts(args: argparse.Namespace, got: FetchedRelease) -> Registry:
    """Where the parts of a training run are. What its marker says is shown and not asked: others may have written it.

    Raises:
        UsageError: nobody said where; with the command that does.
    """
    from runner.base.errors import UsageError
    from runner.registry.transports.locations import connect_to_read

    try:
        return connect_to_read(args.where)
    except UsageError as error:
        where = fetched_registry(got.folder)
        if args.where is not None or where is None:
            raise
        command = shlex.join(["nip-run", "reproduce", args.reference, "--from", where])
        raise UsageError(
            f"its parts are releases of their own, in the registry that it was got from: {command}"
        ) from error


def _fresh(args: argparse.Namespace, got: FetchedRelease, results: Results) -> int:
    from dataclasses import asdict

    from runner.cli.terminal.progress import WatchedRun, watching
    from runner.models.api_keys import ALL, all_allowed
    from runner.registry.verification.fresh_play import fresh_plan, play_again
    from runner.registry.verification.verify import edited_files
    from runner.rollouts.plan import Plan
    from runner.training.trust import check_trust, keys_sent

    plan = fresh_plan(got, args.overrides)
    for path in () if args.quiet else edited_files(got.folder):
        folder = shlex.quote(str(got.folder))
        note(f"{path} was edited, and is not played: --fresh plays what was published; as edited: nip-run {folder}")
    allowed = all_allowed(args.allow_key, args.allow_command, args.allow_host)
    check_trust(plan, None, allowed, override="--set ")
    uses = [use for use in keys_sent(plan) if use.variable != ALL]
    if uses and not args.quiet:
        note(f"sends {comma_join(map(str, uses))}")
    size = plan.size if isinstance(plan, Plan) else None
    with watching([WatchedRun(str(got.release.reference), size)], set(), quiet=args.quiet) as display:
        found = play_again(got, plan, results, allowed, metric=args.metric, margin=args.margin, watch=display.of(0))
    code = FRESH_CODES[found.outcome]
    if args.json:
        print_json(
            {
                "release": str(got.release.reference),
                "run_id": found.run_id,
                "outcome": found.outcome,
                "verdict": found.verdict,
                "margin": args.margin,
                "compared": asdict(found.compared),
                "notes": list(found.comparison.notes),
                "exit_code": int(code),
            }
        )
        return code
    heading(f"{got.release.reference}, played anew as {found.run_id}: {args.metric} {found.verdict}")
    if not args.quiet:
        for line in _next(args, found):
            say(line)
    return code


def _next(args: argparse.Namespace, found: FreshPlay) -> Sequence[str]:
    """The commands that show more."""
    where = "".join(f" {shlex.quote(word)}" for word in results_option(args.results))
    folder = shlex.quote(str(found.fetched.folder))
    lines = [f"compare: nip-run compare {folder} {found.run_id}{where}"]
    if found.outcome == "drifted":
        lines += [
            f"{flip.datapoint}: nip-run show {folder} {flip.base_rollout} {found.run_id} {flip.other_rollout}{where}"
            for flip in found.compared.flips[:5]
        ]
    return lines
