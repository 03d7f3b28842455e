"""Finds the prices of model groups, in the spec or in the price list of the package `genai-prices`.

The price list is the one in the installed package. Nothing is downloaded, even if another part of the program has
requested an update of the list. The import of the list takes a third of a second, and happens only if the spec does not
set a price.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import cache
from typing import TYPE_CHECKING, Any

from runner.models.interface import Usage
from runner.models.settings import ModelSettings, Price

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice

PACKAGE = "genai-prices"
AUTO_TIER = "auto"
"""The service tier that lets the server choose, for example by the default tier of an OpenAI project."""

_ProviderKey = tuple[str | None, str | None]
"""A pair of a provider's id in the list and a server's URL; one of them is None."""
_DATE_SUFFIX = re.compile(r"-\d{4}-\d{2}-\d{2}\Z")
_LIST_FIELDS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached_input": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "reasoning": "output_reasoning_mtok",
    "audio_input": "input_audio_mtok",
    "audio_output": "output_audio_mtok",
}
"""The fields of a `Price`, with their names in the list."""
_LABELS = {
    "input": "in", "cached_input": "cached", "cache_write": "cache writes", "audio_input": "audio in",
    "output": "out", "reasoning": "reasoning", "audio_output": "audio out",
}  # fmt: skip
_PRICE_PER_CALL = "requests_kcount"
"""The field of the list with a price per call. If a model has it, tokens are only a part of the model's cost."""


FREE = Price(input=0.0, output=0.0)
"""The price of offline providers."""


@dataclass(frozen=True)
class Band:
    """The price of calls whose prompt has more than `above` tokens."""

    above: int
    price: Price


@dataclass(frozen=True)
class ListedPrice:
    """A price from the list, by service tier and by the length of the prompt."""

    standard: Sequence[Band]
    """The bands without a service tier, the shortest prompts first."""
    tiers: dict[str, Sequence[Band]]
    """The bands of each service tier that has its own prices."""
    requested_tier: str | None = None
    """The service tier in the spec. When a run resumes, it may differ from that of earlier calls."""
    earlier_tier: str | None = None
    """The service tier of calls whose record has none: that in `extra_body`, because no resumed run may change it."""

    def cost_of(self, usage: Usage) -> float:
        """Return the cost of one call, in US dollars. The length of the prompt determines the price of all tokens."""
        tier = usage.service_tier or self.earlier_tier
        return _price_at_length(self.bands_of(tier), usage.prompt_tokens).cost_of(usage)

    def max_cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the maximum cost of one call, in US dollars.

        This is the higher cost of the standard and the requested tier, because a server may not grant a request. With
        `auto`, the server chooses the tier, so this is the cost of the most expensive one.
        """
        tiers: Iterable[str | None] = self.tiers if self.requested_tier == AUTO_TIER else {self.requested_tier}
        prices = [_price_at_length(self.bands_of(tier), prompt_tokens) for tier in (None, *tiers)]
        return max(price.max_cost(prompt_tokens, completion_tokens) for price in prices)

    def bands_of(self, tier: str | None) -> Sequence[Band]:
        """Return the bands of a service tier, or the standard bands if the tier does not have its own prices."""
        return self.tiers.get(tier or "", self.standard)


def _price_at_length(bands: Sequence[Band], prompt_tokens: int) -> Price:
    return next(band.price for band in reversed(bands) if prompt_tokens > band.above or band is bands[0])


@dataclass(frozen=True)
class HighestPrice:
    """The highest of several prices, determined for each call."""

    prices: Sequence[Price | ListedPrice]

    def cost_of(self, usage: Usage) -> float:
        return max(price.cost_of(usage) for price in self.prices)

    def max_cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        return max(price.max_cost(prompt_tokens, completion_tokens) for price in self.prices)


@dataclass(frozen=True)
class TextPrice:
    """A price that ignores audio, reasoning and cache writes, for runs of versions that did not count these tokens."""

    price: Price

    def cost_of(self, usage: Usage) -> float:
        return self.price.cost_of(Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens))


BudgetPrice = Price | ListedPrice | HighestPrice
"""A price that also computes the maximum cost of a call (`max_cost`)."""
Pricing = BudgetPrice | TextPrice
"""A price that computes the cost of a call (`cost_of`)."""


@dataclass(frozen=True)
class PriceBasis:
    """The facts about a run that determine the prices of its calls, even long after the run."""

    day: date | None = None
    """The day when the run started; None means today."""
    text_only: bool = False
    """Whether the run was started by a version that did not know service tiers, or audio and reasoning tokens."""

    def price_of(self, settings: ModelSettings) -> Pricing | None:
        """Return the price of a group's calls; None if it is unknown."""
        price = price_of(settings, self.day)
        if not self.text_only or price is None:
            return price
        return TextPrice(price.standard[0].price if isinstance(price, ListedPrice) else price)


def price_of(settings: ModelSettings, day: date | None = None) -> Price | ListedPrice | None:
    """Return the price of a group's calls in the spec or, if it sets none, in the list on a day (default: today)."""
    if settings.price is not None:
        return settings.price
    return listed_price(settings, day) if settings.traits.metered else FREE


