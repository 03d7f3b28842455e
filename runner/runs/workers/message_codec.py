"""A batch of messages as bytes: what most of them are made of goes field by field, which is quicker by half."""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable
from dataclasses import fields
from io import BytesIO
from operator import attrgetter
from typing import Any

from runner.game.protocols.protocol import Decision
from runner.game.protocols.rounds import Message, Round
from runner.models.interface import Usage
from runner.models.usage_totals import UsageTotals
from runner.rollouts.rollout import Call, Outcome

_KINDS = (Call, Message, Round, UsageTotals, Usage)
"""What a rollout has most of; all else goes the way that it says itself."""

_ENUMS = (Decision, Outcome)


def _by_fields(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    values = attrgetter(*(field.name for field in fields(kind)))
    return lambda one: (kind, values(one))


def _by_value(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    made = {one: (kind, (one.value,)) for one in kind}
    return made.__getitem__


_TABLE: dict[type[Any], Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    **{kind: _by_fields(kind) for kind in _KINDS},
    **{kind: _by_value(kind) for kind in _ENUMS},
}


def packed(batch: Any) -> bytes:
    """A batch, or a message, as bytes."""
    into = BytesIO()
    pickler = pickle.Pickler(into, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _TABLE
    pickler.dump(batch)
    return into.getvalue()


def unpacked(data: bytes | memoryview) -> Any:
    """What `packed` made bytes of."""
    return pickle.loads(data)  # noqa: S301 - from a process of ours


class Packed:
    """A message that several get: its bytes are made once."""

    def __init__(self, message: Any) -> None:
        self._data = packed(message)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return unpacked, (self._data,)
