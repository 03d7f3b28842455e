"""A dataset file into datapoints, through DuckDB's readers, or every problem it has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.datasets.apart import TaskEnded, TaskFailed, run_apart
from runner.datasets.limits import TooLarge
from runner.datasets.read import Table, Unreadable, canonical_problem, check_not_ragged, hub_file, read_table, renamed
from runner.datasets.settings import DatasetSettings
from runner.errors import Place, PlaceOf, Problem, SpecError
from runner.hashing import derived_seed, hash_parity, tagged_hash
from runner.storage.queries import connect
from runner.text import comma_join, did_you_mean

if TYPE_CHECKING:
    import duckdb

HUB = "hf://"
_SHOWN = 5
_NUMBER = "\0number"
"""The key of a row's number in its file; no column has such a name."""


@dataclass(frozen=True)
class Datapoint:
    """One item: its id, its label, the columns that templates may show, and the group of those that are not independent.

    The group is its own id where nothing is said. No game depends on it, so it is not in the content hash.
    """

    id: str
    label: int
    columns: Mapping[str, Any]
    group: str = ""

    def __post_init__(self) -> None:
        if not self.group:
            object.__setattr__(self, "group", self.id)

    @cached_property
    def prover_stance(self) -> int:
        """The stance a prover is given for this datapoint where the protocol randomises it."""
        text = self.columns.get("solution")
        return hash_parity(text if isinstance(text, str) else self.id)

    @cached_property
    def content_hash(self) -> str:
        """Identity: the hash of everything a game can depend on."""
        return tagged_hash("datapoint", {"id": self.id, "label": self.label, "columns": self.columns})


@dataclass(frozen=True)
class Dataset:
    """The chosen datapoints in the order of play, and the hash of the source they came from."""

    datapoints: tuple[Datapoint, ...]
    columns: tuple[str, ...]
    source_sha256: str

    @cached_property
    def sha256(self) -> str:
        """The hash of the chosen datapoints."""
        return tagged_hash("dataset", [point.content_hash for point in self.datapoints])


def load_dataset(settings: DatasetSettings, path: Path | None, seed: int, where: PlaceOf) -> Dataset:
    """Read, map, filter, order and cut a dataset. `path` is the file that `settings.path` was found to be.

    Raises:
        SpecError: with all that is wrong with the file or its rows.
    """
    import duckdb

    connection = connect(memory=f"{settings.limits.memory >> 20}MiB")
    try:
        with _file(connection, settings, path, where) as (file, sha256):
            table = _read(connection, file, settings, where)
            rows = _selected(file, table, settings, where)
    except duckdb.Error as error:
        raise _refused(where, str(error).splitlines()[0], "dataset.path") from error
    except (Unreadable, TooLarge, TaskEnded) as error:
        raise _refused(where, str(error), getattr(error, "key", "dataset.path")) from error
    finally:
        connection.close()
    columns = tuple(name for name in table.columns if name not in ("id", "label"))
    problems = list(_row_problems(rows, columns, where("dataset.path")))
    problems += _group_problems(rows, settings.group_by, where("dataset.group_by"))
    if problems:
        raise SpecError(problems)
    points = [_datapoint(row, columns, settings.group_by) for row in rows]
    chosen = tuple(_ordered_and_cut(points, settings, seed))
    if not chosen:
        raise _refused(where, f"no datapoint is left after balancing {len(points)} rows", "dataset.balance")
    return Dataset(chosen, columns, sha256 or table.sha256)


def _datapoint(row: Mapping[str, Any], columns: Sequence[str], group_by: str | None) -> Datapoint:
    group = "" if group_by is None else str(row[group_by])
    return Datapoint(str(row["id"]), int(row["label"]), {name: row[name] for name in columns}, group)


@contextmanager
def _file(
    connection: duckdb.DuckDBPyConnection, settings: DatasetSettings, path: Path | None, where: PlaceOf
) -> Iterator[tuple[Path, str | None]]:
    """The dataset's file; and the hash of its content, where that is not the file's."""
    if settings.path.startswith(HUB):
        with hub_file(connection, settings.path.removeprefix(HUB), settings.split, settings.revision) as found:
            yield found
    elif path is None:
        message = f"no file {settings.path!r} beside the spec, nor among the built-in ones"
        raise _refused(where, message, "dataset.path")
    else:
        yield path, None


def _refused(where: PlaceOf, message: str, key: str) -> SpecError:
    return SpecError([Problem(where(key), key, message)])


