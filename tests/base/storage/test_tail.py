"""Follow a growing log: every record is returned once, after its group is complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.base.async_runner import run_sync
from runner.base.errors import JournalError
from runner.base.storage.format_versions import KEY, LOG_FORMAT
from runner.base.storage.journal import Journal
from runner.base.storage.log_follower import LogFollower

FIRST = {"kind": "begun", KEY: LOG_FORMAT, "run": "one", "run_id": "r", "journal": "j"}


def write_log(path: Path, *records: dict[str, Any], run: str = "one") -> bytes:
    journal = Journal(path, first={**FIRST, "run": run}, durable=False)
    for record in records:
        journal.append_now(record)
    run_sync(journal.close)
    return path.read_bytes()


def list_kinds(records: list[tuple[int, dict[str, Any]]]) -> list[str]:
    return [record["kind"] for _, record in records]


def test_log_cut_at_any_byte_yields_complete_lines_and_later_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = write_log(path, {"kind": "a", "text": "x\r y"}, {"kind": "b"}, {"kind": "c"})
    lines = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        tail = LogFollower(path, "one")
        first = list_kinds(tail.read())
        assert len(first) == sum(end <= cut for end in lines)
        with path.open("ab") as file:
            file.write(data[cut:])
        assert [*first, *list_kinds(tail.read())] == ["begun", "a", "b", "c"]
        assert tail.read() == []


def test_incomplete_group_is_not_returned(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_log(path, {"kind": "a"}, {"kind": "b", "more": True})
    tail = LogFollower(path)
    assert list_kinds(tail.read()) == ["begun", "a"]
    assert list_kinds(tail.read()) == []


def test_torn_end_that_is_overwritten_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = write_log(path, {"kind": "a"})
    path.write_bytes(data + b'0badc0de {"kind":"torn')
    tail = LogFollower(path, "one")
    assert list_kinds(tail.read()) == ["begun", "a"]
    write_log(path, {"kind": "b"})  # opening the log again cuts off the torn end
    assert list_kinds(tail.read()) == ["b"]


def test_bounded_read_continues_where_the_last_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_log(path, *({"kind": f"k{number}", "text": "x" * 300} for number in range(20)))
    tail, kinds = LogFollower(path), []
    while records := tail.read(most=500):
        kinds.extend(list_kinds(records))
    assert kinds == ["begun", *(f"k{number}" for number in range(20))]


@pytest.mark.parametrize("damaged_line", [b"0badc0de {}\n", b"no line of ours\n"])
def test_damage_is_reported_at_once(tmp_path: Path, damaged_line: bytes) -> None:
    path = tmp_path / "log"
    data = write_log(path, {"kind": "a"})
    tail = LogFollower(path)
    tail.read()
    path.write_bytes(data + damaged_line)
    with pytest.raises(JournalError, match="damaged at byte"):
        tail.read()


def test_replaced_log_and_log_of_another_run_are_errors(tmp_path: Path) -> None:
    path, other_path = tmp_path / "log", tmp_path / "other"
    write_log(path, {"kind": "a"})
    tail = LogFollower(path, "one")
    tail.read()
    write_log(other_path, {"kind": "a"}, run="two")
    other_path.replace(path)
    with pytest.raises(JournalError, match="replaced"):
        tail.read()
    with pytest.raises(JournalError, match="another run"):
        LogFollower(path, "one").read()


def test_missing_log_has_no_records(tmp_path: Path) -> None:
    tail = LogFollower(tmp_path / "log")
    assert tail.read() == []
    assert tail.is_at_end
