"""Single calls of an OpenAI-compatible server, real or made up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from runner.models.base import Completion, Request, SampleKey
from runner.models.providers.openai import OpenAiModel
from runner.models.settings import ModelSettings
from runner.prompts.chat import ChatMessage
from tests.support.servers.chat_client import Loopback

CHAT: Sequence[ChatMessage] = (
    {"role": "system", "content": "You are the verifier. Decision: accept or Decision: reject."},
    {"role": "user", "name": "Expert_1", "content": "It is right. Ünïcode \x00 too."},
    {"role": "assistant", "content": "Why?"},
)
SAMPLE = SampleKey("p", 0, 0, "verifier", 0)


def settings(server: Loopback | None = None, **more: Any) -> ModelSettings:
    return ModelSettings(**{"model": "tiny", "base_url": server and server.base_url, "timeout": 5.0, **more})


def ask(chosen: ModelSettings, chat: Sequence[ChatMessage] = CHAT) -> Completion:
    """One call, its connections closed."""

    async def once() -> Completion:
        model = OpenAiModel(chosen, "small", 4)
        try:
            return await model.complete(Request("small", chat, SAMPLE))
        finally:
            await model.close()

    return asyncio.run(once())


async def _as_asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A bare server that answers with the status and the body that the request's last message holds."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-l"))
    wanted = json.loads(json.loads(await reader.readexactly(length))["messages"][-1]["content"])
    data = wanted["body"] if isinstance(wanted["body"], str) else json.dumps(wanted["body"])
    extra = "".join(f"{name}: {value}\r\n" for name, value in wanted.get("headers", {}).items())
    length_out = f"content-length: {len(data.encode())}\r\n{extra}connection: close\r\n"
    writer.write(f"HTTP/1.1 {wanted['status']} X\r\n{length_out}\r\n{data}".encode())
    await writer.drain()
    writer.close()


def answered(status: int, body: Any, headers: dict[str, str] | None = None) -> Completion:
    """One call to a server that answers just this."""
    wanted = json.dumps({"status": status, "body": body, "headers": headers or {}})

    async def once() -> Completion:
        listening = await asyncio.start_server(_as_asked, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        model = OpenAiModel(settings(base_url=f"http://127.0.0.1:{port}/v1"), "small", 1)
        try:
            return await model.complete(Request("small", [{"role": "user", "content": wanted}], SAMPLE))
        finally:
            await model.close()
            listening.close()

    return asyncio.run(once())
