"""Find every error in specs, and show their schedule, calls and cost.

Examples:
  nip-run check spec.yaml
  nip-run check spec.yaml --shard 3/8
  nip-run check specs/*.yaml rollouts.per_datapoint=3
  nip-run check spec.yaml --live
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base import package_data
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted, dollar_range, dollars, in_one_line
from runner.cli.arguments import add_shard_option, add_spec_arguments, add_trust_options
from runner.cli.experiments.question_page import describe_people
from runner.cli.terminal.output import print_json, print_table, say, say_lines
from runner.documents.fetched_files import describe_origin
from runner.results.sweep_points import format_point

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.game.protocols.protocol import Protocol
    from runner.results.leaderboard.results_folder import Results
    from runner.rollouts.estimate import CostEstimate
    from runner.rollouts.plan import Plan
    from runner.runs.tournaments.plan import TournamentPlan
    from runner.spec.datasets.loader import Datapoint
    from runner.spec.experiment import Experiment
    from runner.spec.loader import Spec
    from runner.training.plan import AnyPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    add_shard_option(parser, "show shard K of N: its games, calls, and share of each limit")
    parser.add_argument(
        "--live",
        action="store_true",
        help="also print the price of a request to the server of each model group, send it, and print what the server "
        "supports",
    )
    add_trust_options(parser)


def execute(args: argparse.Namespace) -> int:
    from runner.cli.experiments.shards import check_shard, resolve_shard_folders, restrict_to_shard
    from runner.cli.specs import keep_chat_formats, load_points, show_warnings
    from runner.cli.terminal.schedule import show_schedule
    from runner.spec.warnings.catalog import check_warnings_of

    if _is_recipe(Path(args.spec_arguments[0])):
        return _check_recipe(args.spec_arguments, as_json=args.json)
    results: Results = args.results
    arguments = resolve_shard_folders(args.spec_arguments, results, args.shard)
    points = restrict_to_shard(load_points(arguments, results.path_of, quiet=args.quiet), args.shard)
    points = keep_chat_formats(points, results)
    check_shard(points, args.shard)
    for point in points:
        if point.plan.games.spec.experiment.until is not None:
            from runner.runs.execution.baseline_run import load_baseline

            load_baseline(point.plan.games, results, point.plan.run_id)
    if args.json:
        documents = [_as_json(point) for point in points]
        reports, code = _check_servers(args, points, results)
        print_json([document | ({"live": reports} if args.live else {}) for document in documents])
        return code
    # Estimates come first, since they render every template, which may raise errors.
    estimates_of_points = [_estimate_costs(point.plan.list_game_plans()) for point in points]
    show_warnings(points, check_warnings_of)
    shown_protocol: Protocol | None = None
    for point, estimates in zip(points, estimates_of_points, strict=True):
        spec = point.spec
        _show_run(point)
        if spec.protocol != shown_protocol:
            show_schedule(spec.protocol, both_stances=spec.experiment.stances is not None)
            shown_protocol = spec.protocol
        _show_estimates(spec.experiment, estimates)
        if (people := describe_people(point.plan.list_game_plans())) is not None:
            say(people)
    return _check_servers(args, points, results)[1]


def _is_recipe(path: Path) -> bool:
    """Return whether a file is a recipe and not a spec: it has tests, and no protocol."""
    from runner.documents.yaml_reader import read_yaml

    file_path = package_data.find_file(str(path), Path())
    if path.suffix not in (".yaml", ".yml") or file_path is None or not package_data.is_file(file_path):
        return False
    keys = read_yaml(file_path).data.keys()
    return "tests" in keys and "protocol" not in keys


def _check_recipe(arguments: list[str], *, as_json: bool) -> int:
    """Print the problems, calls and cost of a recipe, or its errors. No program is run, and no model is asked."""
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from runner.cli.specs import load_recipe_of
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
    facts: dict[str, object] = {
        "recipe": path, "problems": problem_count, "unusable_rows": dict(rows.unusable), "tests": tests,
        "models": [asdict(estimate) for estimate in estimates],
    }  # fmt: skip
    if as_json:
        print_json([facts])
        return ExitCode.DONE
    dataset = f"{recipe.file.make} of {counted(problem_count, 'problem')} with {counted(tests, 'test')}"
    say(f"{path}: no errors. It makes {dataset}.")
    say_lines(f"not used: {id_}: {reason}" for id_, reason in rows.unusable.items())
    _show_estimates(plan.spec.experiment, estimates)
    say("Problems whose given solutions fail are left out, so that the calls about them are not made.")
    return ExitCode.DONE


def _show_estimates(experiment: Experiment, estimates: Sequence[CostEstimate]) -> None:
    from runner.rollouts.estimate import max_calls

    columns = ("model group", "model", "calls", "prompt tokens", "answer tokens", "cost")
    title = "estimate: from the shortest games to the longest, without retries; tokens are rough"
    if experiment.tournament is not None and experiment.tournament.pairing != "round_robin":
        title = f"at most, for the pairings that cost most, since results choose the pairings; {title}"
    if experiment.until is not None:
        title = f"at most, since `until` may stop it sooner; {title}"
    print_table(columns, [_estimate_row(estimate) for estimate in estimates], title=title)
    most = max_calls(estimates, experiment)
    say(f"at most {most:,} calls, if each answer is unusable until its last attempt")
    for warning in _budget_warnings(experiment, estimates):
        say(f"warning: {warning}", "33")


def _budget_warnings(experiment: Experiment, estimates: Sequence[CostEstimate]) -> Iterator[str]:
    """Yield a warning if the lowest estimate of the cost exceeds the budget."""
    budget = experiment.budget.usd
    lowest = sum(estimate.cost_usd[0] for estimate in estimates if estimate.cost_usd is not None)
    if budget is not None and lowest > budget:
        yield (
            f"even the shortest games cost about {dollars(lowest)}, more than budget.usd ({budget:g}), so the run "
            "will stop early; raise budget.usd, or lower dataset.limit"
        )


def _check_servers(
    args: argparse.Namespace, points: Sequence[SpecPoint], results: Results
) -> tuple[list[dict[str, object]], ExitCode]:
    """Return reports on the servers and an exit code; without `--live`, check nothing and return no reports."""
    if not args.live:
        return [], ExitCode.DONE
    from runner.cli.experiments.live_check import check_servers
    from runner.models.api_keys import all_allowed

    allowed = all_allowed(args.allow_key, args.allow_command, args.allow_host)
    return check_servers(points, results, allowed, as_json=args.json)


def _show_run(point: SpecPoint) -> None:
    """Print the games and datapoints of a run, the processes that play them, and the keys that it sends to servers."""
    from runner.cli.experiments.shards import shard_lines
    from runner.training.plan import TrainingPlan

    spec, first_plan = point.spec, point.plan.list_game_plans()[0]
    is_tournament = spec.experiment.tournament is not None
    is_test_rerun = isinstance(point.plan, TrainingPlan) and point.plan.training.rerun_tests is not None
    has_other_points = is_test_rerun or is_tournament
    datapoints = first_plan.spec.dataset.datapoints if has_other_points else point.plan.games.points
    say(f"{point.path}: no errors. {_describe_run(point.plan, first_plan)}")
    if spec.point:
        say(f"with {format_point(spec.point)}")
    labels = _describe_labels(spec, datapoints)
    say(f"on {counted(len(datapoints), 'datapoint')} ({labels}).")
    blocks = [] if is_tournament else _describe_blocks(first_plan)
    lines = (*shard_lines(first_plan), *_describe_workers(spec), *blocks)
    say_lines((*lines, *_describe_key_uses(point.plan), *point.notes))


def _describe_labels(spec: Spec, datapoints: Sequence[Datapoint]) -> str:
    """Return the number of right solutions, the numbers of answers if they are listed, or what labels answers."""
    dataset, checker = spec.dataset, spec.experiment.dataset.checker
    if checker is not None:
        return f"answers are labeled by {checker.describe()}"
    counts = sorted({point.answer_count for point in datapoints if point.answer_count is not None})
    if counts:
        numbers = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"{numbers} answers each{'' if dataset.is_labelled else ', the right ones are not known'}"
    return f"{sum(p.label == 1 for p in datapoints)} with label 1" if dataset.is_labelled else "no labels"


def _describe_workers(spec: Spec) -> list[str]:
    """Return a sentence about the worker processes, or an empty list if the command's own process plays the games."""
    execution = spec.experiment.execution
    if not execution.by_workers:
        return []
    if execution.engine == "processes":
        from runner.runs.execution.process import available_cores

        cores = available_cores()
        core_count = "" if execution.processes <= cores else f", which has {counted(cores, 'core')}"
        return [f"Played by {execution.processes} worker processes of this machine{core_count}."]
    cluster = "" if execution.address is None else f" at {in_one_line(execution.address)}"
    return [f"Played by {counted(execution.count, 'worker')} of the Ray cluster{cluster}."]


