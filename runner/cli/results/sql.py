"""Query the leaderboard and the records of all runs in SQL.

Examples:
  nip-run sql
  nip-run sql "SELECT run_id, accuracy, ci_low, ci_high FROM leaderboard"
  nip-run sql @
  nip-run sql @flips run_a=RUN run_b=RUN
  nip-run sql "PIVOT rollouts ON outcome USING count(*) GROUP BY run_id"
  nip-run sql --file query.sql -o result.parquet
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import RunError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.storage.safe_files import create, read_bounded
from runner.base.text import counted
from runner.cli.terminal.output import print_block, print_json, print_table, say, say_lines, to_jsonable

if TYPE_CHECKING:
    from runner.results.leaderboard.database import Leaderboard
    from runner.results.leaderboard.queries import QueryResult
    from runner.results.leaderboard.results_folder import Results


MAX_TABLE_ROWS = 1_000
"""Maximum number of rows of a printed table. All rows are in memory to compute the widths of columns."""
BATCH_ROWS = 50
"""Number of rows that are read at once, before their cells are shortened."""
MAX_CELL = 5_000
"""Maximum number of characters of a table cell."""
FORMAT_OF_EXTENSION = {".csv": "csv", ".json": "json", ".md": "markdown", ".parquet": "parquet"}
"""Output formats by file extension."""

EXAMPLES = (
    "SELECT run_id, accuracy, ci_low, ci_high, n FROM leaderboard",
    "SELECT outcome, count(*) AS n FROM rollouts GROUP BY outcome",
    "SELECT run_id, datapoint_id, avg(correct::INT) AS accuracy FROM rollouts GROUP BY ALL ORDER BY accuracy LIMIT 10",
    "SELECT agent, sum(prompt_tokens) AS tokens, avg(latency_ms) AS ms FROM completions GROUP BY agent",
    "SELECT run_b, difference, ci_low, ci_high, p FROM comparisons WHERE run_a = (SELECT max(run_id) FROM leaderboard)",
    "FROM messages WHERE content ILIKE '%sorry%' LIMIT 5",
    "SELECT run_id, rollout_id, text FROM notes WHERE list_contains(tags, 'bug')",
)

_TABLES = (
    "leaderboard", "comparisons", "flips", "runs", "agents", "metrics", "rollouts", "datapoints", "messages",
    "completions", "notes",
)  # fmt: skip
"""The tables, in the order of the list that `nip-run sql` prints."""
_COLUMNS_QUERY = (
    "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() "
    "WHERE database_name = 'memory' AND schema_name = 'main' AND NOT internal ORDER BY column_index"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sql",
        nargs="?",
        metavar="QUERY",
        help="SELECT, FROM, WITH, PIVOT, DESCRIBE, SHOW or SUMMARIZE; @NAME runs a stored query, @ lists them; - "
        "reads standard input; without a query: list tables, columns and examples",
    )
    add(
        "parameters",
        nargs="*",
        metavar="NAME=VALUE",
        help="values of the query's parameters, written $NAME in its text",
    )
    add("--list", action="store_true", help="list the stored queries, as @ does")
    add("--file", type=Path, metavar="FILE", help="read the query from a file")
    add(
        "--format",
        choices=("table", "csv", "json", "markdown", "parquet"),
        help="default: by the extension of --out, else table, which shows the first 1,000 rows",
    )
    add(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="write the result to a file (a link is followed); required for parquet",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.results.leaderboard.named_queries import MARK, resolve_query

    results: Results = args.results
    board = results.board
    if args.list or args.sql == MARK:
        _show_queries(results, as_json=args.json)
        return ExitCode.DONE
    query = _read_query(args)
    if query is None:
        _show_tables(board, as_json=args.json)
        return ExitCode.DONE
    sql, parameters = resolve_query(query, _parse_parameters(args), results)
    format_ = _choose_format(args)
    out = _resolve_target(args.out)
    if format_ == "parquet" and out is not None:
        board.sources().write_parquet(sql, out, parameters)
        return ExitCode.DONE
    with board.sources().answer(sql, parameters) as result:
        if format_ == "table":
            _print_rows(result)
        elif out is None:
            for block in BLOCKS[format_](result.columns, result.batches()):
                print_block(block)
        else:
            _write_blocks(out, BLOCKS[format_](result.columns, result.batches()))
    return ExitCode.DONE


def _read_query(args: argparse.Namespace) -> str | None:
    """Return the query from the argument, the file or standard input; None if there is none.

    Raises:
        UsageError: the query is given twice, or cannot be read.
    """
    from runner.results.leaderboard.named_queries import MAX_QUERY_BYTES

    if args.file is not None and args.sql is not None:
        raise UsageError("the query is given twice; give an argument or --file, not both")
    if args.file is None and args.sql != "-":
        return None if args.sql is None else str(args.sql)
    source = args.file or "standard input"
    try:
        return (read_bounded(args.file, MAX_QUERY_BYTES) if args.file is not None else _read_standard_input()).decode()
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 at byte {error.start}: {error.reason}; save it as UTF-8") from error


def _parse_parameters(args: argparse.Namespace) -> Mapping[str, str]:
    """Return the values of the query's parameters by name.

    Raises:
        UsageError: an argument is not NAME=VALUE.
    """
    invalid = [argument for argument in args.parameters if "=" not in argument]
    if invalid:
        raise UsageError(f"{invalid[0]!r} is not a parameter; write NAME=VALUE, and put the query in quotes")
    return dict(argument.split("=", 1) for argument in args.parameters)


def _read_standard_input() -> bytes:
    from runner.results.leaderboard.named_queries import MAX_QUERY_BYTES

    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("standard input is closed; give the query as an argument or with --file")
    data = sys.stdin.buffer.read(MAX_QUERY_BYTES + 1)
    if len(data) > MAX_QUERY_BYTES:
        raise UsageError(f"the query has more than {MAX_QUERY_BYTES >> 10:,} KiB, the maximum; shorten or split it")
    return data


def _choose_format(args: argparse.Namespace) -> str:
    """Return the output format: from --format, --json, or the file's extension.

    Raises:
        UsageError: the options contradict each other, or the format does not fit the output.
    """
    extension_format = FORMAT_OF_EXTENSION.get(args.out.suffix.lower()) if args.out else None
    format_ = args.format or ("json" if args.json else extension_format or "table")
    if args.json and format_ != "json":
        raise UsageError(f"--json and --format {format_} contradict each other; omit one")
    if extension_format not in (None, format_):
        option = "--json" if args.json else f"--format {format_}"
        raise UsageError(f"{option} contradicts the extension of {args.out} ({extension_format}); change one")
    if format_ == "parquet" and args.out is None:
        raise UsageError("--format parquet cannot be printed; add --out FILE")
    if format_ == "table" and args.out is not None:
        raise UsageError("--out cannot write a table; add --format csv, json, markdown or parquet")
    return str(format_)


def _resolve_target(path: Path | None) -> Path | None:
    """Return the file that a result is written to, following links.

    Raises:
        UsageError: the path is not a regular file.
    """
    if path is None:
        return None
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; choose another path with -o") from error
    if stat.S_ISREG(mode):
        return target
    kind = "folder" if stat.S_ISDIR(mode) else "FIFO" if stat.S_ISFIFO(mode) else "device or a socket"
    raise UsageError(f"{path} is a {kind}; give a file, or omit --out to print the result")


def _print_rows(result: QueryResult) -> None:
    """Print the first rows as a table, and say which rows and cells are incomplete."""
    rows: list[list[Any]] = []
    shortened = 0
    while len(rows) <= MAX_TABLE_ROWS and (batch := result.rows(min(BATCH_ROWS, MAX_TABLE_ROWS + 1 - len(rows)))):
        for row in batch:
            rows.append([_shorten_cell(value) for value in row])
            shortened += sum(cell is not value for cell, value in zip(rows[-1], row, strict=True))
    print_table(result.columns, rows[:MAX_TABLE_ROWS])
    if shortened:
        say(f"{counted(shortened, 'cell')} cut to {MAX_CELL:,} characters. Full cells: --format csv, json or markdown")
    if len(rows) > MAX_TABLE_ROWS:
        say(f"Only the first {MAX_TABLE_ROWS:,} rows are shown. All rows: --format csv, json or markdown")


def _shorten_cell(value: Any) -> Any:
    """Truncate a long cell and add the number of missing characters, since long cells make the layout slow."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    return value if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}... ({len(text) - MAX_CELL:,} more characters)"


