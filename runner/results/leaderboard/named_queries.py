"""Named queries: SQL in files of the package or of the user, which commands run by name, such as `@flips`.

A file starts with comments. The first line describes the result. Each parameter has a line with its name, kind, default
and meaning: `-- $run RUN: the run`, `-- $limit NUMBER = 20: how many`. The value of a parameter of a kind such as
BENCHMARK must be on the board, since the result for a misspelled name would be empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from runner.base import package_data
from runner.base.errors import LeaderboardError, UsageError
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join, counted, did_you_mean
from runner.results.leaderboard.results_folder import Results

MARK = "@"
SUFFIX = ".sql"
MAX_QUERY_BYTES = 1 << 20

Value = str | float | None

_PARAMETER = re.compile(
    r"-- \$(?P<name>\w+) (?P<kind>RUN|TEXT|NUMBER|BENCHMARK|PROTOCOL|NAME|COLUMN)"
    r"(?: = (?P<default>\S+))?: (?P<about>.+)"
)

_VALUES_SQL: Mapping[str, str] = {
    "BENCHMARK": "SELECT DISTINCT benchmark FROM runs WHERE $run IS NULL OR run_id = $run",
    "PROTOCOL": "SELECT DISTINCT protocol FROM runs WHERE $run IS NULL OR run_id = $run",
    "NAME": "SELECT DISTINCT name FROM runs WHERE $run IS NULL OR run_id = $run",
    "COLUMN": "SELECT DISTINCT unnest(json_keys(columns)) FROM datapoints WHERE $run IS NULL OR run_id = $run",
}
"""SQL for all values of a kind of parameter, in one run or in all runs."""
_BOARD = re.compile(r"\b(leaderboard|comparisons|flips|runs|agents|metrics|rollouts|datapoints)\b", re.IGNORECASE)
"""Matches a query that reads a table of the board."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a named query. Without a default, it is required."""

    name: str
    kind: str
    default: str | None
    about: str
    """The meaning."""

    @property
    def written(self) -> str:
        """The parameter as on the command line: `NAME=DEFAULT` or `NAME=KIND`."""
        return f"{self.name}={self.kind if self.default is None else self.default}"

    def value(self, text: str, results: Results, run: str | None) -> Value:
        """Convert the text of an argument to the value that DuckDB gets. `run` limits the names to one run.

        Raises:
            UsageError: the text is not a number, not a run, or not one of the names on the board.
        """
        if self.kind == "RUN":
            return results.find(text).run_id
        if self.kind in _VALUES_SQL:
            rows = results.board.query(_VALUES_SQL[self.kind], {"run": run})[1]
            names = sorted(str(name) for (name,) in rows if name)
            if text not in names:
                available = f"; choose one of: {comma_join(names)}" if names else "; there are none"
                scope = f"the datasets of {run or results.path}" if self.kind == "COLUMN" else str(results.path)
                hint = did_you_mean(text, names) or available
                raise UsageError(f"{self.name}={text}: no {self.kind.lower()} of this name in {scope}{hint}")
            return text
        if self.kind == "TEXT":
            return text
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{self.name}={text}: {text!r} is not a number; write {self.name}=NUMBER") from None