def _describe_blocks(plan: Plan) -> list[str]:
    """Return a sentence about the games that form a block, or an empty list without `stances` and `seats`."""
    count = len(plan.variants)
    if count == 1:
        return []
    variants = []
    if plan.spec.experiment.stances is not None:
        exchange = "as written and with the provers' stances exchanged"
        variants = [exchange if plan.spec.protocol.exchanges_stances else "with both stances"]
    if plan.seats is not None:
        first, second = plan.seats
        variants.append(f"as written and with the players of {first} and {second} exchanged")
    block = f"Each datapoint is played {', '.join(variants)}: {count} games form one block"
    return [f"{block} ({counted(plan.block_count, 'block')})."]


def _describe_key_uses(plan: AnyPlan) -> list[str]:
    """Return lines about the servers and API keys of a run, and about the options that a downloaded spec needs."""
    from runner.models.api_keys import NO_KEY, allow_options
    from runner.training.key_usage import key_uses_of, required_permissions
    from runner.training.trust import missing_addresses

    uses = key_uses_of(plan)
    lines = [
        f"{group} uses {counted(len(addresses), 'server')}: {comma_join(map(in_one_line, addresses))}"
        for group, addresses in _server_urls(plan).items()
        if len(addresses) > 1
    ]
    lines += [f"sends {comma_join(map(str, uses))}"] if uses else []
    lines += [f"set {key}: addresses are never published" for key in missing_addresses(plan)]
    if plan.spec.fetched is None or not (needed := required_permissions(plan)):
        return lines
    lines += [f"sends {use}" for use in needed if use.variable == NO_KEY]
    for use in uses:
        if use.command is not None:
            lines += [f"runs {in_one_line(use.command)}", *(f"  {line}" for line in use.files or ())]
    origin = describe_origin(plan.spec.path, plan.spec.fetched)
    return [*lines, f"The spec {origin}, so a run needs these options: {' '.join(allow_options(needed))}"]


