"""A decorator for immutable values that are created for each call of a model.

A frozen dataclass sets its fields with `object.__setattr__`, which takes twice as long. So only mypy checks that these
values stay unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

__all__ = ["value_class"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value_class
else:

    def value_class(*, frozen: bool, slots: bool = False, kw_only: bool = False) -> Any:
        """Return a decorator for a dataclass with a hash; for mypy it is `dataclass` itself."""
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=frozen)
