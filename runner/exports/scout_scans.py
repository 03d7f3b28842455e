"""Exports the results of analyses as a scan of Inspect Scout: a folder with a scanner's results in each Parquet file.

The files are those of Scout's recorder (github.com/meridianlabs-ai/inspect_scout, `_recorder/file.py`). A result refers
to the row of the whole game in the transcripts, and to its messages by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from runner.analysis.analyzer import YES_NO
from runner.analysis.results import AnalysisTable, UnitResult, read_analyses
from runner.base.hashing import tagged_hash
from runner.base.storage.parquet import write_parquet
from runner.base.storage.safe_files import create, make_folders
from runner.exports.run_source import RunSource

COLUMNS = {
    "transcript_id": "VARCHAR", "transcript_source_type": "VARCHAR", "transcript_source_id": "VARCHAR",
    "transcript_task_set": "VARCHAR", "transcript_task_id": "VARCHAR", "scan_id": "VARCHAR", "scan_tags": "VARCHAR",
    "scan_metadata": "VARCHAR", "scanner_key": "VARCHAR", "scanner_name": "VARCHAR", "scanner_params": "VARCHAR",
    "input_type": "VARCHAR", "input_ids": "VARCHAR", "input": "VARCHAR", "uuid": "VARCHAR", "label": "VARCHAR",
    "value": "VARCHAR", "value_type": "VARCHAR", "answer": "VARCHAR", "explanation": "VARCHAR",
    "metadata": "VARCHAR", "message_references": "VARCHAR", "event_references": "VARCHAR", "scan_error": "VARCHAR",
    "scan_error_traceback": "VARCHAR", "scan_error_type": "VARCHAR", "validation_target": "VARCHAR",
    "validation_result": "VARCHAR", "scan_total_tokens": "BIGINT", "scan_model_usage": "VARCHAR",
    "scan_events": "VARCHAR", "timestamp": "VARCHAR",
}  # fmt: skip
"""The columns of Scout's results. JSON is stored as text, as Scout expects."""


def game_transcript_id(run_id: str, rollout_id: str) -> str:
    """Return the id of the row of a whole game in the transcripts."""
    return f"{run_id}/{rollout_id}/all-agents"


def message_id(agent: str, channel: str | None, round: int) -> str:  # noqa: A002 - the key in a message's metadata
    """Return the id of a message, which is unique in its game."""
    return f"{round}/{agent}/{channel}"


def write_scan(source: RunSource, folder: Path) -> dict[Path, int]:
    """Write the analyses of a run as a scan below `folder`; return the number of results by file, empty without any.

    Raises:
        RunError: the results of an analysis are damaged, or a file cannot be written.
    """
    tables = read_analyses(source.folder)
    if not tables:
        return {}
    run_id = source.manifest.run_id
    scan_id = tagged_hash("scout scan", [run_id, *(table.instrument for table in tables)])[:22]
    target = folder / f"scan_id={scan_id}"
    make_folders(target)
    files = {
        target / f"{table.name}.parquet": write_results(_rows(source, table, scan_id), target / f"{table.name}.parquet")
        for table in tables
    }
    games = (game_transcript_id(run_id, result.rollout_id) for table in tables for result in table.results)
    scanners = {table.name: {"name": table.analyzer, "params": _params(table)} for table in tables}
    write_descriptions(
        source, target, dict.fromkeys(games, f"{source.folder.run_id}.parquet"), scanners,
        {table.name: _summarize(table) for table in tables},
    )  # fmt: skip
    return files


def write_descriptions(
    source: RunSource,
    folder: Path,
    transcripts: Mapping[str, str],
    scanners: Mapping[str, object],
    summaries: Mapping[str, object],
) -> None:
    """Write the two JSON files of a scan; `transcripts` has the file of each transcript by id."""
    spec = {
        "scan_id": folder.name.removeprefix("scan_id="),
        "scan_name": source.manifest.run_id,
        "timestamp": source.manifest.started_at,
        "packages": {"nip-run": source.manifest.version},
        "transcripts": {"type": "database", "transcript_ids": transcripts},
        "scanners": scanners,
    }
    for name, data in (("_scan.json", spec), ("_summary.json", {"complete": True, "scanners": summaries})):
        (folder / name).unlink(missing_ok=True)
        with create(folder / name) as file:
            file.write(orjson.dumps(data, option=orjson.OPT_INDENT_2))


