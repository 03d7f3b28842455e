"""A dataset file into datapoints, through DuckDB's readers, or every problem it has."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from runner.base.errors import Place, PlaceOf, Problem, SpecError
from runner.base.hashing import canonical, tagged_hash
from runner.base.storage.duckdb_connections import borrow_connection
from runner.base.storage.safe_files import create
from runner.base.text import comma_join, did_you_mean
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.explode import ROW_NUMBER, exploded, exploded_columns, own_types
from runner.spec.datasets.labels import contrary_words, label_of, label_problems
from runner.spec.datasets.limits import Meter, TooLarge
from runner.spec.datasets.reader import (
    Table,
    Unreadable,
    canonical_problem,
    check_not_ragged,
    hub_file,
    read_table,
    renamed,
)
from runner.spec.datasets.selection import chosen
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.datasets.subprocess import TaskEnded, TaskFailed, run_apart

if TYPE_CHECKING:
    import duckdb

__all__ = ["HUB", "Datapoint", "Dataset", "load_dataset"]

HUB = "hf://"
_SHOWN = 5
_UNKNOWN_COLUMN = re.compile('Referenced column "(.+?)" not found')
_OTHERWISE = {
    "id": ", or set dataset.ids=rows",
    "label": "; where its owner keeps the labels, it has a column 'label' that is empty in every row",
}
"""What else may be done about a column that is not there."""


@dataclass(frozen=True)
class Dataset:
    """The chosen datapoints in the order of play, and the hash of the source they came from."""

    datapoints: tuple[Datapoint, ...]
    columns: tuple[str, ...]
    source_sha256: str
    group_by: str | None = None
    """The column that names the groups; None where nothing is said."""
    notes: tuple[str, ...] = ()
    """What of the file is not played, and was not asked to be left out."""

    @property
    def is_labelled(self) -> bool:
        """Whether the labels are known: all of them or, where the dataset's owner keeps them, none."""
        return any(point.label is not None for point in self.datapoints)

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

    try:
        with (
            borrow_connection(f"{settings.limits.memory >> 20}MiB") as connection,
            _file(connection, settings, path, where) as (file, sha256),
        ):
            table, notes = _read(connection, file, settings, where)
            rows = _selected(file, table, settings, where)
    except duckdb.Error as error:
        raise _refused(where, str(error).splitlines()[0], "dataset.path") from error
    except (Unreadable, TooLarge, TaskEnded) as error:
        raise _refused(where, str(error), getattr(error, "key", "dataset.path")) from error
    columns = tuple(name for name in table.columns if name not in ("id", "label"))
    group_by = settings.group_by or (settings.explode.row if settings.explode else None)
    labels = _labelled(rows, table, settings)
    problems = list(_row_problems(rows, columns, labels, where("dataset.path")))
    problems += _group_problems(rows, group_by, where("dataset.group_by"))
    if problems:
        raise SpecError(problems)
    if settings.balance == "label" and rows[0]["label"] is None:
        raise _refused(where, "no row has a label to balance by: its owner keeps them", "dataset.balance")
    points = [_datapoint(row, columns, group_by) for row in rows]
    played = tuple(chosen(points, settings, seed))
    if not played:
        raise _refused(where, f"no datapoint is left after balancing {len(points)} rows", "dataset.balance")
    return Dataset(played, columns, sha256 or table.sha256, group_by, tuple(notes))


def _datapoint(row: Mapping[str, Any], columns: Sequence[str], group_by: str | None) -> Datapoint:
    group = "" if group_by is None else str(row[group_by])
    label = None if row["label"] is None else int(row["label"])
    return Datapoint(str(row["id"]), label, {name: row[name] for name in columns}, group)


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


def _read(
    connection: duckdb.DuckDBPyConnection, path: Path, settings: DatasetSettings, where: PlaceOf
) -> tuple[Table, list[str]]:
    """The file's rows under our names, with an id and a label; and what to note of them."""
    try:
        table = read_table(connection, path, settings.limits)
    except TaskFailed as error:
        raise _refused(where, str(error).splitlines()[0], "dataset.path") from error
    needed = _needed(settings)
    if not {*settings.columns.values(), *(needed - settings.columns.keys())} <= {*table.columns}:
        check_not_ragged(path)
    if not table.rows:
        raise _refused(where, "the file has no rows", "dataset.path")
    _check_names(table, settings, where)
    there = table.columns
    table = renamed(table, settings.columns)
    missing = [
        Problem(
            where("dataset.columns"),
            "dataset",
            f"the file has no column {name!r}{did_you_mean(name, there) or '; it has ' + comma_join(there)}; "
            f"map it with dataset.columns.{name}=..." + _OTHERWISE[name],
        )
        for name in ("id", "label")
        if name in needed and name not in table.columns
    ]
    if missing:
        raise SpecError(missing)
    table, notes = _of_datapoints(table, settings, where)
    if settings.group_by is not None and settings.group_by not in table.columns:
        renamed_to = [ours for ours, theirs in settings.columns.items() if theirs == settings.group_by]
        also = [settings.explode.row] if settings.explode and renamed_to == ["id"] else renamed_to
        hint = f"; dataset.columns calls it {also[0]!r}" if also else did_you_mean(settings.group_by, table.columns)
        hint = hint or f"; there are {comma_join(table.columns)}; dataset.group_by=null for none"
        raise _refused(where, f"no column {settings.group_by!r}{hint}", "dataset.group_by")
    return table, notes


