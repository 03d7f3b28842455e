"""Notes of readers about a run and its games: `notes.jsonl` in the run's folder, with a JSON object in each line.

The file is append-only: a later line replaces or removes a note. An incomplete line, as after a kill, is ignored, and
the next write removes it. No hash, release or table of the run includes its notes.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.base.storage.line_file import LineFile
from runner.base.storage.strict_json import parse_strict_json
from runner.base.text import encoding_problem, shortened
from runner.results.folder import RunFolder
from runner.results.manifest import now

NOTES = "notes.jsonl"
LOCK = ".notes.lock"

MAX_TEXT, MAX_TAGS, MAX_TAG, MAX_BY = 20_000, 20, 60, 100
"""Maximum numbers: characters of a text, tags of a note, characters of a tag, and characters of a writer's name."""

_ID = re.compile(r"[\w.-]{1,100}", re.ASCII)


@dataclass(frozen=True)
class ReaderNote:
    """A reader's note about a game, or about the run if `rollout_id` is None."""

    id: str
    at: str
    text: str
    tags: tuple[str, ...] = ()
    rollout_id: str | None = None
    by: str | None = None

    def to_json(self) -> dict[str, Any]:
        by = {} if self.by is None else {"by": self.by}
        return {
            "id": self.id, "at": self.at, "rollout_id": self.rollout_id, "text": self.text, "tags": list(self.tags),
            **by,
        }  # fmt: skip

    def contains(self, terms: Sequence[str]) -> bool:
        """Return whether the text and the tags together contain all `terms`, which are in lowercase."""
        text = "\n".join((self.text, *self.tags)).lower()
        return all(term in text for term in terms)


@dataclass(frozen=True)
class _Line:
    """A line of the file: a new note, the replacement of a note, or the removal of a note."""

    id: str
    replaced_id: str | None
    """The id of the replaced or removed note; None for a new note."""
    note: ReaderNote | None
    """The note; None for a removal."""
    run_id: str | None = None
    """The run, in lines that were exported."""

    def to_json(self) -> dict[str, Any]:
        if self.note is None:
            return {"id": self.id, "at": now(), "removes": self.replaced_id}
        return {**self.note.to_json(), **({} if self.replaced_id is None else {"replaces": self.replaced_id})}


class Notes:
    """The notes of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self._run_id = folder.run_id
        # The data of a fetched release is read-only, so the file is in the folder above it.
        folder_path = folder.path if folder.name is None else folder.path.parent
        self.path = folder_path / NOTES
        self._file = LineFile(self.path, folder_path / LOCK, f"{NOTES} of run {folder.run_id}")

    def all(self) -> list[ReaderNote]:
        """Return all notes that were not removed, each in its latest version, the oldest first.

        Raises:
            RunError: the file cannot be read, or a complete line is not a note.
        """
        return _current_notes(self._lines())

    def state(self) -> tuple[int, int]:
        """Return the file's size and modification time, which change if a note is written."""
        with suppress(OSError):
            status = self.path.stat()
            return status.st_size, status.st_mtime_ns
        return 0, 0

    def write(
        self,
        text: str,
        tags: Iterable[str] = (),
        *,
        rollout_id: str | None = None,
        by: str | None = None,
        replaces: str | None = None,
    ) -> ReaderNote:
        """Save a note, which replaces the note with the id `replaces` if it is given.

        Raises:
            UsageError: the note is empty, too long or not text, or no note has the id `replaces`.
            RunError: the note cannot be saved.
        """
        note = _parse_note({"id": secrets.token_hex(8), "at": now(), "rollout_id": rollout_id, "text": text,
                         "tags": list(tags), "by": by})  # fmt: skip
        self._append(_Line(note.id, replaces, note))
        return note

    def remove(self, note_id: str) -> None:
        """Remove a note.

        Raises:
            UsageError: no note has this id.
            RunError: the removal cannot be saved.
        """
        self._append(_Line(secrets.token_hex(8), note_id, None))

    def import_lines(self, data: bytes) -> tuple[int, int]:
        """Import all lines of another `notes.jsonl`, or none. Return the numbers of new and of existing lines.

        Raises:
            UsageError: a line is not a note, or is about another run.
            RunError: the notes cannot be saved.
        """
        lines = []
        for number, line in enumerate(data.splitlines(), 1):
            try:
                lines.append(_parse_line(line))
            except (ValueError, UsageError) as error:
                raise UsageError(f"line {number} is not a note: {error}; correct or remove the line") from error
            run_id = lines[-1].run_id
            if run_id not in (None, self._run_id):
                raise UsageError(
                    f"line {number} is a note on run {shortened(str(run_id))}, not on {self._run_id}; import it there"
                )
        with self._file.hold_lock():
            existing = {line.id for line in self._lines()}
            new = [line for line in {line.id: line for line in lines}.values() if line.id not in existing]
            self._file.append(line.to_json() for line in new)
        return len(new), len(lines) - len(new)

    def _append(self, line: _Line) -> None:
        with self._file.hold_lock():
            current_ids = {None, *(note.id for note in self.all())}
            if line.replaced_id not in current_ids:
                raise UsageError(
                    f"run {self._run_id} has no note {shortened(str(line.replaced_id))!r}; list the notes again"
                )
            self._file.append([line.to_json()])

    def _lines(self) -> Iterator[_Line]:
        for number, line in enumerate(self._file.complete_lines().splitlines(), 1):
            try:
                yield _parse_line(line)
            except (ValueError, UsageError) as error:
                raise RunError(f"{self.path}:{number}: not a note: {error}; correct or remove the line") from error


