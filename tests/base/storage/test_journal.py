"""The journal keeps complete lines only, detects damage, and loses no acknowledged record."""

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


def make_record(index: int) -> dict[str, Any]:
    return {"kind": "call", "sample": [f"p{index}", 0, 0, "verifier", 0], "text": "ünï\n" * (index % 4), "n": index}


def write_records(path: Path, count: int, start: int = 0) -> None:
    async def write() -> None:
        journal = Journal(path)
        try:
            for index in range(start, start + count):
                await journal.append(make_record(index))
        finally:
            await journal.close()

    asyncio.run(write())


def read_numbers(path: Path) -> list[int]:
    return [content["n"] for _, content in read_journal(path)]


def open_and_close(path: Path) -> Any:
    async def open_and_close_journal() -> Any:
        journal = Journal(path)
        await journal.close()
        return journal.state_at_opening

    return asyncio.run(open_and_close_journal())


def test_decoded_record_equals_the_encoded_one() -> None:
    for index in range(8):
        line = encode(index, make_record(index))
        assert line.count(b"\n") == 1
        assert decode(line, index) == {**make_record(index), "seq": index}


def test_encoding_does_not_depend_on_the_order_of_keys() -> None:
    assert encode(3, {"a": 1, "b": [2, None]}) == encode(3, {"b": [2, None], "a": 1})


def test_part_of_a_line_is_not_decoded() -> None:
    line = encode(0, make_record(1))
    for cut in range(len(line)):
        assert decode(line[:cut], 0) is None
        assert decode(line[: max(cut - 1, 0)] + b"\n", 0) is None


def test_line_with_another_sequence_number_is_not_decoded() -> None:
    assert decode(encode(4, make_record(0)), 5) is None


def test_upper_case_checksum_is_not_decoded() -> None:
    line = next(line for line in (encode(0, {"n": i}) for i in range(100)) if line[:8].upper() != line[:8])
    assert decode(line[:8].upper() + line[8:], 0) is None


def test_reopened_journal_appends_records_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 5)
    write_records(path, 4, start=5)
    assert read_numbers(path) == list(range(9))


def write_groups(path: Path, *groups: list[dict[str, Any]]) -> None:
    async def write() -> None:
        journal = Journal(path, first={"kind": "begun", "format": 1})
        try:
            for group in groups:
                await journal.append(*group)
        finally:
            await journal.close()

    asyncio.run(write())


