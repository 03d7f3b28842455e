"""Completions shared between runs, in one SQLite file.

The key is everything that goes on the wire, where it goes, and the sample's index, so that no model ever gets
another's answer and repeats of a datapoint never share one. Errors are never kept. What was asked is kept beside
each answer, so that a miss can be explained.

Whole answers stand in a table of their own, `answers`. What 0.1.0 wrote stands in `completions`, which it goes on to
read and write: it knows nothing of the other, so it can misread nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import NewerFormatError, RunError
from runner.base.hashing import canonical, tagged_hash
from runner.base.storage.format_versions import CACHE, refuse_newer
from runner.base.storage.log_lines import from_json, to_json
from runner.base.storage.safe_files import make_folders
from runner.models.answers import with_own_choice
from runner.models.interface import Complete, Completion, Request
from runner.models.journal_records import completion_fields, completion_from_fields
from runner.models.request_body import request_body
from runner.models.settings import ModelSettings

BUSY_SECONDS = 30.0

_TABLE = """
CREATE TABLE IF NOT EXISTS {name} (
    key TEXT PRIMARY KEY, asked BLOB NOT NULL, answer BLOB NOT NULL, run_id TEXT NOT NULL,
    agent TEXT NOT NULL, datapoint TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {index} ON {name} (datapoint, agent);
"""
_TABLES = _TABLE.format(name="completions", index="by_place") + _TABLE.format(name="answers", index="answers_by_place")
_NEW = f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {CACHE}; COMMIT;"


def _in_both(columns: str, where: str) -> str:
    """A question to both tables; each `?` in it is asked twice, so the values are numbered."""
    return " UNION ALL ".join(f"SELECT {columns} FROM {table} WHERE {where}" for table in ("answers", "completions"))


def asked_fields(request: Request, settings: ModelSettings) -> dict[str, Any]:
    """Everything that tells two requests apart: where it goes, what goes there, and which sample it is for.

    A list of servers stands under its first: how many there are, and which of them answered, tells no request apart.
    """
    sample = request.sample
    return {
        "base_url": settings.address,
        "provider": settings.provider,
        **orjson.loads(request_body(settings, request.messages)),
        "sample": {
            "repeat": sample.repeat,
            "attempt": sample.attempt,
            **({"vote": sample.vote} if sample.vote else {}),
        },
    }


class Cache:
    """An open cache file."""

    def __init__(self, path: Path, run_id: str, journal: str | None = None) -> None:
        """Open or create. `journal` is the number of the run's journal, by which its answers are recognized later.

        Raises:
            RunError: it cannot be opened, or is not a cache.
            NewerFormatError: a newer nip-run made it; nothing is changed.
        """
        self._path, self._run_id, self._journal = path, run_id, journal
        try:
            make_folders(path.parent)
            self._db = sqlite3.connect(path.absolute(), timeout=BUSY_SECONDS, isolation_level=None)  # not `file:`
            refuse_newer(path, self._db.execute("PRAGMA user_version").fetchone()[0], CACHE)
            self._db.execute("PRAGMA journal_mode=WAL")
            # One of 0.1.0 has the table and stays as it is, without a version.
            has_table = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'completions'").fetchall()
            self._db.executescript(_TABLES if has_table else _NEW)
        except (sqlite3.Error, OSError) as error:
            raise RunError(f"cannot open the cache {path}: {error}") from error
        except NewerFormatError:
            self._db.close()
            raise

    def get(self, asked: Mapping[str, Any]) -> Completion | None:
        """The answer to this very request."""
        row = self._execute(_in_both("answer, run_id", "key = ?1"), [_key(asked)])
        if not row:
            return None
        found = completion_from_fields(from_json(row[0][0]), from_cache=True)
        origin = found.origin or row[0][1]  # an earlier version stored the run's id alone
        return replace(found, origin=None if origin in (self._journal, self._run_id) else origin)

    def put(self, request: Request, asked: Mapping[str, Any], completion: Completion) -> None:
        """Keep an answer; one that is there already stays."""
        table = "completions" if completion.body is None else "answers"
        completion = replace(completion, origin=completion.origin or self._journal)
        self._execute(
            f"INSERT OR IGNORE INTO {table} SELECT ?1, ?2, ?3, ?4, ?5, ?6 "
            f"WHERE NOT EXISTS ({_in_both('1', 'key = ?1')})",
            [
                _key(asked), canonical(asked), to_json(completion_fields(with_own_choice(completion))), self._run_id,
                request.sample.agent, request.sample.datapoint,
            ],
        )  # fmt: skip

    def keep(self, request: Request, settings: ModelSettings, completion: Completion) -> None:
        """Keep an answer that is in the journal already, unless it came from here."""
        if not completion.from_cache or request.n > 1:
            self.put(request, asked_fields(replace(request, n=1), settings), completion)

    def others(self, request: Request) -> Iterable[dict[str, Any]]:
        """What other runs asked that could be meant: first those of this agent and datapoint, then of the agent."""
        sample = request.sample
        theirs = "run_id <> ?1 AND agent = ?2"
        near = _in_both("asked", theirs + " AND datapoint = ?3") + " LIMIT 1000"
        rows = self._execute(near, [self._run_id, sample.agent, sample.datapoint])
        rows = rows or self._execute(_in_both("asked", theirs) + " LIMIT 1000", [self._run_id, sample.agent])
        return [orjson.loads(row[0]) for row in rows]

    def has_other(self, asked: Mapping[str, Any]) -> bool:
        """Whether another run put this very request's answer here."""
        return bool(self._execute(_in_both("1", "key = ?1 AND run_id <> ?2"), [_key(asked), self._run_id]))

    def _execute(self, sql: str, values: list[Any]) -> list[Any]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise RunError(f"the cache {self._path} failed: {error}") from error

    def close(self) -> None:
        self._db.close()


def _key(asked: Mapping[str, Any]) -> str:
    return tagged_hash("cache", asked)


def through_cache(complete: Complete, cache: Cache, models: Mapping[str, ModelSettings]) -> Complete:
    """`complete` that answers from the cache what it holds. What it does not hold is kept by `Cache.keep`."""

    async def cached(request: Request) -> Completion:
        found = cache.get(asked_fields(request, models[request.group]))
        return await complete(request) if found is None else found

    return cached


def differences(asked: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The fields in which two requests differ, messages one by one: name, ours, theirs."""
    ours, theirs = dict(_flat(asked)), dict(_flat(other))
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [(name, ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)]


def _flat(value: Any, at: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(item, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _flat(item, f"{at}[{index}]")
    else:
        yield at, value
