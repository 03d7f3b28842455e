"""A log that is read while it grows: each record once, none before it counts."""

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


def log(path: Path, *records: dict[str, Any], run: str = "one") -> bytes:
    journal = Journal(path, first={**FIRST, "run": run}, durable=False)
    for record in records:
        journal.append_now(record)
    run_sync(journal.close)
    return path.read_bytes()


def names(records: list[tuple[int, dict[str, Any]]]) -> list[str]:
    return [record["kind"] for _, record in records]


def test_every_cut_of_a_log_gives_its_whole_lines_and_the_rest_later(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = log(path, {"kind": "a", "text": "x\r y"}, {"kind": "b"}, {"kind": "c"})
    lines = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        tail = LogFollower(path, "one")
        first = names(tail.read())
        assert len(first) == sum(end <= cut for end in lines)
        with path.open("ab") as file:
            file.write(whole[cut:])
        assert [*first, *names(tail.read())] == ["begun", "a", "b", "c"]
        assert tail.read() == []


def test_records_that_count_together_come_together(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log(path, {"kind": "a"}, {"kind": "b", "more": True})
    tail = LogFollower(path)
    assert names(tail.read()) == ["begun", "a"]
    assert names(tail.read()) == []


def test_a_torn_end_that_is_cut_off_and_written_over_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = log(path, {"kind": "a"})
    path.write_bytes(whole + b'0badc0de {"kind":"torn')
    tail = LogFollower(path, "one")
    assert names(tail.read()) == ["begun", "a"]
    log(path, {"kind": "b"})  # whoever goes on cuts the torn end off
    assert names(tail.read()) == ["b"]


def test_a_small_look_reads_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log(path, *({"kind": f"k{number}", "text": "x" * 300} for number in range(20)))
    tail, found = LogFollower(path), []
    while some := tail.read(most=500):
        found.extend(names(some))
    assert found == ["begun", *(f"k{number}" for number in range(20))]


@pytest.mark.parametrize("wrong", [b"0badc0de {}\n", b"no line of ours\n"])
def test_damage_is_told_and_not_waited_for(tmp_path: Path, wrong: bytes) -> None:
    path = tmp_path / "log"
    whole = log(path, {"kind": "a"})
    tail = LogFollower(path)
    tail.read()
    path.write_bytes(whole + wrong)
    with pytest.raises(JournalError, match="damaged at byte"):
        tail.read()


def test_another_file_in_its_place_and_another_run_are_told(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    log(path, {"kind": "a"})
    tail = LogFollower(path, "one")
    tail.read()
    log(other, {"kind": "a"}, run="two")
    other.replace(path)
    with pytest.raises(JournalError, match="replaced"):
        tail.read()
    with pytest.raises(JournalError, match="another run"):
        LogFollower(path, "one").read()


def test_a_log_that_is_not_there_yet_has_no_records(tmp_path: Path) -> None:
    tail = LogFollower(tmp_path / "log")
    assert tail.read() == []
    assert tail.is_at_end
