"""One server is one, however its address is written."""

from __future__ import annotations

import pytest

from runner.models.api_keys import normalize_url
from runner.models.retry_policy import Retry
from runner.models.server_states import Servers
from runner.models.settings import ModelSettings


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://localhost:7101/v1", "HTTP://LocalHost:7101/v1/"),
        ("http://gpu1/v1", "http://gpu1:80/v1"),
        ("https://gpu1:443/v1", "https://GPU1./v1"),
        ("http://gpu1:8000//v1", "http://gpu1:8000/v1//"),
        ("http://[::1]:8000", "http://[::1]:8000/"),
        ("http://[FE80::1]:80/v1", "http://[fe80::1]/v1"),
    ],
)
def test_two_ways_to_write_an_address_are_one_server(one: str, other: str) -> None:
    assert normalize_url(one) == normalize_url(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://gpu1/v1", "https://gpu1/v1"),
        ("http://gpu1:443/v1", "https://gpu1:443/v1"),
        ("http://gpu1/v1", "http://gpu1/V1"),
        ("http://gpu1:8000/v1", "http://gpu1:8001/v1"),
        ("http://gpu1/v1", "http://gpu1"),
    ],
)
def test_two_servers_are_two(one: str, other: str) -> None:
    assert normalize_url(one) != normalize_url(other)


def test_two_groups_that_write_a_server_in_two_ways_share_its_limit_and_its_breaker() -> None:
    servers, retry = Servers(8), Retry()
    two = [
        ModelSettings(model="tiny", base_url=url, requests_per_minute=60)
        for url in ("http://localhost:7101/v1", "http://LOCALHOST:7101/v1/")
    ]
    first, second = (servers.limit("m", settings, retry) for settings in two)
    assert first is second
