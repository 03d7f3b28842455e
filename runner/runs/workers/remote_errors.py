"""An exception as a value that goes from process to process, and back."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from runner.base.errors import NipRunError

_BUILTIN = (MemoryError, OSError)
"""What is told apart besides our own: out of memory, and what the system refused."""


class NoPermitsError(NipRunError):
    """No call is let through before it is to be made: others wait, a rate counts it, or the budget ends."""


class RemoteError(NamedTuple):
    """An exception: its type, what it was made of, and what it was given since."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    state: Mapping[str, Any]

    @classmethod
    def of(cls, error: BaseException) -> RemoteError:
        """An exception as a value; one that is not known here is told in its words, with where it came from."""
        if isinstance(error, (NipRunError, *_BUILTIN)):
            return cls(type(error), error.args, {name: _plain(value) for name, value in vars(error).items()})
        said = f"{type(error).__name__}: {error}"
        return cls(RuntimeError, (said,), {"__notes__": ["".join(traceback.format_exception(error)).rstrip()]})

    def error(self) -> BaseException:
        """The exception again."""
        made = self.kind.__new__(self.kind, *self.args)
        made.args = self.args
        vars(made).update({name: _alive(value) for name, value in self.state.items()})
        return made


class _Mapping(NamedTuple):
    """What stands for a mapping that cannot be changed, which cannot be sent as it is."""

    items: dict[Any, Any]


def _plain(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return _Mapping(dict(value))
    return RemoteError.of(value) if isinstance(value, BaseException) else value


def _alive(value: Any) -> Any:
    if isinstance(value, _Mapping):
        return MappingProxyType(value.items)
    return value.error() if isinstance(value, RemoteError) else value