def _needed(settings: DatasetSettings) -> set[str]:
    """The columns that a file must have, by our names."""
    needed = {"id": settings.ids == "column", "label": settings.explode is None}
    return {name for name, is_needed in needed.items() if is_needed}


def _check_names(table: Table, settings: DatasetSettings, where: PlaceOf) -> None:
    """See that what the spec says of columns agrees with the file, and with itself."""
    doubled = [theirs for theirs, count in Counter(settings.columns.values()).items() if count > 1]
    if doubled:
        raise _refused(where, f"one column under two names: {comma_join(doubled)}", "dataset.columns")
    for ours, theirs in settings.columns.items():
        if theirs not in table.columns:
            hint = did_you_mean(theirs, table.columns) or f"; it has {comma_join(table.columns)}"
            message = f"the file has no column {theirs!r}{hint}"
            raise _refused(where, message, f"dataset.columns.{ours}")
    if settings.ids == "rows" and "id" in settings.columns:
        message = "the ids are made of the rows' numbers (dataset.ids: rows); leave one of the two out"
        raise _refused(where, message, "dataset.columns.id")
    contrary = contrary_words(settings.labels)
    if contrary:
        said = "; ".join(
            f"{comma_join(map(repr, words))} are one word in any case, with both labels" for words in contrary
        )
        raise _refused(where, f"{said}; leave one out", "dataset.labels")
    of_labels = ["dataset.columns.label"] * ("label" in settings.columns) + ["dataset.labels"] * bool(settings.labels)
    if settings.explode is not None and of_labels:
        raise _refused(where, "dataset.explode.columns says the labels; leave this out", of_labels[0])


def _of_datapoints(table: Table, settings: DatasetSettings, where: PlaceOf) -> tuple[Table, list[str]]:
    """A row for each datapoint, with its id and the number of its row in the file; and what to note of them."""
    notes: list[str] = []
    rows = [{**row, ROW_NUMBER: number} for number, row in enumerate(table.rows, 1)]
    columns = table.columns
    if settings.ids == "rows":
        # The files of the Hub are of one split each.
        of = (settings.split or "train") if settings.path.startswith(HUB) else "row"
        rows = [{**row, "id": f"{of}-{row[ROW_NUMBER]}"} for row in rows]
        columns = ("id", *(name for name in columns if name != "id"))
    if settings.explode is not None:
        missing = [row[ROW_NUMBER] for row in rows if row["id"] is None or row["id"] == ""]
        if missing:
            raise _refused(where, f"rows without an id: {_some(missing)}", "dataset.path")
        columns = exploded_columns(columns, settings.explode, where)
        rows, skipped = exploded(rows, columns, settings.explode, Meter(settings.limits), where)
        notes = skipped.notes()
        if not rows:
            raise _refused(where, "all lists are empty", "dataset.explode.columns")
    return replace(table, rows=rows, columns=columns), notes


def _selected(path: Path, table: Table, settings: DatasetSettings, where: PlaceOf) -> list[dict[str, Any]]:
    """The datapoints' rows of the split that pass the filter."""
    rows = table.rows
    if settings.filter is not None:
        kept = _filtered(path, rows, table.columns, settings, where)
        rows = [row for index, row in enumerate(rows, 1) if index in kept]
        if not rows:
            raise _refused(where, "no row passes the filter", "dataset.filter")
    if settings.split is None or settings.path.startswith(HUB):
        return rows
    if "split" not in table.columns:
        message = "the file has no column 'split'; leave the split out (dataset.split=null) or map one"
        raise _refused(where, message, "dataset.split")
    found = [row for row in rows if row["split"] == settings.split]
    if not found:
        splits = sorted({str(row["split"]) for row in rows})
        raise _refused(where, f"no row has this split; the file has {comma_join(splits)}", "dataset.split")
    return found


