"""The table of providers: names, capabilities and connectors."""

from __future__ import annotations

from typing import get_args

import pytest

from runner.documents.dataclass_schema import build_schema
from runner.models.connectors import CONNECTORS
from runner.models.prices import FREE, price_of
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS, ProviderName
from runner.models.settings import ModelSettings


def test_schema_table_and_connectors_name_the_same_providers() -> None:
    provider_schema = build_schema(ModelSettings, "model")["properties"]["provider"]
    assert set(provider_schema["enum"]) == set(PROVIDERS) == set(CONNECTORS) == set(get_args(ProviderName))
    assert provider_schema["default"] == DEFAULT_PROVIDER


@pytest.mark.parametrize("name", PROVIDERS)
def test_metered_providers_are_remote_and_need_a_price(name: ProviderName) -> None:
    settings = ModelSettings(provider=name, model="unheard-of")
    assert settings.traits.metered == settings.traits.remote == (price_of(settings) is None)
    assert settings.traits.metered or price_of(settings) == FREE


@pytest.mark.parametrize("name", PROVIDERS)
def test_batch_applies_only_to_providers_that_support_it(name: ProviderName) -> None:
    single, batched = ModelSettings(provider=name, model="m"), ModelSettings(provider=name, model="m", batch=True)
    assert (single.is_batched, batched.is_batched) == (False, PROVIDERS[name].takes_batches)
    assert (single.sends_requests, batched.sends_requests) == (PROVIDERS[name].remote, False)
