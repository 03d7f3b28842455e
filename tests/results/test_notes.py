"""Notes beside a run: kept, changed, taken back, taken in, and read whatever stands in them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from runner.base.errors import RunError, UsageError
from runner.results.folder import RunFolder
from runner.results.notes import MAX_TEXT, Notes

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\x00\n]]>"


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(RunFolder(tmp_path))


def test_a_note_is_kept_as_it_was_written(notes: Notes) -> None:
    kept = notes.write(HOSTILE, [HOSTILE[:40], " odd ", "odd", ""], rollout_id="r1", by="me")
    assert notes.all() == [kept]
    assert (kept.text, kept.tags, kept.rollout_id, kept.by) == (HOSTILE, (HOSTILE[:40].strip(), "odd"), "r1", "me")
    (line,) = notes.path.read_bytes().splitlines()
    assert json.loads(line)["text"] == HOSTILE


def test_a_note_of_the_run_is_of_no_game(notes: Notes) -> None:
    assert notes.write("all of it").rollout_id is None


def test_a_changed_note_stands_at_its_place_and_one_taken_back_is_gone(notes: Notes) -> None:
    first, second = notes.write("one"), notes.write("two")
    changed = notes.write("uno", replaces=first.id)
    again = notes.write("eins", replaces=changed.id)
    assert [note.text for note in notes.all()] == ["eins", "two"]
    notes.remove(again.id)
    assert notes.all() == [second]
    assert len(notes.path.read_bytes().splitlines()) == 5  # nothing is ever taken out of the file


@pytest.mark.parametrize("gone", ["nothing", ""])
def test_no_note_takes_the_place_of_one_that_is_not_there(notes: Notes, gone: str) -> None:
    with pytest.raises(UsageError, match="no note"):
        notes.write("x", replaces=gone)
    with pytest.raises(UsageError, match="no note"):
        notes.remove(gone)
    assert not notes.all()


@pytest.mark.parametrize(
    ("text", "tags", "said"),
    [
        (" ", [], "the note is empty; add a text or a tag"),
        ("x" * (MAX_TEXT + 1), [], "has 20,001 characters, but at most 20,000"),
        ("x", ["t"] * 21, "at most 20"),
        ("x", ["t" * 61], "has 61 characters, but at most 60"),
        ("half \ud800", [], "half of a surrogate pair"),
    ],
)
def test_what_is_no_note_is_refused_and_nothing_is_written(notes: Notes, text: str, tags: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        notes.write(text, tags)
    assert not notes.path.exists()


def test_a_line_that_was_cut_off_does_not_count_and_goes_with_the_next(notes: Notes) -> None:
    kept = notes.write("one")
    whole = notes.path.read_bytes()
    for size in range(1, len(whole)):
        notes.path.write_bytes(whole + whole[:size])
        assert notes.all() == [kept]
    second = notes.write("two")
    assert notes.all() == [kept, second]


@pytest.mark.parametrize("line", ["{}", "[]", "no", '{"id": "a", "text": 1}', '{"id": "../a", "text": "x"}'])
def test_a_damaged_line_is_named_with_its_place(notes: Notes, line: str) -> None:
    notes.write("one")
    with notes.path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"notes\.jsonl:2: "):
        notes.all()


def test_notes_that_are_written_at_once_are_all_kept(notes: Notes) -> None:
    threads = [threading.Thread(target=notes.write, args=(str(number),)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {note.text for note in notes.all()} == set(map(str, range(12)))


def test_a_link_in_the_place_of_the_file_is_not_written_through(notes: Notes, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    notes.path.symlink_to(tmp_path / "other")
    with pytest.raises(RunError):
        notes.write("x")
    assert (tmp_path / "other").read_text() == "mine"


def test_notes_are_taken_in_once_and_those_of_another_run_not_at_all(notes: Notes, tmp_path: Path) -> None:
    other = Notes(RunFolder(tmp_path / "other"))
    other.path.parent.mkdir()
    gone, kept = other.write("gone", rollout_id="r1"), other.write("kept", ["t"], rollout_id="r2")
    other.remove(gone.id)
    lines = other.path.read_bytes()
    assert notes.import_lines(lines) == (3, 0)
    assert notes.import_lines(lines) == (0, 3)
    assert notes.all() == [kept]
    of = json.dumps({"run_id": "another", **kept.to_json(), "id": "new"}).encode()
    with pytest.raises(UsageError, match="on run another"):
        notes.import_lines(of)
    with pytest.raises(UsageError, match="line 1 is not a note"):
        notes.import_lines(b"no json")
    assert notes.all() == [kept]


def test_notes_of_a_run_that_was_got_stand_beside_its_data(tmp_path: Path) -> None:
    """What is added to the data of a release would be damage."""
    assert Notes(RunFolder(tmp_path / "data", "nip-1")).path == tmp_path / "notes.jsonl"
