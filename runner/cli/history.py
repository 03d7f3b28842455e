"""`nip-run history`: the training and benchmark sessions of an agent, a model group, a model or a run, in order."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.cli.output import can_print, note, print_json, print_table, short_time, with_interval
from runner.exit_codes import ExitCode
from runner.registry.history import Row, history_of
from runner.registry.left_out import in_words
from runner.registry.marks import effort_in_words, proof_in_words
from runner.registry.sessions import Session, session_of_folder, session_of_release
from runner.releases.reference import Kind
from runner.results.results import Results
from runner.text import comma_join

_DROPPED = ("datapoints", "own", "when")
"""What a narrow terminal does without, the first of it first."""


def execute(args: argparse.Namespace) -> int:
    left_out: list[str] = []
    sessions = [*_local(Results(args.results), left_out), *_published(args.where, left_out)]
    rows = history_of(args.agent, sessions)
    if args.json:
        print_json({"of": args.agent, "sessions": [row.to_json() for row in rows], "left_out": left_out})
        return ExitCode.DONE
    _show(rows)
    for line in left_out:
        note(line)
    return ExitCode.DONE


def _local(results: Results, left_out: list[str]) -> Iterator[Session]:
    for folder in results.runs():
        try:
            yield session_of_folder(folder)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this run's
            left_out.append(f"left out: {folder.run_id}: {in_words(error)}")
    left_out.extend(results.damaged())


def _published(where: str | None, left_out: list[str]) -> Iterator[Session]:
    if where is None:
        return
    from runner.transports.connect import connect

    with connect(where) as registry:
        for entry in registry.entries():
            if entry.reference.kind not in (Kind.RUN, Kind.MODEL):
                continue
            try:
                release, _ = registry.read(entry)
                yield session_of_release(entry, release)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this release's
                left_out.append(f"left out: {entry.reference}: {in_words(error)}")


def _show(rows: Sequence[Row]) -> None:
    columns = ("run", "kind", "when", "from", "to", "datapoints", "own", "trained in all", "accuracy [95%]", "marks")
    cells = [_cells(row) for row in rows]
    print_table(columns, [[row[name] for name in columns] for row in cells], drop=_DROPPED)


def _cells(row: Row) -> Mapping[str, Any]:
    session = row.session
    accuracy: Mapping[str, Any] = session.facts.get("accuracy") or {}
    value, low, high = (accuracy.get(name) for name in ("value", "ci_low", "ci_high"))
    branch = ("└ " if can_print("└") else "- ") if row.depth else ""
    merged = [f"also from {run_id}" for run_id, _ in row.after[1:]]
    proofs = [proof_in_words(edge) for edge in row.edges]
    return {
        "run": "  " * max(row.depth - 1, 0) + branch + session.run_id,
        "kind": session.kind,
        "when": short_time(session.started_at or None),
        "from": comma_join(row.began_with),
        "to": comma_join(row.came_to),
        "datapoints": row.datapoints,
        "own": effort_in_words(row.own.total, "rollouts", "cost_usd") if session.trains else "",
        "trained in all": effort_in_words(row.ancestry.total, "rollouts", "cost_usd"),
        "accuracy [95%]": with_interval(value, low, high) if session.kind == "benchmark" else "",
        "marks": "; ".join(dict.fromkeys((*proofs, *merged, *row.marks))),
    }
