"""Notes that readers keep of a run and of its games: `notes.jsonl` beside the run, one JSON object a line.

The file only grows: a note that is changed or taken back stays in it, and a later line says so. A line that was cut off
while it was written does not count, and goes when the next is written. Notes are no part of what a run is: no hash, no
release and no table of it has them.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from runner.base.errors import RunError, UsageError
from runner.base.hashing import canonical
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import append_to, read_bounded
from runner.base.storage.strict_json import loads
from runner.base.text import not_text, shortened
from runner.results.folder import RunFolder
from runner.results.manifest import now

NOTES = "notes.jsonl"
LOCK = ".notes.lock"

MAX_TEXT, MAX_TAGS, MAX_TAG, MAX_BY = 20_000, 20, 60, 100
"""Characters of a note, its tags, and characters of each and of a writer's name."""
MAX_FILE = 64 << 20

NOTE_COLUMNS = {
    "run_id": "VARCHAR", "id": "VARCHAR", "written_at": "VARCHAR", "writer": "VARCHAR", "rollout_id": "VARCHAR",
    "tags": "VARCHAR[]", "text": "VARCHAR",
}  # fmt: skip
"""Of a table of notes, by their types in SQL, whose own words `at` and `by` are."""

LOCK_SECONDS = 5.0
_ID = re.compile(r"[\w.-]{1,100}", re.ASCII)


@dataclass(frozen=True)
class ReaderNote:
    """What somebody wrote of a game, or, where `rollout_id` is None, of the run."""

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

    def has(self, words: Sequence[str]) -> bool:
        """Whether each of some words, in small letters, stands in its text or tags."""
        said = "\n".join((self.text, *self.tags)).lower()
        return all(word in said for word in words)


@dataclass(frozen=True)
class _Line:
    """A line of the file: a note, or that one was taken back; `before` is the note that it takes the place of."""

    id: str
    before: str | None
    note: ReaderNote | None
    run_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        if self.note is None:
            return {"id": self.id, "at": now(), "removes": self.before}
        return {**self.note.to_json(), **({} if self.before is None else {"replaces": self.before})}


class Notes:
    """The notes of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self._run_id = folder.run_id
        # In the data of a release that was got nothing may be added; beside them a reader may keep files.
        place = folder.path if folder.name is None else folder.path.parent
        self.path, self._lock = place / NOTES, place / LOCK

    def all(self) -> list[ReaderNote]:
        """Every note as it stands now, the oldest first.

        Raises:
            RunError: the file cannot be read, or a line before its last is none of ours.
        """
        return _standing(self._lines())

    def state(self) -> tuple[int, int]:
        """What differs once a note was written: the file's size and time."""
        with suppress(OSError):
            found = self.path.stat()
            return found.st_size, found.st_mtime_ns
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
        """Keep a note; with `replaces` in the place of one that there is.

        Raises:
            UsageError: it says nothing, is too long or no text; or there is no note to replace.
            RunError: it cannot be kept.
        """
        note = _checked({"id": secrets.token_hex(8), "at": now(), "rollout_id": rollout_id, "text": text,
                         "tags": list(tags), "by": by})  # fmt: skip
        self._append([_Line(note.id, replaces, note)])
        return note

    def remove(self, note_id: str) -> None:
        """Take a note back.

        Raises:
            UsageError: there is no such note.
            RunError: it cannot be kept that it was.
        """
        self._append([_Line(secrets.token_hex(8), note_id, None)])

    def take_in(self, data: bytes) -> tuple[int, int]:
        """Take notes in from another `notes.jsonl`, all or none; how many are new, and how many were here already.

        Raises:
            UsageError: a line of it is no note, or is one of another run.
            RunError: they cannot be kept.
        """
        lines = []
        for number, line in enumerate(data.splitlines(), 1):
            try:
                lines.append(_parsed(line))
            except (ValueError, UsageError) as error:
                raise UsageError(f"line {number} is no note: {error}") from error
            of = lines[-1].run_id
            if of not in (None, self._run_id):
                raise UsageError(f"line {number} is a note of the run {shortened(str(of))}, and not of {self._run_id}")
        with self._held():
            there = {line.id for line in self._lines()}
            new = [line for line in {line.id: line for line in lines}.values() if line.id not in there]
            self._write(new)
        return len(new), len(lines) - len(new)

    def _append(self, lines: Sequence[_Line]) -> None:
        with self._held():
            standing = {note.id for note in self.all()}
            for line in lines:
                if line.before is not None and line.before not in standing:
                    raise UsageError(f"run {self._run_id} has no note {shortened(line.before)!r}")
            self._write(lines)

    def _held(self) -> AbstractContextManager[None]:
        return locked(self._lock, f"{NOTES} of run {self._run_id}", LOCK_SECONDS)

    def _lines(self) -> Iterator[_Line]:
        for number, line in enumerate(self._whole().splitlines(), 1):
            try:
                yield _parsed(line)
            except (ValueError, UsageError) as error:
                raise RunError(f"{self.path}:{number}: no note of nip-run: {error}; mend or remove the line") from error

    def _whole(self) -> bytes:
        """The lines that were written to their end."""
        try:
            data = read_bounded(self.path, MAX_FILE)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error.strerror}") from error
        return data[: data.rfind(b"\n") + 1]

    def _write(self, lines: Sequence[_Line]) -> None:
        """Append lines, all or none; what was cut off before them goes. The lock is held."""
        end = len(self._whole())
        data = b"".join(canonical(line.to_json()) + b"\n" for line in lines)
        if end + len(data) > MAX_FILE:
            raise RunError(f"{self.path} would be larger than {MAX_FILE >> 20} MiB; export the notes, and move it away")
        try:
            with append_to(self.path) as file:
                os.ftruncate(file.fileno(), end)
                try:
                    if file.write(data) != len(data):
                        raise OSError(28, "no room for all of it")
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), end)
                    raise
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}") from error


