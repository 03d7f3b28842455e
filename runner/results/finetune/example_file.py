"""Write the examples of a fine-tuning dataset to a file, after checking each.

Each file has a sidecar, `<file>.trace.jsonl`, with the source of each example. Both files have temporary names until
`close` renames them. Examples that are left out are counted by reason.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from runner.base.errors import RunError, os_errors_as
from runner.base.hashing import file_hash
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.parquet import check_writable, write_parquet
from runner.base.storage.safe_files import create, make_folders
from runner.results.finetune.deduplication import DedupIndex, digest
from runner.results.finetune.examples import Example, ExampleSource
from runner.results.finetune.formats import Format


def trace_path(target: Path) -> Path:
    """Return the path of a dataset file's sidecar."""
    return target.with_name(target.name + ".trace.jsonl")


def remove_dataset(target: Path) -> None:
    """Remove a dataset file and its sidecar, if they exist."""
    target.unlink(missing_ok=True)
    trace_path(target).unlink(missing_ok=True)


class ExampleLine(NamedTuple):
    """An example, encoded as a line of one format."""

    text: bytes
    key: bytes
    """The digest of what must not occur twice in a dataset: the prompt if the format `repeats`, else the line."""


_INDEX_PLACEHOLDER = b"\0"
"""Placeholder for a line's index in its file. JSON never contains this byte, since strings escape it."""

UNKNOWN_INDEX: Any = orjson.Fragment(_INDEX_PLACEHOLDER)
"""The index of an example before it is added to a file; written as the placeholder."""


def encode_example(format_: Format, example: Example) -> ExampleLine | str:
    """Return an example as a line of this format, or the reason why the format's trainer cannot use the example."""
    problem = format_.problem(example)
    if problem is not None:
        return problem
    fields = format_.line(example)
    text = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    return ExampleLine(text, digest(orjson.dumps(fields["prompt"]) if format_.repeats else text))


class _LineWriter:
    """Writes JSON lines to a temporary file."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.temporary = target.with_name(target.name + ".new")
        self.size = self.longest = 0
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = create(self.temporary)

    @property
    def sha256(self) -> str:
        """The hash of all lines."""
        return self._hash.hexdigest()

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._hash.update(line)
        self.size += len(line)
        self.longest = max(self.longest, len(line))

    def finish(self) -> None:
        """Write all lines to the disk and close the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def rename(self) -> None:
        """Give the file its final name."""
        self.temporary.replace(self.target)

    def discard(self) -> None:
        with suppress(OSError):  # an error here would hide the first one, such as a full disk
            self._file.close()
        self.temporary.unlink(missing_ok=True)


class ExampleFile:
    """A dataset file that is being written.

    Files with the same `dedup` index and `scope` never have a line in common; by default, the file has an index of its
    own. With `repeats`, a line may occur several times in this file, for examples that were sampled with replacement.

    Raises:
        RunError: from all methods, if the file cannot be written.
    """

    def __init__(
        self,
        target: Path,
        format: Format,  # noqa: A002 - the term in this field
        *,
        min_examples: int = 1,
        dedup: DedupIndex | None = None,
        scope: str = "",
        repeats: bool = False,
    ) -> None:
        self.target, self.format = target, format
        self._name = target.name
        self.examples = 0
        """The number of examples written so far."""
        self._min_examples = min_examples
        self._repeats = repeats or format.repeats
        self._omitted: Counter[str] = Counter()
        self._is_full = False
        with self._write_errors():
            make_folders(target.parent)
            self._lines = _LineWriter(target if format.columns is None else target.with_name(target.name + ".rows"))
            try:
                self._trace = _LineWriter(trace_path(target))
            except OSError:
                self._lines.discard()
                raise
        if format.columns is not None:
            check_writable(target.parent, format.columns)
        self._dedup, self._scope = dedup or DedupIndex(target.with_name(target.name + ".seen")), scope
        self._owns_index = dedup is None

    def _write_errors(self) -> AbstractContextManager[None]:
        return os_errors_as(RunError, f"cannot write {self.target}")

    def add(self, example: Example, source: ExampleSource) -> str | None:
        """Write an example; return the reason if it was left out."""
        return self.put(encode_example(self.format, example), trace_line(source))

    def put(self, line: ExampleLine | str, trace: bytes) -> str | None:
        """Write an encoded example and its trace line; return the reason if it was left out."""
        problem = line if isinstance(line, str) else self._write(line, trace)
        if problem is not None:
            self._omitted[problem] += 1
        return problem

    def _write(self, line: ExampleLine, trace: bytes) -> str | None:
        limit = self.format.max_bytes
        if self._is_full or (limit is not None and self._lines.size + len(line.text) > limit):
            self._is_full = True
            return f"the file is full: {self.format.name} accepts at most {limit or 0:,} bytes"
        file = self._dedup.add(self._scope, line.key, self._name)
        if file is not None and not (file == self._name and self._repeats):
            return "duplicate line" if file == self._name else f"already in {file}"
        with self._write_errors():
            self._lines.write(line.text.replace(_INDEX_PLACEHOLDER, b"%d" % self.examples, 1))
            self._trace.write(b'{"line":%d,%b' % (self.examples + 1, trace))
        self.examples += 1
        return None

    def close(self) -> dict[str, Any]:
        """Rename the file to its final name if it has enough examples, and return its row of the report."""
        self._close_index()
        has_enough = self.examples >= self._min_examples
        with self._write_errors():
            for lines in (self._lines, self._trace):
                lines.finish()
            sha256 = self._rename() if has_enough else None
            if not has_enough:
                self._discard_lines()
                remove_dataset(self.target)
        shortage = f"{self.examples} examples, fewer than min_examples ({self._min_examples})"
        return {
            "file": self.target.name,
            "format": self.format.name,
            "for": self.target.name.removesuffix(self.format.suffix).removesuffix(self.format.validation_suffix),
            "examples": self.examples,
            "written": has_enough,
            "left_out": dict(sorted(self._omitted.items())),
            "why_not_written": None if has_enough else shortage,
            "sha256": sha256,
            "trace": self._trace.target.name if has_enough else None,
        }

    def _rename(self) -> str:
        """Give both files their final names, the trace first, so that every dataset has one. Return the file's hash."""
        self._trace.rename()
        sha256 = self._lines.sha256
        if self.format.columns is None:
            self._lines.rename()
        else:
            write_parquet([self._lines.temporary], self.format.columns, self.target, longest=self._lines.longest)
            self._lines.discard()
            sha256 = file_hash(self.target)
        fsync_dir(self.target.parent)
        return sha256

    def discard(self) -> None:
        """Remove the temporary files."""
        self._close_index()
        self._discard_lines()

    def _discard_lines(self) -> None:
        self._lines.discard()
        self._trace.discard()

    def _close_index(self) -> None:
        if self._owns_index:
            self._dedup.close()


def trace_line(source: ExampleSource) -> bytes:
    """Return the end of a line of the sidecar: everything after its first field, the line number."""
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
