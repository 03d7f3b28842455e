"""Make a dataset of right and wrong programs: a model writes them, tests in a sandbox label them.

Examples:
  nip-run make-dataset recipe.yaml -o bugs
  nip-run make-dataset recipe.yaml -o bugs dataset.limit=10 budget.usd=1
  nip-run check recipe.yaml
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import counted, dollars
from runner.cli.arguments import add_trust_options, folder_path
from runner.cli.curation.sandbox import COMMAND_HELP
from runner.cli.experiments.question_page import add_page_options
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.curation.generation.recipe import Recipe
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
        type=folder_path,
        dest="folder",
        metavar="FOLDER",
        help="the folder of the dataset; default: the recipe's name. Repeat the command with the same folder to resume",
    )
    add("--command", type=shlex.split, default=[], dest="container_command", metavar="COMMAND", help=COMMAND_HELP)
    add_trust_options(parser)
    add("--again", action="store_true", help="ask the model again in a new run")
    add_page_options(parser)
    parser.set_defaults(
        command="make-dataset", shard=None, replay=None, until_round=None, set_model=[], run_id=None, verdict="last"
    )


def execute(args: argparse.Namespace) -> int:
    from runner.cli.experiments.run import play
    from runner.cli.specs import SpecPoint
    from runner.curation.generation.maker import start_dataset
    from runner.curation.sandbox.probe import choose_mechanism
    from runner.registry.components.lookup import make_finder
    from runner.results.manifest import Status

    path, recipe = load_recipe_of(args.spec_arguments)
    folder: Path = args.folder or Path(recipe.file.name)
    if args.folder is not None:
        args.spec_arguments += ["-o", str(folder)]  # for messages that say how to resume
    load_scipy_with_one_thread()
    report = (lambda _: None) if args.quiet else note
    report("checking the sandboxes of this machine")
    mechanism = choose_mechanism(args.container_command)
    finished: list[FinishedRun] = []
    with start_dataset(recipe, folder, mechanism, report) as maker:
        point = SpecPoint(path, maker.plan(make_finder()))
        code = play(args, [point], lambda _, result: finished.append(result), shows_warnings=False)
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


def load_recipe_of(arguments: list[str]) -> tuple[str, Recipe]:
    """Return the recipe among arguments, with its path, after applying the overrides.

    Raises:
        UsageError: the arguments have no recipe, or several.
        SpecError: the recipe has errors.
    """
    from runner.cli.specs import split_arguments
    from runner.curation.generation.recipe import load_recipe

    names, overrides = split_arguments(arguments, kind="recipe", hint="put a recipe before them")
    if len(names) > 1:
        raise UsageError(f"one recipe at a time: {names[1]} is a second one; repeat the command for it")
    return names[0], load_recipe(Path(names[0]), overrides)


def check_recipe(arguments: list[str], *, as_json: bool) -> int:
    """Print the problems, calls and cost of a recipe, or its errors. No program is run, and no model is asked."""
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from runner.cli.experiments.check import show_estimates
    from runner.curation.generation.coding_problems import read_problems
    from runner.curation.generation.generation_run import plan_generation
    from runner.curation.generation.screening import VerifiedProblem
    from runner.registry.components.lookup import make_finder
    from runner.rollouts.estimate import estimate_costs

    path, recipe = load_recipe_of(arguments)
    rows = read_problems(recipe)
    verified = [VerifiedProblem(problem, problem.solutions) for problem in rows.problems]
    with TemporaryDirectory() as folder:
        plan = plan_generation(recipe, verified, Path(folder), make_finder())
        estimates = list(estimate_costs(plan))
    tests, problem_count = sum(len(problem.tests) for problem in rows.problems), len(rows.problems)
    facts: dict[str, Any] = {
        "recipe": path, "problems": problem_count, "unusable_rows": dict(rows.unusable), "tests": tests,
        "models": [asdict(estimate) for estimate in estimates],
    }  # fmt: skip
    if as_json:
        print_json([facts])
        return ExitCode.DONE
    what = f"{recipe.file.make} of {counted(problem_count, 'problem')} with {counted(tests, 'test')}"
    say(f"{path}: no errors. It makes {what}.")
    for id_, reason in rows.unusable.items():
        say(f"not used: {id_}: {reason}")
    show_estimates(plan.spec.experiment, estimates)
    say("Problems whose given solutions fail are left out, so that the calls about them are not made.")
    return ExitCode.DONE


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
