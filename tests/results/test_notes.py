"""Notes of a run: stored, changed, removed, imported, and read with any content."""

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


def test_note_is_stored_as_written(notes: Notes) -> None:
    note = notes.write(HOSTILE, [HOSTILE[:40], " odd ", "odd", ""], rollout_id="r1", by="me")
    assert notes.all() == [note]
    assert (note.text, note.tags, note.rollout_id, note.by) == (HOSTILE, (HOSTILE[:40].strip(), "odd"), "r1", "me")
    (line,) = notes.path.read_bytes().splitlines()
    assert json.loads(line)["text"] == HOSTILE


def test_note_on_the_run_has_no_rollout_id(notes: Notes) -> None:
    assert notes.write("all of it").rollout_id is None


def test_changed_note_keeps_its_position_and_removed_note_disappears(notes: Notes) -> None:
    first, second = notes.write("one"), notes.write("two")
    changed = notes.write("uno", replaces=first.id)
    changed_again = notes.write("eins", replaces=changed.id)
    assert [note.text for note in notes.all()] == ["eins", "two"]
    notes.remove(changed_again.id)
    assert notes.all() == [second]
    assert len(notes.path.read_bytes().splitlines()) == 5  # the file only grows


@pytest.mark.parametrize("unknown_id", ["nothing", ""])
def test_unknown_note_cannot_be_replaced_or_removed(notes: Notes, unknown_id: str) -> None:
    with pytest.raises(UsageError, match="no note"):
        notes.write("x", replaces=unknown_id)
    with pytest.raises(UsageError, match="no note"):
        notes.remove(unknown_id)
    assert not notes.all()


@pytest.mark.parametrize(
    ("text", "tags", "message"),
    [
        (" ", [], "the note is empty; add a text or a tag"),
        ("x" * (MAX_TEXT + 1), [], "has 20,001 characters, but at most 20,000"),
        ("x", ["t"] * 21, "at most 20"),
        ("x", ["t" * 61], "has 61 characters, but at most 60"),
        ("half \ud800", [], "half of a surrogate pair"),
    ],
)
def test_invalid_note_is_refused_and_nothing_is_written(notes: Notes, text: str, tags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        notes.write(text, tags)
    assert not notes.path.exists()


def test_truncated_line_is_ignored_and_removed_by_the_next_note(notes: Notes) -> None:
    first = notes.write("one")
    content = notes.path.read_bytes()
    for size in range(1, len(content)):
        notes.path.write_bytes(content + content[:size])
        assert notes.all() == [first]
    second = notes.write("two")
    assert notes.all() == [first, second]


@pytest.mark.parametrize("line", ["{}", "[]", "no", '{"id": "a", "text": 1}', '{"id": "../a", "text": "x"}'])
def test_damaged_line_is_reported_with_its_line_number(notes: Notes, line: str) -> None:
    notes.write("one")
    with notes.path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"notes\.jsonl:2: "):
        notes.all()


def test_concurrent_notes_are_all_stored(notes: Notes) -> None:
    threads = [threading.Thread(target=notes.write, args=(str(number),)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {note.text for note in notes.all()} == set(map(str, range(12)))


def test_symlink_at_the_notes_path_is_not_followed(notes: Notes, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    notes.path.symlink_to(tmp_path / "other")
    with pytest.raises(RunError):
        notes.write("x")
    assert (tmp_path / "other").read_text() == "mine"


def test_notes_are_imported_once_and_notes_of_another_run_are_refused(notes: Notes, tmp_path: Path) -> None:
    other_notes = Notes(RunFolder(tmp_path / "other"))
    other_notes.path.parent.mkdir()
    removed, stored = other_notes.write("gone", rollout_id="r1"), other_notes.write("kept", ["t"], rollout_id="r2")
    other_notes.remove(removed.id)
    lines = other_notes.path.read_bytes()
    assert notes.import_lines(lines) == (3, 0)
    assert notes.import_lines(lines) == (0, 3)
    assert notes.all() == [stored]
    foreign_line = json.dumps({"run_id": "another", **stored.to_json(), "id": "new"}).encode()
    with pytest.raises(UsageError, match="on run another"):
        notes.import_lines(foreign_line)
    with pytest.raises(UsageError, match="line 1 is not a note"):
        notes.import_lines(b"no json")
    assert notes.all() == [stored]


def test_notes_of_a_fetched_run_are_stored_next_to_its_data(tmp_path: Path) -> None:
    """A file added to the data of a release would count as damage."""
    assert Notes(RunFolder(tmp_path / "data", "nip-1")).path == tmp_path / "notes.jsonl"
