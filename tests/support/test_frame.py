"""What the loopback servers share does what the tests rely on."""

from __future__ import annotations

import urllib.error
from contextlib import ExitStack

import pytest

from tests.support.servers.chat_client import serving
from tests.support.servers.fine_tune_client import fine_tuning


def test_an_option_or_a_fault_that_a_server_does_not_know_is_refused() -> None:
    with fine_tuning() as server:
        for unknown in ({"statuses": ["error"]}, {"looks": ["eror"]}, {"faults": {"dropp": 1.0}}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                server.change(**unknown)
    with ExitStack() as stack, pytest.raises(RuntimeError, match="did not start"):
        stack.enter_context(serving(kind="no_such_kind"))


def test_what_a_test_asks_for_itself_is_not_counted() -> None:
    with serving(record=9) as server:
        server.change(decide=0.0)
        assert (server.requests, server.recorded()) == (0, [])


def test_a_path_that_is_not_played_is_counted_and_not_found() -> None:
    with serving(record=9) as server:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            server.ask("/v1/nowhere?a=b", {})
        assert server.stats()["paths"] == {"/v1/nowhere": 1}
        (request,) = server.recorded()
    assert (request["method"], request["path"], request["body"]) == ("POST", "/v1/nowhere", "{}")
