"""The loopback servers check their options and count requests correctly."""

from __future__ import annotations

import urllib.error
from contextlib import ExitStack

import pytest

from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.fine_tune_client import run_fine_tuning_provider


def test_unknown_options_and_faults_are_refused() -> None:
    with run_fine_tuning_provider() as server:
        for options in ({"statuses": ["error"]}, {"looks": ["eror"]}, {"faults": {"dropp": 1.0}}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                server.change(**options)
    with ExitStack() as stack, pytest.raises(RuntimeError, match="did not start"):
        stack.enter_context(run_chat_server(kind="no_such_kind"))


def test_control_requests_are_not_counted() -> None:
    with run_chat_server(record=9) as server:
        server.change(decide=0.0)
        assert (server.requests, server.recorded_requests()) == (0, [])


def test_request_for_an_unknown_path_is_counted_and_gets_404() -> None:
    with run_chat_server(record=9) as server:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            server.request_json("/v1/nowhere?a=b", {})
        assert server.stats()["paths"] == {"/v1/nowhere": 1}
        (request,) = server.recorded_requests()
    assert (request["method"], request["path"], request["body"]) == ("POST", "/v1/nowhere", "{}")
