"""Read a dataset file into datapoints, or report all its problems."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.base.batches import group_pairs
from runner.base.errors import SpecError
from runner.base.hashing import canonical, tagged_hash
from runner.base.problems import Place, PlaceOf, Problem
from runner.base.storage.safe_files import create
from runner.base.text import comma_join, did_you_mean, list_some
from runner.spec.datasets.candidates import candidate_answers, list_answers
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.explode import ROW_NUMBER, added_column_types, columns_after_exploding, explode_rows
from runner.spec.datasets.labels import SKIP, contradictory_words, label_problems, parse_label
from runner.spec.datasets.limits import Meter, TooLarge
from runner.spec.datasets.reader import HUB, Table, Unreadable, check_not_ragged, hub_file, read_table, rename_columns
from runner.spec.datasets.selection import select_datapoints
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.datasets.subprocess import TaskFailed, TaskLimitExceeded, run_in_subprocess
from runner.spec.datasets.transcripts.rows import GROUP
from runner.spec.datasets.transcripts.source import RowsFile, transcript_rows
from runner.spec.datasets.transform import transform_rows

__all__ = ["HUB", "Datapoint", "Dataset", "load_dataset"]

_MAX_LISTED = 5
_UNKNOWN_COLUMN = re.compile('Referenced column "(.+?)" not found')
_HINT_IF_MISSING = {
    "id": ", or set dataset.ids=rows",
    "label": "; if the dataset's owner hides the labels, add a column 'label' that is empty in every row",
}
"""Alternatives if a required column is missing."""


@dataclass(frozen=True)
class Dataset:
    """The selected datapoints in the order of play, and the hash of their source."""

    datapoints: tuple[Datapoint, ...]
    columns: tuple[str, ...]
    source_sha256: str
    group_by: str | None = None
    """The column that names the groups; None if unset."""
    notes: tuple[str, ...] = ()
    """Notes on skipped parts of the file that the spec does not name."""

    @property
    def is_labelled(self) -> bool:
        """Whether the labels are known: either all of them, or none if the dataset's owner hides them."""
        return any(point.is_labelled for point in self.datapoints)

    @cached_property
    def sha256(self) -> str:
        """The hash of the selected datapoints."""
        return tagged_hash("dataset", [point.content_hash for point in self.datapoints])


def load_dataset(settings: DatasetSettings, path: Path | None, seed: int, place_of: PlaceOf) -> Dataset:
    """Read, map, filter, order and limit a dataset.

    `path` is the file that `settings.path` names; None for a dataset on the Hub. `place_of` returns the place of a key.

    Raises:
        SpecError: the file or its rows are invalid; lists all problems.
    """
    try:
        with _open_source(settings, path, place_of) as source:
            table, notes = _read_rows(source.path, settings, place_of)
            notes += source.notes
            rows = _select_rows(source.path, table, settings, place_of)
            if settings.transform:
                rows, new_columns = transform_rows(rows, table.columns, settings.transform, place_of)
                table = replace(table, columns=new_columns)
                _check_group_column(new_columns, settings, place_of)
            if settings.answers is not None:
                describe = partial(_describe_row, settings=settings)
                rows, new_columns = list_answers(rows, table.columns, settings, place_of, describe)
                table = replace(table, columns=new_columns)
    except (Unreadable, TooLarge, TaskLimitExceeded) as error:
        raise _error(place_of, str(error), getattr(error, "key", "dataset.path")) from error
    columns = tuple(name for name in table.columns if name not in ("id", "label"))
    group_by = _group_column(settings)
    label_messages: list[str] = []
    if settings.checker is not None:
        rows = [{**row, "label": None} for row in rows]
    elif settings.answers is None:
        rows, label_messages = _convert_labels(rows, table, settings)
    if settings.unique_by and not label_messages:
        rows = _drop_duplicates(rows, table, settings, place_of, notes)
    problems = list(_row_problems(rows, columns, label_messages, place_of("dataset.path")))
    problems += _group_problems(rows, group_by, place_of("dataset.group_by"))
    if problems:
        raise SpecError(problems)
    if settings.balance == "label" and rows[0]["label"] is None:
        raise _error(place_of, "cannot balance by label, since the dataset has no labels; set none", "dataset.balance")
    points = [_datapoint(row, columns, group_by, has_answers=settings.answers is not None) for row in rows]
    selected = tuple(select_datapoints(points, settings, seed))
    if not selected:
        message = f"no datapoint is left after balancing {len(points)} rows; set none, or add rows of the other label"
        raise _error(place_of, message, "dataset.balance")
    return Dataset(selected, columns, source.source_sha256 or table.sha256, group_by, tuple(notes))