def _server_urls(plan: AnyPlan) -> dict[str, list[str]]:
    """Return the server URLs of each model group that calls remote servers."""
    from runner.rollouts.plan import used_models

    return {
        group: settings.server_urls for group, settings in used_models(plan.games).items() if settings.traits.remote
    }


def _describe_run(plan: AnyPlan, first_plan: Plan) -> str:
    """Return one or two sentences about the games and the training of a run.

    `first_plan` is the plan of the run's first games. In a benchmark, it is the same as `plan`.
    """
    from runner.runs.tournaments.plan import TournamentPlan
    from runner.spec.checks.trees import tree_calls
    from runner.training.plan import TrainingPlan

    protocol, shape, size = first_plan.spec.protocol, first_plan.tree_shape, first_plan.size
    limit = "" if plan.spec.experiment.until is None else "at most "
    games = f"{counted(size, 'rollout')} of {protocol.name}"
    if first_plan.debates is not None:
        games = f"{limit}{counted(size, 'debate')} of {first_plan.debates.run_id}"
        return f"Run {plan.run_id} has {protocol.verifier_name} judge {games}, and asks no other agent"
    if shape is not None:
        games = (
            f"{counted(size, 'tree')} of {protocol.name}, {shape.responses} answers to each step: exponential in their "
            f"{counted(shape.rounds, 'round')}, at most {tree_calls(protocol, shape.responses) * size:,} calls"
        )
    if isinstance(plan, TournamentPlan):
        return _describe_tournament(plan)
    if not isinstance(plan, TrainingPlan):
        return f"Run {plan.run_id} plays {limit}{games}"
    rerun = plan.training.rerun_tests
    if rerun is not None:
        tests = f"Each of {len(rerun.models) + 1} tests plays {games}"
        return f"Run {plan.run_id} tests the models of {rerun.run} again, of all its iterations.\n{tests}"
    groups = "; ".join(f"{group} on the games of {comma_join(agents)}" for group, agents in plan.trained_groups.items())
    iterations, method = plan.training.iterations, plan.training.method
    return f"Run {plan.run_id} trains by {method}: {groups}.\nEach of {iterations} iterations plays {games}"


