"""Nested dictionaries of NumPy arrays with a shared batch shape.

Text is held in object arrays with None for no message; numbers in integer, float and boolean arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Key = str | tuple[str, ...]


class NestedArrayDict:
    """A nested dictionary of arrays whose leading dimensions are all `batch_size`.

    `data["round"]`, `data["agents", "decision"]` read a leaf; `data[0]`, `data[2:4]` the part of a batch.
    """

    def __init__(self, data: Mapping[Any, Any], batch_size: int | Sequence[int] | None = None) -> None:
        self._data: dict[str, Any] = {}
        shape = (batch_size,) if isinstance(batch_size, int) else batch_size
        if shape is None:
            leaves = list(_leaves(data))
            shape = _shared_prefix([leaf.shape for leaf in leaves])
        self.batch_size: tuple[int, ...] = tuple(shape)
        for key, value in data.items():
            self[key] = value

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._data[key]
        if isinstance(key, tuple) and key and all(isinstance(part, str) for part in key):
            inner: Any = self
            for part in key:
                inner = inner[part]
            return inner
        return self._map(lambda array: array[key])

    def __setitem__(self, key: Key, value: Any) -> None:
        if isinstance(key, tuple):
            head, *rest = key
            if not rest:
                self[head] = value
                return
            inner = self._data.setdefault(head, NestedArrayDict({}, self.batch_size))
            inner[tuple(rest)] = value
            return
        if isinstance(value, (Mapping, NestedArrayDict)):
            self._data[key] = NestedArrayDict(dict(value.items()), self.batch_size)
            return
        array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=_dtype_of(value))
        if array.shape[: len(self.batch_size)] != self.batch_size:
            raise ValueError(f"{key!r} has shape {array.shape}, which does not start with the batch {self.batch_size}")
        self._data[key] = array

    def __contains__(self, key: object) -> bool:
        try:
            self[key]
        except (KeyError, TypeError, IndexError):
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"NestedArrayDict({{{', '.join(self._data)}}}, batch_size={self.batch_size})"

    def keys(self) -> Iterator[str]:
        return iter(self._data)

    def items(self) -> Iterator[tuple[str, Any]]:
        return iter(self._data.items())

    def update(self, other: Mapping[str, Any] | NestedArrayDict) -> NestedArrayDict:
        """Set every leaf of `other` here."""
        for key, value in other.items():
            self[key] = value
        return self

    def reshape(self, *shape: int) -> NestedArrayDict:
        """The same leaves under another batch shape of the same size."""
        size = len(self.batch_size)
        return self._map(lambda array: array.reshape((*shape, *array.shape[size:])))

    def _map(self, function: Any) -> NestedArrayDict:
        mapped = {
            key: value._map(function)  # noqa: SLF001 - of its own class
            if isinstance(value, NestedArrayDict)
            else function(value)
            for key, value in self._data.items()
        }
        probe = function(np.empty(self.batch_size, dtype=bool))
        return NestedArrayDict(mapped, np.shape(probe))


def stacked(items: Sequence[NestedArrayDict]) -> NestedArrayDict:
    """Dictionaries of one form as one, along a new first dimension of the batch."""
    first = items[0]
    joined = {
        key: stacked([item[key] for item in items])
        if isinstance(value, NestedArrayDict)
        else np.stack([item[key] for item in items])
        for key, value in first.items()
    }
    return NestedArrayDict(joined, (len(items), *first.batch_size))


def _leaves(data: Mapping[Any, Any]) -> Iterator[Array]:
    for value in data.values():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif isinstance(value, NestedArrayDict):
            yield from _leaves(dict(value.items()))
        else:
            yield np.asarray(value, dtype=_dtype_of(value)) if not isinstance(value, np.ndarray) else value


def _shared_prefix(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if not shapes:
        return ()
    first = min(shapes, key=len)
    length = 0
    while length < len(first) and all(shape[length] == first[length] for shape in shapes):
        length += 1
    return first[:length]


def _dtype_of(value: Any) -> Any:
    """Text and missing values need object arrays: NumPy would cut or stringify them."""
    while isinstance(value, (list, tuple)) and value:
        if any(item is None or isinstance(item, str) for item in value):
            return object
        value = next((item for item in value if isinstance(item, (list, tuple))), value[0])
    return object if value is None or isinstance(value, str) else None