@contextmanager
def _open_source(settings: DatasetSettings, path: Path | None, place_of: PlaceOf) -> Iterator[RowsFile]:
    """Yield a file with the rows of the source, which may be on the Hub or in transcripts."""
    if path is None:
        if settings.transcripts is not None:
            message = "transcripts are read from files; download the dataset's files, and name their folder in the path"
            raise _error(place_of, message, "dataset.transcripts")
        with hub_file(settings) as (file, sha256):
            yield RowsFile(file, sha256, [])
    elif settings.transcripts is not None:
        with transcript_rows(path, settings, place_of) as source:
            yield source
    else:
        yield RowsFile(path, None, [])


def _datapoint(row: Mapping[str, Any], columns: Sequence[str], group_by: str | None, *, has_answers: bool) -> Datapoint:
    group = "" if group_by is None else str(row[group_by])
    values = {name: row[name] for name in columns}
    if has_answers:
        return Datapoint(str(row["id"]), None, values, group, candidate_answers(row))
    label = None if row["label"] is None else int(row["label"])
    return Datapoint(str(row["id"]), label, values, group)


def _error(place_of: PlaceOf, message: str, key: str) -> SpecError:
    return SpecError([Problem(place_of(key), key, message)])


def _read_rows(path: Path, settings: DatasetSettings, place_of: PlaceOf) -> tuple[Table, list[str]]:
    """Return a table with renamed columns and a row for each datapoint, and notes on skipped parts of the file."""
    try:
        table = read_table(path, settings.limits)
    except TaskFailed as error:
        raise _error(place_of, str(error).splitlines()[0], "dataset.path") from error
    required = ["id"] if settings.ids == "column" else []
    if settings.explode is None and settings.checker is None:
        required.append("label")
    if not {*settings.columns.values(), *({*required} - settings.columns.keys())} <= {*table.columns}:
        check_not_ragged(path)
    if not table.rows:
        raise _error(place_of, "the file has no rows", "dataset.path")
    _check_names(table, settings, place_of)
    file_columns, listed = table.columns, comma_join(table.columns)
    table = rename_columns(table, settings.columns)
    missing = [
        Problem(
            place_of("dataset.columns" if settings.columns else "dataset.path"),
            "dataset",
            (
                f"dataset.columns renames the column {name!r}. "
                if name in file_columns
                else f"the file has no column {name!r}{did_you_mean(name, file_columns) or f'; it has {listed}.'} "
            )
            + f"Map one of its columns with dataset.columns.{name}=COLUMN"
            + _HINT_IF_MISSING[name],
        )
        for name in required
        if name not in table.columns
    ]
    if missing:
        raise SpecError(missing)
    table, notes = _make_datapoint_rows(table, settings, place_of)
    if not settings.transform:
        _check_group_column(table.columns, settings, place_of)
    return table, [*table.notes, *notes]


def _check_group_column(columns: Sequence[str], settings: DatasetSettings, place_of: PlaceOf) -> None:
    """Check that the column that names the groups exists."""
    group_by = _group_column(settings)
    if group_by is None or group_by in columns:
        return
    new_names = [name for name, file_column in settings.columns.items() if file_column == group_by]
    if settings.explode and new_names == ["id"]:
        new_names = [settings.explode.row]
    hint = f"; write its new name {new_names[0]!r}" if new_names else did_you_mean(group_by, columns)
    hint = hint or f"; choose one of {comma_join(columns)}, or set dataset.group_by=null"
    raise _error(place_of, f"no column {group_by!r}{hint}", "dataset.group_by")