def budget_price(settings: ModelSettings, *, unconfirmed: bool) -> BudgetPrice | None:
    """Return the price that a budget uses: the result of `price_of` or, if it is `unconfirmed`, a higher listed price.

    A price is unconfirmed if it comes from a downloaded spec, and the user has not set it.
    """
    price = price_of(settings)
    listed = listed_price(settings) if unconfirmed and settings.price is not None else None
    return price if price is None or listed is None else HighestPrice((price, listed))


def listed_price(settings: ModelSettings, day: date | None = None) -> ListedPrice | None:
    """Return the listed price of a group's model at its server, even if the spec sets another price.

    Return None if the list has no price.
    """
    address = settings.address
    has_listed_server = address is None or (address.startswith("https://") and len(settings.addresses) == 1)
    if settings.model is None or not has_listed_server or not settings.traits.metered:
        return None
    return _look_up_price(
        settings.model,
        (None, address) if address else (settings.provider, None),
        settings.is_batched,
        (settings.requested_tier, settings.requested_tier if settings.service_tier is None else None),
        day or today(),
    )


def today() -> date:
    """Return the day whose prices apply."""
    return datetime.now(UTC).date()


def describe_price(price: Price | ListedPrice | None, other: Price | ListedPrice | None = None) -> str:
    """Describe the price of short prompts: input, output, and each class of tokens that it or `other` sets."""
    if price is None:
        return "unknown"
    short_price = _for_short_prompts(price)
    prices = [short_price] if other is None else [short_price, _for_short_prompts(other)]
    names = [name for name in _LABELS if any(getattr(each, name) is not None for each in prices)]
    return ", ".join(f"${short_price.rates[name]:g} {_LABELS[name]}" for name in names)


def _for_short_prompts(price: Price | ListedPrice) -> Price:
    return price.bands_of(price.requested_tier)[0].price if isinstance(price, ListedPrice) else price


def uses_price_list(groups: Iterable[ModelSettings]) -> bool:
    """Return whether the price of any group comes from the list."""
    return any(isinstance(price_of(settings), ListedPrice) for settings in groups)


def price_list_version() -> str:
    """Return the name and version of the list's package, as stored in manifests."""
    from importlib.metadata import version

    return f"{PACKAGE} {version(PACKAGE)}"


@cache
def _snapshot() -> DataSnapshot:
    from genai_prices.data import providers
    from genai_prices.data_snapshot import DataSnapshot

    return DataSnapshot(providers, from_auto_update=False)


@cache
def _look_up_price(
    model: str, provider_key: _ProviderKey, batch: bool, requested_tiers: tuple[str | None, str | None], day: date
) -> ListedPrice | None:
    """Return the listed price of a model on a day; None if it is not listed or varies within the day.

    `requested_tiers` are `ListedPrice.requested_tier` and `ListedPrice.earlier_tier`.
    """
    info = _find_model(model, provider_key) or _find_model(_DATE_SUFFIX.sub("", model), provider_key)
    if info is None or _varies_by_hour(info):
        return None
    start = datetime.combine(day, time(), UTC)
    standard = _bands(info.get_prices(start, {"processing": "batch"} if batch else {}))
    if standard is None:
        return None
    names = {variant.when["service_tier"] for variant in info.price_variants or () if "service_tier" in variant.when}
    tiers = {} if batch else {name: _bands(info.get_prices(start, {"service_tier": name})) for name in sorted(names)}
    known_tiers = {name: bands for name, bands in tiers.items() if bands is not None}
    return ListedPrice(standard, known_tiers, *requested_tiers)


def _find_model(model: str, provider_key: _ProviderKey) -> ModelInfo | None:
    try:
        _, info = _snapshot().find_provider_model(model, None, *provider_key)
    except LookupError:
        return None
    return info


def _varies_by_hour(model: ModelInfo) -> bool:
    from genai_prices.types import TimeOfDateConstraint

    choices = model.prices if isinstance(model.prices, list) else []
    return any(isinstance(choice.constraint, TimeOfDateConstraint) for choice in choices)


def _bands(listed: ModelPrice) -> Sequence[Band] | None:
    """Convert a listed price to bands, one for each range of prompt lengths; None if the price is incomplete."""
    raw = {name: getattr(listed, key) for name, key in _LIST_FIELDS.items()}
    if raw["input"] is None or raw["output"] is None or getattr(listed, _PRICE_PER_CALL) is not None:
        return None
    starts = {0} | {tier.start for value in raw.values() for tier in getattr(value, "tiers", ())}
    bands = []
    for start in sorted(starts):
        rates = {name: _rate(value, start) for name, value in raw.items() if value is not None}
        rates.setdefault("cache_write", rates["input"])  # the list omits it if it equals the price of input
        bands.append(Band(start, Price(**rates)))
    return bands


def _rate(value: Any, start: int) -> float:
    """Return the rate of prompts of more than `start` tokens."""
    rate = getattr(value, "base", value)
    for tier in getattr(value, "tiers", ()):
        if tier.start <= start:
            rate = tier.price
    return float(rate)