def _filtered(
    path: Path, rows: list[dict[str, Any]], columns: Sequence[str], settings: DatasetSettings, where: PlaceOf
) -> set[int]:
    """Which rows, counted from 1, pass the filter, a SQL condition on our names or the file's."""
    asked: dict[str, Any] = {"filter": settings.filter, "columns": dict(settings.columns)}
    types = {"id": "VARCHAR"} if settings.ids == "rows" else {}
    if settings.explode is not None:
        types |= own_types(settings.explode)
        asked["without"] = list(settings.explode.columns)
    try:
        with TemporaryDirectory() as folder:
            if types:
                asked["own"], asked["types"] = str(Path(folder) / "own.jsonl"), types
                with create(Path(asked["own"])) as file:
                    file.writelines(
                        canonical([row[ROW_NUMBER], *(row[name] for name in types)]) + b"\n" for row in rows
                    )
            answer = run_apart("filter", path, settings.limits, **asked)
    except TaskFailed as error:
        known = list(dict.fromkeys((*columns, *settings.columns.values())))
        unknown = _UNKNOWN_COLUMN.search(str(error))
        hint = did_you_mean(unknown[1], known) if unknown else ""
        message = (str(error).splitlines()[0] or "not a SQL condition").rstrip("!")
        columns_hint = f"{hint or ';'} the columns are {comma_join(known)}"
        raise _refused(where, message + columns_hint, "dataset.filter") from error
    except TaskEnded as error:
        raise _refused(where, str(error), "dataset.filter") from error
    return set(answer["kept"])


def _labelled(rows: list[dict[str, Any]], table: Table, settings: DatasetSettings) -> list[str]:
    """Put 0 and 1 in the place of each label, and say what is wrong with those that are neither.

    A label column that is empty in every row of the file says that its owner keeps the labels: they become None.
    """
    if all(_is_empty(row["label"]) for row in table.rows):
        for row in rows:
            row["label"] = None
        return []
    meanings = {word.strip().casefold(): label for word, label in settings.labels.items()}
    wrong = []
    for row in rows:
        label = label_of(row["label"], meanings, is_text=table.labels_are_text)
        if label is None:
            wrong.append((_named(row, settings), row["label"]))
        row["label"] = label
    return label_problems(wrong)


def _is_empty(label: Any) -> bool:
    return label is None or label == ""


def _named(row: Mapping[str, Any], settings: DatasetSettings) -> str:
    """A row by its id and its number in the file, unless the id is that number."""
    return str(row["id"]) if settings.ids == "rows" else f"{row['id']} (row {row[ROW_NUMBER]})"


def _some(what: Sequence[Any]) -> str:
    return comma_join(what[:_SHOWN]) + (f" and {len(what) - _SHOWN} more" if len(what) > _SHOWN else "")


def _group_problems(rows: list[dict[str, Any]], group_by: str | None, place: Place) -> Iterator[Problem]:
    """A group is a text or a number; what has none would be taken for a group of its own."""
    if group_by is None:
        return
    empty = [row[ROW_NUMBER] for row in rows if row[group_by] is None or str(row[group_by]).strip() == ""]
    if empty:
        message = f"rows whose {group_by!r} is empty: {_some(empty)}; give each a group, its id where it stands alone"
        yield Problem(place, "dataset.group_by", message)
    nested = [row[ROW_NUMBER] for row in rows if isinstance(row[group_by], (list, dict))]
    if nested:
        message = f"column {group_by!r} does not name groups, by a text or a number: rows {_some(nested)}"
        yield Problem(place, "dataset.group_by", message)
    kinds: dict[str, dict[str, int]] = {}
    for row in rows:
        value = row[group_by]
        is_whole = isinstance(value, float) and value.is_integer()
        name = str(int(value)) if is_whole else str(value)
        kinds.setdefault(name, {}).setdefault(f"{value!r} ({type(value).__name__})", row[ROW_NUMBER])
    mixed = [written for written in kinds.values() if len(written) > 1]
    if mixed:
        said = comma_join(f"{value} in row {row}" for value, row in list(mixed[0].items())[:_SHOWN])
        message = f"one group in several spellings of {group_by!r}: {said}; write each group in one way"
        yield Problem(place, "dataset.group_by", message)


def _row_problems(
    rows: list[dict[str, Any]], columns: Sequence[str], labels: Sequence[str], place: Place
) -> Iterator[Problem]:
    missing = [row[ROW_NUMBER] for row in rows if row["id"] is None or row["id"] == ""]
    if missing:
        yield Problem(place, "dataset", f"rows without an id: {_some(missing)}")
    ids: dict[str, list[int]] = {}
    for row in rows:
        if row["id"] is not None and row["id"] != "":
            ids.setdefault(str(row["id"]), []).append(row[ROW_NUMBER])
    doubled = [f"{name} (rows {_some(numbers)})" for name, numbers in ids.items() if len(numbers) > 1]
    if doubled:
        yield Problem(place, "dataset", f"duplicate ids: {_some(doubled)}; give each row an id of its own")
    for message in labels:
        yield Problem(place, "dataset.labels", message)
    for name in columns:
        problem = next((found for row in rows if (found := _value_problem(name, row[name]))), None)
        if problem is not None:
            yield Problem(place, "dataset", problem)


def _value_problem(name: str, value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"column {name!r} holds a number that is not finite"
    if isinstance(value, (bytes, bytearray)):
        return f"column {name!r} holds bytes; a template shows text"
    return canonical_problem(name, value)
