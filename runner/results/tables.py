"""Finished rollouts into rows: `rollouts`, `messages` and `completions`, streamed as they come, sealed as Parquet.

Rows wait for those before them, so that the tables are in the order of the plan whatever finished first. While a
run goes on they stand in `.parts/` as JSON lines; sealing turns each into one Parquet file, beside and renamed. What is
held in memory is bounded in bytes, whatever the rows hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from runner.base.errors import RunError
from runner.base.storage.duckdb_connections import kept_connections
from runner.base.storage.parquet import BESIDE, try_parquet, write_parquet
from runner.base.storage.safe_files import create, make_folder, remove_folder
from runner.models.interface import LATER_CLASSES
from runner.rollouts.rollout import Call, Rollout

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "rollouts": {
        "run_id": "VARCHAR", "rollout_id": "VARCHAR", "datapoint_id": "VARCHAR", "repeat": "INTEGER",
        "seed": "BIGINT", "y": "TINYINT", "stance": "TINYINT", "decision": "TINYINT", "correct": "BOOLEAN",
        "outcome": "VARCHAR", "rounds": "INTEGER", "rewards": "JSON", "error": "VARCHAR",
        "swapped": "BOOLEAN",
        "confidence_stated": "DOUBLE", "confidence_logprob": "DOUBLE", "confidence_note": "VARCHAR",
        "votes": "JSON", "verdicts": "JSON", "stances_exchanged": "BOOLEAN",
    },
    "messages": {
        "run_id": "VARCHAR", "rollout_id": "VARCHAR", "round": "INTEGER", "channel": "VARCHAR", "agent": "VARCHAR",
        "content": "VARCHAR",
    },
    "completions": {
        "run_id": "VARCHAR", "rollout_id": "VARCHAR", "round": "INTEGER", "agent": "VARCHAR", "attempt": "INTEGER",
        "model": "VARCHAR", "finish_reason": "VARCHAR", "raw_message": "VARCHAR", "prompt_tokens": "BIGINT",
        "completion_tokens": "BIGINT", "cached_tokens": "BIGINT", "latency_ms": "DOUBLE", "error": "VARCHAR",
        "reasoning": "VARCHAR", "verdict_logprobs": "JSON", "vote": "INTEGER",
        "cache_write_tokens": "BIGINT", "reasoning_tokens": "BIGINT", "audio_input_tokens": "BIGINT",
        "audio_output_tokens": "BIGINT", "service_tier": "VARCHAR", "usage_estimated": "BOOLEAN",
    },
}  # fmt: skip
"""The columns of each table, as the contract has them."""


_CALL_COLUMNS = tuple(name for name in COLUMNS["completions"] if name not in ("run_id", "rollout_id"))

_NULL_UNLESS_SET = ("vote", *LATER_CLASSES, "usage_estimated")
"""Columns of `completions` that earlier versions did not have, and that few rows need."""


def rows_of(run_id: str, rollout: Rollout) -> dict[str, list[dict[str, Any]]]:
    """A rollout's rows of each table."""
    job = rollout.job
    head = {"run_id": run_id, "rollout_id": job.rollout_id}
    return {
        "rollouts": [
            {
                **head,
                "datapoint_id": job.datapoint.id,
                "repeat": job.repeat,
                "seed": job.seed,
                "y": job.datapoint.label,
                "stance": rollout.stance,
                "decision": int(rollout.decision),
                "correct": rollout.correct,
                "outcome": rollout.outcome,
                "rounds": len(rollout.rounds),
                "rewards": dict(rollout.rewards),
                "error": rollout.error,
                "swapped": job.swapped,
                "confidence_stated": rollout.confidence_stated,
                "confidence_logprob": rollout.confidence_logprob,
                "confidence_note": rollout.confidence_note,
                "votes": None if rollout.votes is None else list(rollout.votes),
                "verdicts": None if rollout.verdicts is None else [one.to_json() for one in rollout.verdicts],
                "stances_exchanged": job.stances_exchanged,
            }
        ],
        "messages": [
            {**head, "round": index, "channel": m.channel, "agent": m.agent, "content": m.text}
            for index, played in enumerate(rollout.rounds)
            for m in played.messages
        ],
        "completions": [{**head, **_call_row(call)} for call in rollout.calls],
    }


