"""Write the tables of a run: `rollouts`, `messages` and `completions`.

Rows are added in the order of the plan. During a run they are JSON lines in `.parts/`. At the end, sealing converts
each table to one Parquet file, which has a temporary name until it is complete. Memory does not grow with the number or
the length of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import IO, NamedTuple

import orjson

from runner.base.errors import RunError
from runner.base.storage.duckdb_connections import reuse_connections
from runner.base.storage.parquet import TEMPORARY_NAME, check_writable, write_parquet
from runner.base.storage.safe_files import create, make_folder, remove_folder
from runner.base.token_classes import NEW_TOKEN_CLASSES
from runner.game.protocols.rounds import MessageCounts
from runner.results.table_columns import COLUMNS
from runner.rollouts.answer_record import ANSWER_COLUMNS
from runner.rollouts.rollout import Call, Rollout
from runner.rollouts.transcript import statements_json, votes_json

_CALL_COLUMNS = tuple(name for name in COLUMNS["completions"] if name not in ("run_id", "rollout_id"))
_CALL_VALUES = attrgetter(*_CALL_COLUMNS)

_COUNT_COLUMNS = tuple(name for name in COLUMNS["messages"] if hasattr(MessageCounts(), name))
_NO_ANSWERS = dict.fromkeys(ANSWER_COLUMNS)

_NULL_UNLESS_SET = ("vote", *NEW_TOKEN_CLASSES, "usage_estimated")
"""Columns of `completions` that earlier versions did not have. They are null in most rows."""


def rollout_rows(
    run_id: str, rollout: Rollout, plugin_metrics: Mapping[str, float] | None = None
) -> dict[str, list[dict[str, object]]]:
    """Return a rollout's rows, by table. `plugin_metrics` has the values of metrics of plugins."""
    ids = {"run_id": run_id, "rollout_id": rollout.job.rollout_id}
    return {
        "rollouts": [{**ids, **_rollout_row(rollout), "plugin_metrics": plugin_metrics or None}],
        "messages": [
            {
                **ids,
                "round": index,
                "channel": message.channel,
                "agent": message.agent,
                "content": message.text,
                **({name: getattr(message.counts, name) for name in _COUNT_COLUMNS} if message.counts else {}),
            }
            for index, played_round in enumerate(rollout.rounds)
            for message in played_round.messages
        ],
        "completions": [{**ids, **_call_row(call)} for call in rollout.calls],
    }


def _rollout_row(rollout: Rollout) -> dict[str, object]:
    job = rollout.job
    return {
        "datapoint_id": job.datapoint.id,
        "repeat": job.repeat,
        "seed": job.seed,
        "y": rollout.label,
        "stance": rollout.stance,
        "decision": None if rollout.answers is not None else int(rollout.decision),
        "correct": rollout.correct,
        "outcome": rollout.outcome,
        "rounds": len(rollout.rounds),
        "rewards": dict(rollout.rewards),
        "error": rollout.error,
        "swapped": job.swapped,
        "confidence_stated": rollout.confidence_stated,
        "confidence_logprob": rollout.confidence_logprob,
        "confidence_note": rollout.confidence_note,
        "votes": votes_json(rollout),
        "verdicts": None if rollout.verdicts is None else [verdict.to_json() for verdict in rollout.verdicts],
        "stances_exchanged": job.stances_exchanged,
        "panel": None if rollout.panel is None else [judge.to_json() for judge in rollout.panel],
        "judged_text": None if rollout.subject is None else rollout.subject.text,
        "statements": statements_json(rollout),
        **(_NO_ANSWERS if rollout.answers is None else rollout.answers.columns()),
    }


def _call_row(call: Call) -> dict[str, object]:
    row: dict[str, object] = dict(zip(_CALL_COLUMNS, _CALL_VALUES(call), strict=True))
    for name in _NULL_UNLESS_SET:
        row[name] = row[name] or None
    if call.verdict_logprobs is not None:
        row["verdict_logprobs"] = orjson.Fragment(call.verdict_logprobs)
    return row


class Rows(NamedTuple):
    """Rows of a table as JSON lines."""

    lines: bytes
    row_count: int


