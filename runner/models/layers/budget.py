"""The budget of a run. The maximum cost of each call is reserved before the call, and replaced by its cost afterwards.

A provider may bill a failed call, unless there was no connection or it clearly refused the call (most 4xx errors). A
failed call that may be billed counts with its maximum cost, so that the provider's bill cannot exceed the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.base.errors import BudgetExhausted, CallError, ProviderRefusal, Stopped
from runner.documents.dataclass_schema import option
from runner.models.costs import CallCosts, cost_of_failure
from runner.models.interface import Complete, Completion, Request
from runner.models.usage_totals import UsageTotals

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, kw_only=True)
class BudgetSettings:
    """The maximum spending of a run, including its sweep; null: no limit."""

    usd: float | None = option("Maximum cost in US dollars.", default=None, example=20.0, exclusiveMinimum=0)
    tokens: int | None = option(
        "Maximum number of prompt and answer tokens.", default=None, example=5_000_000, minimum=1
    )
    completions: int | None = option("Maximum number of calls.", default=None, example=10_000, minimum=1)

    @property
    def limited(self) -> bool:
        return any(value is not None for value in (self.usd, self.tokens, self.completions))


class Budget:
    """The dollars, tokens and calls that a run and its sweep have spent and reserved."""

    def __init__(self, settings: BudgetSettings) -> None:
        self._settings = settings
        self.spent = UsageTotals()
        self._reserved = UsageTotals()
        self._waiting: list[asyncio.Future[None]] = []
        self._refusal: tuple[str, str, str] | None = None
        """The message, key and used amount of the error, once the budget did not allow a call."""

    def check(self) -> None:
        """Check that the budget is not exhausted. Call this before a new game starts.

        Raises:
            BudgetExhausted: the budget did not allow an earlier call. The error is the same as for that call.
        """
        if self._refusal is not None:
            message, key, used = self._refusal
            raise BudgetExhausted(message, key=key, used=used)

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget did not allow a call."""
        return self._refusal is not None

    def add_spent(self, amount: UsageTotals) -> None:
        """Add the spending of an earlier process."""
        self.spent += amount

    def _exceeded_limit(self, amount: UsageTotals) -> str | None:
        """Return the name of a limit that this additional amount would exceed; None if it fits."""
        total = self.spent + self._reserved + amount
        for name in ("usd", "tokens", "completions"):
            maximum = getattr(self._settings, name)
            # The tolerance is for rounding errors in sums of floats.
            if maximum is not None and getattr(total, name) > maximum * (1 + 1e-12):
                return name
        return None

    def allows(self, amount: UsageTotals) -> bool:
        """Return whether the budget allows this additional amount."""
        return self._exceeded_limit(amount) is None

    async def reserve(self, amount: UsageTotals) -> None:
        """Reserve the maximum cost of a call. If it does not fit, wait for calls in flight, which may free enough.

        Raises:
            BudgetExhausted: the amount does not fit, and no call is in flight.
        """
        while (name := self._exceeded_limit(amount)) is not None:
            if self._reserved.completions == 0:
                maximum, spent = getattr(self._settings, name), getattr(self.spent, name)
                used = f"${spent:.6g} of ${maximum:g}" if name == "usd" else f"{spent} of {maximum} {name}"
                message = (
                    f"budget.{name} is used up: {spent:.6g} of {maximum:g} spent, and the next call may cost up to "
                    f"{getattr(amount, name):.6g}; run the same command again with a larger budget.{name}=N"
                )
                self._refusal = message, f"budget.{name}", used
                self.check()
            import asyncio  # not at the top, since `show` and other commands only read the settings

            freed = asyncio.get_running_loop().create_future()
            self._waiting.append(freed)
            await freed
        self._reserved += amount

    def settle(self, reserved: UsageTotals, cost: UsageTotals) -> None:
        """Replace a reservation with the cost of the call."""
        self._reserved -= reserved
        if self._reserved.completions == 0:
            self._reserved = UsageTotals()
        self.spent += cost
        waiting, self._waiting = self._waiting, []
        for freed in waiting:
            if not freed.done():
                freed.set_result(None)


def within_budget(complete: Complete, budget: Budget, costs: CallCosts) -> Complete:
    """Return a function that makes one attempt of a call with `complete`, if the budget allows it."""

    async def complete_within_budget(request: Request) -> Completion:
        worst_case = costs.worst_case(request)
        await budget.reserve(worst_case)
        cost = worst_case
        try:
            completion = await complete(request)
            cost = costs.charge(request, completion)
        except CallError as error:
            cost = cost_of_failure(worst_case, error)
            raise
        except ProviderRefusal:
            cost = UsageTotals(completions=worst_case.completions)
            raise
        except Stopped:
            cost = UsageTotals()
            raise
        finally:
            budget.settle(worst_case, cost)
        return completion

    return complete_within_budget
