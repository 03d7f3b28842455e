"""`nip-run export`: fine-tune files from records that are paid for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.commands.common import print_json, print_table
from runner.datasets.files import OF_ROLLOUTS, DatasetFiles, FineTuneFiles, chosen_agents
from runner.datasets.formats import FORMATS, Format
from runner.datasets.preferences import preferences
from runner.errors import UsageError
from runner.plan import Plan
from runner.rederive import Rederiver, saved_plan
from runner.rundir import RunFolder, find_run
from runner.spec.experiment import FineTune
from runner.text import listed


def execute(args: argparse.Namespace) -> int:
    format_ = _format(args.format, args.method)
    if format_.method != "sft" and args.true_labels:
        raise UsageError(f"--true-labels is for sft; {format_.method} learns nothing but what was said")
    if format_.method == "dpo" and args.only_correct:
        raise UsageError("--only-correct is for whole games; dpo compares two answers")
    folder = find_run(args.results, args.run)
    plan = saved_plan(folder)
    settings = replace(
        plan.spec.experiment.fine_tune or FineTune(),
        agents=tuple(args.agent) if args.agent else None,
        formats=(args.format,),
        only_correct=args.only_correct,
        replace_verifier_guess_with_true_label=args.true_labels,
    )
    target = args.out or folder.fine_tune / f"export-{args.format}"
    export = _preferences if format_.method == "dpo" else _rollouts
    _show(target, export(folder, plan, settings, target), as_json=args.json)
    return 0


def _format(name: str, method: str | None) -> Format:
    """The format by its consumer and method; without a method, the one that whole games give.

    Raises:
        UsageError: this consumer has no such method.
    """
    if method is None:
        return OF_ROLLOUTS[name]
    if (name, method) not in FORMATS:
        raise UsageError(f"{name} has no {method}; it has {listed(m for n, m in FORMATS if n == name)}")
    return FORMATS[name, method]


def _rollouts(folder: RunFolder, plan: Plan, settings: FineTune, target: Path) -> list[dict[str, Any]]:
    files = FineTuneFiles(target, settings, plan.agents(), folder.run_id)
    rederiver = Rederiver(folder, plan)
    try:
        for rollout in rederiver.rollouts():
            files.add(rollout)
        return files.close()
    except BaseException:
        files.discard()
        raise
    finally:
        rederiver.close()


def _preferences(folder: RunFolder, plan: Plan, settings: FineTune, target: Path) -> list[dict[str, Any]]:
    format_ = FORMATS[settings.formats[0], "dpo"]
    agents = chosen_agents(plan.agents(), settings.agents)
    found = preferences(folder)
    files = DatasetFiles(
        target, [format_], agents, min_examples=settings.min_examples, validation_share=settings.validation_share
    )
    try:
        for agent, preference, source in found:
            if agent in agents:
                files.add(agent, format_, preference, source)
        return files.close()
    except BaseException:
        files.discard()
        raise


def _show(target: Path, report: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"folder": str(target), "files": report})
        return
    rows = [
        (r["file"], r["examples"], r["why_not_written"] or "written",
         ", ".join(f"{count} {why}" for why, count in r["left_out"].items()))
        for r in report
    ]  # fmt: skip
    print_table(("file", "examples", "result", "left out"), rows, title=str(target))
