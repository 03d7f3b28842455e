r"""Values that Python has no equal for, as the texts that DuckDB has for them, which it reads again as what they were.

A TIMESTAMPTZ would need the package pytz, INTERVAL would have its months as 30 days each, nanoseconds would be cut to
microseconds, and an infinite DATE would be one of the year 9999. A BLOB is bytes in Python, for which text formats have
no form: its text is ASCII, with \xFF for each other byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duckdb.sqltypes import DuckDBPyType

_AS_TEXT = frozenset(
    {
        "timestamp with time zone", "time with time zone", "interval", "timestamp_ns", "time_ns",
        "timestamptz_ns", "date", "blob",
    }
)  # fmt: skip

_NOT_PORTABLE = frozenset({"JSON", "UUID", "INTERVAL", "VARIANT"})
"""Types that polars reads from a Parquet file as bytes, or not at all."""

LINES_BEFORE = 1
"""The lines that `with_texts` puts before a question."""


def with_texts(sql: str, columns: Sequence[DuckDBPyType]) -> str | None:
    """A question whose answer has texts for such values, also inside lists and structures; None where it has none.

    The question has no semicolon at its end. `columns` are the types of its answer's columns, whose names are lost.
    """
    casts = [_type_with_texts(kind, _has_no_python_value) for kind in columns]
    if all(cast is None for cast in casts):
        return None
    chosen = ", ".join(f"#{n}" if cast is None else f"CAST(#{n} AS {cast})" for n, cast in enumerate(casts, 1))
    return f"SELECT {chosen} FROM (\n{sql}\n)"


def portable_columns(names: Sequence[str], types: Sequence[DuckDBPyType]) -> str:
    """Return a projection that casts values to text if their type is not portable in Parquet, also when nested."""
    casts = [_type_with_texts(kind, lambda part: str(part) in _NOT_PORTABLE) for kind in types]
    values = [f"#{n}" if cast is None else f"CAST(#{n} AS {cast})" for n, cast in enumerate(casts, 1)]
    return ", ".join(f"{value} AS {_quoted(name)}" for value, name in zip(values, names, strict=True))


def _has_no_python_value(kind: DuckDBPyType) -> bool:
    return kind.id in _AS_TEXT


def _type_with_texts(kind: DuckDBPyType, is_text: Callable[[DuckDBPyType], bool]) -> str | None:
    """The type to cast this one to, with text for each part that `is_text` selects; None if it can stay."""
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
            return f"STRUCT({', '.join(f'{_quoted(name)} {p}' for (name, _), p in zip(children, parts, strict=True))})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
