"""Exports a run's verdicts on transcripts as a scan of Inspect Scout. A result refers to its transcript by id.

The transcripts are Scout's own, or the samples of Inspect logs, whose ids in Scout are the samples' `uuid`. The scanner
`verdict` has a result for each verdict. If P(accept) was recorded, the scanner `suspicion` has one for each transcript.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from runner.base.errors import UsageError
from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import make_folders
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.run_source import RunSource
from runner.exports.scout_scans import shared_columns, write_descriptions, write_results
from runner.exports.transcript_verdicts import SampleVerdicts, TranscriptVerdict, check_transcripts, read_verdicts

SCANNER = "verdict"
SUSPICION = "suspicion"


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
    rows = {SCANNER: list(_rows(source, verdicts, scan_id))}
    if suspicions := list(_suspicion_rows(source, verdicts, scan_id)):
        rows[SUSPICION] = suspicions
    for scanner, scanner_rows in rows.items():
        path = folder / f"{scanner}.parquet"
        export.files[path] = write_results(scanner_rows, path)
    transcripts = {str(verdict.transcript_id): verdict.file for verdict in verdicts}
    scanners = {name: {"name": name, "params": _params(source)} for name in rows}
    write_descriptions(source, folder, transcripts, scanners, {name: _summarize(rows[name]) for name in rows})
    return export


def _summarize(rows: Sequence[Mapping[str, object]]) -> dict[str, int]:
    """Return the counts of a scanner. Scout counts results that are neither false nor 0."""
    results = sum(row["value"] not in ("false", "0.0") for row in rows)
    return {"scans": len(rows), "results": results, "errors": 0}


def _params(source: RunSource) -> dict[str, str]:
    return {"run": source.manifest.run_id, "protocol": source.manifest.protocol, "identity": source.manifest.identity}


def _shared_columns(source: RunSource, scan_id: str, scanner: str) -> dict[str, object]:
    return {
        **shared_columns(source, scan_id),
        "transcript_source_type": None,  # the tool that wrote the transcript knows it
        "transcript_source_id": None,
        "transcript_task_set": None,
        "scanner_key": scanner,
        "scanner_name": scanner,
        "scanner_params": orjson.dumps(_params(source)).decode(),
    }


def _transcript_columns(verdict: TranscriptVerdict) -> dict[str, object]:
    id_ = str(verdict.transcript_id)
    return {
        "transcript_id": id_,
        "transcript_task_id": verdict.sample,
        "input_type": "transcript",
        "input_ids": orjson.dumps([id_]).decode(),
        "input": orjson.dumps({"transcript_id": id_, "messages": [], "events": []}).decode(),
    }


def _rows(source: RunSource, verdicts: Sequence[TranscriptVerdict], scan_id: str) -> Iterator[dict[str, object]]:
    shared = _shared_columns(source, scan_id, SCANNER)
    for verdict in verdicts:
        job = verdict.rollout.job
        references = [] if verdict.message_id is None else [{"type": "message", "id": verdict.message_id}]
        facts = {"rollout_id": job.rollout_id, "epoch": verdict.epoch, "p_accept": verdict.confidence}
        yield {
            **shared,
            **_transcript_columns(verdict),
            "uuid": tagged_hash("scout verdict", [source.manifest.run_id, job.rollout_id])[:22],
            "label": job.datapoint.id,
            "value": str(bool(verdict.value)).lower(),
            "value_type": "boolean",
            "answer": "accept" if verdict.value else "reject",
            "metadata": orjson.dumps(facts).decode(),
            "message_references": orjson.dumps(references).decode(),
        }


def _suspicion_rows(
    source: RunSource, verdicts: Sequence[TranscriptVerdict], scan_id: str
) -> Iterator[dict[str, object]]:
    """Yield a row for each transcript with a P(accept)."""
    by_transcript: dict[str | None, SampleVerdicts] = {}
    for verdict in verdicts:
        by_transcript.setdefault(verdict.transcript_id, SampleVerdicts()).verdicts.append(verdict)
    shared = _shared_columns(source, scan_id, SUSPICION)
    for id_, of_transcript in by_transcript.items():
        if of_transcript.suspicion is not None:
            first = of_transcript.verdicts[0]
            yield {
                **shared,
                **_transcript_columns(first),
                "uuid": tagged_hash("scout suspicion", [source.manifest.run_id, id_])[:22],
                "value": repr(of_transcript.suspicion),
                "value_type": "number",
                "metadata": orjson.dumps({"epoch": first.epoch}).decode(),
                "message_references": "[]",
            }
