"""Journal records: each kind is parsed from the bytes of version 0.1.0 and written unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from runner.base.errors import ContextExceededError, RefusedError, TransientError
from runner.base.storage.log_lines import JournalReader, encode
from runner.models.interface import Choice, Completion, SampleKey, Usage
from runner.models.journal_index import JournalIndex
from runner.models.journal_records import (
    BatchRecord,
    CallRecord,
    EndedRecord,
    FailureRecord,
    LostRecord,
    OtherRecord,
    Record,
    RequestRecord,
    parse_record,
    read_records,
)
from runner.models.usage_totals import UsageTotals

SAMPLE = SampleKey("p0", 2, 1, "prover", 0)
REQUEST_RECORD = RequestRecord("p", "m")
TWO_CHOICES = Completion(
    (Choice('Ünï \n"x"', "stop"), Choice(None, "length", "no")),
    "tiny", Usage(10, 5, 4), 12.346, other_fields={"id": "c-1", "created": 3},
)  # fmt: skip
CACHED = Completion((Choice("x", "stop"),), "tiny", Usage(3, 1, 0, estimated=True), from_cache=True)
UNCOUNTED = Completion((Choice("x", "stop"),), "tiny", Usage(3, 1, 0, estimated=True))

LINES: list[tuple[Record, str]] = [
    (
        CallRecord(SAMPLE, REQUEST_RECORD, TWO_CHOICES),
        (
            r'{"asked":["p","m"],"cache":false,"choices":[["Ünï \n\"x\"","stop",null],[null,"length","no"]],"kind":'
            r'"call","model":"tiny","ms":12.346,"other":{"created":3,"id":"c-1"},"sample":["p0",2,1,"prover",0],"seq":7,'
            r'"usage":[10,5,4,false]}'
        ),
    ),
    (
        CallRecord(SAMPLE, REQUEST_RECORD, CACHED),
        (
            '{"asked":["p","m"],"cache":true,"choices":[["x","stop",null]],"kind":"call","model":"tiny","ms":0.0,'
            '"other":{},"sample":["p0",2,1,"prover",0],"seq":7,"usage":[3,1,0,true]}'
        ),
    ),
    (
        CallRecord(SAMPLE, REQUEST_RECORD, UNCOUNTED, UsageTotals(0.25, 100, 1)),
        (
            '{"asked":["p","m"],"cache":false,"charged":[0.25,100,1],"choices":[["x","stop",null]],"kind":"call",'
            '"model":"tiny","ms":0.0,"other":{},"sample":["p0",2,1,"prover",0],"seq":7,"usage":[3,1,0,true]}'
        ),
    ),
    (
        EndedRecord(SAMPLE, REQUEST_RECORD, "ContextExceededError", 'too "long"'),
        (
            r'{"asked":["p","m"],"error":"ContextExceededError","kind":"ended","message":"too \"long\"",'
            r'"sample":["p0",2,1,"prover",0],"seq":7}'
        ),
    ),
    (
        FailureRecord(SAMPLE, 1, "cut", 0.5, UsageTotals(0.25, 100, 1)),
        (
            '{"attempt":1,"charged":[0.25,100,1],"error":"cut","kind":"failure","sample":["p0",2,1,"prover",0],"seq":7,'
            '"wait":0.5}'
        ),
    ),
    (
        FailureRecord(SAMPLE, 2, "busy", -1.0),
        (
            '{"attempt":2,"charged":null,"error":"busy","kind":"failure","sample":["p0",2,1,"prover",0],"seq":7,'
            '"wait":-1.0}'
        ),
    ),
    (
        BatchRecord("g", "i", ("a", "b")),
        '{"batch":null,"group":"g","intent":"i","kind":"batch","lines":["a","b"],"seq":7}',
    ),
    (
        BatchRecord("g", "i", ("a", "b"), "b-1"),
        '{"batch":"b-1","group":"g","intent":"i","kind":"batch","lines":["a","b"],"seq":7}',
    ),
    (LostRecord("00ff", UsageTotals(0.75, 300, 3)), '{"charged":[0.75,300,3],"kind":"lost","of":"00ff","seq":7}'),
]


@pytest.mark.parametrize(("record", "line"), LINES)
def test_each_record_kind_is_parsed_and_written_byte_for_byte(record: Record, line: str) -> None:
    assert not isinstance(record, OtherRecord)
    assert parse_record(orjson.loads(line)) == record
    assert encode(7, record.to_json())[9:-1] == line.encode()


@pytest.mark.parametrize("error", [TransientError("cut"), ContextExceededError("long"), RefusedError("no")])
def test_recorded_error_is_rebuilt_with_its_type_and_message(error: Any) -> None:
    record = EndedRecord.from_error(SAMPLE, REQUEST_RECORD, error)
    assert record.is_transient is isinstance(error, TransientError)
    rebuilt = record.as_error()
    assert (type(rebuilt), str(rebuilt)) == (type(error), str(error))


def write_records(path: Path, *records: dict[str, Any]) -> None:
    path.write_bytes(b"".join(encode(number, record) for number, record in enumerate(records)))


def test_index_returns_answers_errors_failures_and_batches(tmp_path: Path) -> None:
    path, other_sample = tmp_path / "journal.jsonl", SAMPLE._replace(repeat=3)
    call, ended = (
        CallRecord(SAMPLE, REQUEST_RECORD, TWO_CHOICES),
        EndedRecord(other_sample, REQUEST_RECORD, "RefusedError", "no"),
    )
    failure, batch = FailureRecord(SAMPLE, 1, "cut", 0.5), BatchRecord("g", "i", ("a",))
    write_records(path, *(record.to_json() for record in (failure, call, batch, ended)))
    reader = JournalReader(path)
    index = JournalIndex(reader.record, read_records(path))
    assert (index.get(SAMPLE), index.get(other_sample), index.get(other_sample._replace(round=9))) == (
        call,
        ended,
        None,
    )
    assert (list(index.failures("p0", 2)), list(index.failures("p0", 3)), index.batches) == ([failure], [], [batch])
    assert len(index) == 2
    reader.close()


def test_unknown_record_kinds_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(
        path,
        {"kind": "vote", "sample": list(SAMPLE), "n": 1},
        {"kind": "mark"},
        CallRecord(SAMPLE, REQUEST_RECORD, TWO_CHOICES).to_json(),
    )
    records = [record for _, _, record in read_records(path)]
    assert records[:2] == [OtherRecord("vote", SAMPLE), OtherRecord("mark", None)]
    reader = JournalReader(path)
    assert len(JournalIndex(reader.record, read_records(path))) == 1
    reader.close()