def _params(table: AnalysisTable) -> dict[str, str]:
    return {name: getattr(table, name) for name in ("instrument", "analyzer_sha256", "question_sha256", "unit")}


def _summarize(table: AnalysisTable) -> dict[str, int]:
    counted = [result for result in table.results if result.status != "not_applicable"]
    errors = sum(result.status == "failed" for result in counted)
    return {"scans": len(counted), "results": sum(bool(result.value) for result in counted), "errors": errors}


def write_results(rows: Iterable[Mapping[str, object]], path: Path) -> int:
    """Write a scanner's results, and return their number."""
    count = 0
    with TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        lines = Path(folder) / "results.jsonl"
        with create(lines) as file:
            for row in rows:
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                count += 1
        write_parquet([lines], COLUMNS, path)
    return count


def shared_columns(source: RunSource, scan_id: str) -> dict[str, object]:
    """Return the columns that all results of a run have in common."""
    manifest = source.manifest
    return {
        "transcript_source_type": "nip-run",
        "transcript_source_id": manifest.run_id,
        "transcript_task_set": manifest.benchmark,
        "scan_id": scan_id,
        "scan_tags": "[]",
        "scan_metadata": "{}",
        "event_references": "[]",
        "scan_total_tokens": 0,
        "scan_model_usage": "{}",
        "scan_events": "[]",
        "timestamp": manifest.started_at,
    }


def _rows(source: RunSource, table: AnalysisTable, scan_id: str) -> Iterator[dict[str, object]]:
    """Yield a row for each result, without units that are not applicable."""
    shared = {
        **shared_columns(source, scan_id),
        "scanner_key": table.name,
        "scanner_name": table.analyzer,
        "scanner_params": orjson.dumps(_params(table)).decode(),
    }
    for result in table.results:
        if result.status != "not_applicable":
            yield {**shared, **_result_columns(source.manifest.run_id, table.name, result)}


def _result_columns(run_id: str, scanner: str, result: UnitResult) -> dict[str, object]:
    transcript = game_transcript_id(run_id, result.rollout_id)
    places = [(span.agent, span.channel, span.round) for span in result.spans]
    if result.round is not None and result.agent is not None:
        places.insert(0, (result.agent, str(result.channel), result.round))
    references = [{"type": "message", "id": message_id(*place)} for place in dict.fromkeys(places)]
    value, value_type = _scout_value(result)
    facts = {
        "unit_id": result.unit_id, "status": result.status, "agent": result.agent, "channel": result.channel,
        "round": result.round, "model": result.model,
    }  # fmt: skip
    return {
        "transcript_id": transcript,
        "transcript_task_id": result.datapoint_id,
        "input_type": "transcript",
        "input_ids": orjson.dumps([transcript]).decode(),
        "input": orjson.dumps({"transcript_id": transcript, "messages": [], "events": []}).decode(),
        "uuid": tagged_hash("scout result", [run_id, scanner, result.unit_id])[:22],
        "label": result.unit_id,
        "value": value,
        "value_type": value_type,
        "answer": result.answer,
        "explanation": None if result.status == "failed" else result.reason,
        "metadata": orjson.dumps(facts).decode(),
        "message_references": orjson.dumps(references).decode(),
        "scan_error": result.reason or "the calls failed" if result.status == "failed" else None,
    }


def _scout_value(result: UnitResult) -> tuple[str | None, str]:
    """Return the value as text, and its type; yes and no are booleans."""
    if result.answer is None:
        return None, "null"
    if result.answer in YES_NO:
        return str(result.answer == YES_NO[0]).lower(), "boolean"
    return (result.answer, "string") if result.value is None else (repr(result.value), "number")
