"""Single calls of an OpenAI-compatible server, real or made up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from runner.game.prompts.chat import ChatMessage
from runner.models.interface import Completion, Request, SampleKey
from runner.models.provider_traits import PROVIDERS
from runner.models.providers.openai import OpenAiModel
from runner.models.settings import ModelSettings
from tests.support.hang_guard import HANG_SECONDS
from tests.support.servers import frame
from tests.support.servers.client import Loopback
from tests.support.servers.frame import Answer, Server
from tests.support.servers.in_loop import listening

CHAT: Sequence[ChatMessage] = (
    {"role": "system", "content": "You are the verifier. Decision: accept or Decision: reject."},
    {"role": "user", "name": "Expert_1", "content": "It is right. Ünïcode \x00 too."},
    {"role": "assistant", "content": "Why?"},
)
SAMPLE = SampleKey("p", 0, 0, "verifier", 0)


def settings(server: Loopback | None = None, **more: Any) -> ModelSettings:
    return ModelSettings(**{"model": "tiny", "base_url": server and server.base_url, "timeout": HANG_SECONDS, **more})


def serve_openai_at(patch: pytest.MonkeyPatch, url: str) -> None:
    """Have a server of the test stand for OpenAI's own, which groups without a `base_url` call."""
    patch.setitem(PROVIDERS, "openai", replace(PROVIDERS["openai"], base_url=url))


def ask(chosen: ModelSettings, chat: Sequence[ChatMessage] = CHAT) -> Completion:
    """One call, its connections closed."""

    async def once() -> Completion:
        model = OpenAiModel(chosen, "small", 4)
        try:
            return await model.complete(Request("small", chat, SAMPLE))
        finally:
            await model.close()

    return asyncio.run(once())


class AsAsked(Server):
    """Answers with the status, the body and the headers that the request's last message holds."""

    async def complete(self, request: frame.Request) -> Answer:
        wanted = json.loads(request.json()["messages"][-1]["content"])
        data = wanted["body"] if isinstance(wanted["body"], str) else json.dumps(wanted["body"])
        return Answer(wanted["status"], data.encode(), wanted["headers"])


def answered(status: int, body: Any, headers: dict[str, str] | None = None) -> Completion:
    """One call to a server that answers just this."""
    wanted = json.dumps({"status": status, "body": body, "headers": headers or {}})

    async def once() -> Completion:
        async with listening(AsAsked(frame.Options()).connected) as address:
            model = OpenAiModel(settings(base_url=f"{address}/v1"), "small", 1)
            try:
                return await model.complete(Request("small", [{"role": "user", "content": wanted}], SAMPLE))
            finally:
                await model.close()

    return asyncio.run(once())
