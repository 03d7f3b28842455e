"""Split items into batches of limited size, or into groups with the same key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key")


def batches(
    items: Iterable[Item], max_items: int, max_size: int, size_of: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Yield the items, in order, in batches of limited number and total size. A single item may exceed the size."""
    batch: list[Item] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if batch and (len(batch) == max_items or size + item_size > max_size):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_size
    if batch:
        yield batch


def group_pairs(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Return the items of each key. Keys and items stay in the order of the pairs."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups
