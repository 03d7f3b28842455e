"""Convert rows whose lists contain several datapoints, as in Buggy APPS, to one row for each datapoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from runner.base.errors import SpecError
from runner.base.problems import PlaceOf, Problem
from runner.base.text import comma_join, did_you_mean, list_some
from runner.spec.datasets.limits import Meter
from runner.spec.datasets.settings import Explode

Row = dict[str, Any]
ROW_NUMBER = "\0number"
"""Key of a row's number in its file; no column has this name."""

_KEY = "dataset.explode"
_MAX_LISTED = 5


def added_column_types(settings: Explode) -> dict[str, str]:
    """Return the columns that exploding adds, with their SQL types in a filter."""
    return {
        "id": "VARCHAR", "label": "BIGINT", settings.into: "VARCHAR", settings.number: "BIGINT",
        settings.row: "VARCHAR",
    }  # fmt: skip


def columns_after_exploding(columns: Sequence[str], settings: Explode, place_of: PlaceOf) -> tuple[str, ...]:
    """Return the columns after exploding: without the list columns, and with the new columns at the end.

    Raises:
        SpecError: a list column is missing, or a new column already exists.
    """
    problems = []
    for name in settings.columns:
        if name not in columns:
            hint = did_you_mean(name, columns) or "; choose one of " + comma_join(columns)
            problems.append(_problem(place_of, f"columns.{name}", f"the file has no column {name!r}{hint}"))
    other_columns = [name for name in columns if name not in settings.columns and name != "label"]
    new_columns = {"into": settings.into, "number": settings.number, "row": settings.row}
    for key, name in new_columns.items():
        if name in other_columns or name == "label":
            problems.append(_problem(place_of, key, f"the file already has a column {name!r}; choose another name"))
        if [*new_columns.values()].count(name) > 1:
            problems.append(_problem(place_of, key, f"two columns would be called {name!r}; choose another name"))
    if problems:
        raise SpecError(problems)
    return (*other_columns, "label", *new_columns.values())


@dataclass
class SkippedElements:
    """The numbers of empty and repeated list elements that are skipped, and the rows that contain them."""

    empty: int = 0
    repeated: int = 0
    rows: set[int] = field(default_factory=set)

    def notes(self) -> list[str]:
        """Return one line that counts the skipped elements, or no line if none was skipped."""
        if not self.rows:
            return []
        counts = [f"{self.empty:,} empty" if self.empty else "", f"{self.repeated:,} repeated" if self.repeated else ""]
        noun = "element" if self.empty + self.repeated == 1 else "elements"
        rows = f"{_describe_rows(sorted(self.rows))} of the dataset's file"
        return [f"{_KEY} skips {' and '.join(filter(None, counts))} {noun} of the lists in {rows}"]


def explode_rows(
    rows: Sequence[Row], columns: Sequence[str], settings: Explode, meter: Meter, place_of: PlaceOf
) -> tuple[list[Row], SkippedElements]:
    """Return a row for each element of each list, in the order of the lists in the spec.

    `columns` are the columns after exploding. Empty and repeated elements are skipped; the others keep their numbers.

    Raises:
        SpecError: a value is not a list, or its elements are not texts; lists the rows.
        TooLarge: there are more rows than the limit.
    """
    new_rows: list[Row] = []
    skipped = SkippedElements()
    rows_by_problem: dict[str, dict[str, list[int]]] = {name: {} for name in settings.columns}
    for row in rows:
        values = {name: row[name] for name in (*columns, ROW_NUMBER) if name in row and name not in settings.columns}
        for name, label in settings.columns.items():
            try:
                elements = _elements(row[name], settings, skipped, row[ROW_NUMBER])
            except _InvalidList as problem:
                rows_by_problem[name].setdefault(str(problem), []).append(row[ROW_NUMBER])
                continue
            new_rows.extend(_element_rows(values, elements, name, label, settings))
        meter.check_shape(len(new_rows), len(columns))
    problems = [
        _problem(place_of, f"columns.{name}", f"column {name!r} {message}, in {_describe_rows(numbers)}")
        for name, row_numbers in rows_by_problem.items()
        for message, numbers in row_numbers.items()
    ]
    if problems:
        raise SpecError(problems)
    return new_rows, skipped


def _element_rows(
    other_values: Mapping[str, object], elements: Mapping[str, int], name: str, label: int, settings: Explode
) -> Iterator[Row]:
    for text, number in elements.items():
        yield {
            **other_values,
            "id": f"{other_values['id']}-{name}-{number}",
            "label": label,
            settings.into: text,
            settings.number: number,
            settings.row: str(other_values["id"]),
        }


class _InvalidList(Exception):
    """Raised if a list is invalid. The message is the reason; rows with the same reason are reported together."""


def _elements(value: Any, settings: Explode, skipped: SkippedElements, row_number: int) -> dict[str, int]:
    """Return the distinct texts of a list or a JSON list, each with its number; count other elements in `skipped`."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    if not isinstance(value, list):
        raise _InvalidList("must be a list or a text with a JSON list")
    numbers: dict[str, int] = {}
    for number, element in enumerate(value, 1):
        if len(numbers) == settings.limit:
            break
        text = _text(element, settings.element)
        if text.strip() and text not in numbers:
            numbers[text] = number
            continue
        skipped.rows.add(row_number)
        skipped.repeated += text in numbers
        skipped.empty += text not in numbers
    return numbers


def _text(element: Any, key: str | None) -> str:
    if isinstance(element, dict):
        if key is None:
            raise _InvalidList(
                f"has lists of mappings ({comma_join(list(element)[:_MAX_LISTED])}); "
                "set dataset.explode.element to the key with the text"
            )
        if key not in element:
            raise _InvalidList(f"has an element without {key!r} (dataset.explode.element){did_you_mean(key, element)}")
        element = element[key]
    if not isinstance(element, str):
        raise _InvalidList(f"must have elements that are texts, not {type(element).__name__}")
    return element


def _describe_rows(numbers: Sequence[int]) -> str:
    return ("row " if len(numbers) == 1 else "rows ") + list_some(numbers)


def _problem(place_of: PlaceOf, key: str, message: str) -> Problem:
    return Problem(place_of(f"{_KEY}.{key}"), f"{_KEY}.{key}", message)