def _group_column(settings: DatasetSettings) -> str | None:
    default = GROUP if settings.transcripts else None
    return settings.group_by or (settings.explode.row if settings.explode else default)


def _check_names(table: Table, settings: DatasetSettings, place_of: PlaceOf) -> None:
    """Check that the column settings agree with the file and with each other."""
    duplicates = [file_column for file_column, count in Counter(settings.columns.values()).items() if count > 1]
    if duplicates:
        raise _error(
            place_of, f"one column is mapped to two names: {comma_join(duplicates)}; remove one", "dataset.columns"
        )
    for name, file_column in settings.columns.items():
        if file_column not in table.columns:
            hint = did_you_mean(file_column, table.columns) or f"; choose one of {comma_join(table.columns)}"
            message = f"the file has no column {file_column!r}{hint}"
            raise _error(place_of, message, f"dataset.columns.{name}")
    if settings.ids == "rows" and "id" in settings.columns:
        message = "contradicts dataset.ids: rows, which makes ids from row numbers; remove one of the two"
        raise _error(place_of, message, "dataset.columns.id")
    contradictory = contradictory_words(settings.labels)
    if contradictory:
        spellings = "; ".join(
            f"{comma_join(map(repr, group))} differ only in case but have different labels" for group in contradictory
        )
        raise _error(place_of, f"{spellings}; remove one", "dataset.labels")
    label_keys = ["dataset.columns.label"] * ("label" in settings.columns) + ["dataset.labels"] * bool(settings.labels)
    if settings.explode is not None and label_keys:
        raise _error(place_of, f"dataset.explode.columns sets the labels; remove {label_keys[0]}", label_keys[0])


def _make_datapoint_rows(table: Table, settings: DatasetSettings, place_of: PlaceOf) -> tuple[Table, list[str]]:
    """Return a row for each datapoint, with an id and the row number in the file, and notes on skipped elements."""
    notes: list[str] = []
    rows = [{**row, ROW_NUMBER: number} for number, row in enumerate(table.rows, 1)]
    columns = table.columns
    if settings.ids == "rows":
        # Each file of the Hub has one split.
        prefix = (settings.split or "train") if settings.path.startswith(HUB) else "row"
        rows = [{**row, "id": f"{prefix}-{row[ROW_NUMBER]}"} for row in rows]
        columns = ("id", *(name for name in columns if name != "id"))
    if settings.explode is not None:
        missing = [row[ROW_NUMBER] for row in rows if _is_empty(row["id"])]
        if missing:
            raise _error(place_of, f"rows without an id: {list_some(missing)}; set dataset.ids=rows", "dataset.path")
        columns = columns_after_exploding(columns, settings.explode, place_of)
        rows, skipped = explode_rows(rows, columns, settings.explode, Meter(settings.limits), place_of)
        notes = skipped.notes()
        if not rows:
            raise _error(
                place_of,
                "all lists are empty, so there are no datapoints; name other columns",
                "dataset.explode.columns",
            )
    return replace(table, rows=rows, columns=columns), notes


def _select_rows(path: Path, table: Table, settings: DatasetSettings, place_of: PlaceOf) -> list[dict[str, object]]:
    """Return the rows that pass the filter and belong to the split."""
    rows = table.rows
    if settings.filter is not None:
        passing = _filter_rows(path, rows, table.columns, settings, place_of)
        rows = [row for index, row in enumerate(rows, 1) if index in passing]
        if not rows:
            raise _error(place_of, "no row passes the filter; change or remove it", "dataset.filter")
    if settings.split is None or settings.path.startswith(HUB):
        return rows
    if "split" not in table.columns:
        message = "the file has no column 'split'; remove the split (dataset.split=null) or map a column to it"
        raise _error(place_of, message, "dataset.split")
    selected = [row for row in rows if row["split"] == settings.split]
    if not selected:
        splits = sorted({str(row["split"]) for row in rows})
        raise _error(place_of, f"no row has this split; choose one of {comma_join(splits)}", "dataset.split")
    return selected