def _call_row(call: Call) -> dict[str, Any]:
    row = {name: getattr(call, name) for name in _CALL_COLUMNS}
    for name in _NULL_UNLESS_SET:
        row[name] = row[name] or None
    if call.verdict_logprobs is not None:
        row["verdict_logprobs"] = orjson.Fragment(call.verdict_logprobs)
    return row


class Rows(NamedTuple):
    """Rows of a table as lines of JSON."""

    lines: bytes
    rows: int


def table_rows(run_id: str, rollout: Rollout) -> list[Rows]:
    """A rollout's rows of each table, in the order of `COLUMNS`."""
    return [
        Rows(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows), len(rows))
        for rows in rows_of(run_id, rollout).values()
    ]


PART_ROWS = 10_000
PART_BYTES = 8 << 20
"""A part has more only where a single row has: what reads it holds it whole."""


class _Parts:
    """One table's unsealed rows, in files of a bounded size."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.paths: list[Path] = []
        self.longest = 0
        """The size of the longest row."""
        self._rows = self._bytes = 0
        self._file: IO[bytes] | None = None

    def write(self, made: Rows) -> None:
        if self._rows + made.rows <= PART_ROWS and self._bytes + len(made.lines) <= PART_BYTES:
            self._write(self._file or self._next(), made.lines, made.rows)
            return
        start = 0
        while start < len(made.lines):
            end = made.lines.index(b"\n", start) + 1
            full = self._rows >= PART_ROWS or (self._rows and self._bytes + end - start > PART_BYTES)
            self._write(self._next() if full or self._file is None else self._file, made.lines[start:end], 1)
            self.longest = max(self.longest, end - start)
            start = end

    def _write(self, file: IO[bytes], data: bytes, rows: int) -> None:
        file.write(data)
        self._rows += rows
        self._bytes += len(data)

    def _next(self) -> IO[bytes]:
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
    """The unsealed tables of a run that is going on.

    Raises:
        RunError: from all methods: something cannot be written; at once, where a table could not be sealed.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._target = folder
        self.folder = folder / ".parts"
        """Where they stand, gone once they are sealed."""
        self._run_id = run_id
        self._tables = {name: _Parts(self.folder, name) for name in COLUMNS}
        try:
            remove_folder(self.folder)
            make_folder(self.folder)
            for table in self._tables.values():
                table.write(Rows(b"", 0))
        except OSError as error:
            raise _disk_error(self.folder, error) from error
        try_parquet(self.folder, {name: kind for columns in COLUMNS.values() for name, kind in columns.items()})

    def write(self, rollout: Rollout) -> None:
        """Add a rollout's rows; rollouts come in the order of the plan."""
        self.add(table_rows(self._run_id, rollout))

    def add(self, rows: Sequence[Rows]) -> None:
        """Add what `table_rows` gave; likewise."""
        try:
            for table, of_table in zip(self._tables.values(), rows, strict=True):
                table.write(of_table)
        except OSError as error:
            raise _disk_error(self.folder, error) from error

    def close(self) -> None:
        for table in self._tables.values():
            try:
                table.close()
            except OSError as error:
                raise _disk_error(self.folder, error) from error

    def seal(self, at_once: int = 1) -> None:
        """Turn the parts into Parquet files, each whole or absent; so many at once."""
        self.close()
        try:
            (self._target / BESIDE).unlink(missing_ok=True)  # which an earlier version may have left
            if at_once == 1:
                with kept_connections():
                    for name in COLUMNS:
                        self._seal(name)
            else:
                with ThreadPoolExecutor(at_once, "nip-run-seal") as threads:
                    for _ in threads.map(self._seal, ("messages", "completions", "rollouts")):  # what takes long first
                        pass
            remove_folder(self.folder)
        except OSError as error:
            raise _disk_error(self.folder, error) from error

    def _seal(self, name: str) -> None:
        table, target = self._tables[name], self._target / f"{name}.parquet"
        beside = self.folder / f"{name}.parquet"
        write_parquet(table.paths, COLUMNS[name], target, longest=table.longest, beside=beside)


def _disk_error(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {error.strerror}; what was paid for is in the journal")
