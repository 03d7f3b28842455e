"""A journal of format 2: every line is bound to its file, and the file to its run."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import JournalError
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import JournalReader, encode, is_log_bound_to_run, read_journal
from runner.models.journal_records import log_header

RUN, OTHER_RUN = "a" * 64, "b" * 64


def make_record(index: int) -> dict[str, Any]:
    return {"kind": "call", "n": index, "text": "answer\n" * (index % 3)}


def write_journal(path: Path, *groups: Sequence[int], run: str = RUN, run_id: str = "tiny-0123456789") -> bytes:
    async def write() -> None:
        journal = Journal(path, first=log_header(run, run_id), run=run)
        try:
            for group in groups:
                await journal.append(*map(make_record, group))
        finally:
            await journal.close()

    asyncio.run(write())
    return path.read_bytes()


def read_numbers(path: Path) -> list[int]:
    return [content["n"] for _, content in read_journal(path) if "n" in content]


def split_lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    write_journal(path, [0], [1, 2], [3], [4])
    return path


def check_is_refused(path: Path, match: str) -> None:
    """Assert that a journal can be neither opened nor read, and is left unchanged."""
    data = path.read_bytes()
    with pytest.raises(JournalError, match=match):
        write_journal(path, [9])
    with pytest.raises(JournalError, match=match):
        list(read_journal(path, RUN))
    assert path.read_bytes() == data


def test_first_record_has_the_run_and_a_random_journal_id(journal: Path, tmp_path: Path) -> None:
    _, first = next(read_journal(journal))
    _, second = next(read_journal(write_other_journal(tmp_path)))
    assert (first["run"], first["run_id"], first["format"]) == (RUN, "tiny-0123456789", 2)
    assert first["journal"] != second["journal"]


def test_later_checksums_start_from_the_first_checksum(journal: Path) -> None:
    first, *rest = split_lines(journal.read_bytes())
    assert int(first[:8], 16) == zlib.crc32(first[9:-1])
    assert all(int(line[:8], 16) == zlib.crc32(line[9:-1], int(first[:8], 16)) for line in rest)


def write_other_journal(folder: Path, *groups: Sequence[int], run: str = RUN) -> Path:
    journal_path = folder / "other.jsonl"
    write_journal(journal_path, *(groups or ([0], [1, 2], [3], [4])), run=run)
    return journal_path


@pytest.mark.parametrize("run", [RUN, OTHER_RUN])
@pytest.mark.parametrize("tail_lines", [1, 2])
def test_tail_of_another_journal_is_refused(tmp_path: Path, journal: Path, run: str, tail_lines: int) -> None:
    """The other journal is from another run or the same run played again, with matching sequence numbers."""
    own_lines, foreign_lines = (
        split_lines(journal.read_bytes()),
        split_lines(write_other_journal(tmp_path, run=run).read_bytes()),
    )
    journal.write_bytes(b"".join([*own_lines[:-tail_lines], *foreign_lines[-tail_lines:]]))
    check_is_refused(
        journal,
        f"damaged at byte {len(b''.join(own_lines[:-tail_lines]))}: a line there was changed, or is from another log",
    )


def test_line_of_another_journal_in_the_middle_is_refused(tmp_path: Path, journal: Path) -> None:
    own_lines, foreign_lines = (
        split_lines(journal.read_bytes()),
        split_lines(write_other_journal(tmp_path).read_bytes()),
    )
    for index in range(1, len(own_lines)):
        journal.write_bytes(b"".join([*own_lines[:index], foreign_lines[index], *own_lines[index + 1 :]]))
        check_is_refused(journal, f"damaged at byte {len(b''.join(own_lines[:index]))}")


@pytest.mark.parametrize("change", ["twice", "left out", "edited", "unbound", "begun again"])
def test_complete_last_line_that_does_not_belong_is_not_cut_off(tmp_path: Path, journal: Path, change: str) -> None:
    own_lines = split_lines(journal.read_bytes())
    changed_lines = {
        "twice": [*own_lines, own_lines[-1]],
        "left out": [*own_lines[:-2], own_lines[-1]],
        "edited": [*own_lines[:-1], own_lines[-1].replace(b"answer", b"Answer")],
        "unbound": [*own_lines[:-1], encode(5, make_record(4))],
        "begun again": [*own_lines, split_lines(write_other_journal(tmp_path).read_bytes())[0]],
    }
    journal.write_bytes(b"".join(changed_lines[change]))
    check_is_refused(journal, "a line there was changed, or is from another log")


def test_journal_of_another_run_is_refused_with_its_run_id(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_journal(path, [0], run=OTHER_RUN, run_id="other-run")
    check_is_refused(path, "belongs to another run, 'other-run' with the identity bbbbbbbbbbbb instead of aaaaaaaaaaaa")
    assert read_numbers(path) == [0]  # a replay reads it


@pytest.mark.full
def test_bound_journal_cut_at_any_byte_keeps_its_complete_groups(tmp_path: Path) -> None:
    path, groups = tmp_path / "journal.jsonl", ([0], [1, 2, 3], [4], [5, 6])
    data = write_journal(path, *groups)
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        expected = [number for group in groups if ends[group[-1] + 1] <= cut for number in group]
        assert read_numbers(path) == expected
        write_journal(path, [9])
        assert read_numbers(path) == [*expected, 9]


@pytest.mark.parametrize("zeros", [1, 7, 4096])
def test_zeros_left_by_a_power_failure_are_a_torn_end(journal: Path, zeros: int) -> None:
    data = journal.read_bytes()
    last = split_lines(data)[-1]
    torn_ends = [bytes(zeros), last[:20] + bytes(zeros), last[:20] + bytes(zeros) + b"\n", bytes(zeros) + last[-9:]]
    for end in torn_ends:
        journal.write_bytes(data + end)
        write_journal(journal, [5])
        assert read_numbers(journal) == [0, 1, 2, 3, 4, 5]


def test_flipped_bit_of_a_bound_journal_is_never_accepted(tmp_path: Path) -> None:
    """A flip is reported, unless it tears the last line: by a lost line end or a zero byte."""
    path = tmp_path / "journal.jsonl"
    data = write_journal(path, [0], [1])
    last_line_start = len(data) - len(split_lines(data)[-1])
    expected = list(read_journal(path))
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            path.write_bytes(bytes(flipped))
            try:
                records = list(read_journal(path, RUN))
            except JournalError:
                continue
            assert records == expected[:-1], position
            assert position >= last_line_start - 1, position


@pytest.mark.parametrize("first_record", [{}, {"kind": "begun", "format": 1}])
def test_journal_of_an_earlier_format_keeps_its_format(tmp_path: Path, first_record: dict[str, Any]) -> None:
    path = tmp_path / "journal.jsonl"
    header = [first_record] if first_record else []
    path.write_bytes(b"".join(encode(index, content) for index, content in enumerate([*header, make_record(0)])))
    data = write_journal(path, [1], [2])
    assert data == b"".join(
        encode(index, content) for index, content in enumerate([*header, *map(make_record, range(3))])
    )
    assert not is_log_bound_to_run(path)
    path.write_bytes(data + encode(7, make_record(7)))
    assert read_numbers(path) == [0, 1, 2]


@pytest.mark.parametrize("bound", [False, True])
def test_record_changed_on_disk_is_refused(tmp_path: Path, bound: bool) -> None:
    path = tmp_path / "journal.jsonl"
    if bound:
        write_journal(path, [0], [1], [2])
    else:
        path.write_bytes(b"".join(encode(index, make_record(index)) for index in range(3)))

    async def look() -> None:
        journal = Journal(path)
        records = list(read_journal(path))
        assert [journal.record(offset) for offset, _ in records] == [content for _, content in records]
        offset = records[2][0]
        data = bytearray(path.read_bytes())
        data[data.index(b'"n":', offset) + 4] ^= 1
        path.write_bytes(bytes(data))
        reader = JournalReader(path)
        for read_record in (journal.record, reader.record):
            with pytest.raises(JournalError, match=f"the record at byte {offset} is gone"):
                read_record(offset)
        reader.close()
        await journal.close()

    asyncio.run(look())


def test_bound_line_is_nine_characters_and_json(journal: Path) -> None:
    assert [json.loads(line[9:])["seq"] for line in split_lines(journal.read_bytes())] == list(range(6))
