"""Items that contradict each other, and texts that occur, perhaps slightly changed, in several splits."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from runner.base.hashing import tagged_hash
from runner.curation.audit.items import AuditItem, list_columns
from runner.spec.datasets.transform import normalize_formatting

SIMILARITY: Final = 0.8
"""The default share of common word triples that makes two texts near-duplicates."""
MIN_SHINGLES: Final = 10
"""The fewest word triples of a text that is compared. Shorter texts are similar by chance."""
MAX_MATCHES: Final = 20
"""The number of similar earlier texts to find for each text. Otherwise, n texts that are alike would be n² pairs."""
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

    Texts of one group in one split are compared with others only by the first of each distinct text. A text has at most
    `MAX_MATCHES` pairs with earlier texts.
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
    index: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, (text, place) in enumerate(zip(texts, places, strict=True)):
        if len(text) < MIN_SHINGLES:
            continue
        ordered = sorted(text, key=lambda shingle: (frequency[shingle], shingle))
        prefix = ordered[: len(text) - math.ceil(similarity * len(text) - 1e-9) + 1]
        candidates = _numbers_elsewhere([index[shingle] for shingle in prefix], place)
        shares = ((earlier, number, len(text & texts[earlier]) / len(text | texts[earlier])) for earlier in candidates)
        yield from sorted(islice((pair for pair in shares if pair[2] >= similarity), MAX_MATCHES))
        for shingle in prefix:
            index[shingle][place].append(number)


def _numbers_elsewhere(numbers_by_place: Iterable[Mapping[str, Sequence[int]]], place: str) -> Iterator[int]:
    """Yield the numbers of all places except one, each once."""
    yielded: set[int] = set()
    for numbers in numbers_by_place:
        for name, members in numbers.items():
            for number in members if name != place else ():
                if number not in yielded:
                    yielded.add(number)
                    yield number
