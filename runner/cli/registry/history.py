"""Show the runs that trained or tested an agent, in order.

Examples:
  nip-run history verifier
  nip-run history qwen3-4b-nip-1 --from DIR
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, in_one_line, with_interval
from runner.cli.arguments import OPTIONAL_REGISTRY_HELP, add_registry_option
from runner.cli.terminal.output import can_print, format_time, note, print_json, print_table, wrap_for_stderr
from runner.documents.fetched_files import MARKER

if TYPE_CHECKING:
    from runner.registry.lineage.history import HistoryRow
    from runner.registry.lineage.nodes import LineageNode
    from runner.results.leaderboard.results_folder import Results


_COLUMNS = (
    "run", "kind", "when", "from", "to", "datapoints", "own", "trained in all", "accuracy [95%]", "published", "marks"
)  # fmt: skip
_OPTIONAL_COLUMNS = ("to", "own", "trained in all", "published", "marks")
"""Columns that are left out if they are empty in every row."""
_DROPPED_IF_NARROW = ("datapoints", "own", "when")
"""Columns that a narrow terminal leaves out, in this order."""
_HASH = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}")
"""Matches a hash; its beginning is the group that is printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", metavar="AGENT", help="name of an agent, model group or model, or a run id")
    add_registry_option(parser, f"also include this registry: {OPTIONAL_REGISTRY_HELP}")


def execute(args: argparse.Namespace) -> int:
    from runner.registry.lineage.history import build_history

    skipped: list[str] = []
    results: Results = args.results
    published = list(_published_nodes(args.registry, skipped))
    hashes = {node.sha256 for node in published}
    downloaded = [node for node in _downloaded_nodes(results, skipped) if node.sha256 not in hashes]
    rows = build_history(args.agent, [*_local_nodes(results, skipped), *published, *downloaded])
    if args.json:
        print_json({"of": args.agent, "sessions": [row.to_json() for row in rows], "left_out": skipped})
        return ExitCode.DONE
    _print_history(rows, quiet=args.quiet)
    note(*skipped)
    return ExitCode.DONE


def _local_nodes(results: Results, skipped: list[str]) -> Iterator[LineageNode]:
    """Yield the lineage nodes of the local runs, and add messages about unreadable runs to `skipped`."""
    from runner.registry.lineage.nodes import node_from_folder
    from runner.registry.release_errors import describe_error

    for folder in results.runs():
        try:
            yield node_from_folder(folder)
        except Exception as error:  # noqa: BLE001 - a damaged run must not hide the others
            skipped.append(f"left out: {folder.run_id}: {describe_error(error)}")
    skipped.extend(results.damaged())


def _downloaded_nodes(results: Results, skipped: list[str]) -> Iterator[LineageNode]:
    """Yield the lineage nodes of releases that `reproduce` downloaded into the results folder."""
    from runner.base.storage.atomic_files import read_json
    from runner.registry.fetched_release import fetched_folders, open_fetched
    from runner.registry.lineage.nodes import node_from_release
    from runner.registry.release_errors import describe_error
    from runner.registry.transports.registry import ReleaseEntry

    for folder in fetched_folders(results):
        try:
            release = open_fetched(folder)
            address = str(read_json(folder / MARKER).get("where"))
            yield node_from_release(ReleaseEntry(release.release.reference, release.sha256), release.release, address)
        except Exception as error:  # noqa: BLE001 - a damaged release must not hide the others
            skipped.append(f"left out: {folder}: {describe_error(error)}")


def _published_nodes(address: str | None, skipped: list[str]) -> Iterator[LineageNode]:
    from runner.documents.releases.manifest import MANIFEST
    from runner.documents.releases.reference import Kind
    from runner.registry.lineage.nodes import node_from_release
    from runner.registry.release_errors import describe_error

    if address is None:
        return
    from runner.registry.transports.locations import connect_to_read

    with connect_to_read(address) as registry:
        entries = [entry for entry in registry.entries() if entry.reference.kind in (Kind.RUN, Kind.MODEL)]
        registry.plan_prefetch((entry, MANIFEST) for entry in entries)
        for entry in entries:
            try:
                release, _ = registry.read_manifest(entry)
                yield node_from_release(entry, release, registry.address)
            except Exception as error:  # noqa: BLE001 - a damaged release must not hide the others
                skipped.append(f"left out: {entry.reference}: {describe_error(error)}")


def _print_history(rows: Sequence[HistoryRow], *, quiet: bool) -> None:
    from runner.registry.lineage.descriptions import explain_marks

    cells = [_format_cells(row) for row in rows]
    columns = [name for name in _COLUMNS if name not in _OPTIONAL_COLUMNS or any(row[name] for row in cells)]
    print_table(columns, [[row[name] for name in columns] for row in cells], drop=_DROPPED_IF_NARROW)
    marks_legend = explain_marks(mark for row in rows for mark in _format_marks(row))
    if marks_legend is not None and not quiet:
        note(wrap_for_stderr(marks_legend))


def _format_cells(row: HistoryRow) -> Mapping[str, object]:
    from runner.registry.lineage.descriptions import describe_effort

    node = row.node
    accuracy: Mapping[str, Any] = node.facts.get("accuracy") or {}
    value, low, high = (accuracy.get(name) for name in ("value", "ci_low", "ci_high"))
    total_effort = describe_effort(row.ancestry.total, "rollouts", "cost_usd")
    tree_mark = ("└ " if can_print("└") else "- ") if row.depth else ""
    cells = {
        "run": "  " * max(row.depth - 1, 0) + tree_mark + node.run_id,
        "kind": row.kind,
        "when": format_time(node.started_at or None),
        "from": comma_join(dict.fromkeys(row.start_models)),
        "to": comma_join(dict.fromkeys(row.final_models)),
        "datapoints": row.datapoints,
        "own": describe_effort(row.own_training.total, "rollouts", "cost_usd") if node.trains_models else "",
        # Empty if the run's models were not trained.
        "trained in all": "" if total_effort == "none" else total_effort,
        "accuracy [95%]": with_interval(value, low, high) if node.kind == "benchmark" else "",
        "marks": "; ".join(_format_marks(row)),
    }
    one_line_cells = {name: in_one_line(value) if isinstance(value, str) else value for name, value in cells.items()}
    published = "\n".join(dict.fromkeys(release.key.removeprefix("run/") for release in row.published))
    return {**one_line_cells, "published": published}


def _format_marks(row: HistoryRow) -> list[str]:
    """Return the remarks on a run, without duplicates and with shortened hashes, unlike --json."""
    from runner.registry.lineage.descriptions import describe_origin

    # row.marks already has the origins whose run is missing.
    origins = [describe_origin(origin) for origin in row.origins if origin.missing_run is None]
    other_makers = [f"also from {run_id}" for run_id, _ in row.maker_runs[1:]]
    replays = [f"replayed as {', '.join(dict.fromkeys(replay.key for replay in row.replays))}"] if row.replays else []
    reasons = {origin.reason for origin in row.origins}
    other_marks = [mark for mark in row.marks if mark not in reasons]
    return [_HASH.sub(r"\1", mark) for mark in dict.fromkeys((*origins, *other_makers, *replays, *other_marks))]
