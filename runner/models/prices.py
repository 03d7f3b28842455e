"""The price of a model group: from the spec, or from the list in the package `genai-prices`.

The list is data of the installed package: nothing is downloaded, and an update that a program has asked for is not
used. Importing it takes a third of a second, so it is imported only when a price is looked up that no spec gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from runner.models.interface import Usage
from runner.models.settings import ModelSettings, Price

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice

PACKAGE = "genai-prices"

_Place = tuple[str | None, str | None]
"""A provider's id in the list, or else a server's URL."""
_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}\Z")
_CLASSES = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached_input": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "reasoning": "output_reasoning_mtok",
    "audio_input": "input_audio_mtok",
    "audio_output": "output_audio_mtok",
}
"""The fields of a price, and the list's names for them."""
_LABELS = {
    "input": "in", "cached_input": "cached", "cache_write": "cache writes", "audio_input": "audio in",
    "output": "out", "reasoning": "reasoning", "audio_output": "audio out",
}  # fmt: skip
_BY_THE_CALL = ("requests_kcount",)
"""Units of the list that are no tokens: with one of them, a price of tokens would be too low."""


class Pricing(Protocol):
    """A price of calls."""

    def cost_of(self, used: Usage) -> float:
        """US dollars of one call."""
        ...

    def most(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The most that one call of so many tokens can cost."""
        ...


FREE = Price(input=0.0, output=0.0)


@dataclass(frozen=True)
class Band:
    """The price of calls whose prompt has more than `above` tokens."""

    above: int
    price: Price


@dataclass(frozen=True)
class ListedPrice:
    """A price of the list: by service tier, and by the length of the prompt."""

    standard: Sequence[Band]
    """The bands without a service tier, the shortest prompts first."""
    tiers: dict[str, Sequence[Band]]
    """The bands of each service tier with prices of its own."""
    requested: str | None = None
    """The service tier that the spec asks for, which holds if an answer does not say which one it had."""

    def cost_of(self, used: Usage) -> float:
        """US dollars of one call; the whole call has the price of its prompt's band."""
        tier = used.service_tier or self.requested
        return _price_in(self.bands_of(tier), used.prompt_tokens).cost_of(used)

    def most(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The most that one call can cost: a tier that was asked for may not be granted."""
        bands = {id(bands): bands for bands in (self.standard, self.bands_of(self.requested))}
        prices = (_price_in(bands, prompt_tokens) for bands in bands.values())
        return max(price.most(prompt_tokens, completion_tokens) for price in prices)

    def bands_of(self, tier: str | None) -> Sequence[Band]:
        """Return the bands of a service tier; of one without prices of its own, the standard ones."""
        return self.tiers.get(tier or "", self.standard)


def _price_in(bands: Sequence[Band], prompt_tokens: int) -> Price:
    return next(band.price for band in reversed(bands) if prompt_tokens > band.above or band is bands[0])


@dataclass(frozen=True)
class HigherPrice:
    """The higher of several prices, call by call."""

    prices: Sequence[Pricing]

    def cost_of(self, used: Usage) -> float:
        return max(price.cost_of(used) for price in self.prices)

    def most(self, prompt_tokens: int, completion_tokens: int) -> float:
        return max(price.most(prompt_tokens, completion_tokens) for price in self.prices)


@dataclass(frozen=True)
class TextPrice:
    """A price of prompt, cached and answer tokens alone: versions before the other token classes billed only these."""

    price: Price

    def cost_of(self, used: Usage) -> float:
        return self.price.cost_of(Usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens))

    def most(self, prompt_tokens: int, completion_tokens: int) -> float:
        return self.price.most(prompt_tokens, completion_tokens)


@dataclass(frozen=True)
class PriceBasis:
    """What the calls of a run are priced by, however much later."""

    on: date | None = None
    """The day the run started; None: today."""
    text_only: bool = False
    """Whether a version before the other token classes and service tiers started it."""

    def price_of(self, settings: ModelSettings) -> Pricing | None:
        """Return the price of a group's calls; None if unknown."""
        price = price_of(settings, self.on)
        if not self.text_only or price is None:
            return price
        return TextPrice(price.standard[0].price if isinstance(price, ListedPrice) else price)


def price_of(settings: ModelSettings, on: date | None = None) -> Price | ListedPrice | None:
    """Return the price of a group's calls: the spec's, or the listed one on a day (default: today); None if unknown."""
    if settings.price is not None:
        return settings.price
    return listed_price(settings, on) if settings.traits.metered else FREE


def budget_price(settings: ModelSettings, *, doubted: bool) -> Pricing | None:
    """Return the price that a budget counts by: if the spec's is doubted, the higher of it and the listed one."""
    price = price_of(settings)
    listed = listed_price(settings) if doubted and settings.price is not None else None
    return price if price is None or listed is None else HigherPrice((price, listed))


def listed_price(settings: ModelSettings, on: date | None = None) -> ListedPrice | None:
    """Return the price that the list has for a group's model at its server, even if the spec has another."""
    address = settings.address
    is_listed_place = address is None or (address.startswith("https://") and len(settings.addresses) == 1)
    if settings.model is None or not is_listed_place or not settings.traits.metered:
        return None
    tier = (settings.extra_body or {}).get("service_tier")
    return _look_up(
        settings.model,
        (None, address) if address else (settings.provider, None),
        settings.batched,
        tier if isinstance(tier, str) else None,
        on or today(),
    )


def today() -> date:
    """Return the day whose prices hold."""
    return datetime.now(UTC).date()


def describe_price(price: Price | ListedPrice | None, other: Price | ListedPrice | None = None) -> str:
    """Return a price as text, for short prompts: input, output, and each class that it or `other` sets."""
    if price is None:
        return "not known"
    own = _for_short_prompts(price)
    shown = [own] if other is None else [own, _for_short_prompts(other)]
    names = [name for name in _LABELS if any(getattr(one, name) is not None for one in shown)]
    return ", ".join(f"${own.rates[name]:g} {_LABELS[name]}" for name in names)


def _for_short_prompts(price: Price | ListedPrice) -> Price:
    return price.bands_of(price.requested)[0].price if isinstance(price, ListedPrice) else price


def uses_list(groups: Iterable[ModelSettings]) -> bool:
    """Return whether the price of some group comes from the list."""
    return any(isinstance(price_of(settings), ListedPrice) for settings in groups)


def list_version() -> str:
    """Return the list's name and version, as manifests have it."""
    return f"{PACKAGE} {version(PACKAGE)}"


@cache
def _snapshot() -> DataSnapshot:
    from genai_prices.data import providers
    from genai_prices.data_snapshot import DataSnapshot

    return DataSnapshot(providers, from_auto_update=False)


@cache
def _look_up(model: str, place: _Place, batch: bool, tier: str | None, on: date) -> ListedPrice | None:
    found = _find_model(model, place) or _find_model(_DATED.sub("", model), place)
    if found is None or _varies_by_the_hour(found):
        return None
    at = datetime.combine(on, time(), UTC)
    base = {"processing": "batch"} if batch else {}
    standard = _bands(found.get_prices(at, base))
    if standard is None:
        return None
    names = {variant.when["service_tier"] for variant in found.price_variants or () if "service_tier" in variant.when}
    tiers = {} if batch else {name: _bands(found.get_prices(at, {"service_tier": name})) for name in sorted(names)}
    return ListedPrice(standard, {name: bands for name, bands in tiers.items() if bands is not None}, tier)


def _find_model(model: str, place: _Place) -> ModelInfo | None:
    try:
        _, found = _snapshot().find_provider_model(model, None, *place)
    except LookupError:
        return None
    return found


def _varies_by_the_hour(model: ModelInfo) -> bool:
    from genai_prices.types import TimeOfDateConstraint

    choices = model.prices if isinstance(model.prices, list) else []
    return any(isinstance(choice.constraint, TimeOfDateConstraint) for choice in choices)


def _bands(listed: ModelPrice) -> Sequence[Band] | None:
    """A price of the list as ours, one for each length of prompt that it tells apart."""
    raw = {name: getattr(listed, key) for name, key in _CLASSES.items()}
    if raw["input"] is None or raw["output"] is None or any(getattr(listed, name) is not None for name in _BY_THE_CALL):
        return None
    starts = {0} | {tier.start for value in raw.values() for tier in getattr(value, "tiers", ())}
    bands = []
    for start in sorted(starts):
        rates = {name: _rate(value, start) for name, value in raw.items() if value is not None}
        rates.setdefault("cache_write", rates["input"])  # billed as input where the list has no price of it
        bands.append(Band(start, Price(**rates)))
    return bands


def _rate(value: Any, start: int) -> float:
    """The rate of prompts of more than `start` tokens."""
    rate = getattr(value, "base", value)
    for tier in getattr(value, "tiers", ()):
        if tier.start <= start:
            rate = tier.price
    return float(rate)
