"""Items that contradict each other, and texts that occur, perhaps slightly changed, in several splits."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from runner.base.hashing import tagged_hash
from runner.curation.audit.items import AuditItem, list_columns
from runner.spec.datasets.transform import normalize_formatting

SIMILARITY: Final = 0.8
"""The default share of common word triples that makes two texts near-duplicates."""
MIN_SHINGLES: Final = 10
"""The fewest word triples of a text that is compared. Shorter texts are similar by chance."""
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Duplicate:
    """Two items with the same or almost the same text in a column, in different splits or groups."""

    column: str
    first: str
    second: str
    places: tuple[str, str]
    """The splits of both items or, without splits, their groups."""
    similarity: float
    """The number of common word triples as a share of all word triples of both texts (Jaccard)."""


def find_contradictions(items: Sequence[AuditItem]) -> list[list[str]]:
    """Return the ids of items that are equal in all columns, apart from formatting, but have different labels."""
    equal: dict[str, list[AuditItem]] = {}
    columns = list_columns(items)
    for item in items:
        content = [normalize_formatting(item.text(name)) for name in columns]
        equal.setdefault(tagged_hash("content", content), []).append(item)
    return [[item.id for item in copies] for copies in equal.values() if len({item.label for item in copies}) > 1]


def duplicate_scope(items: Sequence[AuditItem]) -> str:
    """Return between what duplicates are sought: `splits` if there are several, otherwise `groups`."""
    return "splits" if len({item.split for item in items}) > 1 else "groups"


def find_duplicates(items: Sequence[AuditItem], similarity: float) -> Iterator[Duplicate]:
    """Yield the pairs of texts of different splits or groups that have at least this similarity.

    Texts of one group in one split are compared with others only by the first of each distinct text.
    """
    by_split = duplicate_scope(items) == "splits"
    for column in list_columns(items):
        firsts: dict[tuple[str, str], AuditItem] = {}
        for item in items:
            place = str(item.split) if by_split else item.group
            firsts.setdefault((place, normalize_formatting(item.text(column))), item)
        places = [place for place, _ in firsts]
        members = list(firsts.values())
        shingles = [_shingles(text) for _, text in firsts]
        for first, second, share in _similar_pairs(shingles, places, similarity):
            yield Duplicate(column, members[first].id, members[second].id, (places[first], places[second]), share)


def _shingles(text: str) -> frozenset[str]:
    """Return the triples of consecutive words and symbols."""
    tokens = _TOKEN.findall(text)
    return frozenset(" ".join(tokens[index : index + 3]) for index in range(len(tokens) - 2))


def _similar_pairs(
    texts: Sequence[frozenset[str]], places: Sequence[str], similarity: float
) -> Iterator[tuple[int, int, float]]:
    """Yield the pairs of different places with their similarity, by prefix filtering (Bayardo et al. 2007).

    Two sets can only be as similar as required if they share one of the rarest elements of each, a prefix of their
    elements in order of frequency.
    """
    frequency = Counter(shingle for text in texts for shingle in text)
    index: dict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        if len(text) < MIN_SHINGLES:
            continue
        ordered = sorted(text, key=lambda shingle: (frequency[shingle], shingle))
        prefix = ordered[: len(text) - math.ceil(similarity * len(text) - 1e-9) + 1]
        candidates = {earlier for shingle in prefix for earlier in index[shingle]}
        for earlier in sorted(candidates):
            if places[earlier] == places[number]:
                continue
            common = len(text & texts[earlier])
            share = common / (len(text) + len(texts[earlier]) - common)
            if share >= similarity:
                yield earlier, number, share
        for shingle in prefix:
            index[shingle].append(number)
