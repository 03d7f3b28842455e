"""Properties of items that could predict the label: lengths, comments, identifiers, words, edits, values of columns."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from runner.curation.audit.edits import nearest_versions
from runner.curation.audit.items import AuditItem, list_columns

Floats = npt.NDArray[np.float64]

MAX_TERMS: Final = 1000
"""The number of words, those in most groups, that a bag of words has."""
_MAX_CATEGORIES: Final = 50
_MIN_ITEMS_PER_CATEGORY: Final = 4
_TOKEN = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)


class Method(StrEnum):
    """How a predictor is tested."""

    RANKS = "ranks"
    """The ranks of its numbers are compared between labels."""
    CLASSIFIER = "classifier"
    """A cross-validated classifier uses all its terms."""
    STRONGEST_TERM = "strongest term"
    """The term that is most correlated with the label is used."""


@dataclass(frozen=True)
class Predictor:
    """A number for each item, or with `terms`, a number for each item and term, such as a word."""

    column: str
    measure: str
    values: Floats
    terms: tuple[str, ...] = ()
    method: Method = Method.RANKS


def _compressed_share(text: str) -> float:
    data = text.encode("utf-8", "surrogatepass")
    return len(zlib.compress(data, 9)) / max(len(data), 1)


def _mean_identifier_length(text: str) -> float:
    return fmean(map(len, identifiers)) if (identifiers := _IDENTIFIER.findall(text)) else 0.0


_TEXT_MEASURES: Final[Mapping[str, Callable[[str], float]]] = {
    "length": len,
    "comments": lambda text: sum(map(len, _COMMENT.findall(text))),
    "identifier length": _mean_identifier_length,
    "distinct identifiers": lambda text: len(set(_IDENTIFIER.findall(text))),
    "compressibility": _compressed_share,
}


def find_predictors(items: Sequence[AuditItem]) -> Iterator[Predictor]:
    """Yield the predictors of all columns that are not constant."""
    for column in list_columns(items):
        raw = [item.columns.get(column) for item in items]
        texts = [item.text(column) for item in items]
        distinct = len(set(texts))
        if distinct < 2:
            continue
        numbers, has_texts = _as_numbers(raw), any(isinstance(value, str) for value in raw)
        if numbers is not None and not has_texts and distinct > _MAX_CATEGORIES / 5:
            yield Predictor(column, "value", numbers)
        elif distinct <= min(_MAX_CATEGORIES, len(items) / _MIN_ITEMS_PER_CATEGORY):
            yield from _bag(items, column, "value", [Counter([text]) for text in texts])
        else:
            if numbers is not None:
                yield Predictor(column, "value", numbers)
            yield from _text_predictors(items, column, texts)


def _as_numbers(values: Sequence[Any]) -> Floats | None:
    """Return values as numbers, and missing ones as -infinity; None if one is not a number. In CSV, all are texts."""
    if any(isinstance(value, bool) for value in values):
        return None
    try:
        numbers = np.array([-np.inf if value in ("", None) else float(value) for value in values])
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers if (numbers < np.inf).all() else None  # no NaN either


def _text_predictors(items: Sequence[AuditItem], column: str, texts: Sequence[str]) -> Iterator[Predictor]:
    for measure, function in _TEXT_MEASURES.items():
        yield Predictor(column, measure, np.array([function(text) for text in texts], dtype=float))
    for bag in _bag(items, column, "words", [Counter(_TOKEN.findall(text)) for text in texts]):
        yield from (bag, replace(bag, measure="strongest word", method=Method.STRONGEST_TERM))
    nearest = nearest_versions(items, texts)
    if nearest is not None:
        yield Predictor(column, "edit distance", np.array([edit.size for edit in nearest], dtype=float))
        yield Predictor(column, "edit position", np.array([edit.position for edit in nearest]))


def _bag(items: Sequence[AuditItem], column: str, measure: str, bags: Sequence[Counter[str]]) -> Iterator[Predictor]:
    """Yield a predictor with log(1 + count) of each term, for the terms in most groups, and in two or more."""
    groups_by_term: dict[str, set[str]] = {}
    for item, bag in zip(items, bags, strict=True):
        for term in bag:
            groups_by_term.setdefault(term, set()).add(item.group)
    common = sorted((-len(groups), term) for term, groups in groups_by_term.items() if len(groups) > 1)
    terms = tuple(term for _, term in common[:MAX_TERMS])
    if terms:
        values = np.log1p([[bag[term] for term in terms] for bag in bags])
        yield Predictor(column, measure, values, terms, Method.CLASSIFIER)
