"""Exports a run as an entry of `.eval_results/*.yaml`, a file in a model's repository on the Hugging Face Hub.

The format is defined in huggingface/hub-docs (`eval_results.yaml`). It has one number for a benchmark. It has no fields
for the number of rollouts and the interval, so the exporter writes them into the field `notes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import make_folders
from runner.base.text import interval_ends
from runner.documents.yaml_writer import dump
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.run_source import RunSource
from runner.results.manifest import Status
from runner.results.metric_definitions import RANKING_METRIC

NAME = "hf-eval-results"


def write(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:
    """Write the entry below `target`.

    Raises:
        UsageError: a required option is missing, or the run is incomplete or has no accuracy of its own.
        RunError: the file cannot be written.
    """
    subject = source.require_subject(options.subject, NAME)
    if options.hf_dataset is None or options.task_id is None:
        raise UsageError(
            f"--format {NAME} needs a benchmark of the Hub: add --hf-dataset ID (such as owner/name) and --task-id "
            "TASK (from its eval.yaml)"
        )
    if (reason := source.why_no_own_accuracy) is not None:
        raise UsageError(f"{source.folder.run_id} has no {RANKING_METRIC} of its own: {reason}. Export another run")
    row = source.metric(RANKING_METRIC)
    if row is None or source.manifest.status == Status.INCOMPLETE:
        no_verdict = f"has no {RANKING_METRIC}, because no rollout has a verdict"
        problem = no_verdict if row is None else f"is incomplete: {source.lost_rollouts}"
        raise UsageError(f"run {source.folder.run_id} {problem}; resume the run, or export another one")
    entry: dict[str, object] = {
        "dataset": {"id": options.hf_dataset, "task_id": options.task_id},
        "value": row["value"],
        "date": source.manifest.finished_at or source.manifest.started_at,
        **({"source": {"url": options.source_url}} if options.source_url else {}),
        "notes": _build_notes(source, row, subject["agent"]),
    }
    folder = target / ".eval_results"
    make_folders(folder)
    path = folder / f"{source.folder.run_id}.{subject['agent']}.yaml"
    atomic_write(path, dump([entry]))
    return WrittenExport(
        {path: 1},
        not_carried=["fields for n, the interval and the other agents (`notes` has them)", "rollouts and chats"],
    )


def _build_notes(source: RunSource, row: Any, subject: str) -> str:
    manifest = source.manifest
    method = "95 %" if source.stopped is None else "95 %, a confidence sequence, valid at every interim analysis"
    ends = interval_ends(row["ci_low"], row["ci_high"], 4)
    interval = "none: too few clusters" if ends is None else f"{' to '.join(ends)} ({method})"
    stopped = f"; {source.stopped}" if source.stopped else ""
    debates = "" if manifest.rejudge_of is None else f"; judges the debates of run {manifest.rejudge_of.run_id}"
    agents = ", ".join(f"{agent['agent']}: {agent['model']}" for agent in manifest.agents)
    exchange = f"; {source.exchange}" if source.exchange else ""
    copied = f"; {source.copied_answers}" if source.copied_answers else ""
    lost = f"; {source.lost_rollouts}" if source.lost_rollouts else ""
    return (
        f"nip-run {manifest.version}, run {manifest.run_id}, protocol {manifest.protocol}; "
        f"{RANKING_METRIC} of the verifier; subject: {subject}; {agents}{exchange}{debates}{copied}; "
        f"n = {row['n']} rollouts in {row['clusters']} clusters{lost}; "
        f"interval: {interval}{stopped}"
    )