@dataclass(frozen=True)
class NamedQuery:
    """A query in a file."""

    path: Path
    sql: str
    about: str
    parameters: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    def values(self, arguments: Mapping[str, str], results: Results) -> dict[str, Value]:
        """Return the value of each parameter.

        Raises:
            UsageError: parameters are unknown, missing or invalid; the message lists all of them.
        """
        parameters = {parameter.name: parameter for parameter in self.parameters}
        available = f"; it has {comma_join(parameters) or 'none'}"
        problems, values = [], dict[str, Value]()
        for name, parameter in sorted(parameters.items(), key=lambda item: item[1].kind != "RUN"):
            try:
                text = arguments.get(name, None if parameter.default == "NULL" else parameter.default)
                is_unchecked = text is None or (name not in arguments and parameter.kind in _VALUES_SQL)
                values[name] = text if is_unchecked else parameter.value(str(text), results, self._run(values))
            except UsageError as error:
                values[name] = None
                problems.append(str(error))
            if name not in arguments and parameter.default is None:
                problems.append(f"{MARK}{self.name} needs {parameter.written}: {parameter.about}")
        problems += [
            f"{name}: no parameter of {MARK}{self.name}{did_you_mean(name, parameters) or available}"
            for name in arguments
            if name not in parameters
        ]
        if problems:
            raise UsageError("; ".join(problems))
        return values

    def _run(self, values: Mapping[str, Value]) -> str | None:
        """Return the run if the query has exactly one parameter of kind RUN and it is set, else None."""
        runs = [values.get(parameter.name) for parameter in self.parameters if parameter.kind == "RUN"]
        return str(runs[0]) if len(runs) == 1 and runs[0] is not None else None


def resolve_query(text: str, arguments: Mapping[str, str], results: Results) -> tuple[str, Mapping[str, Value]]:
    """Return the SQL and the parameters of a query, whose `text` is SQL or `@NAME`.

    Raises:
        UsageError: no query has this name, or a parameter is unknown, missing or invalid.
        LeaderboardError: the query needs the board, which is missing although there are runs.
    """
    if not text.startswith(MARK):
        _require_board(text, results)
        return text, dict(arguments)
    query = find_query(text, results)
    _require_board(query.sql, results)
    return query.sql, query.values(arguments, results)


def _require_board(sql: str, results: Results) -> None:
    """Check that the board is not missing, if the query reads it and there are runs. Its result would be empty.

    Raises:
        LeaderboardError: the board is missing.
    """
    without_comments = "\n".join(line for line in sql.splitlines() if not line.startswith("--"))
    if results.board.path.is_file() or not _BOARD.search(without_comments):
        return
    if runs := len(list(results.runs())):
        raise LeaderboardError(
            f"the query needs the leaderboard, which is missing for {counted(runs, 'run')} in {results.path}. "
            f"Rebuild it with: {results.board.rebuild_command}"
        )


def named_queries(results: Results) -> list[NamedQuery]:
    """Return all named queries, sorted by name. Files in `queries/` of the results folder replace files of the package.

    Raises:
        UsageError: a file cannot be read.
    """
    return [_read_query(path) for _, path in sorted(_query_files(results).items())]


def find_query(reference: str, results: Results) -> NamedQuery:
    """Return the query for `@NAME`, or for `@` and the path of a file.

    Raises:
        UsageError: no query has this name (the message suggests a similar one), or its file cannot be read.
    """
    name = reference.removeprefix(MARK)
    if "/" in name or name.endswith(SUFFIX):
        return _read_query(Path(name))
    files = _query_files(results)
    if name not in files:
        hint = did_you_mean(name, files).replace("'", f"'{MARK}", 1) or f"; list all with `nip-run sql {MARK}`"
        raise UsageError(f"no query {reference!r}{hint}")
    return _read_query(files[name])


def _query_files(results: Results) -> dict[str, Path]:
    """Return the files by the name of their query. Files of the results folder have precedence."""
    folders = filter(package_data.is_folder, (package_data.queries(), results.path / "queries"))
    return {path.stem: path for folder in folders for path in folder.glob(f"*{SUFFIX}")}


def _read_query(path: Path) -> NamedQuery:
    try:
        text = read_bounded(path, MAX_QUERY_BYTES).decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}: {error.reason}; save it as UTF-8") from error
    comments = list(takewhile(lambda line: line.startswith("--"), text.splitlines()))
    parameters = [_PARAMETER.fullmatch(line) for line in comments]
    about = comments[0].removeprefix("--").strip() if comments else ""
    return NamedQuery(path, text, about, tuple(Parameter(**match.groupdict()) for match in parameters if match))
