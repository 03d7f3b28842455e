"""The journal: whole lines or none, damage found, nothing acknowledged lost whatever call of the disk fails."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import JournalError, NewerFormatError, RunDirectoryError
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import JournalReader, check_log_format, decode, encode, read_journal
from tests.support.processes import python


def record(index: int) -> dict[str, Any]:
    return {"kind": "call", "sample": [f"p{index}", 0, 0, "verifier", 0], "text": "ünï\n" * (index % 4), "n": index}


def write_records(path: Path, count: int, start: int = 0) -> None:
    async def write() -> None:
        journal = Journal(path)
        try:
            for index in range(start, start + count):
                await journal.append(record(index))
        finally:
            await journal.close()

    asyncio.run(write())


def numbers(path: Path) -> list[int]:
    return [found["n"] for _, found in read_journal(path)]


def opened_and_closed(path: Path) -> Any:
    async def once() -> Any:
        journal = Journal(path)
        await journal.close()
        return journal.state_at_opening

    return asyncio.run(once())


def test_a_record_comes_back_as_it_went_in() -> None:
    for index in range(8):
        line = encode(index, record(index))
        assert line.count(b"\n") == 1
        assert decode(line, index) == {**record(index), "seq": index}


def test_equal_records_give_equal_bytes_whatever_the_order_of_their_keys() -> None:
    assert encode(3, {"a": 1, "b": [2, None]}) == encode(3, {"b": [2, None], "a": 1})


def test_no_part_of_a_line_is_a_record() -> None:
    line = encode(0, record(1))
    for cut in range(len(line)):
        assert decode(line[:cut], 0) is None
        assert decode(line[: max(cut - 1, 0)] + b"\n", 0) is None


def test_a_line_in_another_place_is_no_record() -> None:
    assert decode(encode(4, record(0)), 5) is None


def test_an_upper_case_checksum_is_not_ours() -> None:
    line = next(line for line in (encode(0, {"n": i}) for i in range(100)) if line[:8].upper() != line[:8])
    assert decode(line[:8].upper() + line[8:], 0) is None


def test_records_come_back_in_order_and_appending_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 5)
    write_records(path, 4, start=5)
    assert numbers(path) == list(range(9))


def begun_and_written(path: Path, *groups: list[dict[str, Any]]) -> None:
    async def write() -> None:
        journal = Journal(path, first={"kind": "begun", "format": 1})
        try:
            for group in groups:
                await journal.append(*group)
        finally:
            await journal.close()

    asyncio.run(write())


def test_an_empty_journal_gets_its_first_record_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    begun_and_written(path)
    assert path.read_bytes() == b""
    begun_and_written(path, [record(0), record(1)], [record(2)])
    begun_and_written(path, [record(3)])
    kinds = [found["kind"] for _, found in read_journal(path)]
    assert kinds == ["begun", "call", "call", "call", "call"]


def test_a_journal_that_has_records_gets_no_first_one(tmp_path: Path) -> None:
    path, other = tmp_path / "journal.jsonl", tmp_path / "other.jsonl"
    for each in (path, other):
        write_records(each, 1)
    write_records(other, 1, start=1)
    begun_and_written(path, [record(1)])
    assert path.read_bytes() == other.read_bytes()


def test_cut_at_every_byte_a_journal_has_one_first_record(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    begun_and_written(path, [record(0), record(1)])
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        begun_and_written(path, [record(2)])
        kinds = [found["kind"] for _, found in read_journal(path)]
        assert (kinds[0], kinds.count("begun")) == ("begun", 1)
        assert kinds.count("call") == (3 if cut == len(whole) else 1)


def test_a_newer_journal_is_neither_read_nor_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    newer = encode(0, {"kind": "begun", "format": 3}) + b"what is torn by our rules"
    path.write_bytes(newer)
    for use in (opened_and_closed, check_log_format, lambda file: list(read_journal(file))):
        with pytest.raises(NewerFormatError, match=r"format is 3, this version reads up to 2"):
            use(path)
    assert path.read_bytes() == newer


def test_records_that_come_at_once_are_all_kept_in_the_order_they_came(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def write() -> None:
        journal = Journal(path)
        await asyncio.gather(*(journal.append(record(index)) for index in range(200)))
        await journal.close()

    asyncio.run(write())
    assert numbers(path) == list(range(200))


def test_a_record_can_be_read_at_its_offset_with_the_journal_open(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def write() -> None:
        journal = Journal(path)
        await journal.append({"text": "x" * 100_000, "n": 0})
        await journal.append(record(1))
        reader = JournalReader(path)
        for offset, found in read_journal(path):
            assert journal.record(offset) == reader.record(offset) == found
        reader.close()
        await journal.close()

    asyncio.run(write())


@pytest.mark.full
def test_cut_at_every_byte_exactly_the_whole_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 6)
    data = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        opened = opened_and_closed(path)
        assert opened.records == whole
        assert opened.torn_bytes == cut - (ends[whole - 1] if whole else 0)
        assert numbers(path) == list(range(whole))
        if cut % 7 == 0:
            write_records(path, 1, start=whole)
            assert numbers(path) == list(range(whole + 1))


def test_cut_at_every_byte_records_of_one_append_come_back_whole_or_not(tmp_path: Path) -> None:
    path, groups = tmp_path / "journal.jsonl", [[0], [1, 2, 3], [4], [5, 6]]

    async def write() -> None:
        journal = Journal(path)
        await asyncio.gather(*(journal.append(*map(record, group)) for group in groups))
        await journal.close()

    asyncio.run(write())
    data = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = [group for group in groups if ends[group[-1]] <= cut]
        expected = [number for group in whole for number in group]
        assert numbers(path) == expected
        opened = opened_and_closed(path)
        assert opened.records == len(expected)
        assert opened.torn_bytes == cut - (ends[expected[-1]] if expected else 0)
        assert path.stat().st_size == cut - opened.torn_bytes


@pytest.mark.full
def test_no_flipped_bit_is_accepted_in_silence(tmp_path: Path) -> None:
    """All bits of a small journal: the flip is reported, or falls in the last record, which counts as torn."""
    path = tmp_path / "journal.jsonl"
    write_records(path, 4)
    data = path.read_bytes()
    good = list(read_journal(path))
    last = good[-1][0]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            path.write_bytes(bytes(flipped))
            try:
                found = list(read_journal(path))
            except JournalError:
                continue
            # Without a report only the end may be lost, and what is left is as it was.
            assert found == good[: len(found)], position
            assert position >= last - 1, position
            assert len(found) >= 2


def test_damage_in_the_middle_stops_with_its_place_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 5)
    data = bytearray(path.read_bytes())
    place = bytes(data).index(b"\n", bytes(data).index(b"\n") + 1) + 1
    data[place + 20] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(JournalError, match=f"at byte {place},"):
        opened_and_closed(path)
    assert path.read_bytes() == bytes(data)


def test_a_whole_file_of_something_else_is_not_cut_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"this is\nno journal\nof ours\n")
    with pytest.raises(JournalError):
        opened_and_closed(path)
    assert path.stat().st_size == 27


@pytest.mark.parametrize("sizes", [(0,), (1, 2), (9, 100, 3)])
def test_zeros_after_the_end_are_a_torn_end(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """A file system may leave zeros where a write was under way when the power went."""
    path = tmp_path / "journal.jsonl"
    write_records(path, 3)
    for size in sizes:
        path.write_bytes(path.read_bytes() + bytes(size))
        assert opened_and_closed(path).torn_bytes == size
    assert numbers(path) == [0, 1, 2]


def test_a_journal_in_use_is_refused_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = f"from pathlib import Path; from runner.base.storage.journal import Journal; Journal(Path({str(path)!r}))"

    journal = Journal(path)
    refused = python(code)
    asyncio.run(journal.close())
    assert refused.returncode == 1
    assert "in use by another process" in refused.stderr


def test_a_second_journal_on_a_file_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def both() -> None:
        journal = Journal(path)
        with pytest.raises(RunDirectoryError):
            Journal(path)
        await journal.append(record(0))
        await journal.close()
        await Journal(path).close()

    asyncio.run(both())
    assert numbers(path) == [0]


def test_a_journal_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(JournalError, match="cannot open"):
        Journal(tmp_path / "folder")


def test_random_damage_never_gives_a_record_that_was_not_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 12)
    data = path.read_bytes()
    good = [found for _, found in read_journal(path)]
    rng = random.Random(5)
    for _ in range(500):
        damaged = bytearray(data)
        start = rng.randrange(len(data))
        damaged[start : start + rng.randrange(1, 60)] = rng.randbytes(rng.randrange(60))
        path.write_bytes(bytes(damaged))
        try:
            found = [one for _, one in read_journal(path)]
        except JournalError:
            continue
        assert found == good[: len(found)]
