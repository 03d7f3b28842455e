"""The edge by itself: what the client of OpenAI gets to see of an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import openai
import pytest

from runner.base.errors import NipRunError
from runner.models.providers.http_model import close_client
from runner.models.providers.openai import make_client
from runner.models.settings import ModelSettings
from runner.runs.execution.process import log_to
from tests.support.openai_calls import complete_chat, complete_with_answer, model_settings
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer, run_loopback_server

KEY = "sk-Loop/back+0123456789abcdef"


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with run_loopback_server(LoopbackServer, "misbehaving") as started:
        yield started


def refusal(server: LoopbackServer, row: str) -> openai.APIStatusError:
    """What the client raises."""
    chosen = ModelSettings(model="tiny", base_url=f"{server.root}/{quote(row)}/v1", api_key_env="ROW_VARIABLE")

    async def once() -> openai.APIStatusError:
        client = make_client(chosen, "small", 1)
        try:
            with pytest.raises(openai.APIStatusError) as raised:
                await client.models.list()
            return raised.value
        finally:
            await close_client(client)

    return asyncio.run(once())


@pytest.mark.parametrize("row", ["key in an error", "key in an error, escaped", "key in an error that is a text"])
def test_an_error_comes_in_without_the_key(row: str, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    error = refusal(server, row)
    assert "[secret removed]" in str(error.body)
    assert KEY not in error.response.text
    assert "\\u0073" not in error.response.text


def test_headers_come_in_without_the_key(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    headers = refusal(server, "key in headers").response.headers
    assert headers["x-echo"] == "Bearer [secret removed]"
    assert KEY not in str(headers.raw)
    assert "set-cookie" not in headers


def test_the_start_of_an_error_is_read(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    assert len(refusal(server, "endless error").response.content) == 64 << 10


def test_bodies_are_asked_for_as_they_are_and_cookies_are_not_kept() -> None:
    with run_chat_server(record=2) as chat:
        complete_chat(model_settings(chat))
        headers = chat.recorded_requests()[0]["headers"]
    assert headers["accept-encoding"] == "identity"
    assert "cookie" not in headers


def test_what_follows_bearer_in_an_error_of_200_is_removed() -> None:
    with pytest.raises(NipRunError) as raised:
        complete_with_answer(200, {"error": {"message": "not with Bearer abc-def", "code": 500}})
    assert "abc-def" not in str(raised.value)
    with pytest.raises(NipRunError) as raised:
        complete_with_answer(200, "you sent Bearer abc-def")
    assert "abc-def" not in str(raised.value)


def test_a_log_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    with log_to(tmp_path / "log"):
        logging.getLogger("nip_run.test").info("the server says %s", KEY)
    assert (tmp_path / "log").read_text().endswith("the server says [secret removed]\n")
