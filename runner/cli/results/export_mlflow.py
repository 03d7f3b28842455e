"""Send full runs to an MLflow tracking server, for `nip-run export --format mlflow`."""

from __future__ import annotations

import argparse
import os
from collections import Counter

from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.terminal.output import note, print_json, print_table
from runner.results.leaderboard.results_folder import Results


def execute(args: argparse.Namespace) -> int:
    from runner.exports.mlflow.client import DEFAULT_EXPERIMENT, EXPERIMENT_VARIABLE, connect, tracking_uri
    from runner.exports.mlflow.exporter import Exporter
    from runner.exports.mlflow.sender import Sender

    results: Results = args.results
    folders = list({folder.run_id: folder for folder in map(results.find, args.runs)}.values())
    uri = tracking_uri(args.tracking_uri)
    experiment = args.experiment or os.environ.get(EXPERIMENT_VARIABLE) or DEFAULT_EXPERIMENT
    exporter = Exporter(Sender(connect(uri), uri, experiment), folders, journal=args.journal)
    try:
        if args.follow:
            exporter.follow(note)
        elif exporter.send_new():
            note("the run is still in progress; repeat the command to send new records, or add --follow")
    finally:
        exporter.close()
    runs = list(exporter.runs.values())
    if args.json:
        print_json({"tracking_uri": uri, "experiment": experiment, "runs": [run.as_json() for run in runs]})
        return ExitCode.DONE
    rows = [(run.run_id, run.mlflow_run_id, run.status, _describe_sent(run.sent)) for run in runs]
    print_table(("run", "MLflow run", "status", "sent now"), rows, title=f"{uri}, experiment {experiment}")
    for run in runs:
        for line in run.notes:
            note(f"{run.run_id}: {line}")
    return ExitCode.DONE


def _describe_sent(sent: Counter[str]) -> str:
    counts = [counted(count, kind) for kind, count in sent.items() if count and kind != "status"]
    return ", ".join(counts) or "nothing new"