def _describe_tournament(plan: TournamentPlan) -> str:
    """Return sentences about the players, the pairings and the games of a tournament."""
    games = sum(leg.size for leg in plan.list_game_plans())
    pairing = plan.tournament.pairing.replace("_", " ")
    return (
        f"Run {plan.run_id} is a tournament ({pairing}) of {comma_join(plan.players)}, judged by "
        f"{comma_join(plan.judges)}.\nAbout each datapoint, a pairing plays {plan.games_per_datapoint} games: each "
        f"player argues each side in each seat.\n{counted(len(plan.pairings), 'pairing')} play at most "
        f"{counted(games, 'game')} of {plan.spec.protocol.name}"
    )


def _estimate_costs(games: Sequence[Plan]) -> list[CostEstimate]:
    from runner.rollouts.estimate import estimate_costs, sum_by_group

    return sum_by_group(estimate for plan in games for estimate in estimate_costs(plan))


def _estimate_row(estimate: CostEstimate) -> tuple[str, ...]:
    low_high = [
        f"{low:,} to {high:,}" for low, high in (estimate.calls, estimate.prompt_tokens, estimate.completion_tokens)
    ]
    return (estimate.group, estimate.model, *low_high, dollar_range(estimate.cost_usd))


def _as_json(point: SpecPoint) -> dict[str, object]:
    from dataclasses import asdict

    from runner.cli.experiments.shards import shard_as_json
    from runner.cli.terminal.schedule import schedule_as_json
    from runner.rollouts.estimate import max_calls
    from runner.spec.warnings.catalog import check_warnings_of
    from runner.training.key_usage import key_uses_of

    plan, spec = point.plan, point.spec
    games = plan.list_game_plans()
    estimates = _estimate_costs(games)
    return {
        "spec": point.path,
        "run_id": plan.run_id,
        "kind": spec.experiment.kind,
        "point": dict(spec.point),
        "identity": plan.identity,
        "rollouts": sum(game_plan.size for game_plan in games) if plan.games.tree_shape is None else None,
        "may_stop_sooner": spec.experiment.until is not None,
        "datapoints": len(plan.games.points),
        "shard": shard_as_json(plan.games),
        "protocol": spec.protocol.name,
        "labels": _describe_labels(spec, plan.games.points),
        "plays_per_block": len(plan.games.variants),
        "schedule": schedule_as_json(spec.protocol, both_stances=spec.experiment.stances is not None),
        "keys": [
            {name: value for name, value in asdict(use).items() if value is not None} for use in key_uses_of(plan)
        ],
        "servers": _server_urls(plan),
        "models": [asdict(estimate) for estimate in estimates],
        "max_calls": max_calls(estimates, spec.experiment),
        "people": describe_people(games),
        "notes": list(point.notes),
        "warnings": [*check_warnings_of(spec), *_budget_warnings(spec.experiment, estimates)],
    }
