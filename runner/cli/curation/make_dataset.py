"""Make a dataset of right and wrong programs: a model writes them, tests in a sandbox label them.

Examples:
  nip-run make-dataset recipe.yaml -o bugs
  nip-run make-dataset recipe.yaml -o bugs dataset.limit=10 budget.usd=1
  nip-run check recipe.yaml
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.exit_codes import ExitCode
from runner.base.text import counted, dollars
from runner.cli.arguments import SANDBOX_HELP, add_trust_options, folder_path
from runner.cli.experiments.question_page import add_page_options
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import note, print_json, print_table, say
from runner.results.default_folder import RESULTS_VARIABLE

if TYPE_CHECKING:
    from runner.runs.finished.result import FinishedRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "spec_arguments",
        nargs="+",
        metavar="RECIPE|KEY=VALUE",
        help="a recipe, and overrides of its keys, such as model.temperature=1 or budget.usd=5",
    )
    add(
        "-o",
        "--out",
        type=folder_path,
        dest="folder",
        metavar="FOLDER",
        help="the folder of the dataset; default: the recipe's name. Repeat the command with the same folder to resume",
    )
    add("--command", type=shlex.split, default=[], dest="container_command", metavar="COMMAND", help=SANDBOX_HELP)
    add_trust_options(parser)
    add("--again", action="store_true", help="ask the model again in a new run")
    add_page_options(parser)
    parser.set_defaults(
        command="make-dataset", shard=None, replay=None, until_round=None, set_model=[], run_id=None, verdict="last"
    )


def execute(args: argparse.Namespace) -> int:
    from runner.cli.experiments.run import RunCommand
    from runner.cli.specs import SpecPoint, load_recipe_of
    from runner.curation.generation.generation_run import GENERATION
    from runner.curation.generation.maker import start_dataset
    from runner.curation.sandbox.probe import choose_mechanism
    from runner.registry.components.lookup import make_finder
    from runner.results.leaderboard.results_folder import Results
    from runner.results.manifest import Status

    path, recipe = load_recipe_of(args.spec_arguments)
    folder: Path = args.folder or Path(recipe.file.name)
    if args.folder is not None:
        args.spec_arguments += ["-o", str(folder)]  # for messages that say how to resume
    if not args.has_results_option and not os.environ.get(RESULTS_VARIABLE):
        args.results = Results(folder / GENERATION / "results")  # so that a repeated command finds it from anywhere
    load_scipy_with_one_thread()
    report = (lambda _: None) if args.quiet else note
    report("checking the sandboxes of this machine")
    mechanism = choose_mechanism(args.container_command)
    finished: list[FinishedRun] = []
    with start_dataset(recipe, folder, mechanism, report) as maker:
        point = SpecPoint(path, maker.plan(make_finder()))
        code = RunCommand(args, [point], lambda _, result: finished.append(result), shows_warnings=False).execute()
        if not finished or finished[0].manifest.status != Status.DONE:
            return code
        counts = maker.finish(finished[0].folder, finished[0].manifest)
    if args.json:
        print_json(counts)
    else:
        _show(counts, folder)
    if not counts["rows"]:
        note(f"no program can be used; see {folder / 'rejected.jsonl'} for the reasons")
        return ExitCode.FAILED
    return code


def _show(counts: dict[str, Any], folder: Path) -> None:
    by_label = counts["rows_by_label"]
    say(
        f"{folder}: {counted(counts['rows'], 'program')} for {counts['problems_used']} of "
        f"{counted(counts['problems'], 'problem')}, {by_label['1']} right and {by_label['0']} wrong"
    )
    if counts["cost_usd"] is not None:
        per_row = (
            "" if counts["cost_usd_per_row"] is None else f", {dollars(counts['cost_usd_per_row'])} for each program"
        )
        say(f"cost {dollars(counts['cost_usd'])}{per_row}")
    rows = [("problem", reason, str(count)) for reason, count in counts["problems_not_used"].items()]
    for task, reasons in counts["programs_rejected"].items():
        total = counts["programs_written"].get(task, 0)
        rows += [(task, reason, f"{count} of {total}") for reason, count in reasons.items()]
    if rows:
        print_table(("not used", "reason", "number"), rows)
