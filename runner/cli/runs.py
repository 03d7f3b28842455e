"""`nip-run runs`: the runs there are."""

from __future__ import annotations

import argparse

from runner.cli.output import note, print_json, print_table, say, shown_point
from runner.exit_codes import ExitCode
from runner.results.results import Results


def execute(args: argparse.Namespace) -> int:
    results = Results(args.results)
    manifests = [folder.manifest() for folder in results.runs()]
    for damage in results.damaged():
        note(damage)
    chosen = [m for m in manifests if args.status in (None, m.status)]
    chosen.sort(key=lambda m: (m.started_at, m.run_id), reverse=True)
    if args.json:
        print_json([m.to_json() for m in chosen])
        return ExitCode.DONE
    if not chosen:
        say(f"no runs in {results.path}; start with: nip-run specs/quickstart.yaml")
        return ExitCode.DONE
    columns = ("run", "status", "benchmark", "protocol", "rollouts", "cost", "started", "point of its sweep")
    rows = [
        (
            m.run_id,
            m.status,
            m.benchmark,
            m.protocol,
            m.rollouts,
            m.cost_usd,
            m.started_at,
            shown_point(m.point),
        )
        for m in chosen
    ]
    print_table(columns, rows)
    return ExitCode.DONE
