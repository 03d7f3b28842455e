"""Values of a tested function as JSON: the built-in types, with tuples, sets, bytes and large numbers marked.

This module runs both inside and outside the sandbox.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_EXACT_IN_JSON = 1 << 53


class OpaqueValue:
    """A value of a type that cannot leave the sandbox. It equals nothing."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name


def encode_value(value: object) -> Any:
    """Return a value as JSON. Subclasses become their built-in base class, and arrays become lists."""
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or isinstance(value, bool) else str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < _EXACT_IN_JSON else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": float.__repr__(value)}
    if isinstance(value, list):
        return [encode_value(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode_value(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        name = "set" if isinstance(value, set) else "frozenset"
        return {name: sorted((encode_value(item) for item in value), key=repr)}
    if isinstance(value, dict):
        return {"dict": [[encode_value(key), encode_value(item)] for key, item in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    if hasattr(value, "tolist"):  # NumPy
        return encode_value(value.tolist())
    return {"object": type(value).__name__}


def decode_value(data: Any) -> Any:
    """Return the value of JSON that `encode_value` has made.

    Raises:
        ValueError: the JSON is not from `encode_value`.
    """
    try:
        return _decode(data)
    except (TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"not an encoded value: {type(error).__name__}") from error


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return [_decode(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    ((name, content),) = data.items()
    return _DECODERS[name](content)


_DECODERS: Mapping[str, Any] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "tuple": lambda items: tuple(map(_decode, items)),
    "set": lambda items: set(map(_decode, items)),
    "frozenset": lambda items: frozenset(map(_decode, items)),
    "dict": lambda items: {_decode(key): _decode(item) for key, item in items},
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*map(float, parts)),
    "object": OpaqueValue,
}
