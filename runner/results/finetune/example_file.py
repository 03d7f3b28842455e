"""Examples into one dataset file, each checked before it is written and traced to where it comes from.

A file and its sidecar `<file>.trace.jsonl` are written beside their places and put there by `close`. What was left
out, and why, is counted.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from runner.base.errors import RunError
from runner.base.hashing import file_hash
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.parquet import try_parquet, write_parquet
from runner.base.storage.safe_files import create, make_folders
from runner.results.finetune.deduplication import DedupIndex, ScopedDedup, digest
from runner.results.finetune.examples import Example, ExampleSource
from runner.results.finetune.formats import Format


def trace_of(target: Path) -> Path:
    """The sidecar of a dataset file."""
    return target.with_name(target.name + ".trace.jsonl")


def remove_dataset(target: Path) -> None:
    """Remove a dataset file and its sidecar, where they are."""
    target.unlink(missing_ok=True)
    trace_of(target).unlink(missing_ok=True)


class ExampleLine(NamedTuple):
    """An example as one format writes it."""

    text: bytes
    key: bytes
    """The digest of what no two lines of a dataset may share."""

    def at(self, place: int) -> ExampleLine:
        """The line at its place in a file, where it says that."""
        return ExampleLine(self.text.replace(_PLACE, b"%d" % place, 1), self.key)


_PLACE = b"\0"
"""Stands for a line's place in its file until that is known: found in no JSON, whose texts have it escaped."""

LATER: Any = orjson.Fragment(_PLACE)
"""The place of an example that is not in a file yet."""


def line_of(format_: Format, example: Example) -> ExampleLine | str:
    """An example as a line of this format; the reason where its consumer cannot train on it."""
    problem = format_.problem(example)
    if problem is not None:
        return problem
    fields = format_.line(example)
    text = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    return ExampleLine(text, digest(orjson.dumps(fields["prompt"]) if format_.repeats else text))


_HELD = 1 << 16
"""Bytes of lines that are written at once."""