def _read(connection: duckdb.DuckDBPyConnection, path: Path, settings: DatasetSettings, where: PlaceOf) -> Table:
    """The file's rows under our names, with an id and a label."""
    try:
        table = read_table(connection, path, settings.limits)
    except TaskFailed as error:
        raise _refused(where, str(error).splitlines()[0], "dataset.path") from error
    if not {*settings.columns.values(), *({"id", "label"} - settings.columns.keys())} <= {*table.columns}:
        check_not_ragged(path)
    if not table.rows:
        raise _refused(where, "the file has no rows", "dataset.path")
    doubled = [theirs for theirs, count in Counter(settings.columns.values()).items() if count > 1]
    if doubled:
        raise _refused(where, f"one column under two names: {comma_join(doubled)}", "dataset.columns")
    for ours, theirs in settings.columns.items():
        if theirs not in table.columns:
            message = f"the file has no column {theirs!r}{did_you_mean(theirs, table.columns)}"
            raise _refused(where, message, f"dataset.columns.{ours}")
    there = table.columns
    table = renamed(table, settings.columns)
    missing = [
        Problem(
            where("dataset.columns"),
            "dataset",
            f"the file has no column {needed!r}{did_you_mean(needed, there) or '; it has ' + comma_join(there)}; "
            f"map it with dataset.columns.{needed}=...",
        )
        for needed in ("id", "label")
        if needed not in table.columns
    ]
    if settings.group_by is not None and settings.group_by not in table.columns:
        hint = did_you_mean(settings.group_by, table.columns) or "; there are " + comma_join(table.columns)
        message = f"no column {settings.group_by!r}{hint}"
        missing.append(Problem(where("dataset.group_by"), "dataset.group_by", message))
    if missing:
        raise SpecError(missing)
    return table


def _selected(path: Path, table: Table, settings: DatasetSettings, where: PlaceOf) -> list[dict[str, Any]]:
    """The rows of the split that pass the filter, each with its number in the file."""
    rows = [{**row, _NUMBER: number} for number, row in enumerate(table.rows, 1)]
    if settings.filter is not None:
        kept = _filtered(path, settings, where)
        rows = [row for row in rows if row[_NUMBER] in kept]
        if not rows:
            raise _refused(where, "no row passes the filter", "dataset.filter")
    if settings.split is None or settings.path.startswith(HUB):
        return rows
    if "split" not in table.columns:
        message = "the file has no column 'split'; leave the split out or map one"
        raise _refused(where, message, "dataset.split")
    found = [row for row in rows if row["split"] == settings.split]
    if not found:
        splits = sorted({str(row["split"]) for row in rows})
        raise _refused(where, f"no row has this split; the file has {comma_join(splits)}", "dataset.split")
    return found


def _filtered(path: Path, settings: DatasetSettings, where: PlaceOf) -> set[int]:
    """The numbers of the rows that pass the filter, which is a SQL condition on our names."""
    try:
        answer = run_apart("filter", path, settings.limits, filter=settings.filter, columns=dict(settings.columns))
    except TaskFailed as error:
        raise _refused(where, str(error).splitlines()[0] or "not a SQL condition", "dataset.filter") from error
    except TaskEnded as error:
        raise _refused(where, str(error), "dataset.filter") from error
    return set(answer["kept"])


def _some(what: Sequence[Any]) -> str:
    return comma_join(what[:_SHOWN]) + (f" and {len(what) - _SHOWN} more" if len(what) > _SHOWN else "")


def _group_problems(rows: list[dict[str, Any]], group_by: str | None, place: Place) -> Iterator[Problem]:
    """A group is a text or a number; what has none would be taken for a group of its own."""
    if group_by is None:
        return
    empty = [row[_NUMBER] for row in rows if row[group_by] is None or row[group_by] == ""]
    if empty:
        message = f"rows whose {group_by!r} is empty: {_some(empty)}; give each a group, its id where it stands alone"
        yield Problem(place, "dataset.group_by", message)
    nested = [row[_NUMBER] for row in rows if isinstance(row[group_by], (list, dict))]
    if nested:
        message = f"column {group_by!r} does not name groups, by a text or a number: rows {_some(nested)}"
        yield Problem(place, "dataset.group_by", message)


def _row_problems(rows: list[dict[str, Any]], columns: Sequence[str], place: Place) -> Iterator[Problem]:
    missing = [row[_NUMBER] for row in rows if row["id"] is None or row["id"] == ""]
    if missing:
        yield Problem(place, "dataset", f"rows without an id: {_some(missing)}")
    ids = Counter(str(row["id"]) for row in rows if row["id"] is not None and row["id"] != "")
    doubled = [name for name, count in ids.items() if count > 1]
    if doubled:
        yield Problem(place, "dataset", f"ids that stand twice: {_some(doubled)}")
    wrong = [f"{row['id']} has {row['label']!r}" for row in rows if not _is_label(row)]
    if wrong:
        yield Problem(place, "dataset", f"a label is 0 or 1: {_some(wrong)}")
    for name in columns:
        problem = next((found for row in rows if (found := _value_problem(name, row[name]))), None)
        if problem is not None:
            yield Problem(place, "dataset", problem)


def _is_label(row: dict[str, Any]) -> bool:
    """0 or 1, or true or false."""
    return isinstance(row["label"], int) and row["label"] in (0, 1)


def _value_problem(name: str, value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"column {name!r} holds a number that is not finite"
    if isinstance(value, (bytes, bytearray)):
        return f"column {name!r} holds bytes; a template shows text"
    return canonical_problem(name, value)


def _ordered_and_cut(points: list[Datapoint], settings: DatasetSettings, seed: int) -> list[Datapoint]:
    if settings.shuffle:
        points = sorted(points, key=lambda point: (derived_seed("shuffle", seed, point.id), point.id))
    if settings.balance == "label":
        size = min(sum(point.label == label for point in points) for label in (0, 1))
        if settings.limit is not None:
            size = min(size, settings.limit // 2)
        kept: Counter[int] = Counter()
        balanced = []
        for point in points:
            kept[point.label] += 1
            if kept[point.label] <= size:
                balanced.append(point)
        points = balanced
    return points[: settings.limit]
