"""What a run may spend: the worst case of each call is reserved before it is made, and settled after it.

A call that failed may have been billed all the same, unless the server clearly refused it (most errors 4xx).
Such a call is settled at its worst case, so that the budget holds whatever the provider's bill says.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from runner.base.errors import BudgetExhausted, CallError
from runner.documents.dataclass_schema import option
from runner.models.costs import CallCosts, cost_of_failure
from runner.models.interface import Complete, Completion, Request
from runner.models.usage_totals import UsageTotals


@dataclass(frozen=True, kw_only=True)
class BudgetSettings:
    """The most that a run may spend, its sweep included; null: no limit."""

    usd: float | None = option("US dollars.", default=None, example=20.0, exclusiveMinimum=0)
    tokens: int | None = option("Prompt and answer tokens.", default=None, example=5_000_000, minimum=1)
    completions: int | None = option("Calls.", default=None, example=10_000, minimum=1)

    @property
    def limited(self) -> bool:
        return any(value is not None for value in (self.usd, self.tokens, self.completions))


class NotSent(Exception):
    """A call that was let through was never made: it costs nothing."""


class Budget:
    """Money, tokens and calls of one run and its sweep: spent, reserved, left."""

    def __init__(self, settings: BudgetSettings) -> None:
        self._settings = settings
        self.spent = UsageTotals()
        self._reserved = UsageTotals()
        self._waiting: list[asyncio.Future[None]] = []
        self._refused: tuple[str, str, str] | None = None

    def check(self) -> None:
        """Raise where a call has not fitted: all who share this budget begin nothing new.

        Raises:
            BudgetExhausted: as it was raised then.
        """
        if self._refused is not None:
            message, key, used = self._refused
            raise BudgetExhausted(message, key=key, used=used)

    @property
    def is_exhausted(self) -> bool:
        return self._refused is not None

    def add_spent(self, amount: UsageTotals) -> None:
        """Count what an earlier process spent."""
        self.spent += amount

    def _exceeded(self, amount: UsageTotals) -> str | None:
        total = self.spent + self._reserved + amount
        for name in ("usd", "tokens", "completions"):
            most = getattr(self._settings, name)
            # Sums of floats are compared with a slack far below a cent's smallest part.
            if most is not None and getattr(total, name) > most * (1 + 1e-12):
                return name
        return None

    async def reserve(self, amount: UsageTotals) -> None:
        """Set aside what a call may cost; waits for calls in flight, whose settling may make room.

        Raises:
            BudgetExhausted: it does not fit, and nothing is in flight that could make room.
        """
        while (name := self._exceeded(amount)) is not None:
            if self._reserved.completions == 0:
                most, spent = getattr(self._settings, name), getattr(self.spent, name)
                used = f"${spent:.6g} of ${most:g}" if name == "usd" else f"{spent} of {most} {name}"
                message = (
                    f"budget.{name} is used up: {spent:.6g} of {most:g} spent, and the next call may cost "
                    f"{getattr(amount, name):.6g}; raise it (budget.{name}=...) and run the same command again"
                )
                self._refused = message, f"budget.{name}", used
                self.check()
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await settled
        self._reserved += amount

    def settle(self, reserved: UsageTotals, cost: UsageTotals) -> None:
        """Replace a reservation by what the call cost."""
        self._reserved -= reserved
        if self._reserved.completions == 0:
            self._reserved = UsageTotals()
        self.spent += cost
        waiting, self._waiting = self._waiting, []
        for settled in waiting:
            if not settled.done():
                settled.set_result(None)


def within_budget(complete: Complete, budget: Budget, costs: CallCosts) -> Complete:
    """`complete` for one attempt of one call, which the budget must allow."""

    async def paid(request: Request) -> Completion:
        most = costs.worst_case(request)
        await budget.reserve(most)
        cost = most
        try:
            completion = await complete(request)
            cost = costs.charge(request, completion)
        except CallError as error:
            cost = cost_of_failure(most, error)
            raise
        except NotSent:
            cost = UsageTotals()
            raise
        finally:
            budget.settle(most, cost)
        return completion

    return paid
