"""Analyses in the formats of other tools: results of scanners in Inspect Scout, and assessments in MLflow."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from runner.cli.main import main
from runner.exports.mlflow.games import GamesRecordBuilder
from runner.results.folder import RunFolder
from tests.support.analyses import INSTRUMENT, write_analysis, write_lines, yes
from tests.support.files import parquet_rows
from tests.support.runs import run_spec
from tests.support.specs import spec_file

TURN = {"agent": "verifier", "channel": "main", "round": 0}
SCANNER = f"role_conformance-{INSTRUMENT}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with answers of a model and of a function, all other statuses, and a label."""
    folder = tmp_path_factory.mktemp("exported")
    run = run_spec(spec_file(folder, size=2), folder / "results").folder
    write_analysis(run.path, lambda *_: [
        yes(True, **TURN, reason="It argues.", spans=[{**TURN, "round": 1, "start": 0, "end": 2}]),
        yes(False, unit="game", model="code"),
        {"status": "no_answer", "reason": "perhaps"}, {"status": "failed"}, {"status": "not_applicable"},
    ])  # fmt: skip
    rollout = parquet_rows(run.path / "rollouts.parquet")[0]["rollout_id"]
    write_lines(run.path / "labels" / "role_conformance-bbbbbbbbbb.jsonl", {
        "unit_id": f"{rollout}/0", "answer": "no", "reader": "Ann", "time": "2026-01-01T00:00:00Z",
        "analyzer": "role_conformance", "analyzer_sha256": "a" * 64, "question_sha256": "b" * 64,
    })  # fmt: skip
    return run


def test_scout_results_refer_to_transcripts_and_messages(run: RunFolder, tmp_path: Path) -> None:
    command = ["export", str(run.path), "--format", "scout", "--out", str(tmp_path / "scout")]
    assert main(command) == main(command) == 0
    (scan,) = (tmp_path / "scout-scans").iterdir()
    assert sorted(path.name for path in scan.iterdir()) == ["_scan.json", "_summary.json", f"{SCANNER}.parquet"]
    spec = json.loads((scan / "_scan.json").read_text())
    assert spec["scanners"][SCANNER]["params"]["instrument"] == INSTRUMENT
    assert json.loads((scan / "_summary.json").read_text())["scanners"][SCANNER] == {
        "scans": 8,
        "results": 2,
        "errors": 2,
    }
    rows = parquet_rows(scan / f"{SCANNER}.parquet")[:4]
    assert [(row["value"], row["value_type"]) for row in rows] == [
        ("true", "boolean"), ("false", "boolean"), (None, "null"), (None, "null")
    ]  # fmt: skip
    assert [row["scan_error"] for row in rows] == [None, None, None, "the calls failed"]
    references = [reference["id"] for reference in json.loads(rows[0]["message_references"])]
    assert references == ["0/verifier/main", "1/verifier/main"]
    write_analysis(run.path, lambda *_: [yes(True, **TURN)], instrument="1111111111")
    assert main(command) == 0
    other_file = "role_conformance-1111111111.parquet"
    (scan,) = (path for path in (tmp_path / "scout-scans").iterdir() if (path / other_file).exists())
    ids = [row["uuid"] for name in (f"{SCANNER}.parquet", other_file) for row in parquet_rows(scan / name)]
    assert len(set(ids)) == len(ids) == 10
    (run.path / "analyses" / other_file).unlink()
    (path,) = (tmp_path / "scout").iterdir()
    games = {row["transcript_id"]: row for row in parquet_rows(path) if row["agent"] == "all agents"}
    assert set(spec["transcripts"]["transcript_ids"]) == set(games)
    messages = [message for row in games.values() for message in json.loads(row["messages"])]
    assert all(message["id"] == "{round}/{agent}/{channel}".format(**message["metadata"]) for message in messages)


def test_mlflow_receives_an_assessment_with_source_for_each_answer(run: RunFolder) -> None:
    with closing(GamesRecordBuilder(run, journal=False)) as builder:
        record = builder.record()
    traces, assessments = {trace.key for trace in record.traces()}, list(record.assessments())
    assert {assessment.trace for assessment in assessments} == traces
    first_assessments = [(each.source_type, each.source, each.value) for each in assessments[:4]]
    assert first_assessments == [
        ("LLM_JUDGE", f"judge-1@{INSTRUMENT}", "yes"), ("CODE", f"code@{INSTRUMENT}", "no"),
        ("LLM_JUDGE", f"judge-1@{INSTRUMENT}", None), ("LLM_JUDGE", f"judge-1@{INSTRUMENT}", None),
    ]  # fmt: skip
    assert (assessments[0].rationale, assessments[2].error) == ("It argues.", "no_answer: perhaps")
    assert len({(each.metadata["nip_run.unit"], each.source_type) for each in assessments}) == 9
    assert (assessments[-1].source_type, assessments[-1].source, assessments[-1].value) == ("HUMAN", "Ann", "no")