def _write_added_rows(path: Path, rows: list[dict[str, Any]], names: Iterable[str]) -> None:
    """Write the number of each row in the file, and its values of columns that the file does not have."""
    with create(path) as file:
        file.writelines(canonical([row[ROW_NUMBER], *(row[name] for name in names)]) + b"\n" for row in rows)


def _filter_rows(
    path: Path, rows: list[dict[str, Any]], columns: Sequence[str], settings: DatasetSettings, place_of: PlaceOf
) -> set[int]:
    """Return the numbers, from 1, of rows that pass the filter: a SQL condition on original or renamed columns."""
    parameters: dict[str, Any] = {"filter": settings.filter, "columns": dict(settings.columns)}
    added_types = {"id": "VARCHAR"} if settings.ids == "rows" else {}
    if settings.explode is not None:
        added_types |= added_column_types(settings.explode)
        parameters["removed_columns"] = list(settings.explode.columns)
    try:
        with TemporaryDirectory() as folder:
            if added_types:
                added_rows = Path(folder) / "added.jsonl"
                parameters |= {"added_rows": str(added_rows), "added_types": added_types}
                _write_added_rows(added_rows, rows, added_types)
            result = run_in_subprocess("filter", path, settings.limits, **parameters)
    except TaskFailed as error:
        available = list(dict.fromkeys((*columns, *settings.columns.values())))
        unknown = _UNKNOWN_COLUMN.search(str(error))
        hint = did_you_mean(unknown[1], available) if unknown else ""
        message = (str(error).splitlines()[0] or "not a SQL condition").rstrip("!")
        columns_hint = f"{hint or ';'} the columns are {comma_join(available)}"
        raise _error(place_of, message + columns_hint, "dataset.filter") from error
    except TaskLimitExceeded as error:
        raise _error(place_of, str(error), "dataset.filter") from error
    return set(result["passing"])


def _convert_labels(
    rows: list[dict[str, Any]], table: Table, settings: DatasetSettings
) -> tuple[list[dict[str, object]], list[str]]:
    """Replace each label by 0 or 1. Return the rows without those to skip, and messages about unclear labels.

    If the label column is empty in every row, the dataset's owner hides the labels. Then all labels become None.
    """
    if all(_is_empty(row["label"]) for row in table.rows):
        for row in rows:
            row["label"] = None
        return rows, []
    meanings = {text.strip().casefold(): label for text, label in settings.labels.items()}
    unclear = []
    for row in rows:
        label = parse_label(row["label"], meanings, is_text=table.labels_are_text)
        if label is None:
            unclear.append((_describe_row(row, settings), row["label"]))
        row["label"] = label
    used = [row for row in rows if row["label"] != SKIP]
    return used, label_problems(unclear) if used else ["dataset.labels skips all rows; map a word to 0 or 1"]


def _drop_duplicates(
    rows: list[dict[str, Any]], table: Table, settings: DatasetSettings, place_of: PlaceOf, notes: list[str]
) -> list[dict[str, object]]:
    """Return the first row of each set of duplicates. Skip sets whose labels differ, and add a note for each set."""
    unknown = [name for name in settings.unique_by if name not in table.columns]
    if unknown:
        hint = did_you_mean(unknown[0], table.columns) or f"; choose some of {comma_join(table.columns)}"
        raise _error(place_of, f"no column {unknown[0]!r}{hint}", "dataset.unique_by")
    by_content = group_pairs((tuple(normalize_text(row[name]) for name in settings.unique_by), row) for row in rows)
    for copies in by_content.values():
        if len({row["label"] for row in copies}) > 1:
            names = list_some([_describe_row(row, settings) for row in copies])
            notes.append(f"skipped by dataset.unique_by, because their labels differ: {names}")
    unique = [copies[0] for copies in by_content.values() if len({row["label"] for row in copies}) == 1]
    if not unique:
        raise _error(place_of, "skips all rows, because the labels of all duplicates differ", "dataset.unique_by")
    return unique