def encode_rows(run_id: str, rollout: Rollout, plugin_metrics: Mapping[str, float] | None = None) -> list[Rows]:
    """Return the result of `rollout_rows` for each table, in the order of `COLUMNS`."""
    return [
        Rows(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows), len(rows))
        for rows in rollout_rows(run_id, rollout, plugin_metrics).values()
    ]


PART_ROWS = 4_096
PART_BYTES = 8 << 20
"""Maximum size of a file in `.parts/`, except for a single longer row, since a reader loads a complete file."""


class _UnsealedTable:
    """The rows of a table before it is sealed, in files of a limited size."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.paths: list[Path] = []
        self.longest = 0
        """The number of bytes of the longest row. Rows of at most `PART_BYTES` need not count; see `write_parquet`."""
        self._rows = self._bytes = 0
        self._file: IO[bytes] | None = None

    def write(self, rows: Rows) -> None:
        if self._rows + rows.row_count <= PART_ROWS and self._bytes + len(rows.lines) <= PART_BYTES:
            self._write(self._file or self._open_next_file(), rows.lines, rows.row_count)
            return
        for row in BytesIO(rows.lines):
            is_full = self._rows >= PART_ROWS or (self._rows and self._bytes + len(row) > PART_BYTES)
            self._write(self._open_next_file() if is_full or self._file is None else self._file, row, 1)
            self.longest = max(self.longest, len(row))

    def _write(self, file: IO[bytes], data: bytes, rows: int) -> None:
        file.write(data)
        self._rows += rows
        self._bytes += len(data)

    def _open_next_file(self) -> IO[bytes]:
        """Close the current file, and return a new empty file."""
        self.close()
        self.paths.append(self._folder / f"{self._name}.{len(self.paths):05d}.jsonl")
        self._rows = self._bytes = 0
        self._file = create(self.paths[-1])
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class PartFiles:
    """The unsealed tables of a run in progress.

    Raises:
        RunError: from all methods, if a file cannot be written; from the constructor also if `seal` would fail.
    """

    def __init__(self, folder: Path) -> None:
        self._target = folder
        self.folder = folder / ".parts"
        """The folder of the unsealed tables, which is removed after sealing."""
        self._tables = {name: _UnsealedTable(self.folder, name) for name in COLUMNS}
        with self._disk_errors():
            remove_folder(self.folder)
            make_folder(self.folder)
            for table in self._tables.values():
                table.write(Rows(b"", 0))
        check_writable(self.folder, {name: kind for columns in COLUMNS.values() for name, kind in columns.items()})

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raise errors of the disk as `RunError`."""
        try:
            yield
        except OSError as error:
            advice = "the journal has all paid answers, so repeat the command"
            raise RunError(f"cannot write {self.folder}: {error.strerror}; {advice}") from error

    def add(self, rows: Sequence[Rows]) -> None:
        """Add the rows that `encode_rows` returned for a rollout. Rollouts must come in the order of the plan."""
        with self._disk_errors():
            for table, new_rows in zip(self._tables.values(), rows, strict=True):
                table.write(new_rows)

    def close(self) -> None:
        with self._disk_errors():
            for table in self._tables.values():
                table.close()

    def seal(self, threads: int = 1) -> None:
        """Convert each table to a Parquet file, atomically, in this number of threads."""
        self.close()
        with self._disk_errors():
            (self._target / TEMPORARY_NAME).unlink(missing_ok=True)  # an earlier version may have left it
            if threads == 1:
                with reuse_connections():
                    for name in COLUMNS:
                        self._seal(name)
            else:
                largest_first = ("messages", "completions", "rollouts")
                with ThreadPoolExecutor(threads, "nip-run-seal") as executor:
                    list(executor.map(self._seal, largest_first))  # a list raises the errors of the threads
            remove_folder(self.folder)

    def _seal(self, name: str) -> None:
        table, target = self._tables[name], self._target / f"{name}.parquet"
        temporary = self.folder / f"{name}.parquet"
        write_parquet(table.paths, COLUMNS[name], target, longest=table.longest, temporary=temporary)
