"""Split a stream of items into batches of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


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
