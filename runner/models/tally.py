"""Tokens, completions and dollars, added up: of one call, of a budget, of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runner.models.settings import Price


class Counted(Protocol):
    """Tokens as the server counted them; `prompt_tokens` includes the cached ones."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...


@dataclass(slots=True)
class Tally:
    """What calls used and cost, or may. Tallies add up; only who made one counts into it."""

    usd: float = 0.0
    tokens: int = 0
    """Of prompts and answers together."""
    completions: int = 0
    prompt_tokens: int = 0
    """This and the next two are known where a server has counted: of what a call may cost only the sum is."""
    completion_tokens: int = 0
    cached_tokens: int = 0

    def count(self, used: Counted, price: Price | None, completions: int = 1) -> None:
        """Add what some completions used, in place; without a price they cost nothing."""
        prompt, answer, cached = used.prompt_tokens, used.completion_tokens, used.cached_tokens
        if price is not None:
            self.usd += price.cost(prompt, answer, cached)
        self.tokens += prompt + answer
        self.completions += completions
        self.prompt_tokens += prompt
        self.completion_tokens += answer
        self.cached_tokens += cached

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.usd + other.usd,
            self.tokens + other.tokens,
            self.completions + other.completions,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    def __sub__(self, other: Tally) -> Tally:
        return Tally(
            self.usd - other.usd,
            self.tokens - other.tokens,
            self.completions - other.completions,
            self.prompt_tokens - other.prompt_tokens,
            self.completion_tokens - other.completion_tokens,
            self.cached_tokens - other.cached_tokens,
        )
