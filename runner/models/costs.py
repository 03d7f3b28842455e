"""What a call may cost before it is made, what it did cost, and what one that failed counts for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from runner.errors import CallError
from runner.models.base import Completion, Request, byte_length
from runner.models.prices import price_of
from runner.models.settings import ModelSettings
from runner.models.tally import Tally

MESSAGE_OVERHEAD = 16
"""Tokens a server may add to each message; no tokenizer makes more than one token of one byte."""


def answer_limit(settings: ModelSettings) -> int | None:
    """The most tokens one answer can have, by what is sent; None where the spec does not say."""
    return _answer_limit(settings.sampling())


def _answer_limit(sent: Mapping[str, Any]) -> int | None:
    limits = [sent.get(name) for name in ("max_completion_tokens", "max_tokens")]
    return max((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


class CallCosts:
    """The costs of the calls of some model groups."""

    def __init__(self, groups: Mapping[str, ModelSettings]) -> None:
        self.groups = groups
        self.prices = {name: price_of(settings) for name, settings in groups.items()}

    @property
    def priced(self) -> bool:
        """Whether every group's price is known."""
        return None not in self.prices.values()

    def worst_case(self, request: Request) -> Tally:
        """The most that one call can cost."""
        settings, price = self.groups[request.group], self.prices[request.group]
        if not settings.traits.metered:
            return Tally()
        prompt = sum(byte_length(m["content"] + m.get("name", "")) + MESSAGE_OVERHEAD for m in request.messages)
        if settings.extra_body:
            prompt += len(orjson.dumps(dict(settings.extra_body)))  # tools and schemas are billed as part of the prompt
        sent = settings.sampling()
        asked = sent.get("n")
        answers = (_answer_limit(sent) or 0) * max(request.n, asked if isinstance(asked, int) else 1)
        usd = price.cost(prompt, answers) if price is not None else 0.0
        return Tally(usd, prompt + answers, 1)

    def actual(self, group: str, completion: Completion) -> Tally:
        """What one call did cost, by the tokens the server counted."""
        cost = Tally()
        if self.groups[group].traits.metered:
            cost.count(completion.usage, self.prices[group])
        return cost


def cost_of_failure(most: Tally, error: CallError) -> Tally:
    """What a budget counts for a failed call: nothing that was answered with an error is billed, all else may be."""
    return most if error.status is None else Tally(completions=most.completions)