def _write_blocks(path: Path, blocks: Iterator[str]) -> None:
    """Write text blocks to a file, completely or not at all.

    Raises:
        RunError: the file cannot be written.
    """
    from runner.base.storage.atomic_files import replacing

    try:
        with replacing(path) as temporary, create(temporary) as file:
            for block in blocks:
                file.write(block.encode(errors="backslashreplace"))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; choose another path with -o") from error


def _show_tables(board: Leaderboard, *, as_json: bool) -> None:
    from runner.results.leaderboard.named_queries import MARK

    _, rows = board.query(_COLUMNS_QUERY)
    tables = {name: [row[1:] for row in rows if row[0] == name] for name in _TABLES}
    if as_json:
        keys = ("name", "type", "comment")
        table_list = [
            {"name": name, "columns": [dict(zip(keys, column, strict=True)) for column in columns]}
            for name, columns in tables.items()
        ]
        print_json({"tables": table_list, "examples": list(EXAMPLES)})
        return
    for name, columns in tables.items():
        descriptions = [(column, kind, comment or "") for column, kind, comment in columns]
        print_table(("column", "type", "what it is"), descriptions, title=name)
        say()
    say("For example:")
    say_lines(f'  nip-run sql "{example}"' for example in EXAMPLES)
    say(f"List the stored queries, such as `nip-run sql {MARK}protocols`: nip-run sql {MARK}")


