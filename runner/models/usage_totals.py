"""Tokens, completions and dollars, added up: of one call, of a budget, of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, attrgetter, sub

from runner.models.interface import TOKEN_CLASSES, Usage
from runner.models.prices import Pricing


@dataclass(slots=True)
class UsageTotals:
    """What calls used and cost, or may. Tallies add up; only who made one counts into it."""

    usd: float = 0.0
    tokens: int = 0
    """Of prompts and answers together."""
    completions: int = 0
    prompt_tokens: int = 0
    """This and those below are known where a server has counted: of what a call may cost only the sum is."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0

    def count(self, used: Usage, price: Pricing | None, completions: int = 1) -> None:
        """Add what one call used, in place; without a price it costs nothing."""
        if price is not None:
            self.usd += price.cost_of(used)
        self.completions += completions
        self.add_tokens(_counts(used))

    def add_tokens(self, counts: tuple[int, ...]) -> None:
        """Add tokens, in place: a count for each of `TOKEN_CLASSES`."""
        self.tokens += counts[0] + counts[1]
        for name, count in zip(TOKEN_CLASSES, counts, strict=True):
            if count:
                setattr(self, name, getattr(self, name) + count)

    @property
    def token_counts(self) -> tuple[int, ...]:
        """A count for each of `TOKEN_CLASSES`."""
        return _counts(self)

    def __add__(self, other: UsageTotals) -> UsageTotals:
        return self._combined(add, other)

    def __sub__(self, other: UsageTotals) -> UsageTotals:
        return self._combined(sub, other)

    def _combined(self, combine: Callable[[float, float], float], other: UsageTotals) -> UsageTotals:
        return UsageTotals(*map(combine, _all(self), _all(other)))  # type: ignore[arg-type]


_counts: Callable[[object], tuple[int, ...]] = attrgetter(*TOKEN_CLASSES)
_all: Callable[[object], tuple[float, ...]] = attrgetter("usd", "tokens", "completions", *TOKEN_CLASSES)
