"""Show the exact messages that an agent's model would get.

Examples:
  nip-run render spec.yaml verifier
  nip-run render spec.yaml prover --round 1 --datapoint ID
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, did_you_mean
from runner.cli.terminal.output import note, print_json, say
from runner.cli.terminal.sent_prompts import print_request

if TYPE_CHECKING:
    from runner.results.leaderboard.results_folder import Results
    from runner.rollouts.job import Job
    from runner.rollouts.plan import Plan
    from runner.spec.loader import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "spec_arguments",
        nargs="+",
        metavar="SPEC AGENT [KEY=VALUE...]",
        help="a spec, one of its agents, and overrides",
    )
    add("--datapoint", metavar="ID", help="the datapoint; default: the first")
    add(
        "--round",
        type=int,
        metavar="N",
        help="the round, from 0; default: the agent's first; messages of earlier rounds are random answers",
    )
    add(
        "--stance",
        choices=("accept", "reject", "correct", "incorrect"),
        help="with `stances: both`: the game whose provers argue for this; if stances are opposite, the first prover's",
    )
    add("--swapped", action="store_true", help="with `seats: swap`: the game with exchanged players")


def execute(args: argparse.Namespace) -> int:
    from runner.models.request_body import request_body
    from runner.rollouts.round_prompts import undecided_rounds
    from runner.rollouts.template_check import check_templates

    plan, agent_name = _load_plan(args)
    spec = plan.spec
    check_templates(plan)
    job = _find_job(plan, args.datapoint, args.stance, swapped=args.swapped)
    agents = plan.agents(swapped=job.swapped)
    if plan.debates is None:
        round_ = _choose_round(spec, agent_name, args.round, job)
        rounds = asyncio.run(undecided_rounds(spec.protocol, agents, job, round_))
    else:
        round_, rounds = _choose_judged_round(plan, agent_name, args.round, job), plan.debate(job).rounds
    agent = agents[agent_name]
    observation = job.observation(round_, rounds[:round_])
    schema = agent.answer_schema(round_, observation.answer_count)
    body = json.loads(request_body(agent.model_settings, agent.prompt(observation), schema))
    if args.json:
        print_json(body)
        return ExitCode.DONE
    say(f"chat_format: {json.dumps(agent.model_settings.resolved_chat_format)}")
    if round_ and plan.debates is None and not args.quiet:
        earlier_rounds = "round 0 contains" if round_ == 1 else f"rounds 0 to {round_ - 1} contain"
        note(f"{earlier_rounds} random answers of the provider dummy")
    print_request(body, gap="\n")
    return ExitCode.DONE


def _load_plan(args: argparse.Namespace) -> tuple[Plan, str]:
    """Return the plan of the games of the requested spec, and the name of the requested agent.

    Raises:
        UsageError: the arguments are not one spec and one of its agents.
    """
    from runner.cli.specs import note_renamed, split_arguments
    from runner.registry.components.lookup import make_finder_for
    from runner.runs.session.original_settings import with_original_settings
    from runner.spec.loader import load_specs
    from runner.training.plan import plan_of

    names, overrides = split_arguments(args.spec_arguments)
    if len(names) != 2:
        raise UsageError(f"render needs one spec and one agent: nip-run render SPEC AGENT (found {comma_join(names)})")
    path, agent_name = names
    results: Results = args.results
    spec = load_specs(path, overrides, results.path_of, make_finder_for(path))[0]
    note_renamed([spec], quiet=args.quiet)
    agent_names = spec.protocol.agent_names
    if agent_name not in agent_names:
        hint = did_you_mean(agent_name, agent_names) or f"; choose one of {comma_join(agent_names)}"
        raise UsageError(f"{spec.protocol.name} has no agent {agent_name!r}{hint}")
    plan, chat_format_note = with_original_settings(plan_of(spec), results)
    if chat_format_note is not None and not args.quiet:
        note(f"note: {chat_format_note}")
    return plan.games, agent_name


def _find_job(plan: Plan, datapoint: str | None, stance: str | None, *, swapped: bool) -> Job:
    """Return the first game of the datapoint with the requested stance, and with or without swapped players."""
    from runner.game.protocols.ballot import CORRECT
    from runner.game.protocols.protocol import ACCEPT

    right = CORRECT if plan.spec.protocol.lists_answers else ACCEPT
    possible = ("correct", "incorrect") if plan.spec.protocol.lists_answers else ("accept", "reject")
    if stance not in (None, *possible):
        raise UsageError(f"--stance {stance} has no meaning in {plan.spec.protocol.name}; use {' or '.join(possible)}")
    if stance is not None and plan.spec.experiment.stances is None:
        raise UsageError("--stance needs a spec with `stances: both`; omit --stance")
    if swapped and plan.seats is None:
        raise UsageError("--swapped needs a spec with `seats: swap`; omit --swapped")
    for job in plan.jobs():
        matches = (stance is None or job.stance == int(stance == right)) and bool(job.swapped) == swapped
        if matches and (datapoint is None or job.datapoint.id == datapoint):
            return job
    datapoint_ids = [point.id for point in plan.spec.dataset.datapoints]
    hint = did_you_mean(str(datapoint), datapoint_ids) or f"; the first is {datapoint_ids[0]!r}"
    raise UsageError(f"no datapoint {datapoint!r}{hint}")


def _choose_judged_round(plan: Plan, agent: str, requested: int | None, job: Job) -> int:
    """Return the requested round, or by default the last round in which the judge of recorded debates is called."""
    from runner.rollouts.judging import judged_rounds

    judge, rounds = plan.spec.protocol.verifier_name, judged_rounds(plan, job)
    if agent != judge:
        raise UsageError(
            f"only {judge} is called, since the debates are already played; use nip-run show to see the prompts of "
            f"{agent} in the judged run"
        )
    if requested is not None and requested not in rounds:
        raise UsageError(
            f"--round {requested}: {judge} is called only in rounds {comma_join(map(str, rounds))} of this debate"
        )
    return rounds[-1] if requested is None else requested


def _choose_round(spec: Spec, agent: str, requested: int | None, job: Job) -> int:
    protocol = spec.protocol
    rounds = [i for i in range(protocol.max_message_rounds) if agent in protocol.speakers(i, job.seed)]
    if not rounds:
        raise UsageError(f"{agent} does not speak in this rollout of {protocol.name}; try another --datapoint")
    if requested is None:
        return rounds[0]
    if requested not in rounds:
        raise UsageError(f"--round {requested}: {agent} speaks only in rounds {comma_join(map(str, rounds))} here")
    return requested
