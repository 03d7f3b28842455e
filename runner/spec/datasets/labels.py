"""The values of a label column into 0 and 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

WORDS = {"true": 1, "yes": 1, "false": 0, "no": 0}
DIGITS = {"1": 1, "0": 0, "1.0": 1, "0.0": 0}
_SHOWN = 5


def label_of(value: Any, meanings: Mapping[str, int], *, is_text: bool) -> int | None:
    """0 or 1; None where it is not clear which.

    `meanings` are the spec's own words, in lower case, which come first; `is_text`: the file knows no numbers, as CSV
    does not.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON and Parquet may write whole numbers so
    word = str(value).strip().casefold() if isinstance(value, bool | int | str) else None
    if word is None:
        return None
    if word in meanings:
        return meanings[word]
    if isinstance(value, int):
        return int(value) if value in (0, 1) else None
    return (WORDS | DIGITS if is_text else WORDS).get(word)


def contrary_words(labels: Mapping[str, int]) -> list[list[str]]:
    """The words of a spec that are one word in any case, and are given both labels."""
    alike: dict[str, list[str]] = {}
    for word in labels:
        alike.setdefault(word.strip().casefold(), []).append(word)
    return [words for words in alike.values() if len({labels[word] for word in words}) > 1]


def label_problems(rows: Iterable[tuple[str, Any]]) -> list[str]:
    """What is wrong with labels that are not clear, each given with what its row is called."""
    found: dict[str, list[str]] = {}
    missing = []
    for row, value in rows:
        if value is None or value == "":
            missing.append(row)
        else:
            found.setdefault(repr(value)[:40], []).append(row)
    problems = [f"rows without a label: {_some(missing)}"] if missing else []
    if found:
        values = "; ".join(f"{_some(having, 1)} has {value}" for value, having in list(found.items())[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more values" if len(found) > _SHOWN else ""
        problems.append(
            f"a label is 0 or 1: {values}{more}; dataset.labels says what a word means, as in "
            "dataset.labels: {right: 1, wrong: 0}"
        )
    return problems


def _some(rows: list[str], shown: int = _SHOWN) -> str:
    return ", ".join(rows[:shown]) + (f" and {len(rows) - shown} more" if len(rows) > shown else "")