def _show_queries(results: Results, *, as_json: bool) -> None:
    """Print the stored queries with their parameters and descriptions."""
    from runner.results.leaderboard.named_queries import MARK, named_queries

    queries = named_queries(results)
    if as_json:
        keys = ("name", "kind", "default", "about")
        print_json(
            {
                query.name: {
                    "about": query.about,
                    "file": str(query.path),
                    "parameters": [{key: getattr(parameter, key) for key in keys} for parameter in query.parameters],
                }
                for query in queries
            }
        )
        return
    rows = [
        (f"{MARK}{query.name}", " ".join(p.written for p in query.parameters if p.default is None), query.about)
        for query in queries
    ]
    print_table(("query", "needs", "what it answers"), rows)
    say(f"Run one with: nip-run sql {MARK}NAME NAME=VALUE...")
    say(f"Add your own as queries/NAME.sql in the results folder, or run a file with {MARK}FILE.sql")


Rows = Iterable[Sequence[Any]]


def csv_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """Yield CSV as in RFC 4180, but with line feeds. NULL becomes an empty cell; lists and structures become JSON."""
    yield _csv_text([columns])
    for rows in batches:
        yield _csv_text([[_plain_text(value) for value in row] for row in rows])


def _csv_text(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def json_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """Yield a JSON array in ASCII, with an object for each row on its own line. Duplicate column names are numbered."""
    names = _number_duplicates(columns)
    separator = "[\n"
    for rows in batches:
        lines = [_json_text({name: _to_float(value) for name, value in zip(names, row, strict=True)}) for row in rows]
        yield separator + ",\n".join(lines)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def markdown_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """Yield a table in GitHub's Markdown."""
    yield _markdown_text([[_escape_cell(column) for column in columns], ["---"] * len(columns)])
    for rows in batches:
        yield _markdown_text([[_escape_cell(_plain_text(value)) for value in row] for row in rows])


def _markdown_text(rows: Rows) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _escape_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")


def _plain_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return _json_text(value) if isinstance(value, (Mapping, list, tuple)) else str(value)


def _to_float(value: Any) -> Any:
    """Return a DECIMAL as a float, since JSON has no decimal type."""
    return float(value) if isinstance(value, Decimal) else value


def _json_text(value: Any) -> str:
    return json.dumps(to_jsonable(value), ensure_ascii=True, allow_nan=False)


def _number_duplicates(names: Sequence[str]) -> list[str]:
    """Make names unique as DuckDB does: a second `id` becomes `id_1`."""
    unique: dict[str, None] = {}
    for name in names:
        number, candidate = 0, name
        while candidate in unique:
            number += 1
            candidate = f"{name}_{number}"
        unique[candidate] = None
    return list(unique)


BLOCKS = {"csv": csv_blocks, "json": json_blocks, "markdown": markdown_blocks}
"""Functions that yield text blocks, by format name."""
