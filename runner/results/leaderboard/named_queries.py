"""Questions that are kept in files and asked by name, `@flips`: those that travel with the package and one's own.

A file begins with comments: its first line says what it answers, and a line for each parameter its name, its kind, its
default and its meaning: `-- $run RUN: the run`, `-- $limit NUMBER = 20: how many`. A value of a kind that the board has
names of is looked up there first: a misspelt name would have an empty answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.base import package_data
from runner.base.errors import LeaderboardError, UsageError
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join, counted, did_you_mean
from runner.results.leaderboard.results_folder import Results

MARK = "@"
SUFFIX = ".sql"
MAX_QUESTION = 1 << 20

Value = str | float | None

_PARAMETER = re.compile(
    r"-- \$(?P<name>\w+) (?P<kind>RUN|TEXT|NUMBER|BENCHMARK|PROTOCOL|NAME|COLUMN)"
    r"(?: = (?P<default>\S+))?: (?P<about>.+)"
)

_NAMES: Mapping[str, str] = {
    "BENCHMARK": "SELECT DISTINCT benchmark FROM runs WHERE $run IS NULL OR run_id = $run",
    "PROTOCOL": "SELECT DISTINCT protocol FROM runs WHERE $run IS NULL OR run_id = $run",
    "NAME": "SELECT DISTINCT name FROM runs WHERE $run IS NULL OR run_id = $run",
    "COLUMN": "SELECT DISTINCT unnest(json_keys(columns)) FROM datapoints WHERE $run IS NULL OR run_id = $run",
}
"""Of each kind whose values the board has, those of a run or of all."""
_BOARD = re.compile(r"\b(leaderboard|comparisons|flips|runs|agents|metrics|rollouts|datapoints)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Parameter:
    """What a question is asked with; without a default it must be given."""

    name: str
    kind: str
    default: str | None
    about: str

    @property
    def written(self) -> str:
        """How it is given."""
        return f"{self.name}={self.kind if self.default is None else self.default}"

    def value(self, given: str, results: Results, run: str | None) -> Value:
        """What DuckDB is told for a text; `run` is the run that is asked about, where one is.

        Raises:
            UsageError: it is no number, or there is no such run, or nothing of this kind has such a name.
        """
        if self.kind == "RUN":
            return results.find(given).run_id
        if self.kind in _NAMES:
            known = sorted(str(name) for (name,) in results.board.query(_NAMES[self.kind], {"run": run})[1] if name)
            if given not in known:
                there = f"; there are: {comma_join(known)}" if known else "; there are none"
                where = f"the datasets of {run or results.path}" if self.kind == "COLUMN" else str(results.path)
                hint = did_you_mean(given, known) or there
                raise UsageError(f"{self.name}={given}: no {self.kind.lower()} of this name in {where}{hint}")
            return given
        if self.kind == "TEXT":
            return given
        try:
            return float(given)
        except ValueError:
            raise UsageError(f"{self.name}={given}: not a number") from None


@dataclass(frozen=True)
class NamedQuery:
    """One file."""

    path: Path
    sql: str
    about: str
    parameters: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    def values(self, given: Mapping[str, str], results: Results) -> dict[str, Value]:
        """The value of each parameter.

        Raises:
            UsageError: all that is unknown, missing or wrong.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        wrong = [
            f"{name}: no parameter of {MARK}{self.name}{did_you_mean(name, known) or _there(known)}"
            for name in given
            if name not in known
        ]
        values: dict[str, Value] = {}
        for name, parameter in sorted(known.items(), key=lambda item: item[1].kind != "RUN"):
            try:
                text = given.get(name, None if parameter.default == "NULL" else parameter.default)
                is_known = text is None or (name not in given and parameter.kind in _NAMES)
                values[name] = text if is_known else parameter.value(str(text), results, self._run(values))
            except UsageError as error:
                values[name] = None
                wrong.append(str(error))
            if name not in given and parameter.default is None:
                wrong.append(f"{MARK}{self.name} needs {parameter.written}: {parameter.about}")
        if wrong:
            raise UsageError("; ".join(wrong))
        return values

    def _run(self, values: Mapping[str, Value]) -> str | None:
        """The one run that is asked about."""
        runs = [values.get(one.name) for one in self.parameters if one.kind == "RUN"]
        return str(runs[0]) if len(runs) == 1 and runs[0] is not None else None


def _there(known: Mapping[str, Parameter]) -> str:
    return f"; it has {comma_join(known)}" if known else "; it has none"


def question(asked: str, given: Mapping[str, str], results: Results) -> tuple[str, Mapping[str, Value]]:
    """The SQL of a question, by its name too, and the values of its parameters.

    Raises:
        UsageError: there is none of this name, or a parameter of it is unknown, missing or wrong.
        LeaderboardError: it is about the board's tables, and there are runs and no board.
    """
    if not asked.startswith(MARK):
        _check_board(asked, results)
        return asked, dict(given)
    query = find_query(asked, results)
    _check_board(query.sql, results)
    return query.sql, query.values(given, results)


def _check_board(sql: str, results: Results) -> None:
    """See that a missing board does not pass for one without rows."""
    if results.board.path.is_file() or not _BOARD.search("\n".join(_without_comments(sql))):
        return
    if runs := len(list(results.runs())):
        raise LeaderboardError(
            f"{counted(runs, 'run')} in {results.path} and no leaderboard, which the question is about; make it from "
            f"the runs: {results.board.rebuilding}"
        )


def _without_comments(sql: str) -> Iterator[str]:
    return (line for line in sql.splitlines() if not line.startswith("--"))


def named_queries(results: Results) -> list[NamedQuery]:
    """All that can be asked by name, by name: one's own, `queries/` in the results folder, before those of the package.

    Raises:
        UsageError: one cannot be read.
    """
    return [_read(path) for _, path in sorted(_files(results).items())]


def find_query(word: str, results: Results) -> NamedQuery:
    """The question that is meant by `@NAME`, or by `@` and the path of a file.

    Raises:
        UsageError: there is none, with the nearest name; or it cannot be read.
    """
    name = word.removeprefix(MARK)
    if "/" in name or name.endswith(SUFFIX):
        return _read(Path(name))
    files = _files(results)
    if name not in files:
        hint = did_you_mean(name, files).replace("'", f"'{MARK}", 1) or f"; `nip-run sql {MARK}` lists them"
        raise UsageError(f"no query {word!r}{hint}")
    return _read(files[name])


def _files(results: Results) -> dict[str, Path]:
    return {path.stem: path for folder in _folders(results) for path in folder.glob(f"*{SUFFIX}")}


def _folders(results: Results) -> Iterator[Path]:
    """Where queries are; the later wins."""
    for folder in (package_data.queries(), results.path / "queries"):
        if package_data.is_folder(folder):
            yield folder


def _read(path: Path) -> NamedQuery:
    try:
        text = read_bounded(path, MAX_QUESTION).decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error.reason}, at byte {error.start}") from error
    head = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        head.append(line)
    found = [_PARAMETER.fullmatch(line) for line in head]
    about = head[0].removeprefix("--").strip() if head else ""
    return NamedQuery(path, text, about, tuple(Parameter(**one.groupdict()) for one in found if one))
