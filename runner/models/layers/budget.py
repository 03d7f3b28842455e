"""What a run may spend: the worst case of each call is reserved before it is made, and settled after it.

A call that failed without an answer may have been billed all the same, unless the server answered with an error.
Such a call is settled at its worst case, so that the budget holds whatever the provider's bill says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from runner.documents.fields import option
from runner.errors import BudgetExhausted, CallError
from runner.models.base import Complete, Completion, Request, byte_length
from runner.models.settings import ModelSettings, Price

MESSAGE_OVERHEAD = 16
"""Tokens a server may add to each message; no tokenizer makes more than one token of one byte."""


@dataclass(frozen=True, kw_only=True)
class BudgetSettings:
    """The most that a run may spend, its sweep included. What is null is not limited."""

    usd: float | None = option("US dollars.", default=None, example=20.0, exclusiveMinimum=0)
    tokens: int | None = option("Prompt and answer tokens.", default=None, example=5_000_000, minimum=1)
    completions: int | None = option("Calls.", default=None, example=10_000, minimum=1)

    @property
    def limited(self) -> bool:
        return any(value is not None for value in (self.usd, self.tokens, self.completions))


@dataclass(frozen=True, slots=True)
class Amount:
    """What one call costs, or may cost."""

    usd: float = 0.0
    tokens: int = 0
    completions: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.usd + other.usd, self.tokens + other.tokens, self.completions + other.completions)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.usd - other.usd, self.tokens - other.tokens, self.completions - other.completions)


def answer_limit(settings: ModelSettings) -> int | None:
    """The most tokens one answer can have, by what is sent; None where the spec does not say."""
    return _answer_limit(settings.sampling())


def _answer_limit(sent: Mapping[str, Any]) -> int | None:
    limits = [sent.get(name) for name in ("max_completion_tokens", "max_tokens")]
    return max((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def worst_case(request: Request, settings: ModelSettings, price: Price | None) -> Amount:
    """The most that one call can cost."""
    if settings.provider != "openai":
        return Amount()
    prompt = sum(byte_length(m["content"] + m.get("name", "")) + MESSAGE_OVERHEAD for m in request.messages)
    if settings.extra_body:
        prompt += len(orjson.dumps(dict(settings.extra_body)))  # tools and schemas are billed as part of the prompt
    sent = settings.sampling()
    asked = sent.get("n")
    answers = (_answer_limit(sent) or 0) * max(request.n, asked if isinstance(asked, int) else 1)
    usd = price.cost(prompt, answers) if price is not None else 0.0
    return Amount(usd, prompt + answers, 1)


def actual(completion: Completion, settings: ModelSettings, price: Price | None) -> Amount:
    """What one call did cost, by the tokens the server counted."""
    usage = completion.usage
    if settings.provider != "openai":
        return Amount()
    usd = price.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) if price is not None else 0.0
    return Amount(usd, usage.prompt_tokens + usage.completion_tokens, 1)


class Budget:
    """Money, tokens and calls of one run and its sweep: spent, reserved, left."""

    def __init__(self, settings: BudgetSettings) -> None:
        self._settings = settings
        self.spent = Amount()
        self._reserved = Amount()
        self._waiting: list[asyncio.Future[None]] = []

    def add_spent(self, amount: Amount) -> None:
        """Count what an earlier process spent."""
        self.spent += amount

    def _exceeded(self, amount: Amount) -> str | None:
        total = self.spent + self._reserved + amount
        for name in ("usd", "tokens", "completions"):
            most = getattr(self._settings, name)
            # Sums of floats are compared with a slack far below a cent's smallest part.
            if most is not None and getattr(total, name) > most * (1 + 1e-12):
                return name
        return None

    async def reserve(self, amount: Amount) -> None:
        """Set aside what a call may cost; waits for calls in flight, whose settling may make room.

        Raises:
            BudgetExhausted: it does not fit, and nothing is in flight that could make room.
        """
        while (name := self._exceeded(amount)) is not None:
            if self._reserved.completions == 0:
                most, spent = getattr(self._settings, name), getattr(self.spent, name)
                raise BudgetExhausted(
                    f"budget.{name} is used up: {spent:.6g} of {most:g} spent, and the next call may cost "
                    f"{getattr(amount, name):.6g}; raise it (budget.{name}=...) and run the same command again"
                )
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await settled
        self._reserved += amount

    def settle(self, reserved: Amount, cost: Amount) -> None:
        """Replace a reservation by what the call cost."""
        self._reserved -= reserved
        if self._reserved.completions == 0:
            self._reserved = Amount()
        self.spent += cost
        waiting, self._waiting = self._waiting, []
        for settled in waiting:
            if not settled.done():
                settled.set_result(None)


def within_budget(
    complete: Complete,
    budget: Budget,
    models: Mapping[str, ModelSettings],
    prices: Mapping[str, Price | None],
) -> Complete:
    """`complete` for one attempt of one call, which the budget must allow."""

    async def paid(request: Request) -> Completion:
        settings, price = models[request.group], prices[request.group]
        most = worst_case(request, settings, price)
        await budget.reserve(most)
        cost = most
        try:
            completion = await complete(request)
            # Where the server counts no tokens, what we guess is no bound.
            cost = most if completion.usage.estimated else actual(completion, settings, price)
        except CallError as error:
            if error.status is not None:
                cost = Amount(completions=most.completions)  # the server answered with an error: not billed
            error.charged = (cost.usd, cost.tokens, cost.completions)
            raise
        finally:
            budget.settle(most, cost)
        return completion

    return paid
