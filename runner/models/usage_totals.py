"""Totals of tokens, completions and dollars for a call, a budget or a run.

Records, budgets and progress displays add them up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, attrgetter, sub

from runner.base.token_classes import TOKEN_CLASSES
from runner.models.interface import Usage
from runner.models.prices import Pricing


@dataclass(slots=True)
class UsageTotals:
    """The actual or maximum usage and cost of calls. Totals can be added and subtracted."""

    usd: float = 0.0
    tokens: int = 0
    """The sum of prompt and answer tokens."""
    completions: int = 0
    prompt_tokens: int = 0
    """The number of prompt tokens. This and the following counts are 0 in a maximum, where only the sum is known."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0

    def count(self, usage: Usage, price: Pricing | None, completions: int = 1) -> None:
        """Add the usage of calls in place. Without a price, they cost nothing."""
        if price is not None:
            self.usd += price.cost_of(usage)
        self.completions += completions
        self.add_tokens(_counts(usage))

    def add_tokens(self, counts: tuple[int, ...]) -> None:
        """Add tokens in place: one count for each of `TOKEN_CLASSES`."""
        self.tokens += counts[0] + counts[1]
        self.prompt_tokens += counts[0]
        self.completion_tokens += counts[1]
        if any(rest := counts[2:]):
            for name, count in zip(TOKEN_CLASSES[2:], rest, strict=True):
                setattr(self, name, getattr(self, name) + count)

    @property
    def token_counts(self) -> tuple[int, ...]:
        """The count of each of `TOKEN_CLASSES`."""
        return _counts(self)

    def __add__(self, other: UsageTotals) -> UsageTotals:
        return self._combined(add, other)

    def __sub__(self, other: UsageTotals) -> UsageTotals:
        return self._combined(sub, other)

    def _combined(self, combine: Callable[[float, float], float], other: UsageTotals) -> UsageTotals:
        return UsageTotals(*map(combine, _all_numbers(self), _all_numbers(other)))  # type: ignore[arg-type]


_counts: Callable[[object], tuple[int, ...]] = attrgetter(*TOKEN_CLASSES)
_all_numbers: Callable[[object], tuple[float, ...]] = attrgetter("usd", "tokens", "completions", *TOKEN_CLASSES)