def note_rows(folder: RunFolder) -> list[tuple[Any, ...]]:
    """Return the notes of a run as rows of `NOTE_COLUMNS`. Raises the same errors as `Notes.all`."""
    return [
        (folder.run_id, note.id, note.at, note.by, note.rollout_id, list(note.tags), note.text)
        for note in Notes(folder).all()
    ]


def _current_notes(lines: Iterable[_Line]) -> list[ReaderNote]:
    """Return the notes that were not removed. A replaced note has the position of its first version."""
    notes: dict[str, ReaderNote | None] = {}
    first_ids: dict[str, str] = {}
    for line in lines:
        first_id = line.id if line.replaced_id is None else first_ids.get(line.replaced_id, line.replaced_id)
        if line.note is not None:
            first_ids[line.note.id] = first_id
        if line.replaced_id is None and line.id in notes:
            continue  # an imported note that existed before
        notes[first_id] = line.note
    return [note for note in notes.values() if note is not None]


def _parse_line(line: bytes) -> _Line:
    data = parse_strict_json(line)
    if not isinstance(data, dict):
        raise UsageError("the line is not a JSON object")
    run_id, removed_id, replaced_id = data.get("run_id"), data.get("removes"), data.get("replaces")
    if isinstance(removed_id, str):
        return _Line(_parse_id(data), removed_id, None, run_id)
    return _Line(_parse_id(data), replaced_id if isinstance(replaced_id, str) else None, _parse_note(data), run_id)


def _parse_id(data: Mapping[str, object]) -> str:
    note_id = data.get("id")
    if not isinstance(note_id, str) or not _ID.fullmatch(note_id):
        raise UsageError("`id` must be 1 to 100 letters, digits, dots, dashes or underscores")
    return note_id


def _parse_note(data: Mapping[str, object]) -> ReaderNote:
    """Return the note in JSON data.

    Raises:
        UsageError: a field is missing, too long or has the wrong type, or the note is empty.
    """
    text, by = _parse_text(data.get("text", ""), MAX_TEXT, "text"), data.get("by")
    tags = data.get("tags", [])
    if not isinstance(tags, list) or len(tags) > MAX_TAGS:
        raise UsageError(f"`tags` must be a list of at most {MAX_TAGS} strings")
    unique_tags = tuple(dict.fromkeys(tag for tag in (_parse_text(tag, MAX_TAG, "tag").strip() for tag in tags) if tag))
    if not text.strip() and not unique_tags:
        raise UsageError("the note is empty; add a text or a tag")
    rollout_id = data.get("rollout_id")
    return ReaderNote(
        _parse_id(data),
        _parse_text(data.get("at", ""), MAX_BY, "time"),
        text,
        unique_tags,
        None if rollout_id is None else _parse_text(rollout_id, MAX_BY, "rollout_id"),
        None if by is None else _parse_text(by, MAX_BY, "writer's name"),
    )


def _parse_text(value: Any, limit: int, field: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"the {field} must be a string")
    if len(value) > limit:
        raise UsageError(f"the {field} has {len(value):,} characters, but at most {limit:,} are allowed; shorten it")
    if (problem := encoding_problem(value)) is not None:
        raise UsageError(f"the {field}: {problem}")
    return value
