"""Nested dictionaries of NumPy arrays with a shared batch shape.

Text is in object arrays, with None for a missing message. Numbers are in integer, float and boolean arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Key = str | tuple[str, ...]


class NestedArrayDict(MutableMapping[Any, Any]):
    """A nested dictionary of arrays. The shape of each array begins with `batch_size`.

    `data["round"]` and `data["agents", "decision"]` return a leaf, `data[0]` and `data[2:4]` a part of the batch.
    Iteration, `len` and `keys` are over the top-level names.

        >>> from runner import NestedArrayDict
        >>> data = NestedArrayDict({"round": [0, 1], "agents": {"decision": [[2, 1], [2, 0]]}}, batch_size=2)
        >>> data["agents", "decision"].shape
        (2, 2)
        >>> data[1]["round"].item()
        1
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
        if _is_name(key):
            inner: Any = self
            for part in key:
                if not isinstance(inner, NestedArrayDict):
                    raise KeyError(key)  # nothing is below a leaf
                inner = inner[part]
            return inner
        return self._map(lambda array: array[key])

    def __setitem__(self, key: Key, value: Any) -> None:
        if not _is_name(key):
            raise TypeError(f"a key must be a string or a tuple of strings, not {key!r}")
        if isinstance(key, tuple):
            head, *rest = key
            if not rest:
                self[head] = value
                return
            inner = self._data.setdefault(head, NestedArrayDict({}, self.batch_size))
            inner[tuple(rest)] = value
            return
        if isinstance(value, Mapping):
            self._data[key] = NestedArrayDict(value, self.batch_size)
            return
        array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=_dtype_of(value))
        if array.shape[: len(self.batch_size)] != self.batch_size:
            raise ValueError(f"{key!r} has shape {array.shape}, which does not start with batch_size {self.batch_size}")
        self._data[key] = array

    def __delitem__(self, key: Key) -> None:
        if isinstance(key, tuple):
            *parents, key = key
            (self[tuple(parents)] if parents else self)._data.__delitem__(key)  # noqa: SLF001 - the same class
            return
        del self._data[key]

    def __eq__(self, other: object) -> bool:
        """Return whether batch shapes, names and values are equal; NaN equals NaN."""
        if not isinstance(other, NestedArrayDict):
            return NotImplemented
        return (
            self.batch_size == other.batch_size
            and self.keys() == other.keys()
            and all(_equal(value, other[name]) for name, value in self.items())
        )

    __hash__ = None  # type: ignore[assignment] # the dictionary is mutable

    def __contains__(self, key: object) -> bool:
        if not _is_name(key):
            return False
        try:
            self[key]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"NestedArrayDict({{{', '.join(self._data)}}}, batch_size={self.batch_size})"

    def get(self, key: Key, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def setdefault(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key; if the key is missing, `default` is first stored as its value."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **values: Any) -> NestedArrayDict:  # type: ignore[override] # a chain of calls
        """Set all values, and return the dictionary itself."""
        super().update(*others, **values)
        return self

    def reshape(self, *shape: int) -> NestedArrayDict:
        """Return the dictionary with another batch shape that has as many elements."""
        size = len(self.batch_size)
        return self._map(lambda array: array.reshape((*shape, *array.shape[size:])))

    def _map(self, function: Any) -> NestedArrayDict:
        mapped = {
            key: value._map(function)  # noqa: SLF001 - the same class
            if isinstance(value, NestedArrayDict)
            else function(value)
            for key, value in self._data.items()
        }
        probe = function(np.empty(self.batch_size, dtype=bool))
        return NestedArrayDict(mapped, np.shape(probe))


def _is_name(key: object) -> bool:
    """Return whether a key is a name or a path of names; any other key selects a part of the batch."""
    parts = key if isinstance(key, tuple) else (key,)
    return bool(parts) and all(isinstance(part, str) for part in parts)


def stacked(items: Sequence[NestedArrayDict]) -> NestedArrayDict:
    """Stack dictionaries with the same keys along a new first batch dimension."""
    first = items[0]
    joined = {
        key: stacked([item[key] for item in items])
        if isinstance(value, NestedArrayDict)
        else np.stack([item[key] for item in items])
        for key, value in first.items()
    }
    return NestedArrayDict(joined, (len(items), *first.batch_size))


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, NestedArrayDict) or isinstance(right, NestedArrayDict):
        return bool(left == right) if type(left) is type(right) else False
    return np.array_equal(left, right, equal_nan=left.dtype.kind == right.dtype.kind == "f")


def _leaves(data: Mapping[Any, Any]) -> Iterator[Array]:
    for value in data.values():
        if isinstance(value, Mapping):
            yield from _leaves(value)
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
    """Return the dtype for a value; text and missing values need object arrays, or NumPy would convert them."""
    while isinstance(value, (list, tuple)) and value:
        if any(item is None or isinstance(item, str) for item in value):
            return object
        value = next((item for item in value if isinstance(item, (list, tuple))), value[0])
    return object if value is None or isinstance(value, str) else None