def note_rows(folder: RunFolder) -> list[tuple[Any, ...]]:
    """The notes of a run as rows of `NOTE_COLUMNS`. Raises as `Notes.all`."""
    return [
        (folder.run_id, one.id, one.at, one.by, one.rollout_id, list(one.tags), one.text) for one in Notes(folder).all()
    ]


def _standing(lines: Iterable[_Line]) -> list[ReaderNote]:
    """The notes that no later line took back; one that was changed stands at its first place."""
    found: dict[str, ReaderNote | None] = {}
    place: dict[str, str] = {}
    for line in lines:
        at = line.id if line.before is None else place.get(line.before, line.before)
        if line.note is not None:
            place[line.note.id] = at
        if line.before is None and line.id in found:
            continue  # the same note twice
        found[at] = line.note
    return [note for note in found.values() if note is not None]


def _parsed(line: bytes) -> _Line:
    data = loads(line)
    if not isinstance(data, dict):
        raise UsageError("it is no object")
    run_id = data.get("run_id")
    removes, replaces = data.get("removes"), data.get("replaces")
    if isinstance(removes, str):
        return _Line(_known_id(data), removes, None, run_id)
    return _Line(_known_id(data), replaces if isinstance(replaces, str) else None, _checked(data), run_id)


def _known_id(data: Mapping[str, Any]) -> str:
    found = data.get("id")
    if not isinstance(found, str) or not _ID.fullmatch(found):
        raise UsageError("its id is none")
    return found


def _checked(data: Mapping[str, Any]) -> ReaderNote:
    """A note as somebody gave it.

    Raises:
        UsageError: what of it is none of a note.
    """
    text, by = _text(data.get("text", ""), MAX_TEXT, "text"), data.get("by")
    tags = data.get("tags", [])
    if not isinstance(tags, list) or len(tags) > MAX_TAGS:
        raise UsageError(f"its tags are at most {MAX_TAGS} texts")
    kept = tuple(dict.fromkeys(tag for tag in (_text(tag, MAX_TAG, "tag").strip() for tag in tags) if tag))
    if not text.strip() and not kept:
        raise UsageError("it says nothing: neither text nor tag")
    of = data.get("rollout_id")
    return ReaderNote(
        _known_id(data),
        _text(data.get("at", ""), MAX_BY, "time"),
        text,
        kept,
        None if of is None else _text(of, MAX_BY, "rollout_id"),
        None if by is None else _text(by, MAX_BY, "writer's name"),
    )


def _text(value: Any, most: int, what: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"its {what} is no text")
    if len(value) > most:
        raise UsageError(f"its {what} is longer than {most:,} characters")
    if (wrong := not_text(value)) is not None:
        raise UsageError(f"its {what}: {wrong}")
    return value
