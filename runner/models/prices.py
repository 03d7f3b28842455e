"""A model group into its price: the spec's own, or the list that comes with the package."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

import yaml

from runner.models.settings import ModelSettings, Price

_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}\Z")
FREE = Price(input=0.0, output=0.0)


@cache
def _listed() -> dict[str, Price]:
    text = resources.files("runner.models").joinpath("prices.yaml").read_text("utf-8")
    rows: dict[str, list[float]] = yaml.safe_load(text)["models"]
    return {name: Price(input=fresh, cached_input=cached, output=out) for name, (fresh, cached, out) in rows.items()}


def price_of(settings: ModelSettings) -> Price | None:
    """The price of a group's calls; None where it is unknown. The list holds for OpenAI's own server only."""
    if settings.price is not None:
        return settings.price
    if not settings.traits.metered:
        return FREE
    if settings.base_url is not None or settings.model is None:
        return None
    listed = _listed().get(_DATED.sub("", settings.model))
    return halved(listed) if listed is not None and settings.batch else listed


def halved(price: Price) -> Price:
    """The Batch API's price."""
    cached = None if price.cached_input is None else price.cached_input / 2
    return Price(input=price.input / 2, output=price.output / 2, cached_input=cached)
