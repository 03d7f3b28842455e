"""Server addresses: different spellings of one address are one server."""

from __future__ import annotations

import pytest

from runner.models.api_keys import normalize_url
from runner.models.retry_policy import Retry
from runner.models.server_states import Servers
from runner.models.settings import ModelSettings


@pytest.mark.parametrize(
    ("first_url", "second_url"),
    [
        ("http://localhost:7101/v1", "HTTP://LocalHost:7101/v1/"),
        ("http://gpu1/v1", "http://gpu1:80/v1"),
        ("https://gpu1:443/v1", "https://GPU1./v1"),
        ("http://gpu1:8000//v1", "http://gpu1:8000/v1//"),
        ("http://[::1]:8000", "http://[::1]:8000/"),
        ("http://[FE80::1]:80/v1", "http://[fe80::1]/v1"),
    ],
)
def test_equivalent_spellings_of_an_address_are_normalized_to_one_url(first_url: str, second_url: str) -> None:
    assert normalize_url(first_url) == normalize_url(second_url)


@pytest.mark.parametrize(
    ("first_url", "second_url"),
    [
        ("http://gpu1/v1", "https://gpu1/v1"),
        ("http://gpu1:443/v1", "https://gpu1:443/v1"),
        ("http://gpu1/v1", "http://gpu1/V1"),
        ("http://gpu1:8000/v1", "http://gpu1:8001/v1"),
        ("http://gpu1/v1", "http://gpu1"),
    ],
)
def test_different_addresses_stay_different(first_url: str, second_url: str) -> None:
    assert normalize_url(first_url) != normalize_url(second_url)


def test_groups_with_equivalent_addresses_share_one_limit() -> None:
    servers, retry = Servers(8), Retry()
    groups = [
        ModelSettings(model="tiny", base_url=url, requests_per_minute=60)
        for url in ("http://localhost:7101/v1", "http://LOCALHOST:7101/v1/")
    ]
    first, second = (servers.limit("m", settings, retry) for settings in groups)
    assert first is second
