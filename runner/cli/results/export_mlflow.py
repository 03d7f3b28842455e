"""`nip-run export --format mlflow`: runs in full to a tracking server."""

from __future__ import annotations

import argparse
import os
from collections import Counter

from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.terminal.output import note, print_json, print_table
from runner.results.leaderboard.results_folder import Results


def execute(args: argparse.Namespace) -> int:
    from runner.exports.mlflow.client import DEFAULT_EXPERIMENT, EXPERIMENT, connect, tracking_uri
    from runner.exports.mlflow.exporter import Exporter
    from runner.exports.mlflow.sender import Sender

    results = Results(args.results)
    folders = list({folder.run_id: folder for folder in map(results.find, args.runs)}.values())
    uri = tracking_uri(args.tracking_uri)
    experiment = args.experiment or os.environ.get(EXPERIMENT) or DEFAULT_EXPERIMENT
    exporter = Exporter(Sender(connect(uri), uri, experiment), folders, journal=args.journal)
    try:
        if args.follow:
            exporter.follow(note)
        elif exporter.look():
            note("it still plays; the same command sends what comes, and --follow goes on until it ends")
    finally:
        exporter.close()
    runs = list(exporter.runs.values())
    if args.json:
        print_json({"tracking_uri": uri, "experiment": experiment, "runs": [run.as_json() for run in runs]})
        return ExitCode.DONE
    rows = [(run.run_id, run.mlflow_run_id, run.status, _sent(run.sent)) for run in runs]
    print_table(("run", "MLflow run", "status", "sent now"), rows, title=f"{uri}, experiment {experiment}")
    for run in runs:
        for one in run.notes:
            note(f"{run.run_id}: {one}")
    return ExitCode.DONE


def _sent(sent: Counter[str]) -> str:
    told = [counted(count, what) for what, count in sent.items() if count and what != "status"]
    return ", ".join(told) or "nothing new"
