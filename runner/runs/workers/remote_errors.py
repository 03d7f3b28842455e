"""Encodes exceptions as values that workers can send, because many exceptions of nip-run cannot be pickled."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from runner.base.errors import NipRunError

_BUILTIN = (MemoryError, OSError)
"""The built-in exceptions that keep their type, as nip-run's own do. Any other exception becomes a `RuntimeError`."""


class RemoteError(NamedTuple):
    """An exception, stored as its type, arguments and attributes."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    state: Mapping[str, Any]

    @classmethod
    def from_exception(cls, error: BaseException) -> RemoteError:
        """Encode an exception. One of an unknown type becomes a `RuntimeError` with its message and traceback."""
        if isinstance(error, (NipRunError, *_BUILTIN)):
            return cls(type(error), error.args, {name: _encode(value) for name, value in vars(error).items()})
        message = f"{type(error).__name__}: {error}"
        return cls(RuntimeError, (message,), {"__notes__": ["".join(traceback.format_exception(error)).rstrip()]})

    def to_exception(self) -> BaseException:
        """Return the exception as an object that can be raised."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        vars(error).update({name: _decode(value) for name, value in self.state.items()})
        return error


class _Mapping(NamedTuple):
    """Stands for a read-only mapping, which cannot be pickled."""

    items: dict[Any, Any]


def _encode(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return _Mapping(dict(value))
    return RemoteError.from_exception(value) if isinstance(value, BaseException) else value


def _decode(value: Any) -> Any:
    if isinstance(value, _Mapping):
        return MappingProxyType(value.items)
    return value.to_exception() if isinstance(value, RemoteError) else value
