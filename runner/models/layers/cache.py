"""The cache of the spec key `cache`: completions that several runs share, in one SQLite file.

The key of an answer consists of the complete request, the server's address, the agent, and the sample's repeat and
attempt. So a model group never gets another model's answer. Neither repeats of a datapoint nor the judges of a panel
share an answer. Errors are not stored. The request is stored with each answer, so that nip-run can explain a miss.

Complete answers are in the table `answers`. The table `completions` has the answers in the form of nip-run 0.1.0, which
reads only this table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import RunError
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
"""The maximum time to wait for another process that writes to the cache."""

_TABLE = """
CREATE TABLE IF NOT EXISTS {name} (
    key TEXT PRIMARY KEY, asked BLOB NOT NULL, answer BLOB NOT NULL, run_id TEXT NOT NULL,
    agent TEXT NOT NULL, datapoint TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {index} ON {name} (datapoint, agent);
"""
_TABLES = _TABLE.format(name="completions", index="by_place") + _TABLE.format(name="answers", index="answers_by_place")
_CREATE = f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {CACHE}; COMMIT;"


_MATCHES = "(key = ?1 OR key = ?2 AND agent = ?3)"
"""SQL for the rows of an agent's request, with the values of `_keys`. Earlier versions had keys without the agent."""


def _query_both_tables(columns: str, condition: str) -> str:
    """Return a query over both tables. Parameters must be numbered (`?1`), because each occurs twice."""
    return " UNION ALL ".join(
        f"SELECT {columns} FROM {table} WHERE {condition}" for table in ("answers", "completions")
    )


def request_fields(request: Request, settings: ModelSettings) -> dict[str, Any]:
    """Return everything that distinguishes requests: the address, the content, and the sample.

    Only the first address of a group with several servers counts, because it does not matter which server answers.
    The service tier and the server's own cache do not count, because they do not change the answer.
    """
    sample = request.sample
    body = orjson.loads(request_body(settings, request.messages, request.schema))
    for name in settings.delivery_parameters:
        del body[name]
    return {
        "base_url": settings.address,
        "provider": settings.provider,
        **({} if settings.answer_words is None else {"answer_words": settings.answer_words}),
        **body,
        "sample": {
            "repeat": sample.repeat,
            "attempt": sample.attempt,
            **({"vote": sample.vote} if sample.vote else {}),
        },
    }


class Cache:
    """An open cache file."""

    def __init__(self, path: Path, run_id: str, journal: str | None = None) -> None:
        """Open or create a cache. `journal` is the number of the run's journal, which is stored with its answers.

        Raises:
            RunError: the file cannot be opened, or is not a cache.
            NewerFormatError: a newer version of nip-run created the cache; nothing is changed.
        """
        self._path, self._run_id, self._journal = path, run_id, journal
        try:
            make_folders(path.parent)
            self._db = sqlite3.connect(path.absolute(), timeout=BUSY_SECONDS, isolation_level=None)  # not a `file:` URI
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise RunError(
                f"cannot open the cache {path}: {error}. Set `cache` to another file, or to null for no cache"
            ) from error

    def _prepare(self) -> None:
        """Check the version of the file, and create its tables if they are missing."""
        refuse_newer(self._path, self._db.execute("PRAGMA user_version").fetchone()[0], CACHE)
        self._db.execute("PRAGMA journal_mode=WAL")
        # A cache of 0.1.0 has this table but no version, and stays without one.
        has_table = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'completions'").fetchall()
        self._db.executescript(_TABLES if has_table else _CREATE)

    def get(self, fields: Mapping[str, object], agent: str) -> Completion | None:
        """Return the answer to an identical request of this agent; None if there is none."""
        rows = self._execute(_query_both_tables("answer, run_id", _MATCHES), _keys(fields, agent))
        if not rows:
            return None
        answer, run_id = rows[0]
        completion = completion_from_fields(from_json(answer), from_cache=True)
        origin = completion.origin or run_id  # earlier versions stored only the run's id
        return replace(completion, origin=None if origin in (self._journal, self._run_id) else origin)

    def put(self, request: Request, fields: Mapping[str, object], completion: Completion) -> None:
        """Store an answer, unless the cache already has an answer to the request."""
        table = "completions" if completion.body is None else "answers"
        completion = replace(completion, origin=completion.origin or self._journal)
        self._execute(
            f"INSERT OR IGNORE INTO {table} SELECT ?1, ?4, ?5, ?6, ?3, ?7 "
            f"WHERE NOT EXISTS ({_query_both_tables('1', _MATCHES)})",
            [
                *_keys(fields, request.sample.agent), canonical(fields),
                to_json(completion_fields(with_own_choice(completion))), self._run_id, request.sample.datapoint,
            ],
        )  # fmt: skip

    def store(self, request: Request, settings: ModelSettings, completion: Completion) -> None:
        """Store an answer whose record is on disk, unless the answer came from the cache."""
        if not completion.from_cache or request.n > 1:
            self.put(request, request_fields(replace(request, n=1), settings), completion)

    def similar_requests(self, request: Request) -> Iterable[dict[str, object]]:
        """Return similar requests of other runs: of the same agent and datapoint or, if none, of the agent."""
        sample = request.sample
        is_other_run = "run_id <> ?1 AND agent = ?2"
        same_datapoint = _query_both_tables("asked", is_other_run + " AND datapoint = ?3") + " LIMIT 1000"
        same_agent = _query_both_tables("asked", is_other_run) + " LIMIT 1000"
        rows = self._execute(same_datapoint, [self._run_id, sample.agent, sample.datapoint])
        rows = rows or self._execute(same_agent, [self._run_id, sample.agent])
        return [orjson.loads(row[0]) for row in rows]

    def has_answer_of_other_run(self, fields: Mapping[str, object], agent: str) -> bool:
        """Return whether another run stored an answer to an identical request of this agent."""
        query = _query_both_tables("1", f"{_MATCHES} AND run_id <> ?4")
        return bool(self._execute(query, [*_keys(fields, agent), self._run_id]))

    def _execute(self, sql: str, values: list[Any]) -> list[Any]:
        """Execute SQL and return the rows. In the SQL, ?1 stands for the first value, ?2 for the second, and so on."""
        try:
            # By name, since Python 3.14 does not accept a list for numbered parameters.
            return self._db.execute(sql, {str(number): value for number, value in enumerate(values, 1)}).fetchall()
        except sqlite3.Error as error:
            raise RunError(
                f"cannot use the cache {self._path}: {error}. Set `cache` to another file, or to null for no cache"
            ) from error

    def close(self) -> None:
        self._db.close()


def _keys(fields: Mapping[str, object], agent: str) -> list[str]:
    """Return the key of an agent's request, its key in earlier versions, and the agent."""
    earlier_key = tagged_hash("cache", fields)
    return [tagged_hash("cache of agent", [earlier_key, agent]), earlier_key, agent]


def through_cache(complete: Complete, cache: Cache, models: Mapping[str, ModelSettings]) -> Complete:
    """Return a function that answers from the cache if possible, and otherwise calls `complete`.

    It does not store new answers; see `Cache.store`.
    """

    async def complete_from_cache(request: Request) -> Completion:
        completion = cache.get(request_fields(request, models[request.group]), request.sample.agent)
        return await complete(request) if completion is None else completion

    return complete_from_cache


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> list[tuple[str, Any, Any]]:
    """Return the name and both values of each field that differs. Messages are compared one by one."""
    left, right = dict(_flatten(first)), dict(_flatten(second))
    names = [*left, *(name for name in right if name not in left)]
    return [(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)]


def _flatten(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flatten(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _flatten(item, f"{path}[{index}]")
    else:
        yield path, value
