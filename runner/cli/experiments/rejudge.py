"""Let another judge decide the debates of a run. nip-run calls only the judge's model.

Examples:
  nip-run rejudge RUN '+models.judge={model: gpt-6-sol}' agents.verifier.model=judge
  nip-run rejudge last votes=5 --verdict each
  nip-run rejudge RUN 'sweep={prompts: [terse, careful], votes: [1, 5]}'
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.base.text import counted, dollar_range
from runner.cli.arguments import RUN_HELP, add_trust_options
from runner.cli.experiments.question_page import add_page_options
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import note

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "spec_arguments",
        nargs="+",
        metavar="RUN|KEY=VALUE",
        help=f"runs ({RUN_HELP}; or a folder), then overrides of the judge: its model, templates (prompts=FOLDER), "
        "decision_format, votes, and a sweep over any of them",
    )
    add(
        "--verdict",
        choices=("last", "each"),
        default="last",
        help="last: judge at the turn where the first judge decided or, if it never decided, at its last turn; each: "
        "judge at this turn and at each earlier turn where the judge may decide; default: last",
    )
    add_trust_options(parser)
    add("--again", action="store_true", help="judge again as a new run")
    add("--run-id", metavar="ID", help="the new run's id; default: derived from the first run")
    add_page_options(parser)
    parser.set_defaults(command="rejudge", shard=None, replay=None, until_round=None, set_model=[])


def execute(args: argparse.Namespace) -> int:
    from runner.cli.experiments.run import RunCommand, check_run_options
    from runner.cli.specs import split_arguments

    runs, overrides = split_arguments(args.spec_arguments, kind="run", hint="list the runs with `nip-run runs`")
    results: Results = args.results
    folders = [results.find(run) for run in runs]
    points = [point for folder in folders for point in rejudge_points(folder, overrides, args)]
    # Messages tell the user how to resume with the same arguments, but `last` names another run once this one started.
    names = [str(folder.path) if folder != results.run(folder.run_id) else folder.run_id for folder in folders]
    args.spec_arguments = [*names, *overrides]

    check_run_options(args, len(points))
    if not args.quiet:
        for point in points:
            note(_describe_judging(point))
    load_scipy_with_one_thread()
    return RunCommand(args, points).execute()


def rejudge_points(folder: RunFolder, overrides: Sequence[str], args: argparse.Namespace) -> list[SpecPoint]:
    from runner.cli.specs import SpecPoint, note_renamed
    from runner.registry.components.lookup import make_finder
    from runner.runs.planning.rejudging import plan_rejudging

    plans = plan_rejudging(folder, overrides, args.verdict, args.results.path_of, make_finder())
    note_renamed([plan.spec for plan in plans], quiet=args.quiet)
    return [SpecPoint(str(folder.path), plan) for plan in plans]


def _describe_judging(point: SpecPoint) -> str:
    """Return a line about the calls and the cost of the judge."""
    from runner.rollouts.estimate import estimate_costs

    plan = point.plan.games
    assert plan.debates is not None
    (estimate,) = estimate_costs(plan)
    judge = plan.spec.protocol.verifier_name
    votes = f", {plan.spec.experiment.votes} votes per verdict" if plan.spec.experiment.votes > 1 else ""
    return (
        f"{point.plan.run_id}: {counted(plan.size, 'debate')} of {plan.debates.run_id}, "
        f"{counted(estimate.calls[0], 'answer')} of {judge} ({estimate.model}){votes}; about "
        f"{estimate.prompt_tokens[0]:,} prompt tokens, cost {dollar_range(estimate.cost_usd)}; no other agent is called"
    )
