r"""Text forms of the DuckDB values that Python or Parquet cannot represent. DuckDB parses them back to equal values.

In Python, a TIMESTAMPTZ would need the package pytz, an INTERVAL would count months as 30 days, nanoseconds would be
cut to microseconds, and an infinite DATE would become one of the year 9999. A BLOB would be bytes, which text formats
cannot represent: its text is ASCII, with \xFF for each other byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from _duckdb._sqltypes import DuckDBPyType

_AS_TEXT = frozenset(
    {
        "timestamp with time zone", "time with time zone", "interval", "timestamp_ns", "time_ns",
        "timestamptz_ns", "date", "blob",
    }
)  # fmt: skip

_NOT_PORTABLE = frozenset({"JSON", "UUID", "INTERVAL", "VARIANT"})
"""Types that polars reads from a Parquet file as bytes, or not at all."""

LINES_BEFORE = 1
"""Number of lines that `cast_to_text` puts before a query."""


def cast_to_text(sql: str, columns: Sequence[DuckDBPyType]) -> str | None:
    """Return a query with the same result, but with text for each value that Python cannot represent.

    Values inside lists and structs become text, too. The result is None if no column has such values. `columns` are the
    types of the result's columns; their names are lost. `sql` must not end with a semicolon.
    """
    casts = [_type_with_texts(kind, lambda part: part.id in _AS_TEXT) for kind in columns]
    if all(cast is None for cast in casts):
        return None
    columns_sql = ", ".join(f"#{n}" if cast is None else f"CAST(#{n} AS {cast})" for n, cast in enumerate(casts, 1))
    return f"SELECT {columns_sql} FROM (\n{sql}\n)"


def portable_columns(names: Sequence[str], types: Sequence[DuckDBPyType]) -> str:
    """Return the columns of a SELECT. Types that are not portable in Parquet are cast to text, also nested."""
    casts = [_type_with_texts(kind, lambda part: str(part) in _NOT_PORTABLE) for kind in types]
    values = [f"#{n}" if cast is None else f"CAST(#{n} AS {cast})" for n, cast in enumerate(casts, 1)]
    return ", ".join(f"{value} AS {_quote_name(name)}" for value, name in zip(values, names, strict=True))


def _type_with_texts(kind: DuckDBPyType, is_text: Callable[[DuckDBPyType], bool]) -> str | None:
    """Return the type to cast `kind` to, with text for each part that `is_text` selects; None if no cast is needed."""
    if is_text(kind):
        return "VARCHAR"
    if kind.id not in ("list", "array", "struct", "map", "tuple", "union"):
        return None
    children = [(name, part) for name, part in kind.children if isinstance(part, DuckDBPyType)]
    casts = [_type_with_texts(part, is_text) for _, part in children]
    if all(cast is None for cast in casts):
        return None
    parts = [cast or str(part) for (_, part), cast in zip(children, casts, strict=True)]
    match kind.id:
        case "list":
            return f"{parts[0]}[]"
        case "array":
            return f"{parts[0]}[{dict(kind.children)['size']}]"
        case "map":
            return f"MAP({', '.join(parts)})"
        case "tuple" | "union":
            return "VARCHAR"
        case _:
            return (
                f"STRUCT({', '.join(f'{_quote_name(name)} {p}' for (name, _), p in zip(children, parts, strict=True))})"
            )


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
