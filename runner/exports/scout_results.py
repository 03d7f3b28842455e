"""Exports a run's verdicts on transcripts as a scan of Inspect Scout. A result refers to its transcript by id.

The transcripts are Scout's own, or the samples of Inspect logs, whose ids in Scout are the samples' `uuid`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from runner.base.errors import UsageError
from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import make_folders
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.run_source import RunSource
from runner.exports.scout_scans import shared_columns, write_json, write_results
from runner.exports.transcript_verdicts import TranscriptVerdict, check_transcripts, read_verdicts

NAME = "scout-results"
SCANNER = "verdict"


def write(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:  # noqa: ARG001 - same parameters for all formats
    """Write the scan below `target`.

    Raises:
        UsageError: the run did not judge transcripts, or the transcripts have no ids.
        RunError: a file cannot be written.
    """
    check_transcripts(source)
    export = WrittenExport(not_carried=["prompts, messages and votes of the judges (--format scout has them)"])
    verdicts = list(read_verdicts(source, export))
    if any(verdict.transcript_id is None for verdict in verdicts):
        raise UsageError(
            f"the transcripts that {source.folder.run_id} judged have no ids, so Scout cannot find them; use "
            "transcripts of Scout, or logs of Inspect 0.3.70 or later"
        )
    scan_id = tagged_hash("scout verdicts", [source.manifest.run_id])[:22]
    folder = target / f"scan_id={scan_id}"
    make_folders(folder)
    path = folder / f"{SCANNER}.parquet"
    export.files[path] = write_results(_rows(source, verdicts, scan_id), path)
    write_json(folder / "_scan.json", _build_spec(source, verdicts, scan_id))
    counts = {"scans": len(verdicts), "results": sum(bool(verdict.value) for verdict in verdicts), "errors": 0}
    write_json(folder / "_summary.json", {"complete": True, "scanners": {SCANNER: counts}})
    return export


def _build_spec(source: RunSource, verdicts: Sequence[TranscriptVerdict], scan_id: str) -> dict[str, object]:
    manifest = source.manifest
    return {
        "scan_id": scan_id,
        "scan_name": manifest.run_id,
        "timestamp": manifest.started_at,
        "packages": {"nip-run": manifest.version},
        "transcripts": {"type": "database", "transcript_ids": {str(v.transcript_id): v.file for v in verdicts}},
        "scanners": {SCANNER: {"name": SCANNER, "params": _params(source)}},
    }


def _params(source: RunSource) -> dict[str, str]:
    return {"run": source.manifest.run_id, "protocol": source.manifest.protocol, "identity": source.manifest.identity}


def _rows(source: RunSource, verdicts: Sequence[TranscriptVerdict], scan_id: str) -> Iterator[dict[str, object]]:
    shared = {
        **shared_columns(source, scan_id),
        "transcript_source_type": None,  # the tool that wrote the transcript knows it
        "transcript_source_id": None,
        "transcript_task_set": None,
        "scanner_key": SCANNER,
        "scanner_name": SCANNER,
        "scanner_params": orjson.dumps(_params(source)).decode(),
    }
    for verdict in verdicts:
        id_, job = str(verdict.transcript_id), verdict.rollout.job
        references = [] if verdict.message_id is None else [{"type": "message", "id": verdict.message_id}]
        facts = {"rollout_id": job.rollout_id, "epoch": verdict.epoch, "p_accept": verdict.confidence}
        yield {
            **shared,
            "transcript_id": id_,
            "transcript_task_id": verdict.sample,
            "input_type": "transcript",
            "input_ids": orjson.dumps([id_]).decode(),
            "input": orjson.dumps({"transcript_id": id_, "messages": [], "events": []}).decode(),
            "uuid": tagged_hash("scout verdict", [source.manifest.run_id, job.rollout_id])[:22],
            "label": job.datapoint.id,
            "value": str(bool(verdict.value)).lower(),
            "value_type": "boolean",
            "answer": "accept" if verdict.value else "reject",
            "metadata": orjson.dumps(facts).decode(),
            "message_references": orjson.dumps(references).decode(),
        }