def normalize_text(value: Any) -> str:
    """Return a value as text without differences in case and spaces, which do not distinguish datapoints."""
    return " ".join(str(value).split()).casefold()


def _is_empty(cell: Any) -> bool:
    return cell is None or cell == ""


def _describe_row(row: Mapping[str, object], settings: DatasetSettings) -> str:
    """Describe a row by its id and its number in the file, unless the id is that number."""
    return str(row["id"]) if settings.ids == "rows" else f"{row['id']} (row {row[ROW_NUMBER]})"


def _group_problems(rows: list[dict[str, Any]], group_by: str | None, place: Place) -> Iterator[Problem]:
    """Yield a problem for group names that are empty, nested or spelled in several ways, such as 1 and "1"."""
    if group_by is None:
        return
    empty = [row[ROW_NUMBER] for row in rows if row[group_by] is None or str(row[group_by]).strip() == ""]
    if empty:
        message = f"rows whose {group_by!r} is empty: {list_some(empty)}; set a group, such as the id, in each"
        yield Problem(place, "dataset.group_by", message)
    nested = [row[ROW_NUMBER] for row in rows if isinstance(row[group_by], (list, dict))]
    if nested:
        message = f"column {group_by!r} must have texts or numbers; rows with other values: {list_some(nested)}"
        yield Problem(place, "dataset.group_by", message)
    spellings_by_name: dict[str, dict[str, int]] = {}
    for row in rows:
        value = row[group_by]
        is_whole = isinstance(value, float) and value.is_integer()
        name = str(int(value)) if is_whole else str(value)
        spellings_by_name.setdefault(name, {}).setdefault(f"{value!r} ({type(value).__name__})", row[ROW_NUMBER])
    mixed = [spellings for spellings in spellings_by_name.values() if len(spellings) > 1]
    if mixed:
        listed = comma_join(f"{value} in row {row}" for value, row in list(mixed[0].items())[:_MAX_LISTED])
        message = f"{group_by!r} has several spellings of one group: {listed}; use one spelling for each group"
        yield Problem(place, "dataset.group_by", message)


def _row_problems(
    rows: list[dict[str, Any]], columns: Sequence[str], label_messages: Sequence[str], place: Place
) -> Iterator[Problem]:
    """Yield a problem for missing and repeated ids, for each message about labels, and for values of wrong types."""
    missing = [row[ROW_NUMBER] for row in rows if _is_empty(row["id"])]
    if missing:
        yield Problem(place, "dataset", f"rows without an id: {list_some(missing)}; set dataset.ids=rows")
    ids = group_pairs((str(row["id"]), row[ROW_NUMBER]) for row in rows if not _is_empty(row["id"]))
    duplicates = [f"{name} (rows {list_some(numbers)})" for name, numbers in ids.items() if len(numbers) > 1]
    if duplicates:
        yield Problem(place, "dataset", f"duplicate ids: {list_some(duplicates)}; ids must be unique")
    for message in label_messages:
        yield Problem(place, "dataset.labels", message)
    for name in ("id", *columns):
        problem = next((text for row in rows if (text := _value_problem(name, row[name]))), None)
        if problem is not None:
            yield Problem(place, "dataset", problem)


def _value_problem(name: str, value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"column {name!r} contains NaN or infinity; remove such rows or values"
    if isinstance(value, (bytes, bytearray)):
        return f"column {name!r} contains bytes; convert the column to text"
    try:
        canonical(value)
    except (TypeError, ValueError) as error:
        return f"column {name!r} contains a value that is not text, a number, a list or a mapping ({error}); convert it"
    return None