def test_header_is_written_with_the_first_append(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_groups(path)
    assert path.read_bytes() == b""
    write_groups(path, [make_record(0), make_record(1)], [make_record(2)])
    write_groups(path, [make_record(3)])
    kinds = [content["kind"] for _, content in read_journal(path)]
    assert kinds == ["begun", "call", "call", "call", "call"]


def test_journal_with_records_gets_no_header(tmp_path: Path) -> None:
    path, other_path = tmp_path / "journal.jsonl", tmp_path / "other.jsonl"
    for journal_path in (path, other_path):
        write_records(journal_path, 1)
    write_records(other_path, 1, start=1)
    write_groups(path, [make_record(1)])
    assert path.read_bytes() == other_path.read_bytes()


def test_journal_cut_at_any_byte_has_one_header(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_groups(path, [make_record(0), make_record(1)])
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        write_groups(path, [make_record(2)])
        kinds = [content["kind"] for _, content in read_journal(path)]
        assert (kinds[0], kinds.count("begun")) == ("begun", 1)
        assert kinds.count("call") == (3 if cut == len(data) else 1)


def test_journal_of_a_newer_format_is_neither_read_nor_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    newer_data = encode(0, {"kind": "begun", "format": 3}) + b"a torn line by the current rules"
    path.write_bytes(newer_data)
    for read in (open_and_close, check_log_format, lambda file: list(read_journal(file))):
        with pytest.raises(NewerFormatError, match=r"format is 3, this version reads up to 2"):
            read(path)
    assert path.read_bytes() == newer_data


def test_concurrent_appends_are_stored_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def write() -> None:
        journal = Journal(path)
        await asyncio.gather(*(journal.append(make_record(index)) for index in range(200)))
        await journal.close()

    asyncio.run(write())
    assert read_numbers(path) == list(range(200))


def test_record_can_be_read_at_its_offset_while_the_journal_is_open(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def write() -> None:
        journal = Journal(path)
        await journal.append({"text": "x" * 100_000, "n": 0})
        await journal.append(make_record(1))
        reader = JournalReader(path)
        for offset, content in read_journal(path):
            assert journal.record(offset) == reader.record(offset) == content
        reader.close()
        await journal.close()

    asyncio.run(write())


@pytest.mark.full
def test_journal_cut_at_any_byte_keeps_its_complete_records(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 6)
    data = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        complete_records = sum(end <= cut for end in ends)
        state = open_and_close(path)
        assert state.records == complete_records
        assert state.torn_bytes == cut - (ends[complete_records - 1] if complete_records else 0)
        assert read_numbers(path) == list(range(complete_records))
        if cut % 7 == 0:
            write_records(path, 1, start=complete_records)
            assert read_numbers(path) == list(range(complete_records + 1))


def test_records_of_one_append_are_all_kept_or_all_cut_off(tmp_path: Path) -> None:
    path, groups = tmp_path / "journal.jsonl", [[0], [1, 2, 3], [4], [5, 6]]

    async def write() -> None:
        journal = Journal(path)
        await asyncio.gather(*(journal.append(*map(make_record, group)) for group in groups))
        await journal.close()

    asyncio.run(write())
    data = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        complete_groups = [group for group in groups if ends[group[-1]] <= cut]
        expected = [number for group in complete_groups for number in group]
        assert read_numbers(path) == expected
        state = open_and_close(path)
        assert state.records == len(expected)
        assert state.torn_bytes == cut - (ends[expected[-1]] if expected else 0)
        assert path.stat().st_size == cut - state.torn_bytes


@pytest.mark.full
def test_flipped_bit_is_never_accepted_without_an_error(tmp_path: Path) -> None:
    """Flip every bit of a small journal: the flip is reported, or is in the last record, which counts as torn."""
    path = tmp_path / "journal.jsonl"
    write_records(path, 4)
    data = path.read_bytes()
    expected = list(read_journal(path))
    last_offset = expected[-1][0]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            path.write_bytes(bytes(flipped))
            try:
                records = list(read_journal(path))
            except JournalError:
                continue
            # Without an error, only the end may be lost, and the remaining records are unchanged.
            assert records == expected[: len(records)], position
            assert position >= last_offset - 1, position
            assert len(records) >= 2


def test_damage_in_the_middle_is_reported_with_its_offset_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 5)
    data = bytearray(path.read_bytes())
    offset = bytes(data).index(b"\n", bytes(data).index(b"\n") + 1) + 1
    data[offset + 20] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(JournalError, match=f"at byte {offset},"):
        open_and_close(path)
    assert path.read_bytes() == bytes(data)


def test_file_that_is_not_a_journal_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"this is\nno journal\nof ours\n")
    with pytest.raises(JournalError):
        open_and_close(path)
    assert path.stat().st_size == 27


@pytest.mark.parametrize("sizes", [(0,), (1, 2), (9, 100, 3)])
def test_zeros_after_the_end_are_cut_off(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """A file system may leave zeros after a power failure during a write."""
    path = tmp_path / "journal.jsonl"
    write_records(path, 3)
    for size in sizes:
        path.write_bytes(path.read_bytes() + bytes(size))
        assert open_and_close(path).torn_bytes == size
    assert read_numbers(path) == [0, 1, 2]


def test_journal_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = f"from pathlib import Path; from runner.base.storage.journal import Journal; Journal(Path({str(path)!r}))"

    journal = Journal(path)
    refused = python(code)
    asyncio.run(journal.close())
    assert refused.returncode == 1
    assert "in use by another process" in refused.stderr


def test_second_journal_on_a_file_is_refused_and_the_first_still_works(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def open_twice() -> None:
        journal = Journal(path)
        with pytest.raises(RunDirectoryError):
            Journal(path)
        await journal.append(make_record(0))
        await journal.close()
        await Journal(path).close()

    asyncio.run(open_twice())
    assert read_numbers(path) == [0]


def test_journal_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(JournalError, match="cannot open"):
        Journal(tmp_path / "folder")


def test_random_damage_never_yields_an_unwritten_record(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_records(path, 12)
    data = path.read_bytes()
    expected = [contents for _, contents in read_journal(path)]
    rng = random.Random(5)
    for _ in range(500):
        damaged = bytearray(data)
        start = rng.randrange(len(data))
        damaged[start : start + rng.randrange(1, 60)] = rng.randbytes(rng.randrange(60))
        path.write_bytes(bytes(damaged))
        try:
            contents = [content for _, content in read_journal(path)]
        except JournalError:
            continue
        assert contents == expected[: len(contents)]
