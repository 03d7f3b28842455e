"""What a question in SQL may do: read tables, and nothing else.

The type of a statement does not tell: DuckDB takes `WITH x AS (COPY ... TO 'file') ...` for a SELECT, and
`EXPLAIN ANALYZE` runs what follows it. So the steps of the plan are looked at, each of which must be known to read
only, before anything runs. A PIVOT without its values runs a part of itself to be planned; what could write there is
looked for in its words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
from duckdb import token_type, tokenize

from runner.base.errors import QuestionError, UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_Kind = duckdb.StatementType

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
    """.split()  # noqa: SIM905 - a list would be one name a line
)
"""The steps of plans that only read. `INOUT_FUNCTION` is a function of columns, which no function of files can be."""

_WRITING = re.compile(r"\b(copy|insert|update|delete|merge)\b", re.IGNORECASE)
"""What DuckDB lets a WITH do beside SELECT."""

_PLACE = re.compile(r"^LINE (\d+): (.*)\n( *)(\^+)", re.MULTILINE)
"""The line of a question that DuckDB's error is about, and what it marks below it."""

_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?(?=[^\s(])", re.IGNORECASE)


Parameters = Sequence[Any] | Mapping[str, Any]
"""The values of `?` in order, or of `$name` by name."""


def bound(parameters: Parameters) -> list[Any] | dict[str, Any]:
    """Parameters as DuckDB takes them."""
    return dict(parameters) if isinstance(parameters, Mapping) else list(parameters)


def read_only(connection: DuckDBPyConnection, sql: str, parameters: Parameters = ()) -> str:
    """The statement to execute for a question, which is one that only reads; it has no semicolon at its end.

    Raises:
        UsageError: it is wrong, or none, or several, or does more.
    """
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise question_error(error) from error
    if len(statements) != 1:
        raise UsageError("one question at a time, such as: SELECT run_id, accuracy FROM leaderboard")
    kind = statements[0].type
    if kind == _Kind.EXPLAIN:
        found = _EXPLAIN.match(sql)
        if found is None:
            raise UsageError("a question to explain begins with EXPLAIN, or EXPLAIN ANALYZE, and the question follows")
        rest = re.sub(r"\S", " ", found[0]) + sql[found.end() :]  # as long as it was, for the places of mistakes
        if connection.extract_statements(rest)[0].type == _Kind.EXPLAIN:
            raise UsageError("EXPLAIN is said once")
        return f"EXPLAIN {found[1] or ''}{read_only(connection, rest, parameters)}"
    if kind not in (_Kind.SELECT, _Kind.MULTI):
        raise UsageError(
            f"a question only reads: SELECT, FROM, WITH, PIVOT, DESCRIBE, SHOW, SUMMARIZE; not {kind.name}"
        )
    if kind == _Kind.MULTI and (writing := _WRITING.search(sql)):
        raise UsageError(
            f"a question with PIVOT cannot have the word {writing[0]!r}; give the values: ... ON x IN (...)"
        )
    for step in _steps(connection, sql, parameters):
        if step not in _STEPS:
            raise UsageError(f"a question only reads its tables; {step} is refused. `nip-run sql` lists the tables")
    return _without_end(sql)


def question_error(error: duckdb.Error, *, lines_before: int = 0) -> QuestionError:
    """DuckDB's error for a question that we have put so many lines before, with the user's own line numbers."""
    text = str(error).rstrip()
    found = _PLACE.search(text)
    if found is None:
        what, _, hint = text.partition("\n")
        return QuestionError(text, what, hint=hint.strip() or None)
    head, source, carets = text[: found.start()], found[2], found[4]
    line, column = int(found[1]) - lines_before, len(found[3]) - len(f"LINE {found[1]}: ") + 1
    place = f"LINE {line}: {source}\n{' ' * (len(f'LINE {line}: ') + column - 1)}{carets}"
    what, _, hint = head.strip().partition("\n")
    is_cut = source.startswith("...")
    return QuestionError(
        f"{head}{place}", what, line=line, column=None if is_cut else column, hint=hint.strip() or None
    )


def _without_end(sql: str) -> str:
    """One statement without the semicolons, and what follows them."""
    data = sql.encode()
    tokens = [(place, kind) for place, kind in tokenize(sql) if kind != token_type.comment]
    while tokens and data[tokens[-1][0] :].startswith(b";"):
        data = data[: tokens.pop()[0]]
    return data.decode()


def _steps(connection: DuckDBPyConnection, sql: str, parameters: Parameters) -> Iterator[str]:
    """The names of all steps of a question's plan."""
    try:
        ((_, plan),) = connection.execute(f"EXPLAIN (FORMAT json)\n{sql}", bound(parameters)).fetchall()
    except duckdb.Error as error:
        raise question_error(error, lines_before=1) from error
    left = json.loads(plan)
    while left:
        step = left.pop()
        yield step["name"].strip()
        left += step["children"]
