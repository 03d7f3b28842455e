"""Rows that hold several datapoints in lists, as those of Buggy APPS do, into a row for each datapoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from runner.base.errors import PlaceOf, Problem, SpecError
from runner.base.text import comma_join, did_you_mean
from runner.spec.datasets.limits import Meter
from runner.spec.datasets.settings import Explode

Row = dict[str, Any]
ROW_NUMBER = "\0number"
"""The key of a row's number in its file; no column has such a name."""

_KEY = "dataset.explode"
_SHOWN = 5


def own_types(settings: Explode) -> dict[str, str]:
    """What we make of a row, by the SQL types that a filter has it in."""
    return {
        "id": "VARCHAR", "label": "BIGINT", settings.into: "VARCHAR", settings.number: "BIGINT",
        settings.row: "VARCHAR",
    }  # fmt: skip


def exploded_columns(columns: Sequence[str], settings: Explode, where: PlaceOf) -> tuple[str, ...]:
    """The columns after exploding: the lists are gone, what an element becomes stands at the end.

    Raises:
        SpecError: a list column is not there, or one of ours is already.
    """
    problems = []
    for name in settings.columns:
        if name not in columns:
            hint = did_you_mean(name, columns) or "; it has " + comma_join(columns)
            problems.append(_problem(where, f"columns.{name}", f"the file has no column {name!r}{hint}"))
    kept = [name for name in columns if name not in settings.columns and name != "label"]
    ours = {"into": settings.into, "number": settings.number, "row": settings.row}
    for key, name in ours.items():
        if name in kept or name == "label":
            problems.append(_problem(where, key, f"the file has a column {name!r} already; choose another name here"))
        if [*ours.values()].count(name) > 1:
            problems.append(_problem(where, key, f"two columns would be called {name!r}; choose another name here"))
    if problems:
        raise SpecError(problems)
    return (*kept, "label", *ours.values())


@dataclass
class Skipped:
    """The elements that make no datapoint, and the rows that have some."""

    empty: int = 0
    repeated: int = 0
    rows: set[int] = field(default_factory=set)

    def notes(self) -> list[str]:
        """One line, or none."""
        if not self.rows:
            return []
        what = [f"{self.empty:,} empty" if self.empty else "", f"{self.repeated:,} repeated" if self.repeated else ""]
        elements = "element" if self.empty + self.repeated == 1 else "elements"
        rows = f"{_rows(sorted(self.rows))} of the dataset's file"
        return [f"{_KEY} skips {' and '.join(filter(None, what))} {elements} of the lists in {rows}"]


def exploded(
    rows: Sequence[Row], columns: Sequence[str], settings: Explode, meter: Meter, where: PlaceOf
) -> tuple[list[Row], Skipped]:
    """A row for each element of each list, the lists in the order of the spec; `columns` are those after exploding.

    Elements without text, and those that stand in the list already, are skipped; the others keep their numbers.

    Raises:
        SpecError: a list is none, or its elements hold no text, with the numbers of the rows.
        TooLarge: there are more rows than there may be.
    """
    found: list[Row] = []
    skipped = Skipped()
    wrong: dict[str, dict[str, list[int]]] = {name: {} for name in settings.columns}
    for row in rows:
        kept = {name: row[name] for name in (*columns, ROW_NUMBER) if name in row and name not in settings.columns}
        for name, label in settings.columns.items():
            try:
                elements = _elements(row[name], settings, skipped, row[ROW_NUMBER])
            except _Wrong as problem:
                wrong[name].setdefault(str(problem), []).append(row[ROW_NUMBER])
                continue
            found.extend(_rows_of(kept, elements, name, label, settings))
        meter.check_shape(len(found), len(columns))
    problems = [
        _problem(where, f"columns.{name}", f"column {name!r} {what}, in {_rows(numbers)}")
        for name, kinds in wrong.items()
        for what, numbers in kinds.items()
    ]
    if problems:
        raise SpecError(problems)
    return found, skipped


def _rows_of(
    kept: Mapping[str, Any], elements: Mapping[str, int], name: str, label: int, settings: Explode
) -> Iterator[Row]:
    for text, number in elements.items():
        yield {
            **kept,
            "id": f"{kept['id']}-{name}-{number}",
            "label": label,
            settings.into: text,
            settings.number: number,
            settings.row: str(kept["id"]),
        }


class _Wrong(Exception):
    """What is wrong with a list, so that rows with the same can be told together."""


def _elements(value: Any, settings: Explode, skipped: Skipped, row: int) -> dict[str, int]:
    """The texts of a list, or of the JSON of one, each once, with their numbers in it; none of what is empty."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise _Wrong("holds neither a list nor the JSON of one") from None
    if not isinstance(value, list):
        raise _Wrong("holds neither a list nor the JSON of one")
    found: dict[str, int] = {}
    for number, element in enumerate(value, 1):
        if len(found) == settings.limit:
            break
        text = _text(element, settings.element)
        if text.strip() and text not in found:
            found[text] = number
            continue
        skipped.rows.add(row)
        skipped.repeated += text in found
        skipped.empty += text not in found
    return found


def _text(element: Any, key: str | None) -> str:
    if isinstance(element, dict):
        if key is None:
            raise _Wrong(
                f"holds lists of mappings ({comma_join(list(element)[:_SHOWN])}); dataset.explode.element says which "
                "of their keys has the text"
            )
        if key not in element:
            raise _Wrong(f"has an element without {key!r} (dataset.explode.element){did_you_mean(key, element)}")
        element = element[key]
    if not isinstance(element, str):
        raise _Wrong(f"has an element that is not a text but {type(element).__name__}")
    return element


def _rows(numbers: Sequence[int]) -> str:
    rows = comma_join(map(str, numbers[:_SHOWN])) + (
        f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    )
    return ("row " if len(numbers) == 1 else "rows ") + rows


def _problem(where: PlaceOf, key: str, message: str) -> Problem:
    return Problem(where(f"{_KEY}.{key}"), f"{_KEY}.{key}", message)
