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

RUN, OTHER = "a" * 64, "b" * 64


def record(index: int) -> dict[str, Any]:
    return {"kind": "call", "n": index, "text": "answer\n" * (index % 3)}


def write_journal(path: Path, *groups: Sequence[int], run: str = RUN, run_id: str = "tiny-0123456789") -> bytes:
    async def write() -> None:
        journal = Journal(path, first=log_header(run, run_id), run=run)
        try:
            for group in groups:
                await journal.append(*map(record, group))
        finally:
            await journal.close()

    asyncio.run(write())
    return path.read_bytes()


def numbers(path: Path) -> list[int]:
    return [found["n"] for _, found in read_journal(path) if "n" in found]


def lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    write_journal(path, [0], [1, 2], [3], [4])
    return path


def refused(path: Path, match: str) -> None:
    """Neither opened nor read, and left as it is."""
    data = path.read_bytes()
    with pytest.raises(JournalError, match=match):
        write_journal(path, [9])
    with pytest.raises(JournalError, match=match):
        list(read_journal(path, RUN))
    assert path.read_bytes() == data


def test_the_first_record_says_the_run_and_a_number_of_its_own(journal: Path, tmp_path: Path) -> None:
    _, first = next(read_journal(journal))
    _, second = next(read_journal(_other(tmp_path)))
    assert (first["run"], first["run_id"], first["format"]) == (RUN, "tiny-0123456789", 2)
    assert first["journal"] != second["journal"]


def test_every_later_checksum_starts_from_the_first(journal: Path) -> None:
    first, *rest = lines(journal.read_bytes())
    assert int(first[:8], 16) == zlib.crc32(first[9:-1])
    assert all(int(line[:8], 16) == zlib.crc32(line[9:-1], int(first[:8], 16)) for line in rest)


def _other(folder: Path, *groups: Sequence[int], run: str = RUN) -> Path:
    path = folder / "other.jsonl"
    write_journal(path, *(groups or ([0], [1, 2], [3], [4])), run=run)
    return path


@pytest.mark.parametrize("run", [RUN, OTHER])
@pytest.mark.parametrize("tail", [1, 2])
def test_the_tail_of_another_journal_is_refused(tmp_path: Path, journal: Path, run: str, tail: int) -> None:
    """Of another run, and of another play of the same one; its lines have the numbers that belong there."""
    mine, theirs = lines(journal.read_bytes()), lines(_other(tmp_path, run=run).read_bytes())
    journal.write_bytes(b"".join([*mine[:-tail], *theirs[-tail:]]))
    refused(journal, f"damaged at byte {len(b''.join(mine[:-tail]))}: a line there was changed, or is from another log")


def test_a_line_of_another_journal_in_the_middle_is_refused(tmp_path: Path, journal: Path) -> None:
    mine, theirs = lines(journal.read_bytes()), lines(_other(tmp_path).read_bytes())
    for index in range(1, len(mine)):
        journal.write_bytes(b"".join([*mine[:index], theirs[index], *mine[index + 1 :]]))
        refused(journal, f"damaged at byte {len(b''.join(mine[:index]))}")


@pytest.mark.parametrize("change", ["twice", "left out", "edited", "unbound", "begun again"])
def test_a_whole_last_line_that_does_not_belong_is_not_cut_off(tmp_path: Path, journal: Path, change: str) -> None:
    mine = lines(journal.read_bytes())
    changed = {
        "twice": [*mine, mine[-1]],
        "left out": [*mine[:-2], mine[-1]],
        "edited": [*mine[:-1], mine[-1].replace(b"answer", b"Answer")],
        "unbound": [*mine[:-1], encode(5, record(4))],
        "begun again": [*mine, lines(_other(tmp_path).read_bytes())[0]],
    }
    journal.write_bytes(b"".join(changed[change]))
    refused(journal, "a line there was changed, or is from another log")


def test_the_whole_journal_of_another_run_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_journal(path, [0], run=OTHER, run_id="other-run")
    refused(path, "belongs to another run, 'other-run' with the identity bbbbbbbbbbbb instead of aaaaaaaaaaaa")
    assert numbers(path) == [0]  # a replay reads it


@pytest.mark.full
def test_cut_at_every_byte_a_bound_journal_keeps_its_whole_groups(tmp_path: Path) -> None:
    path, groups = tmp_path / "journal.jsonl", ([0], [1, 2, 3], [4], [5, 6])
    data = write_journal(path, *groups)
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = [number for group in groups if ends[group[-1] + 1] <= cut for number in group]
        assert numbers(path) == whole
        write_journal(path, [9])
        assert numbers(path) == [*whole, 9]


@pytest.mark.parametrize("zeros", [1, 7, 4096])
def test_zeros_that_a_power_cut_leaves_are_a_torn_end(journal: Path, zeros: int) -> None:
    whole = journal.read_bytes()
    last = lines(whole)[-1]
    torn = [bytes(zeros), last[:20] + bytes(zeros), last[:20] + bytes(zeros) + b"\n", bytes(zeros) + last[-9:]]
    for end in torn:
        journal.write_bytes(whole + end)
        write_journal(journal, [5])
        assert numbers(journal) == [0, 1, 2, 3, 4, 5]


def test_no_flipped_bit_of_a_bound_journal_is_accepted(tmp_path: Path) -> None:
    """Only the very last line can be torn: one that lost its end, or holds a zero."""
    path = tmp_path / "journal.jsonl"
    data = write_journal(path, [0], [1])
    last = len(data) - len(lines(data)[-1])
    good = list(read_journal(path))
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            path.write_bytes(bytes(flipped))
            try:
                found = list(read_journal(path, RUN))
            except JournalError:
                continue
            assert found == good[:-1], position
            assert position >= last - 1, position


@pytest.mark.parametrize("first", [{}, {"kind": "begun", "format": 1}])
def test_a_journal_of_an_earlier_format_goes_on_as_it_was_begun(tmp_path: Path, first: dict[str, Any]) -> None:
    path = tmp_path / "journal.jsonl"
    old = [first] if first else []
    path.write_bytes(b"".join(encode(index, one) for index, one in enumerate([*old, record(0)])))
    data = write_journal(path, [1], [2])
    assert data == b"".join(encode(index, one) for index, one in enumerate([*old, *map(record, range(3))]))
    assert not is_log_bound_to_run(path)
    path.write_bytes(data + encode(7, record(7)))
    assert numbers(path) == [0, 1, 2]


@pytest.mark.parametrize("bound", [False, True])
def test_a_record_that_changed_since_it_was_found_is_not_given(tmp_path: Path, bound: bool) -> None:
    path = tmp_path / "journal.jsonl"
    if bound:
        write_journal(path, [0], [1], [2])
    else:
        path.write_bytes(b"".join(encode(index, record(index)) for index in range(3)))

    async def look() -> None:
        journal = Journal(path)
        found = list(read_journal(path))
        assert [journal.record(offset) for offset, _ in found] == [one for _, one in found]
        offset = found[2][0]
        data = bytearray(path.read_bytes())
        data[data.index(b'"n":', offset) + 4] ^= 1
        path.write_bytes(bytes(data))
        reader = JournalReader(path)
        for read in (journal.record, reader.record):
            with pytest.raises(JournalError, match=f"the record at byte {offset} is gone"):
                read(offset)
        reader.close()
        await journal.close()

    asyncio.run(look())


def test_a_bound_line_is_json_behind_nine_characters(journal: Path) -> None:
    assert [json.loads(line[9:])["seq"] for line in lines(journal.read_bytes())] == list(range(6))
