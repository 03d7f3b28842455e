"""`nip-run show`: one run's summary, or one rollout's transcript."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import Any

from runner.cli.learning_curve import show_training
from runner.cli.output import note, print_json, print_table, say, with_interval
from runner.errors import RunError, UsageError
from runner.exit_codes import ExitCode
from runner.protocols.protocol import Decision, stance_word
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest, Status
from runner.results.results import Results
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Rollout
from runner.runs.reconstruct import Reconstructor, saved_plan
from runner.storage.atomic import read_json
from runner.storage.log_lines import NOT_BOUND, is_bound_to_run
from runner.text import comma_join, in_one_line


def execute(args: argparse.Namespace) -> int:
    folder = Results(args.results).find(args.run)
    if args.rollout is None:
        return _show_run(folder, as_json=args.json)
    if folder.manifest().is_training_run:
        part, rollout = _rollout_of_part(folder, args.rollout)
        if not args.quiet:
            note(f"of run {part.run_id}")
    else:
        rollout = _rollout(folder, saved_plan(folder), args.rollout)
    if args.json:
        print_json(_as_json(rollout))
    else:
        _print_transcript(rollout)
    return ExitCode.DONE


def _show_run(folder: RunFolder, *, as_json: bool) -> int:
    manifest = folder.manifest()
    training = manifest.is_training_run
    metrics = _metrics(folder, manifest)
    if as_json:
        print_json({"manifest": manifest.to_json(), "metrics": metrics})
        return ExitCode.DONE
    shown = {**manifest.to_json(), **(metrics["games"] if training and metrics is not None else {})}
    for name in ("run_id", "status", "benchmark", "protocol", "seed", "rollouts", "completions", "cost_usd", "version",
                 "git_commit", "git_dirty", "started_at", "finished_at", "spec_sha256", "dataset_sha256"):  # fmt: skip
        say(f"{name:<15} {in_one_line(str(shown.get(name, '-')))}")
    if not is_bound_to_run(folder.stage_log if training else folder.journal):
        say(f"{'journal':<15} {NOT_BOUND}")
    if metrics is None:
        note("no results yet; run the same command again to go on")
        return ExitCode.DONE
    if training:
        show_training(metrics)
        return ExitCode.DONE
    rows = [
        (m["agent"] or "game", m["metric"], with_interval(m["value"], m["ci_low"], m["ci_high"]), m["n"], m["clusters"])
        for m in metrics["metrics"]
    ]
    print_table(("of", "metric", "value [95% interval]", "n", "clusters"), rows)
    say("outcomes: " + ", ".join(f"{name} {count}" for name, count in metrics["outcomes"].items()))
    return ExitCode.DONE


def _metrics(folder: RunFolder, manifest: Manifest) -> dict[str, Any] | None:
    """What a run has come to, an unfinished training run so far; None where there is nothing to tell."""
    if not manifest.is_training_run or manifest.status == Status.DONE:
        return read_json(folder.metrics) if folder.metrics.is_file() else None
    from runner.training.report import progress

    return progress(folder)


def _rollout_of_part(folder: RunFolder, wanted: str) -> tuple[RunFolder, Rollout]:
    """The first such rollout of a training run, in the order of its iterations, and the run that it is of."""
    parts = Results.of(folder).parts_of(folder.run_id)
    for part in parts:
        with suppress(UsageError):
            return part, _rollout(part, saved_plan(part), wanted)
    raise UsageError(
        f"no rollout {wanted!r} in training run {folder.run_id}; its games are those of runs "
        f"{comma_join(part.run_id for part in parts) or 'that are still to come'}"
    )


def _rollout(folder: RunFolder, plan: Plan, wanted: str) -> Rollout:
    """The first rollout of that id or datapoint; of a tree, whose branches are known only once it is played again."""

    def meant(job: Job) -> bool:
        return job.rollout_id.startswith(wanted) or job.datapoint.id == wanted

    jobs = [job for job in plan.jobs() if plan.shape is not None or meant(job)]
    reconstructor = Reconstructor(folder, plan)
    try:
        for job in jobs:
            for rollout in reconstructor.of_job(job):
                if meant(rollout.job):
                    return rollout
    finally:
        reconstructor.close()
    if jobs and plan.shape is None:
        raise RunError(f"rollout {jobs[0].rollout_id} is not finished; run the same command again to go on")
    first = next(plan.jobs())
    raise UsageError(
        f"run {folder.run_id} has no rollout {wanted!r}; its first is {first.rollout_id} ({first.datapoint.id})"
    )


def _as_json(rollout: Rollout) -> dict[str, Any]:
    job = rollout.job
    return {
        "rollout_id": job.rollout_id,
        "datapoint": {"id": job.datapoint.id, "label": job.datapoint.label, **job.datapoint.columns},
        "repeat": job.repeat,
        "outcome": rollout.outcome,
        "decision": int(rollout.decision),
        "correct": rollout.correct,
        "rewards": dict(rollout.rewards),
        "error": rollout.error,
        "transcript": [
            {
                "round": index,
                "raw": dict(played.raw),
                "messages": [{"channel": m.channel, "agent": m.agent, "content": m.text} for m in played.messages],
                "decision": int(played.decision),
                "rewards": dict(played.rewards),
            }
            for index, played in enumerate(rollout.rounds)
        ],
    }


def _print_transcript(rollout: Rollout) -> None:
    job = rollout.job
    say(f"rollout {job.rollout_id}  datapoint {in_one_line(job.datapoint.id)}  repeat {job.repeat}")
    for name, value in job.datapoint.columns.items():
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        say(
            f"\n{in_one_line(name)}:\n{_indented(text)}"
            if "\n" in text or len(text) > 80
            else f"{in_one_line(name)}: {text}"
        )
    for index, played in enumerate(rollout.rounds):
        for agent, raw in played.raw.items():
            channels = ", ".join(m.channel for m in played.messages if m.agent == agent) or "decision"
            say(f"\n[round {index}] {agent} ({channels})\n{_indented(raw)}")
    verdict = "none" if rollout.decision == Decision.NONE else stance_word(rollout.decision)
    say(f"\noutcome: {rollout.outcome}, verdict: {verdict}, label: {stance_word(job.datapoint.label)}")
    say("rewards: " + ", ".join(f"{agent} {reward:g}" for agent, reward in rollout.rewards.items()))
    if rollout.error:
        say(f"error: {rollout.error}")


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))