class _Lines:
    """Lines of JSON, written beside their place."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.beside = target.with_name(target.name + ".new")
        self.size = self.longest = 0
        self._hash = hashlib.sha256()
        self._held: list[bytes] = []
        self._written = 0
        self._file: IO[bytes] = create(self.beside)

    @property
    def sha256(self) -> str:
        """Of all that is written, after `flush`."""
        return self._hash.hexdigest()

    def write(self, line: bytes) -> None:
        self._held.append(line)
        self.size += len(line)
        self.longest = max(self.longest, len(line))
        if self.size - self._written >= _HELD:
            self._write_held()

    def _write_held(self) -> None:
        lines, self._held = b"".join(self._held), []
        self._written = self.size
        self._file.write(lines)
        self._hash.update(lines)

    def flush(self) -> None:
        self._write_held()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def put(self) -> None:
        self.beside.replace(self.target)

    def discard(self) -> None:
        with suppress(OSError):  # a full disk has its error already; this one must not hide it
            self._file.close()
        self.beside.unlink(missing_ok=True)


class ExampleFile:
    """One dataset file that is being written.

    `seen` is what this file and others may not both hold; without it the file keeps its own. `repeats` lets a line
    come again in this file, for examples that were drawn with replacement.

    Raises:
        RunError: from all methods: something cannot be written.
    """

    def __init__(
        self,
        target: Path,
        format: Format,  # noqa: A002 - the field's word
        *,
        min_examples: int = 1,
        seen: ScopedDedup | None = None,
        repeats: bool = False,
    ) -> None:
        self.target, self.format = target, format
        self._name = target.name
        self.examples = 0
        """How many are written."""
        self._min_examples = min_examples
        self._repeats = repeats or format.repeats
        self._left_out: Counter[str] = Counter()
        self._full = False
        try:
            make_folders(target.parent)
            self._lines = _Lines(target if format.columns is None else target.with_name(target.name + ".rows"))
            try:
                self._trace = _Lines(trace_of(target))
            except OSError:
                self._lines.discard()
                raise
        except OSError as error:
            raise self._cannot(error) from error
        if format.columns is not None:
            try_parquet(target.parent, format.columns)
        self._seen = seen or ScopedDedup(DedupIndex(target.with_name(target.name + ".seen")), "")
        self._sees_alone = seen is None

    def _cannot(self, error: OSError) -> RunError:
        return RunError(f"cannot write {self.target}: {error.strerror}")

    def add(self, example: Example, source: ExampleSource) -> str | None:
        """Write an example; the reason where it was left out."""
        return self.put(line_of(self.format, example), traced(source))

    def put(self, line: ExampleLine | str, trace: bytes) -> str | None:
        """Write what `line_of` and `traced` have given for this file's format; the reason where it was left out."""
        problem = line if isinstance(line, str) else self._write(line, trace)
        return self.leave_out(problem) if problem else None

    def leave_out(self, reason: str) -> str:
        """Count an example that is not even one."""
        self._left_out[reason] += 1
        return reason

    def _write(self, line: ExampleLine, trace: bytes) -> str | None:
        most = self.format.max_bytes
        if self._full or (most is not None and self._lines.size + len(line.text) > most):
            self._full = True
            return f"the file is full: {self.format.name} takes {most or 0:,} bytes"
        reason = self._repeated(line)
        if reason:
            return reason
        try:
            self._lines.write(line.text)
            self._trace.write(b'{"line":%d,%b' % (self.examples + 1, trace))
        except OSError as error:
            raise self._cannot(error) from error
        self.examples += 1
        return None

    def _repeated(self, line: ExampleLine) -> str | None:
        holder = self._seen.holder(line.key, self._name)
        if holder == self._name:
            return None if self._repeats else "duplicate line"
        return None if holder is None else f"already in {holder}"

    def close(self) -> dict[str, Any]:
        """Put the file in its place, if it has enough examples, and report it."""
        self._close_seen()
        enough = self.examples >= self._min_examples
        try:
            for lines in (self._lines, self._trace):
                lines.flush()
            sha256 = self._put() if enough else None
            if not enough:
                self._discard_lines()
                remove_dataset(self.target)
        except OSError as error:
            raise self._cannot(error) from error
        few = f"{self.examples} examples, fewer than min_examples ({self._min_examples})"
        return {
            "file": self.target.name,
            "format": self.format.name,
            "for": self.target.name.removesuffix(self.format.suffix).removesuffix(self.format.validation_suffix),
            "examples": self.examples,
            "written": enough,
            "left_out": dict(sorted(self._left_out.items())),
            "why_not_written": None if enough else few,
            "sha256": sha256,
            "trace": self._trace.target.name if enough else None,
        }

    def _put(self) -> str:
        """The trace first, so that no dataset is without one."""
        self._trace.put()
        sha256 = self._lines.sha256
        if self.format.columns is None:
            self._lines.put()
        else:
            write_parquet([self._lines.beside], self.format.columns, self.target, longest=self._lines.longest)
            self._lines.discard()
            sha256 = file_hash(self.target)
        fsync_dir(self.target.parent)
        return sha256

    def discard(self) -> None:
        """Leave no half-written file."""
        self._close_seen()
        self._discard_lines()

    def _discard_lines(self) -> None:
        self._lines.discard()
        self._trace.discard()

    def _close_seen(self) -> None:
        if self._sees_alone:
            self._seen.digests.close()


def traced(source: ExampleSource) -> bytes:
    """The line of a sidecar that says where an example comes from, without its beginning: its place in the file."""
    fields = {
        "run_id": source.run_id,
        "rollout_id": source.rollout_id,
        "agent": source.agent,
        "round": source.round,
        "reward": source.reward,
        "datapoint_id": source.datapoint_id,
        "other": dict(source.other),
    }
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)[1:]
