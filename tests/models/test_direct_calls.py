"""Model calls bypass the official clients' request objects, but send the same bytes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx2
import pytest

from runner.models.interface import Request
from runner.models.providers.anthropic import AnthropicModel
from runner.models.providers.http_model import HttpModel
from runner.models.providers.openai import OpenAiModel
from runner.models.settings import ModelSettings
from tests.support.openai_calls import CHAT, SAMPLE

ANSWERS = {
    OpenAiModel: b'{"model": "tiny", "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}',
    AnthropicModel: b'{"type": "message", "model": "tiny", "content": [{"type": "text", "text": "yes"}], "usage": {}}',
}
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


async def _record_requests(kind: type[HttpModel], **options: Any) -> list[bytes]:
    """Return the bytes of a call by the model and of the same call by its official client."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            match = LENGTH.search(head)
            assert match is not None
            received.append(head + await reader.readexactly(int(match[1])))
            body = ANSWERS[kind]
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = ModelSettings(model="tiny", base_url=f"http://127.0.0.1:{port}/v1", **options)
        model = kind(settings, "small", 1)
        try:
            await model.complete(Request("small", CHAT, SAMPLE))
            head, _, body = received[0].partition(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            client = model._client
            options = {"timeout": client.timeout}  # as `chat.completions.create` and `messages.create` set it
            url = f"http://127.0.0.1:{port}{path}"
            await client.post(url, content=body, cast_to=httpx2.Response, options=options)
        finally:
            await model.close()
    return received


@pytest.mark.parametrize("kind", [OpenAiModel, AnthropicModel])
@pytest.mark.parametrize("options", [{}, {"max_completion_tokens": 9, "timeout": 7.0}])
def test_direct_call_sends_the_same_bytes_as_the_official_client(
    kind: type[HttpModel], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: proofs")
    direct, official = asyncio.run(_record_requests(kind, **options))
    assert _split_request(direct) == _split_request(official)
    assert b"user-agent: " in direct.lower()


def _split_request(request: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return the request line, the sorted header lines, and the body. HTTP/1.1 implies `connection: keep-alive`."""
    head, _, body = request.partition(b"\r\n\r\n")
    line, *headers = head.split(b"\r\n")
    return line, sorted(header for header in headers if header.lower() != b"connection: keep-alive"), body
