"""Restricts a user's SQL query to reading tables.

The type of a statement is not enough: DuckDB takes `WITH x AS (COPY ... TO 'file') ...` for a SELECT, and
`EXPLAIN ANALYZE` runs its query. So before a query runs, every step of its plan must be in a list of steps that only
read. Planning a PIVOT without explicit values already runs a part of the query, so the text of such a query must not
contain the names of statements that write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import _duckdb
from _duckdb import token_type, tokenize

from runner.base.errors import QueryError, UsageError

if TYPE_CHECKING:
    from _duckdb import DuckDBPyConnection

_Kind = _duckdb.StatementType

_STEPS = frozenset(
    """
    PROJECTION FILTER DUMMY_SCAN EMPTY_RESULT COLUMN_DATA_SCAN CHUNK_SCAN EXPRESSION_SCAN POSITIONAL_SCAN DELIM_SCAN
    CTE CTE_SCAN REC_CTE REC_KEY_CTE REC_CTE_SCAN REC_REC_CTE_SCAN RECURSIVE_CTE_SCAN RECURSIVE_RECURRING_CTE_SCAN
    HASH_JOIN NESTED_LOOP_JOIN BLOCKWISE_NL_JOIN PIECEWISE_MERGE_JOIN IE_JOIN ASOF_JOIN POSITIONAL_JOIN CROSS_PRODUCT
    LEFT_DELIM_JOIN RIGHT_DELIM_JOIN DELIM_JOIN RECURSIVE_KEY_JOIN RECURSIVE_PARTIAL_KEY_JOIN UNION
    HASH_GROUP_BY PERFECT_HASH_GROUP_BY PARTITIONED_AGGREGATE UNGROUPED_AGGREGATE WINDOW STREAMING_WINDOW UNNEST PIVOT
    ORDER_BY TOP_N LIMIT STREAMING_LIMIT LIMIT_PERCENT RESERVOIR_SAMPLE STREAMING_SAMPLE INOUT_FUNCTION
    SEQ_SCAN INDEX_SCAN READ_PARQUET RANGE GENERATE_SERIES REPEAT REPEAT_ROW JSON_EACH JSON_TREE
    DUCKDB_TABLES DUCKDB_VIEWS DUCKDB_COLUMNS DUCKDB_DATABASES DUCKDB_SCHEMAS DUCKDB_TYPES DUCKDB_FUNCTIONS
    DUCKDB_KEYWORDS DUCKDB_CONSTRAINTS DUCKDB_INDEXES DUCKDB_SETTINGS PRAGMA_SHOW PRAGMA_TABLE_INFO PRAGMA_VERSION
    """.split()  # noqa: SIM905 - a list would have one name per line
)
"""Plan steps that only read. `INOUT_FUNCTION` is a function of columns, which cannot read or write files."""

_WRITING = re.compile(r"\b(copy|insert|update|delete|merge)\b", re.IGNORECASE)
"""Statements other than SELECT that DuckDB accepts in a WITH clause."""

_ERROR_POSITION = re.compile(r"^LINE (\d+): (.*)\n( *)(\^+)", re.MULTILINE)
"""The lines of DuckDB's error that show the line of the query and mark the position below it."""

_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?(?=[^\s(])", re.IGNORECASE)


Parameters = Sequence[Any] | Mapping[str, Any]
"""Values for `?` in order, or for `$name` by name."""


def bindable(parameters: Parameters) -> list[Any] | dict[str, object]:
    """Convert parameters to the types that DuckDB accepts."""
    return dict(parameters) if isinstance(parameters, Mapping) else list(parameters)


def check_read_only(connection: DuckDBPyConnection, sql: str, parameters: Parameters = ()) -> str:
    """Check that a query only reads, and return the statement to execute, without a semicolon at its end.

    Raises:
        UsageError: the query is invalid, empty, several statements, or writes.
    """
    try:
        statements = connection.extract_statements(sql)
    except _duckdb.Error as error:
        raise query_error(error) from error
    if len(statements) != 1:
        raise UsageError("enter exactly one SQL query, such as: SELECT run_id, accuracy FROM leaderboard")
    kind = statements[0].type
    if kind == _Kind.EXPLAIN:
        explain = _EXPLAIN.match(sql)
        if explain is None:
            raise UsageError("start with EXPLAIN or EXPLAIN ANALYZE, directly followed by the query")
        rest = re.sub(r"\S", " ", explain[0]) + sql[explain.end() :]  # blanks preserve the positions of errors
        if connection.extract_statements(rest)[0].type == _Kind.EXPLAIN:
            raise UsageError("the query has EXPLAIN twice; remove one")
        return f"EXPLAIN {explain[1] or ''}{check_read_only(connection, rest, parameters)}"
    if kind not in (_Kind.SELECT, _Kind.MULTI):
        raise UsageError(
            f"{kind.name} is not allowed: a query can only read (SELECT, FROM, WITH, PIVOT, DESCRIBE, SHOW, SUMMARIZE)"
        )
    if kind == _Kind.MULTI and (verb := _WRITING.search(sql)):
        raise UsageError(
            f"a query with PIVOT cannot contain the word {verb[0]!r}; list the pivot values: ... ON x IN (...)"
        )
    for step in _steps(connection, sql, parameters):
        if step not in _STEPS:
            raise UsageError(f"a query can only read tables, and not use {step}; `nip-run sql` lists the tables")
    return _without_end(sql)


def query_error(error: _duckdb.Error, *, lines_before: int = 0) -> QueryError:
    """Convert DuckDB's error for a query to a `QueryError`.

    `lines_before` is the number of lines that nip-run put before the user's query. The result counts lines from the
    start of the user's query.
    """
    text = str(error).rstrip()
    position = _ERROR_POSITION.search(text)
    if position is None:
        fault, _, hint = text.partition("\n")
        return QueryError(text, fault, hint=hint.strip() or None)
    head, source, carets = text[: position.start()], position[2], position[4]
    line, column = int(position[1]) - lines_before, len(position[3]) - len(f"LINE {position[1]}: ") + 1
    place = f"LINE {line}: {source}\n{' ' * (len(f'LINE {line}: ') + column - 1)}{carets}"
    fault, _, hint = head.strip().partition("\n")
    is_cut = source.startswith("...")
    return QueryError(f"{head}{place}", fault, line=line, column=None if is_cut else column, hint=hint.strip() or None)


def _without_end(sql: str) -> str:
    """Remove the semicolons at the end of a statement, and any comments after them."""
    data = sql.encode()
    tokens = [(place, kind) for place, kind in tokenize(sql) if kind != token_type.comment]
    while tokens and data[tokens[-1][0] :].startswith(b";"):
        data = data[: tokens.pop()[0]]
    return data.decode()


def _steps(connection: DuckDBPyConnection, sql: str, parameters: Parameters) -> Iterator[str]:
    """Yield the names of all steps of a query's plan."""
    try:
        ((_, plan),) = connection.execute(f"EXPLAIN (FORMAT json)\n{sql}", bindable(parameters)).fetchall()
    except _duckdb.Error as error:
        raise query_error(error, lines_before=1) from error
    pending = json.loads(plan)
    while pending:
        step = pending.pop()
        yield step["name"].strip()
        pending += step["children"]
