"""`nip-run export`: fine-tune files from records that are paid for."""

from __future__ import annotations

import argparse
from dataclasses import replace

from runner.commands.common import print_json, print_table
from runner.datasets.files import FineTuneFiles
from runner.rederive import Rederiver, saved_plan
from runner.rundir import find_run
from runner.spec.experiment import FineTune


def execute(args: argparse.Namespace) -> int:
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
    files = FineTuneFiles(target, settings, plan.agents())
    rederiver = Rederiver(folder, plan)
    try:
        for rollout in rederiver.rollouts():
            files.add(rollout)
        report = files.close()
    except BaseException:
        files.discard()
        raise
    finally:
        rederiver.close()
    if args.json:
        print_json({"folder": str(target), "files": report})
        return 0
    rows = [
        (r["file"], r["examples"], r["why_not_written"] or "written",
         ", ".join(f"{count} {why}" for why, count in r["left_out"].items()))
        for r in report
    ]  # fmt: skip
    print_table(("file", "examples", "result", "left out"), rows, title=str(target))
    return 0
