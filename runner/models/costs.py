"""Computes the cost of calls: the maximum before a call, the actual cost after it, and the charge for a failed call.

The budget, the records of a run and the estimates of `check` use it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import orjson

from runner.base.errors import CallError, TransientError
from runner.models.interface import Completion, Request, byte_length
from runner.models.plausible_usage import usage_at_least_typical
from runner.models.prices import PriceBasis, budget_price
from runner.models.settings import ModelSettings, requested_answers
from runner.models.usage_totals import UsageTotals

MESSAGE_OVERHEAD = 16
"""Maximum number of tokens that a server adds to each message."""


def answer_limit(settings: ModelSettings) -> int | None:
    """Return the maximum number of tokens of one answer, as set in requests; None if the spec sets no limit."""
    parameters = settings.request_parameters
    limits = [parameters.get(name) for name in ("max_completion_tokens", "max_tokens")]
    return max((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


class CallCosts:
    """Computes the costs of the calls of some model groups."""

    def __init__(
        self, groups: Mapping[str, ModelSettings], unconfirmed: Collection[str] = (), basis: PriceBasis | None = None
    ) -> None:
        """Find the prices of these groups.

        `unconfirmed` are the groups with an unconfirmed price; see `budget_price`. `basis` determines the recorded cost
        of calls. A budget always counts new calls by today's prices.
        """
        self.groups = groups
        basis = basis or PriceBasis()
        self.prices = {name: basis.price_of(settings) for name, settings in groups.items()}
        self._budget_prices = {
            name: budget_price(settings, unconfirmed=name in unconfirmed) for name, settings in groups.items()
        }
        self._answer_limits = {name: answer_limit(settings) or 0 for name, settings in groups.items()}
        # Tools and schemas in `extra_body` are billed as part of the prompt.
        bodies = {name: settings.extra_body for name, settings in groups.items()}
        self._extra_bytes = {name: len(orjson.dumps(dict(body))) if body else 0 for name, body in bodies.items()}
        self.recorded_usd = 0.0
        """The amount that a budget counts for the calls of this process that have a record in the journal."""

    @property
    def is_priced(self) -> bool:
        """Whether the price of every group is known."""
        return None not in self.prices.values()

    def worst_case(self, request: Request) -> UsageTotals:
        """Return the maximum cost of one call."""
        settings, price = self.groups[request.group], self._budget_prices[request.group]
        if not settings.has_costs:
            return UsageTotals()
        # In every tokenizer, a token has at least one byte.
        name_bytes = sum([byte_length(message["name"]) for message in request.messages if "name" in message])
        overhead = MESSAGE_OVERHEAD * len(request.messages) + self._extra_bytes[request.group]
        overhead += 0 if request.schema is None else len(orjson.dumps(request.schema))
        prompt_tokens = request.prompt_bytes + name_bytes + overhead
        answer_tokens = self._answer_limits[request.group] * requested_answers(request, settings)
        usd = price.max_cost(prompt_tokens, answer_tokens) if price is not None else 0.0
        return UsageTotals(usd, prompt_tokens + answer_tokens, 1)

    def actual_cost(self, group: str, completion: Completion) -> UsageTotals:
        """Return the cost of one call, based on the tokens that the server counted."""
        cost = UsageTotals()
        if self.groups[group].has_costs:
            cost.count(completion.usage, self.prices[group])
        return cost

    def charge(self, request: Request, completion: Completion) -> UsageTotals:
        """Return the amount that a budget counts for an answered call.

        This is the higher of the call's cost and the typical cost of its text. If the server's count is missing or
        impossible, it is the maximum cost, because no estimate is an upper bound.
        """
        cost, price = self.actual_cost(request.group, completion), self._budget_prices[request.group]
        if not self.groups[request.group].traits.metered:
            return cost
        usage = usage_at_least_typical(request, completion)
        if price is not None:
            cost.usd = max(cost.usd, price.cost_of(usage))
        cost.tokens = usage.prompt_tokens + usage.completion_tokens
        if usage.estimated:
            worst_case = self.worst_case(request)
            cost.usd, cost.tokens = max(cost.usd, worst_case.usd), max(cost.tokens, worst_case.tokens)
        return cost

    def record_charge(self, request: Request, completion: Completion) -> UsageTotals | None:
        """Add the amount that a budget counts for an answered call to `recorded_usd`. Return it if a record needs it.

        A record does not need it if it equals the call's cost and the usage is not estimated, if another run paid, or
        if a function answered.
        """
        if completion.from_cache or request.sample.calls_function:
            return None
        charge, cost = self.charge(request, completion), self.actual_cost(request.group, completion)
        is_more = charge.usd > cost.usd or charge.tokens > cost.tokens
        recorded_charge = charge if completion.usage.estimated or is_more else None
        self.recorded_usd += (recorded_charge or cost).usd
        return recorded_charge


_UNCLEAR_STATUSES = (408, 409)
"""Client errors (4xx) after which a server may still have processed the call: time-out and conflict."""


def cost_of_failure(worst_case: UsageTotals, error: CallError) -> UsageTotals:
    """Return the amount that a budget counts for a failed call.

    This is its maximum cost, except that a call which the server refused counts only as a call, and a call that never
    reached the server does not count.
    """
    status = error.status
    if isinstance(error, TransientError) and error.unreachable:
        return UsageTotals()
    is_refusal = not isinstance(error, TransientError) or (
        status is not None and 300 <= status < 500 and status not in _UNCLEAR_STATUSES
    )
    may_be_billed = status is None or error.usage is not None or not is_refusal
    return worst_case if may_be_billed else UsageTotals(completions=worst_case.completions)
