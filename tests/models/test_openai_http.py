"""The HTTP layer below OpenAI's client: redaction and limits of responses."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import openai
import pytest

from runner.base.errors import NipRunError
from runner.models.interface import Request
from runner.models.providers.http_model import close_client
from runner.models.providers.openai import OpenAiModel, make_client
from runner.models.settings import ModelSettings
from runner.runs.execution.process import log_to
from tests.support.openai_calls import CHAT, SAMPLE, complete_chat, complete_with_answer, model_settings
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer, run_loopback_server

KEY = "sk-Loop/back+0123456789abcdef"


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with run_loopback_server(LoopbackServer, "misbehaving") as started:
        yield started


def raise_from_row(server: LoopbackServer, row: str) -> openai.APIStatusError:
    """Return the error that the client raises."""
    settings = ModelSettings(model="tiny", base_url=f"{server.root}/{quote(row)}/v1", api_key_env="ROW_VARIABLE")

    async def list_models() -> openai.APIStatusError:
        client = make_client(settings, "small", 1)
        try:
            with pytest.raises(openai.APIStatusError) as raised:
                await client.models.list()
            return raised.value
        finally:
            await close_client(client)

    return asyncio.run(list_models())


@pytest.mark.parametrize("row", ["key in an error", "key in an error, escaped", "key in an error that is a text"])
def test_error_response_is_redacted(row: str, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    error = raise_from_row(server, row)
    assert "[secret removed]" in str(error.body)
    assert KEY not in error.response.text
    assert "\\u0073" not in error.response.text


def test_response_headers_are_redacted(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    headers = raise_from_row(server, "key in headers").response.headers
    assert headers["x-echo"] == "Bearer [secret removed]"
    assert KEY not in str(headers.raw)
    assert "set-cookie" not in headers


def test_only_the_start_of_an_endless_error_is_read(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    assert len(raise_from_row(server, "endless error").response.content) == 64 << 10


def test_bodies_are_requested_uncompressed_and_cookies_not_kept() -> None:
    with run_chat_server(record=2) as chat:
        complete_chat(model_settings(chat))
        headers = chat.recorded_requests()[0]["headers"]
    assert headers["accept-encoding"] == "identity"
    assert "cookie" not in headers


def test_connection_that_the_server_has_closed_is_not_used_again() -> None:
    """The server closes each connection after its answer, without saying so in a header."""
    body = json.dumps({"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}], "model": "tiny"}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request_head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", request_head, re.IGNORECASE)
        assert length is not None
        await reader.readexactly(int(length[1]))
        writer.write(head + body)
        writer.close()

    async def make_calls() -> list[str | None]:
        async with await asyncio.start_server(answer_once, "127.0.0.1") as closing_server:
            port = closing_server.sockets[0].getsockname()[1]
            model = OpenAiModel(model_settings(base_url=f"http://127.0.0.1:{port}/v1"), "m", 4)
            completions = [await model.complete(Request("m", CHAT, SAMPLE)) for _ in range(20)]
            await model.close()
            return [completion.choices[0].text for completion in completions]

    assert asyncio.run(make_calls()) == ["yes"] * 20


def test_bearer_tokens_in_errors_are_removed() -> None:
    with pytest.raises(NipRunError) as raised:
        complete_with_answer(200, {"error": {"message": "not with Bearer abc-def", "code": 500}})
    assert "abc-def" not in str(raised.value)
    with pytest.raises(NipRunError) as raised:
        complete_with_answer(200, "you sent Bearer abc-def")
    assert "abc-def" not in str(raised.value)


def test_log_file_is_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    with log_to(tmp_path / "log"):
        logging.getLogger("nip_run.test").info("the server says %s", KEY)
    assert (tmp_path / "log").read_text().endswith("the server says [secret removed]\n")
