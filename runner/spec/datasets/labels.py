"""Convert the values in a column of labels to 0 and 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from runner.base.batches import group_pairs
from runner.base.text import list_some

LABEL_OF_WORD = {"true": 1, "yes": 1, "false": 0, "no": 0}
LABEL_OF_DIGIT = {"1": 1, "0": 0, "1.0": 1, "0.0": 0}
SKIP: Final = "skip"
"""The meaning of a word whose rows are not used."""
_MAX_LISTED = 5


def parse_label(
    value: Any, meanings: Mapping[str, int | Literal["skip"]], *, is_text: bool
) -> int | Literal["skip"] | None:
    """Return the label that a value means: 0, 1 or `skip`; None if the value means none of them.

    `meanings` has the label of each word that the spec defines, in lower case; these take precedence. `is_text` is true
    if the file's format stores numbers as text, as CSV does.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON and Parquet may store whole numbers as floats
    if not isinstance(value, bool | int | float | str | None):
        return None
    text = "" if value is None else str(value).strip().casefold()
    if text in meanings:
        return meanings[text]
    if isinstance(value, int):
        return int(value) if value in (0, 1) else None
    return (LABEL_OF_WORD | LABEL_OF_DIGIT if is_text else LABEL_OF_WORD).get(text)


def contradictory_words(labels: Mapping[str, int | str]) -> list[list[str]]:
    """Return groups of the spec's words for labels that differ only in case, but have different labels."""
    by_word = group_pairs((spelling.strip().casefold(), spelling) for spelling in labels)
    return [spellings for spellings in by_word.values() if len({labels[spelling] for spelling in spellings}) > 1]


def label_problems(rows: Iterable[tuple[str, Any]]) -> list[str]:
    """Return a message about missing labels, and a message about unclear labels, if there are any.

    `rows` has the name of each row with a problem, and the value of its label.
    """
    by_value: dict[str, list[str]] = {}
    missing = []
    for row, value in rows:
        if value is None or value == "":
            missing.append(row)
        else:
            by_value.setdefault(repr(value)[:40], []).append(row)
    advice = "add labels, or skip these rows with dataset.labels: {'': skip}"
    problems = [f"rows without a label: {list_some(missing)}; {advice}"] if missing else []
    if by_value:
        first_values = list(by_value.items())[:_MAX_LISTED]
        values = "; ".join(
            f"{list_some(names, 1)} {'has' if len(names) == 1 else 'have'} {value}" for value, names in first_values
        )
        are_digits = all(value.startswith("'") and value.strip("'") in LABEL_OF_DIGIT for value in by_value)
        example = "{'1': 1, '0': 0}" if are_digits else "{right: 1, wrong: 0, unsure: skip}"
        hidden = f"; and {len(by_value) - _MAX_LISTED} more values" if len(by_value) > _MAX_LISTED else ""
        problems.append(
            f"labels must be 0 or 1: {values}{hidden}; map other values with dataset.labels, for example "
            f"dataset.labels: {example}"
        )
    return problems
